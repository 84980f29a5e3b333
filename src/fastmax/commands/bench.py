"""`fastmax bench` and `fastmax demo`: a module of `bench` measures, that of the same name in `report` draws."""

import argparse
import os
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

from fastmax._settings import add_arguments, given, setting
from fastmax.bench.kernel import Selection
from fastmax.commands.parser import ArgumentValueError, Parser, subcommands
from fastmax.commands.shared import Threads, set_threads
from fastmax.report.terminal import show

BENCHES = {
    "core": "growth of time and memory, and the paper's literal form",
    "kernel": "the native kernel against sgemm, softmax attention and plain PyTorch",
    "decode": "time per token with a state, against softmax attention over a cache",
    "generate": "a token of generation by a model of transformers: time and memory, against a cache of keys and values",
    "dropout": "what each dropout mode costs",
    "decay": "what forgetting costs, against the same call without",
    "distributed": "a sequence over several processes: bytes, time, and the cost on paper of many machines",
    "long": "one head over a million tokens: time, memory, precision",
    "lra": "training steps per second and memory of every attention of the Long Range Arena",
}


@dataclass(frozen=True)
class Measuring:
    out: str | None = setting("write the measurements as JSON", default=None, metavar="FILE")
    quick: bool = setting("fewer sizes and rounds", default=False)


def add_parser(subparsers: "argparse._SubParsersAction[Parser]") -> None:
    bench = subparsers.add_parser("bench", help="measure on this machine")
    benches = subcommands(bench, "action", list(BENCHES))
    for name, text in BENCHES.items():
        one = benches.add_parser(name, help=text)
        for kind in (Measuring, Threads, *((Selection,) if name == "kernel" else ())):
            add_arguments(one, kind)
        one.set_defaults(run=_bench)


def _bench(options: argparse.Namespace) -> None:
    set_threads(options)
    if options.out is not None:
        _check_writable(Path(options.out))
    parts = {"only": Selection(**given(Selection, options))} if options.action == "kernel" else {}
    if options.action == "kernel" and options.device == "cuda":
        _on_a_gpu(options.out, options.quick, parts["only"])
        return
    measured = import_module(f"fastmax.bench.{options.action}").run(options.out, options.quick, **parts)
    show(import_module(f"fastmax.report.{options.action}").summary(measured))


def _on_a_gpu(out: str | None, quick: bool, only: Selection) -> None:
    from fastmax.bench import gpu
    from fastmax.report.gpu import summary

    chosen = gpu.cells(
        only.tokens or ((4096, 16384) if quick else (1024, 4096, 16384, 65536)),
        only.head_dim or ((64,) if quick else (32, 64, 128)),
        (2,) if only.order is None and quick else (1, 2) if only.order is None else (only.order,),
        ("bfloat16",) if only.dtype is None else (only.dtype,),
    )
    show(summary(gpu.run(out, list(chosen))))


def _check_writable(path: Path) -> None:
    """Before anything is measured: minutes of work would be lost."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.is_dir() or not os.access(path if path.exists() else path.parent, os.W_OK):
        raise ArgumentValueError(f"argument --out: {path} cannot be written")


def demo(_: argparse.Namespace) -> None:
    from fastmax.bench.demo import run
    from fastmax.report.demo import summary

    show(summary(run()))
