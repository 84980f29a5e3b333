"""`fastmax-lab lra train | sweep | eval`: training and testing on the Long Range Arena."""

import gc
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path
from typing import Annotated

from tyro.conf import Positional

from fastmax_lab._progress import waiting
from fastmax_lab._settings import Range, SettingError
from fastmax_lab.baselines import DECAYS, DROPOUT_MODES, NAMES, SCALES, SEVEN
from fastmax_lab.commands.paths import EXISTING, NEW_FOLDER
from fastmax_lab.commands.shared import Command, Data, Device, Printing, Threads, check_device, choice
from fastmax_lab.lra import presets, tasks
from fastmax_lab.lra.config import COUNT, RATE, Intervals, Processes
from fastmax_lab.lra.quirks import Quirks, flags
from fastmax_lab.lra.run import PRECISIONS, SEED, RunConfig, configure

RUNS = Path("runs/lra")
TASKS = tasks.names()
HISTORICAL = ("all", *flags())


@dataclass(frozen=True, kw_only=True)
class RunSettings:
    """The settings of a run beside its task, attention and seed. None leaves the preset's value."""

    preset: Annotated[str, choice(presets.NAMES)] = RunConfig.preset
    """The harness whose settings to take."""
    lr: Annotated[float | None, Range(above=0)] = None
    """Peak learning rate."""
    warmup: Annotated[int | None, Range(at_least=0)] = None
    """Steps of warmup."""
    batch: Annotated[int | None, COUNT] = None
    """Examples per step, over all processes."""
    steps: Annotated[int | None, COUNT] = None
    """Optimizer steps."""
    dropout: Annotated[float | None, RATE] = None
    """Dropout rate outside of the attention."""
    attention_dropout: Annotated[float | None, RATE] = None
    """Dropout rate inside of the attention."""
    scale: Annotated[str, choice(SCALES)] = RunConfig.scale
    """The scale of fastmax."""
    decay: Annotated[str, choice(DECAYS)] = RunConfig.decay
    """The decay of fastmax and softmax, in both directions."""
    standardized: bool = False
    """Give softmax standardized queries and keys."""
    dropout_mode: Annotated[str, choice(DROPOUT_MODES)] = RunConfig.dropout_mode
    """The dropout of fastmax."""
    length: Annotated[int | None, COUNT] = None
    """Cut sequences to this many tokens."""
    train_examples: Annotated[int | None, COUNT] = None
    """Train on this many of the first examples."""
    group_lengths: bool = False
    """Make batches of examples of similar length, which need less padding."""
    eval_examples: Annotated[int | None, COUNT] = None
    """Score this many of the first examples of dev and test."""
    eval_every: Annotated[int | None, COUNT] = None
    """Steps between scores on the dev set, instead of a twentieth of all."""
    precision: Annotated[str, choice(PRECISIONS)] = RunConfig.precision
    """fp32 (no) or autocast."""
    historical: tuple[Annotated[str, choice(HISTORICAL)], ...] = ()
    """Behave as old harnesses did."""

    def configure(self, task: str, attention: str, seed: int) -> RunConfig:
        """Return the configuration of a run."""
        given = {field.name: getattr(self, field.name) for field in fields(RunSettings) if field.name != "historical"}
        changes = {name: value for name, value in given.items() if value is not None}
        return configure(task, attention, seed=seed, quirks=Quirks.named(self.historical), **changes)


@dataclass(frozen=True, kw_only=True)
class Training(RunSettings, Data, Threads, Device, Printing):
    """Options of train and sweep that do not change the numbers of a run."""

    log_every: Annotated[int, COUNT] = Intervals.log_every
    """Steps between lines of the log."""
    checkpoint_every: Annotated[int, COUNT] = Intervals.checkpoint_every
    """Steps between checkpoints."""
    out: Annotated[Path | None, NEW_FOLDER] = None
    """Folder to write to, instead of one in runs/lra."""

    @property
    def intervals(self) -> Intervals:
        """Return the steps between writes."""
        return Intervals(self.log_every, self.checkpoint_every)

    @property
    def say(self) -> Callable[[str], None]:
        """Return the printer of progress: on standard error where standard output is JSON."""
        return partial(print, file=sys.stderr) if self.json else print


@dataclass(frozen=True, kw_only=True)
class Train(Training, Command):
    """Train one attention on one task, then test it.

    Example: fastmax-lab lra train --task image --length 256 --steps 1000 --out runs/small --resume
    """

    stopped = "stopped; run it again with --resume to go on"

    task: Annotated[str, choice(TASKS)]
    """The task to learn."""
    attention: Annotated[str, choice(NAMES)] = RunConfig.attention
    """The attention to learn it with."""
    seed: Annotated[int, SEED] = 0
    """The seed of weights, order and dropout."""
    context_parallel: Annotated[int, COUNT] = Processes.context_parallel
    """Processes that share a sequence, under torchrun. For fastmax only."""
    resume: bool = False
    """Continue the run in --out."""

    def run(self) -> None:
        config = self.configure(self.task, self.attention, self.seed)
        check_device(self.device)
        self.limit_threads()
        from fastmax_lab.lra.sweep import folder
        from fastmax_lab.lra.train import is_main_process, train

        out = folder(RUNS, config) if self.out is None else self.out
        with _process_group_closed():
            result = train(
                config,
                data=self.data_folder,
                out=out,
                resume=self.resume,
                intervals=self.intervals,
                processes=Processes(self.context_parallel),
                device=self.device,
                say=self.say,
            )
            if is_main_process():
                self.show(result, lambda _: f"written to {out}")


@dataclass(frozen=True, kw_only=True)
class Sweep(Training, Command):
    """Train a grid of tasks, attentions and seeds. Run it again to go on.

    Example: fastmax-lab lra sweep --tasks listops image --attentions softmax fastmax2 --seeds 0 1 --steps 1000
    """

    stopped = "stopped; run it again to go on"

    tasks: tuple[Annotated[str, choice(TASKS)], ...] = TASKS
    """The tasks to learn."""
    attentions: tuple[Annotated[str, choice(NAMES)], ...] = SEVEN
    """The attentions to learn them with."""
    seeds: Annotated[tuple[int, ...], SEED] = (0,)
    """The seeds of weights, order and dropout."""

    def run(self) -> None:
        configs = [
            self.configure(task, attention, seed)
            for seed in self.seeds
            for task in self.tasks
            for attention in self.attentions
        ]
        check_device(self.device)
        self.limit_threads()
        from fastmax_lab.lra.sweep import sweep
        from fastmax_lab.lra.train import is_main_process
        from fastmax_lab.report import lra as report

        out = RUNS if self.out is None else self.out
        with _process_group_closed():
            found = sweep(
                configs, data=self.data_folder, out=out, intervals=self.intervals, device=self.device, say=self.say
            )
            if is_main_process():
                self.show(found, report.accuracies)


@dataclass(frozen=True, kw_only=True)
class Eval(Data, Threads, Device, Printing, Command):
    """Score a checkpoint.

    Example: fastmax-lab lra eval runs/lra/listops-fastmax2-seed0 --split val --json
    """

    checkpoint: Annotated[Positional[Path], EXISTING]
    """A .safetensors file, or the folder of a run."""
    split: Annotated[str, choice(tasks.SPLITS)] = "test"
    """The examples to score."""

    def run(self) -> None:
        check_device(self.device)
        self.limit_threads()
        from fastmax_lab.lra import checkpoint
        from fastmax_lab.lra.evaluate import evaluate, load_split
        from fastmax_lab.lra.processes import Share
        from fastmax_lab.lra.train import BEST, make_accelerator

        path = self.checkpoint / BEST if self.checkpoint.is_dir() else self.checkpoint
        if not path.is_file():
            raise SettingError("checkpoint", f"must be a file or the folder of a run: {path} is not there")
        held = checkpoint.load(path)
        with _process_group_closed():
            accelerator = make_accelerator(held.config.precision, self.device)
            model = accelerator.prepare(held.config.make_model())
            checkpoint.restore(held, model, None)
            part = Share(accelerator.process_index, accelerator.num_processes)
            split = load_split(held.config, self.split, self.data_folder)
            with waiting("scoring"):
                score = evaluate(accelerator, part, model, split, held.config)
            if accelerator.is_main_process:
                what = f"{held.config.task}, {held.config.attention}, step {held.position.step:,}, {self.split}"
                text = f"{what}: loss {score.loss:.4f}, accuracy {score.accuracy:.4f} ({score.examples:,} examples)"
                self.show(score._asdict(), lambda _: text)


@contextmanager
def _process_group_closed() -> Iterator[None]:
    """Destroy the process group at the end. Its threads can abort the interpreter if they run when it exits."""
    yield
    from torch import distributed

    if distributed.is_available() and distributed.is_initialized():
        gc.collect()  # a model that DDP wraps is in a reference cycle, and holds the group
        distributed.destroy_process_group()
