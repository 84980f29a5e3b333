"""The training loop, run by accelerate: checkpoint and step decide everything, so a kill at any moment loses nothing."""

import json
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
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
from fastmax_lab.lra.config import Pace, Processes
from fastmax_lab.lra.evaluate import batches, evaluate, load_split
from fastmax_lab.lra.metrics import DivergedError, Metrics
from fastmax_lab.lra.processes import Share, share
from fastmax_lab.lra.run import RunConfig
from fastmax_lab.lra.run_folder import exclusive
from fastmax_lab.lra.schedule import learning_rate
from fastmax_lab.lra.tasks import Split

Watch = Callable[[int, str], None]
"""Told the number of a step and a line on it."""
LATEST, BEST, RESULT = "checkpoint.safetensors", "best.safetensors", "result.json"


def make_accelerator(precision: str, device: str = "auto") -> Any:
    """One per process, on what accelerate and torchrun say of the machines, else on this one; "cpu" leaves GPUs alone."""
    with waiting("loading accelerate"):
        from accelerate import Accelerator  # type: ignore[import-untyped]

    return Accelerator(cpu=device == "cpu" or not torch.accelerator.is_available(), mixed_precision=precision)


def is_main_process() -> bool:
    """Whether this one speaks to the user."""
    from accelerate import PartialState

    return bool(PartialState().is_main_process)


def train(
    config: RunConfig,
    *,
    data: Path,
    out: Path,
    resume: bool = False,
    pace: Pace | None = None,
    processes: Processes | None = None,
    device: str = "auto",
    say: Callable[[str], None] = print,
    watch: Watch | None = None,
) -> dict[str, Any]:
    """Train, test the best checkpoint, write and return the result. `resume` continues if there is something to continue.

    `say` hears of scores, `watch` of the steps in between, in the place of a bar of this run's own.
    A run that is refused, for its settings, its data or because another one holds the folder, writes nothing.
    """
    pace = Pace() if pace is None else pace
    accelerator = make_accelerator(config.precision, device)
    model = _first_weights(config)
    part = share(accelerator, Processes() if processes is None else processes, model)
    check_shards(config.train.batch, part.world)
    with _held(accelerator, out):
        found = _found(config, out, resume)
        if found is not None and (out / RESULT).exists():
            result: dict[str, Any] = json.loads((out / RESULT).read_text())
            return result
        with accelerator.main_process_first():  # the others then find the cached arrays
            splits = {name: load_split(config, name, data) for name in tasks.SPLITS}
        for name in ("val", "test"):
            batches(splits[name], config)
        return _run(accelerator, part, model, config, splits, found, out, pace, say, watch)


def _first_weights(config: RunConfig) -> nn.Module:
    torch.manual_seed(config.seed)
    return config.make_model()


@contextmanager
def _held(accelerator: Any, out: Path) -> Iterator[None]:
    """The folder, for the first process; if it cannot be had, every process is told why."""
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


def _run(
    accelerator: Any,
    part: Share,
    model: nn.Module,
    config: RunConfig,
    splits: dict[str, Split],
    found: checkpoint.Checkpoint | None,
    out: Path,
    pace: Pace,
    say: Callable[[str], None],
    watch: Watch | None,
) -> dict[str, Any]:
    model, optimizer = accelerator.prepare(model, make_optimizer(model, config))
    position = Position()
    if found is not None:
        checkpoint.restore(found, model, optimizer.optimizer)
        position = found.position
    if accelerator.is_main_process:
        remove_partial(out)
        with Metrics(out, position.step) as metrics, _shown(position.step, config.train.steps, watch) as show:
            position = _loop(
                accelerator, part, model, optimizer, splits, config, position, out, pace, metrics, say, show
            )
    else:
        position = _loop(accelerator, part, model, optimizer, splits, config, position, out, pace, None, say, _unheard)
    return _finish(accelerator, part, model, config, position, splits, out, say)


@contextmanager
def _shown(first: int, steps: int, watch: Watch | None) -> Iterator[Watch]:
    if watch is not None:
        yield watch
        return
    with Progress(steps - first, "training") as bar:
        yield lambda step, line: bar.show(step - first, line)


def _unheard(_step: int, _line: str) -> None:
    """Of the processes that do not speak."""


def _found(config: RunConfig, out: Path, resume: bool) -> checkpoint.Checkpoint | None:
    path = out / LATEST
    if not path.exists():
        return None
    if not resume:
        raise ValueError(f"{path} is there already: --resume continues that run, another --out starts a new one")
    return checkpoint.load_for(path, config)


def make_optimizer(model: nn.Module, config: RunConfig) -> torch.optim.AdamW:
    """Learned scales and gates are left out of weight decay, which would pull them to uniform attention and to 1/2."""
    t = config.train
    spared = {name: p for name, p in model.named_parameters() if name.endswith("head_scale") or ".gate." in name}
    others = [p for name, p in model.named_parameters() if name not in spared]
    groups: list[dict[str, Any]] = [{"params": others}]
    groups += [{"params": list(spared.values()), "weight_decay": 0.0}] if spared else []
    return torch.optim.AdamW(groups, lr=t.lr, betas=t.betas, eps=t.eps, weight_decay=t.weight_decay, fused=True)


def _loop(
    accelerator: Any,
    part: Share,
    model: nn.Module,
    optimizer: Any,
    splits: dict[str, Split],
    config: RunConfig,
    position: Position,
    out: Path,
    pace: Pace,
    metrics: Metrics | None,
    say: Callable[[str], None],
    show: Watch,
) -> Position:
    steps = config.train.steps
    first, started = position.step, time.monotonic()
    model.train()
    for step in range(first, steps):
        loss, accuracy = _step(accelerator, part, model, optimizer, splits["train"], config, step)
        done = step + 1
        last = done == steps
        if last or done % pace.log_every == 0:
            both = accelerator.reduce(torch.stack((loss, accuracy)), "mean").tolist()
            if not np.isfinite(both[0]):
                raise DivergedError(f"the loss is {both[0]} at step {done}", "try a smaller --lr")
            speed = (done - first) / (time.monotonic() - started)
            if metrics is not None:
                values = {"loss": both[0], "accuracy": both[1], "lr": learning_rate(config.train, step)}
                metrics.log(done, "train", values | {"steps_per_second": speed})
            show(done, f"step {done:,}, loss {both[0]:.4f}, accuracy {both[1]:.3f}, {speed:.2f} steps/s")
        evaluated = last or done % config.evaluation_steps == 0
        position = replace(position, step=done)
        if evaluated:
            position = _evaluate_dev(accelerator, part, model, splits["val"], config, position, out, metrics, say)
        if evaluated or done % pace.checkpoint_every == 0:
            held = checkpoint.collect(config, position, model, optimizer.optimizer)
            if accelerator.is_main_process:
                checkpoint.save(out / LATEST, held)
    return position


def _step(
    accelerator: Any, part: Share, model: nn.Module, optimizer: Any, split: Split, config: RunConfig, step: int
) -> tuple[Tensor, Tensor]:
    """One update. Returns the loss and the accuracy of this process's part of the batch."""
    lengths = split.lengths if config.group_lengths else None
    rows = training_rows(len(split.labels), config.train.batch, config.seed, step, lengths=lengths)
    batch = take(split, shard(rows, part.rank, part.world), trim=not config.quirks.full_length_mean)
    batch = part.of(batch).to(accelerator.device)
    torch.manual_seed(step_seed(config.seed, step, accelerator.process_index))
    for group in optimizer.param_groups:
        group["lr"] = learning_rate(config.train, step)
    with accelerator.autocast():
        logits = model(batch.tokens, batch.lengths)
    loss = cross_entropy(logits.float(), batch.labels)
    accelerator.backward(loss)
    if config.train.clip_value is not None:
        accelerator.clip_grad_value_(model.parameters(), config.train.clip_value)
    optimizer.step()
    optimizer.zero_grad()
    return loss.detach(), (logits.argmax(-1) == batch.labels).float().mean()


def step_seed(seed: int, step: int, rank: int) -> int:
    """Random numbers are a function of the step, so a resumed run draws those it would have drawn."""
    words = np.random.SeedSequence((seed, step, rank)).generate_state(2)
    return int(words[0]) << 31 ^ int(words[1])


def _evaluate_dev(
    accelerator: Any,
    part: Share,
    model: nn.Module,
    split: Split,
    config: RunConfig,
    position: Position,
    out: Path,
    metrics: Metrics | None,
    say: Callable[[str], None],
) -> Position:
    """Score the dev set; keep the weights if they are the best since the share of steps that the preset waits for."""
    number = position.step // config.evaluation_steps
    score = evaluate(accelerator, part, model, split, config, evaluation=number)
    if metrics is not None:
        metrics.log(position.step, "dev", {"loss": score.loss, "accuracy": score.accuracy})
        say(f"step {position.step:,}: dev loss {score.loss:.4f}, accuracy {score.accuracy:.4f} ({score.examples:,})")
    late = position.step >= config.train.best_after * config.train.steps
    if late and score.accuracy > position.best_accuracy:
        position = Position(position.step, position.step, score.accuracy)
        held = checkpoint.collect(config, position, model, None)
        if accelerator.is_main_process:
            checkpoint.save(out / BEST, held)
    return position


def _finish(
    accelerator: Any,
    part: Share,
    model: nn.Module,
    config: RunConfig,
    position: Position,
    splits: dict[str, Split],
    out: Path,
    say: Callable[[str], None],
) -> dict[str, Any]:
    accelerator.wait_for_everyone()
    checkpoint.restore(checkpoint.load(out / BEST), model, None)
    with waiting("testing"):
        score = evaluate(accelerator, part, model, splits["test"], config)
    result = {
        "config": json.loads(config.to_json()),
        "test": score._asdict(),
        "dev_accuracy": position.best_accuracy,
        "best_step": position.best_step,
        "examples": {name: len(split.labels) for name, split in splits.items()},
        "most_frequent": float(np.bincount(splits["test"].labels).max() / len(splits["test"].labels)),
        "parameters": sum(p.numel() for p in model.parameters()),
    }
    if accelerator.is_main_process:
        write_whole(out / RESULT, (json.dumps(result, indent=1) + "\n").encode())
        say(
            f"test loss {score.loss:.4f}, accuracy {score.accuracy:.4f} ({score.examples:,}), of step {position.best_step:,}"
        )
    return result
