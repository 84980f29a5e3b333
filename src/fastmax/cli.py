"""The `fastmax` command: a parser that imports a command's module only when it is asked for."""

import argparse
import sys
from collections.abc import Callable, Sequence
from importlib import import_module

import fastmax
from fastmax.data import command as data
from fastmax.lra import command as lra

BENCHES = {
    "core": "growth of time and memory, and the paper's literal form",
    "kernel": "the native kernel against sgemm, softmax attention and plain PyTorch",
    "decode": "time per token with a state, against softmax attention over a cache",
    "dropout": "what each dropout mode costs",
    "long": "one head over a million tokens: time, memory, precision",
    "lra": "training steps per second and memory of every attention of the Long Range Arena",
}


def _threads(text: str) -> int:
    threads = int(text)
    if threads < 1:
        raise argparse.ArgumentTypeError(f"expected at least 1, got {threads}")
    return threads


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(prog="fastmax", description=fastmax.__doc__)
    top.add_argument("--version", action="version", version=f"fastmax {fastmax.__version__}")
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")
    commands.add_parser("demo", help="show on this machine that the result is exact and the time linear")
    commands.add_parser("info", help="show version, machine and which backends are there, or why not")
    bench = commands.add_parser("bench", help="measure on this machine")
    benches = bench.add_subparsers(dest="bench", required=True, metavar="WHAT")
    for name, text in BENCHES.items():
        one = benches.add_parser(name, help=text)
        one.add_argument("--out", metavar="FILE", help="write the measurements as JSON")
        one.add_argument("--quick", action="store_true", help="fewer sizes and rounds")
        one.add_argument("--threads", type=_threads, metavar="N", help="threads that torch may use")
        if name == "kernel":
            one.add_argument("--tokens", type=int, nargs="+", metavar="N", help="only these lengths of the grid")
            one.add_argument("--dtype", choices=("float32", "bfloat16"), help="only this dtype")
            one.add_argument("--order", type=int, choices=(1, 2), help="only this order")
            one.add_argument("--head-dim", type=int, nargs="+", metavar="D", help="only these head dimensions")
    lra.add_parser(commands)
    data.add_parser(commands)
    return top


def info() -> str:
    """One line per fact."""
    import torch

    from fastmax import backends

    lines = {"fastmax": fastmax.__version__, "torch": torch.__version__, "threads": str(torch.get_num_threads())}
    lines |= {f"backend {name}": backends.load(name).describe() for name in backends.NAMES}
    return "\n".join(f"{name:16} {value}" for name, value in lines.items())


def _demo(_: argparse.Namespace) -> int:
    import_module("fastmax.bench.demo").run()
    return 0


def _info(_: argparse.Namespace) -> int:
    print(info())
    return 0


def _bench(options: argparse.Namespace) -> int:
    import torch

    if options.threads is not None:
        torch.set_num_threads(options.threads)
    names = ("tokens", "dtype", "order", "head_dim") if options.bench == "kernel" else ()
    more = {name: getattr(options, name) for name in names}
    import_module(f"fastmax.bench.{options.bench}").run(options.out, options.quick, **more)
    return 0


COMMANDS: dict[str, Callable[[argparse.Namespace], int]] = {
    "demo": _demo,
    "info": _info,
    "bench": _bench,
    "lra": lra.run,
    "data": data.run,
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command; returns the exit code."""
    options = parser().parse_args(arguments)
    return COMMANDS[options.command](options)


if __name__ == "__main__":
    sys.exit(main())
