"""`fastmax-lab tune`: tiles for the GPU of this machine."""

import argparse
from dataclasses import asdict, dataclass

from fastmax_lab._settings import add_arguments, given, setting
from fastmax_lab.commands.parser import Parser, command


@dataclass(frozen=True)
class Tuning:
    head_dim: int = setting("channels of a head", default=64, metavar="D", at_least=1, at_most=128)
    dtype: str = setting("of queries, keys and values", default="bfloat16", choices=("bfloat16", "float16", "float32"))
    tokens: int = setting("length of the sequence", default=16384, at_least=1024, at_most=1 << 20)
    heads: int = setting("heads", default=16, at_least=1, at_most=1024)


def add_parser(subparsers: "argparse._SubParsersAction[Parser]") -> None:
    tune = command(
        subparsers,
        "tune",
        "look for tiles of the Triton kernels that are faster on this GPU, to report them",
        examples=["fastmax-lab tune", "fastmax-lab tune --head-dim 128 --dtype float16"],
    )
    add_arguments(tune, Tuning)
    tune.set_defaults(run=_tune, torch=True)


def _tune(options: argparse.Namespace) -> None:
    from fastmax_lab.bench.tune import run

    print(run(**asdict(Tuning(**given(Tuning, options)))))
