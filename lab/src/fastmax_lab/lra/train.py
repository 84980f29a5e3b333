"""The training loop, run by accelerate. Checkpoint and step decide everything, so a kill at any moment loses nothing."""

import json
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from fastmax._atomic_file import remove_partial, write_whole
from fastmax_lab._progress import Progress, waiting
from fastmax_lab.lra import checkpoint, tasks
from fastmax_lab.lra.batches import check_shards, shard, take, training_rows
from fastmax_lab.lra.checkpoint import Position
from fastmax_lab.lra.config import Intervals, Processes, learning_rate
from fastmax_lab.lra.evaluate import Score, batches, evaluate, load_split
from fastmax_lab.lra.metrics import DivergedError, Metrics
from fastmax_lab.lra.processes import Share, share
from fastmax_lab.lra.run import RunConfig
from fastmax_lab.lra.run_folder import exclusive
from fastmax_lab.lra.tasks import Split

Watch = Callable[[int, str], None]
"""Takes the number of a step and a line about it."""
LATEST, BEST, RESULT = "checkpoint.safetensors", "best.safetensors", "result.json"


def make_accelerator(precision: str, device: str = "auto") -> Any:
    """Return the accelerator of this process, as accelerate and torchrun configure it; "cpu" leaves GPUs alone."""
    with waiting("loading accelerate"):
        from accelerate import Accelerator  # type: ignore[import-untyped]

    return Accelerator(cpu=device == "cpu" or not torch.accelerator.is_available(), mixed_precision=precision)


def is_main_process() -> bool:
    """Return True in the process that prints."""
    from accelerate import PartialState

    return bool(PartialState().is_main_process)


def train(
    config: RunConfig,
    *,
    data: Path,
    out: Path,
    resume: bool = False,
    intervals: Intervals | None = None,
    processes: Processes | None = None,
    device: str = "auto",
    say: Callable[[str], None] = print,
    watch: Watch | None = None,
) -> dict[str, Any]:
    """Train, test the best checkpoint, write the result and return it.

    A run that is refused, for its settings, its data or because another one holds the folder, writes nothing.

    Args:
        config: The settings that decide the numbers.
        data: The folder of the data.
        out: The folder of the run.
        resume: Continue from a checkpoint in `out`, if there is one.
        intervals: The steps between writes.
        processes: The division of work.
        device: "auto" or "cpu".
        say: Receives the scores.
        watch: Receives the steps in between. If it is None, a progress bar shows them.
    """
    accelerator = make_accelerator(config.precision, device)
    torch.manual_seed(config.seed)
    model = config.make_model()
    part = share(accelerator, Processes() if processes is None else processes, model)
    check_shards(config.train.batch, part.world)
    with _held(accelerator, out):
        found = _found(config, out, resume)
        if found is not None and (out / RESULT).exists():
            result: dict[str, Any] = json.loads((out / RESULT).read_text())
            return result
        with accelerator.main_process_first():  # other processes then find the cached arrays
            splits = {name: load_split(config, name, data) for name in tasks.SPLITS}
        for name in ("val", "test"):
            batches(splits[name], config)
        prepared = accelerator.prepare(model, make_optimizer(model, config))
        run = Run(
            config, splits, out, Intervals() if intervals is None else intervals, say, accelerator, part, *prepared
        )
        if found is not None:
            run.restore(found)
        if accelerator.is_main_process:
            remove_partial(out)
            first = run.position.step
            with Metrics(out, first) as metrics, _shown(first, config.train.steps, watch) as show:
                run.train(metrics, show)
        else:
            run.train(None, _ignore)
        return run.test()


@dataclass
class Run:
    """A training in one process: its settings, data and devices, and how far it is. All processes call all methods."""

    config: RunConfig
    splits: dict[str, Split]
    out: Path
    intervals: Intervals
    say: Callable[[str], None]
    accelerator: Any
    share: Share
    model: nn.Module
    optimizer: Any
    position: Position = field(default_factory=Position)

    def restore(self, held: checkpoint.Checkpoint) -> None:
        """Continue from a checkpoint."""
        checkpoint.restore(held, self.model, self.optimizer.optimizer)
        self.position = held.position

    def train(self, metrics: Metrics | None, show: Watch) -> None:
        """Take the remaining steps. `metrics` is the log, in the first process."""
        steps, first, started = self.config.train.steps, self.position.step, time.monotonic()
        self.model.train()
        for step in range(first, steps):
            measured = self.step(step)
            done = step + 1
            last = done == steps
            if last or done % self.intervals.log_every == 0:
                loss, accuracy, gradient = self.accelerator.reduce(measured, "mean").tolist()
                if not np.isfinite(loss):
                    raise DivergedError(f"the loss is {loss} at step {done}", "try a smaller --lr")
                speed = (done - first) / (time.monotonic() - started)
                if metrics is not None:
                    values = {"loss": loss, "accuracy": accuracy, "gradient_norm": gradient}
                    values |= {"lr": learning_rate(self.config.train, step), "steps_per_second": speed}
                    metrics.log(done, "train", values)
                show(done, f"step {done:,}, loss {loss:.4f}, accuracy {accuracy:.3f}, {speed:.2f} steps/s")
            self.position = replace(self.position, step=done)
            evaluated = last or done % self.config.evaluation_steps == 0
            if evaluated:
                score = self.score_dev()
                if metrics is not None:
                    metrics.log(done, "dev", {"loss": score.loss, "accuracy": score.accuracy})
            if evaluated or done % self.intervals.checkpoint_every == 0:
                self._save(LATEST, self.optimizer.optimizer)

    def step(self, step: int) -> Tensor:
        """Update the weights once. Return the loss, accuracy and gradient norm of this process's part of the batch."""
        config, split = self.config, self.splits["train"]
        lengths = split.lengths if config.group_lengths else None
        rows = training_rows(len(split.labels), config.train.batch, config.seed, step, lengths=lengths)
        batch = take(split, shard(rows, self.share.rank, self.share.world), trim=not config.quirks.full_length_mean)
        batch = self.share.of(batch).to(self.accelerator.device)
        torch.manual_seed(step_seed(config.seed, step, self.accelerator.process_index))
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate(config.train, step)
        with self.accelerator.autocast():
            logits = self.model(batch.tokens, batch.lengths)
        loss = cross_entropy(logits.float(), batch.labels)
        self.accelerator.backward(loss)
        gradient = nn.utils.get_total_norm([p.grad for p in self.model.parameters() if p.grad is not None])
        if config.train.clip_value is not None:
            self.accelerator.clip_grad_value_(self.model.parameters(), config.train.clip_value)
        self.optimizer.step()
        self.optimizer.zero_grad()
        return torch.stack((loss.detach(), (logits.argmax(-1) == batch.labels).float().mean(), gradient))

    def score_dev(self) -> Score:
        """Score the dev set. Keep the weights if they are the best since the share of steps that the preset waits for."""
        position, config = self.position, self.config
        number = position.step // config.evaluation_steps
        score = evaluate(self.accelerator, self.share, self.model, self.splits["val"], config, evaluation=number)
        self._say(f"step {position.step:,}: dev loss {score.loss:.4f}, accuracy {score.accuracy:.4f}", score)
        late = position.step >= config.train.best_after * config.train.steps
        if late and score.accuracy > position.best_accuracy:
            self.position = Position(position.step, position.step, score.accuracy)
            self._save(BEST, None)
        return score

    def test(self) -> dict[str, Any]:
        """Score the test set with the best weights, write the result and return it."""
        self.accelerator.wait_for_everyone()
        checkpoint.restore(checkpoint.load(self.out / BEST), self.model, None)
        with waiting("testing"):
            score = evaluate(self.accelerator, self.share, self.model, self.splits["test"], self.config)
        labels = self.splits["test"].labels
        result = {
            "config": json.loads(self.config.to_json()),
            "test": score._asdict(),
            "dev_accuracy": self.position.best_accuracy,
            "best_step": self.position.best_step,
            "examples": {name: len(split.labels) for name, split in self.splits.items()},
            "most_frequent": float(np.bincount(labels).max() / len(labels)),
            "parameters": sum(p.numel() for p in self.model.parameters()),
        }
        if self.accelerator.is_main_process:
            write_whole(self.out / RESULT, (json.dumps(result, indent=1) + "\n").encode())
        best = f"of step {self.position.best_step:,}"
        self._say(f"test loss {score.loss:.4f}, accuracy {score.accuracy:.4f} {best}", score)
        return result

    def _save(self, name: str, optimizer: torch.optim.Optimizer | None) -> None:
        held = checkpoint.collect(self.config, self.position, self.model, optimizer)
        if self.accelerator.is_main_process:
            checkpoint.save(self.out / name, held)

    def _say(self, line: str, score: Score) -> None:
        if self.accelerator.is_main_process:
            self.say(f"{line} ({score.examples:,} examples)")


@contextmanager
def _held(accelerator: Any, out: Path) -> Iterator[None]:
    """Hold the folder in the first process. If it cannot be held, every process raises the reason."""
    from accelerate.utils import broadcast_object_list  # type: ignore[import-untyped]

    with ExitStack() as stack:
        refusal = [""]
        if accelerator.is_main_process:
            try:
                stack.enter_context(exclusive(out))
            except (ValueError, OSError) as error:
                refusal = [str(error)]
        broadcast_object_list(refusal)
        if refusal[0]:
            raise ValueError(refusal[0])
        yield


@contextmanager
def _shown(first: int, steps: int, watch: Watch | None) -> Iterator[Watch]:
    """Yield the watcher that was given, or a progress bar."""
    if watch is not None:
        yield watch
        return
    with Progress(steps - first, "training") as bar:
        yield lambda step, line: bar.show(step - first, line)


def _ignore(_step: int, _line: str) -> None:
    """Progress reporter for processes other than the first. Prints nothing."""


def _found(config: RunConfig, out: Path, resume: bool) -> checkpoint.Checkpoint | None:
    """Return the checkpoint to continue from, or None."""
    path = out / LATEST
    if not path.exists():
        return None
    if not resume:
        raise ValueError(f"{path} is there already: --resume continues that run, another --out starts a new one")
    return checkpoint.load_for(path, config)


def make_optimizer(model: nn.Module, config: RunConfig) -> torch.optim.AdamW:
    """Return AdamW without weight decay on learned scales and gates, which it would pull to uniform attention and 1/2."""
    t = config.train
    spared = {name: p for name, p in model.named_parameters() if name.endswith("head_scale") or ".gate." in name}
    others = [p for name, p in model.named_parameters() if name not in spared]
    groups: list[dict[str, Any]] = [{"params": others}]
    groups += [{"params": list(spared.values()), "weight_decay": 0.0}] if spared else []
    return torch.optim.AdamW(groups, lr=t.lr, betas=t.betas, eps=t.eps, weight_decay=t.weight_decay, fused=True)


def step_seed(seed: int, step: int, rank: int) -> int:
    """Return the seed of a step. A resumed run then draws the random numbers that it would have drawn."""
    words = np.random.SeedSequence((seed, step, rank)).generate_state(2)
    return int(words[0]) << 31 ^ int(words[1])
