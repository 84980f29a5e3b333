"""`fastmax lra train | eval | sweep`: the parsers are made from the settings of a run."""

import argparse
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from fastmax._settings import add_arguments, given, setting
from fastmax.baselines import SEVEN
from fastmax.commands.parser import ArgumentValueError, Parser, subcommands
from fastmax.commands.shared import DataFolder, Threads, data_folder, set_threads
from fastmax.lra import tasks
from fastmax.lra.config import ModelPreset, Pace, TrainPreset
from fastmax.lra.processes import Processes, Share
from fastmax.lra.quirks import Quirks, flags
from fastmax.lra.run import RunConfig, configure

EXTRA = {"accelerate": "accelerate", "safetensors": "safetensors", "tensorboard": "tensorboard", "PIL": "pillow"}
"""What `fastmax lra` needs beside torch and numpy: modules, and the packages that have them."""


@dataclass(frozen=True)
class Output:
    out: Path | None = setting("where to write (default: a folder in runs/lra)", default=None, metavar="DIR")


@dataclass(frozen=True)
class Evaluation:
    split: str = setting("which examples to score", default="test", choices=tasks.SPLITS)


def add_parser(subparsers: "argparse._SubParsersAction[Parser]") -> None:
    lra = subparsers.add_parser("lra", help="train and test on the Long Range Arena")
    commands = subcommands(lra, "action", ["train", "sweep", "eval"])
    one = commands.add_parser("train", help="train one attention on one task, then test it")
    _add_run(one)
    add_arguments(one, Processes)
    one.add_argument("--resume", action="store_true", help="continue the run in --out")
    one.set_defaults(run=_train, stopped="stopped; run it again with --resume to go on")
    grid = commands.add_parser("sweep", help="train a grid of tasks and attentions; run it again to go on")
    _add_run(grid, {"task": tasks.names(), "attention": SEVEN, "seed": (0,)})
    grid.set_defaults(run=_sweep, stopped="stopped; run it again to go on")
    score = commands.add_parser("eval", help="score a checkpoint")
    score.add_argument("checkpoint", type=Path, metavar="FILE", help="a .safetensors file, or the folder of a run")
    add_arguments(score, Evaluation)
    add_arguments(score, DataFolder)
    score.set_defaults(run=_eval)


def _add_run(parser: Parser, many: dict[str, Any] | None = None) -> None:
    add_arguments(parser, RunConfig, many=many)
    presets = parser.add_argument_group("in the place of the preset's")
    add_arguments(presets, TrainPreset, optional=True)
    add_arguments(presets, ModelPreset, optional=True)
    add_arguments(parser, Pace)
    add_arguments(parser, DataFolder)
    add_arguments(parser, Output)
    add_arguments(parser, Threads)
    parser.add_argument(
        "--historical",
        nargs="*",
        default=[],
        choices=["all", *flags()],
        metavar="FLAG",
        help=f"behave as old harnesses did: {', '.join(['all', *flags()])}",
    )


def _train(options: argparse.Namespace) -> None:
    from fastmax.lra.sweep import folder
    from fastmax.lra.train import is_main_process, train

    config = _config(options, options.task, options.attention, options.seed)
    _check_extra()
    set_threads(options)
    out = folder(Path("runs/lra"), config) if options.out is None else options.out
    train(
        config,
        data=data_folder(options),
        out=out,
        resume=options.resume,
        pace=Pace(**given(Pace, options)),
        processes=Processes(**given(Processes, options)),
    )
    if is_main_process():
        print(f"written to {out}")
    _part()


def _sweep(options: argparse.Namespace) -> None:
    from fastmax.lra.sweep import sweep
    from fastmax.lra.train import is_main_process
    from fastmax.report import lra as report
    from fastmax.report.terminal import show

    configs = [
        _config(options, task, attention, seed)
        for seed in options.seeds
        for task in options.tasks
        for attention in options.attentions
    ]
    _check_extra()
    set_threads(options)
    out = Path("runs/lra") if options.out is None else options.out
    found = sweep(configs, data=data_folder(options), out=out, pace=Pace(**given(Pace, options)))
    if is_main_process():
        show(report.accuracies(found))
    _part()


def _eval(options: argparse.Namespace) -> None:
    from fastmax.lra import checkpoint
    from fastmax.lra.evaluate import evaluate, load_split
    from fastmax.lra.train import BEST, make_accelerator

    _check_extra()
    path = options.checkpoint / BEST if options.checkpoint.is_dir() else options.checkpoint
    if not path.exists():
        raise ArgumentValueError(f"argument FILE: {path} is not there")
    held = checkpoint.load(path)
    accelerator = make_accelerator(held.config.precision)
    model = accelerator.prepare(held.config.make_model())
    checkpoint.restore(held, model, None)
    part = Share(accelerator.process_index, accelerator.num_processes)
    score = evaluate(
        accelerator, part, model, load_split(held.config, options.split, data_folder(options)), held.config
    )
    if accelerator.is_main_process:
        what = f"{held.config.task}, {held.config.attention}, step {held.position.step:,}, {options.split}"
        print(f"{what}: loss {score.loss:.4f}, accuracy {score.accuracy:.4f} ({score.examples:,} examples)")
    _part()


def _config(options: argparse.Namespace, task: str, attention: str, seed: int) -> RunConfig:
    changes: dict[str, Any] = {}
    for kind in (TrainPreset, ModelPreset, RunConfig):
        changes |= given(kind, options)
    changes |= {"task": task, "attention": attention, "seed": seed, "quirks": Quirks.named(options.historical)}
    try:
        return configure(**changes)
    except ValueError as error:
        raise ArgumentValueError(f"argument --{error}") from error


def _check_extra() -> None:
    missing = [package for module, package in EXTRA.items() if find_spec(module) is None]
    if missing:
        raise OSError(f"{', '.join(missing)} missing: run pip install '.[lra]' in a clone of fastmax")


def _part() -> None:
    """Ends what joins the processes: its threads, if they still run when the interpreter exits, abort it."""
    from torch import distributed

    if distributed.is_available() and distributed.is_initialized():
        distributed.destroy_process_group()
