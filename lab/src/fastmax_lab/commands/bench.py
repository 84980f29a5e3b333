"""`fastmax-lab bench`: a module of `bench` measures, that of the same name in `report` draws."""

import argparse
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

from fastmax_lab._progress import waiting
from fastmax_lab._settings import add_arguments, given, setting
from fastmax_lab.bench.selection import Selection
from fastmax_lab.commands.extras import need
from fastmax_lab.commands.parser import Parser, command, subcommands
from fastmax_lab.commands.paths import new_file
from fastmax_lab.commands.shared import Printing, Threads, check_device, print_result, set_threads

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

EXAMPLES = {
    "kernel": ["fastmax-lab bench kernel --tokens 1000 --head-dim 64", "fastmax-lab bench kernel --device cuda"]
}
"""Beyond what every benchmark has."""


@dataclass(frozen=True)
class Measuring:
    out: Path | None = setting(
        "write the measurements as JSON", default=None, metavar="FILE", problem=new_file
    )  # known before: minutes of work would be lost
    quick: bool = setting("fewer sizes and rounds", default=False)


def add_parser(subparsers: "argparse._SubParsersAction[Parser]") -> None:
    bench = command(
        subparsers,
        "bench",
        "measure on this machine",
        examples=["fastmax-lab bench kernel --quick", "fastmax-lab bench decode --threads 1 --out decode.json"],
    )
    benches = subcommands(bench, "action", list(BENCHES))
    for name, text in BENCHES.items():
        more = EXAMPLES.get(name, ())
        own = [f"fastmax-lab bench {name} --quick", f"fastmax-lab bench {name} --out {name}.json", *more]
        one = command(benches, name, text, examples=own)
        for kind in (Measuring, Threads, Printing, *((Selection,) if name == "kernel" else ())):
            add_arguments(one, kind)
        one.set_defaults(run=_bench, torch=True)


def _bench(options: argparse.Namespace) -> None:
    set_threads(options)
    parts = {"only": Selection(**given(Selection, options))} if options.action == "kernel" else {}
    if options.action == "kernel" and options.device == "cuda":
        check_device(options.device)
        _on_a_gpu(options, parts["only"])
        return
    if options.action == "generate":
        need("hf")
    with waiting("loading"):
        bench = import_module(f"fastmax_lab.bench.{options.action}")
    measured = bench.run(_out(options), options.quick, **parts)
    print_result(options, measured, import_module(f"fastmax_lab.report.{options.action}").summary)


def _on_a_gpu(options: argparse.Namespace, only: Selection) -> None:
    from fastmax_lab.bench import gpu
    from fastmax_lab.report.gpu import summary

    quick = options.quick
    chosen = gpu.cells(
        only.tokens or ((4096, 16384) if quick else (1024, 4096, 16384, 65536)),
        only.head_dim or ((64,) if quick else (32, 64, 128)),
        (2,) if only.order is None and quick else (1, 2) if only.order is None else (only.order,),
        ("bfloat16",) if only.dtype is None else (only.dtype,),
    )
    print_result(options, gpu.run(_out(options), list(chosen)), summary)


def _out(options: argparse.Namespace) -> str | None:
    return None if options.out is None else str(options.out)
