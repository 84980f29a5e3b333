"""`fastmax-lab lra train | eval | sweep`: the parsers are made from the settings of a run."""

import argparse
import gc
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial, wraps
from pathlib import Path
from typing import Any

from fastmax_lab._progress import waiting
from fastmax_lab._settings import add_arguments, given, setting
from fastmax_lab.baselines import SEVEN
from fastmax_lab.commands.extras import need
from fastmax_lab.commands.parser import ArgumentValueError, Parser, command, subcommands
from fastmax_lab.commands.paths import existing, new_folder, path_type
from fastmax_lab.commands.shared import (
    DataFolder,
    Device,
    Printing,
    Threads,
    check_device,
    data_folder,
    print_result,
    set_threads,
)
from fastmax_lab.lra import tasks
from fastmax_lab.lra.config import ModelPreset, Pace, Processes, TrainPreset
from fastmax_lab.lra.quirks import Quirks, flags
from fastmax_lab.lra.run import RunConfig, configure


@dataclass(frozen=True)
class Output:
    out: Path | None = setting(
        "where to write (default: a folder in runs/lra)", default=None, metavar="DIR", problem=new_folder
    )


@dataclass(frozen=True)
class Evaluation:
    split: str = setting("which examples to score", default="test", choices=tasks.SPLITS)


def add_parser(subparsers: "argparse._SubParsersAction[Parser]") -> None:
    lra = command(
        subparsers,
        "lra",
        "train and test on the Long Range Arena",
        examples=["fastmax-lab lra train --task listops", "fastmax-lab lra eval runs/lra/listops-fastmax2-seed0"],
    )
    commands = subcommands(lra, "action", ["train", "sweep", "eval"])
    one = command(
        commands,
        "train",
        "train one attention on one task, then test it",
        examples=[
            "fastmax-lab lra train --task listops --attention fastmax2",
            "fastmax-lab lra train --task image --length 256 --steps 1000 --out runs/small",
            "fastmax-lab lra train --task image --length 256 --steps 1000 --out runs/small --resume",
        ],
    )
    _add_run(one)
    add_arguments(one, Processes)
    one.add_argument("--resume", action="store_true", help="continue the run in --out")
    one.set_defaults(run=_parting(_train), torch=True, stopped="stopped; run it again with --resume to go on")
    grid = command(
        commands,
        "sweep",
        "train a grid of tasks and attentions; run it again to go on",
        examples=["fastmax-lab lra sweep --tasks listops image --attentions softmax fastmax2 --seeds 0 1 --steps 1000"],
    )
    _add_run(grid, {"task": tasks.names(), "attention": SEVEN, "seed": (0,)})
    grid.set_defaults(run=_parting(_sweep), torch=True, stopped="stopped; run it again to go on")
    score = command(
        commands,
        "eval",
        "score a checkpoint",
        examples=[
            "fastmax-lab lra eval runs/lra/listops-fastmax2-seed0",
            "fastmax-lab lra eval best.safetensors --split val --json",
        ],
    )
    score.add_argument(
        "checkpoint", type=path_type(existing), metavar="FILE", help="a .safetensors file, or the folder of a run"
    )
    for kind in (Evaluation, DataFolder, Threads, Device, Printing):
        add_arguments(score, kind)
    score.set_defaults(run=_parting(_eval), torch=True)


def _add_run(parser: Parser, many: dict[str, Any] | None = None) -> None:
    add_arguments(parser, RunConfig, many=many)
    presets = parser.add_argument_group("in the place of the preset's")
    add_arguments(presets, TrainPreset, optional=True)
    add_arguments(presets, ModelPreset, optional=True)
    for kind in (Pace, DataFolder, Output, Threads, Device, Printing):
        add_arguments(parser, kind)
    parser.add_argument(
        "--historical",
        nargs="*",
        default=[],
        choices=["all", *flags()],
        metavar="FLAG",
        help=f"behave as old harnesses did: {', '.join(['all', *flags()])}",
    )


def _train(options: argparse.Namespace) -> None:
    from fastmax_lab.lra.sweep import folder
    from fastmax_lab.lra.train import is_main_process, train

    config = _config(options, options.task, options.attention, options.seed)
    out = folder(Path("runs/lra"), config) if options.out is None else options.out
    data = _prepare(options)
    result = train(
        config,
        data=data,
        out=out,
        resume=options.resume,
        pace=Pace(**given(Pace, options)),
        processes=Processes(**given(Processes, options)),
        device=options.device,
        say=_say(options),
    )
    if is_main_process():
        print_result(options, result, lambda _: f"written to {out}")


def _sweep(options: argparse.Namespace) -> None:
    from fastmax_lab.lra.sweep import sweep
    from fastmax_lab.lra.train import is_main_process
    from fastmax_lab.report import lra as report

    configs = [
        _config(options, task, attention, seed)
        for seed in options.seeds
        for task in options.tasks
        for attention in options.attentions
    ]
    out = Path("runs/lra") if options.out is None else options.out
    data = _prepare(options)
    found = sweep(
        configs, data=data, out=out, pace=Pace(**given(Pace, options)), device=options.device, say=_say(options)
    )
    if is_main_process():
        print_result(options, found, report.accuracies)


def _eval(options: argparse.Namespace) -> None:
    from fastmax_lab.lra import checkpoint
    from fastmax_lab.lra.evaluate import evaluate, load_split
    from fastmax_lab.lra.processes import Share
    from fastmax_lab.lra.train import BEST, make_accelerator

    path = options.checkpoint / BEST if options.checkpoint.is_dir() else options.checkpoint
    if not path.is_file():
        raise ArgumentValueError(f"argument FILE: {path} is not there")
    data = _prepare(options)
    held = checkpoint.load(path)
    accelerator = make_accelerator(held.config.precision, options.device)
    model = accelerator.prepare(held.config.make_model())
    checkpoint.restore(held, model, None)
    part = Share(accelerator.process_index, accelerator.num_processes)
    with waiting("scoring"):
        score = evaluate(accelerator, part, model, load_split(held.config, options.split, data), held.config)
    if accelerator.is_main_process:
        what = f"{held.config.task}, {held.config.attention}, step {held.position.step:,}, {options.split}"
        text = f"{what}: loss {score.loss:.4f}, accuracy {score.accuracy:.4f} ({score.examples:,} examples)"
        print_result(options, score._asdict(), lambda _: text)


def _prepare(options: argparse.Namespace) -> Path:
    """What can be refused before the work begins; returns the data folder."""
    check_device(options.device)
    need("lra")
    set_threads(options)
    return data_folder(options)


def _say(options: argparse.Namespace) -> Callable[[str], None]:
    """Beside JSON, words on how it goes are on standard error."""
    return partial(print, file=sys.stderr) if options.json else print


def _config(options: argparse.Namespace, task: str, attention: str, seed: int) -> RunConfig:
    changes: dict[str, Any] = {}
    for kind in (TrainPreset, ModelPreset, RunConfig):
        changes |= given(kind, options)
    changes |= {"task": task, "attention": attention, "seed": seed, "quirks": Quirks.named(options.historical)}
    return configure(**changes)


def _parting(run: Callable[[argparse.Namespace], None]) -> Callable[[argparse.Namespace], None]:
    """`run`, and then the end of what joins the processes: its threads, if they still run when the interpreter exits, can
    abort it."""

    @wraps(run)
    def whole(options: argparse.Namespace) -> None:
        run(options)
        from torch import distributed

        if distributed.is_available() and distributed.is_initialized():
            gc.collect()  # models that were wrapped to share gradients are in cycles, and hold the group
            distributed.destroy_process_group()

    return whole
