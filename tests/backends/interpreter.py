"""The Triton backend in Triton's interpreter: a process of its own, asked for one call at a time over a pipe.

Kernels choose between compiler and interpreter when they are imported (TRITON_INTERPRET=1), and the interpreter is patched
to be honest about bf16 and quick, so neither may happen in the process of the other tests.
"""

import atexit
import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fastmax.call import Call, InputGrads, OutputGrads
from fastmax.plan import Plan

MISSING = None if find_spec("triton") is not None else "triton is not installed"


class Interpreted:
    """The functions of the backend, as its process answers them."""

    def __init__(self, *, quick: bool = True) -> None:
        root = Path(__file__).parents[2]
        path = os.pathsep.join(filter(None, [str(root), os.environ.get("PYTHONPATH")]))
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.backends.interpreter", "quick" if quick else "slow"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=root,
            env=os.environ | {"TRITON_INTERPRET": "1", "PYTHONPATH": path},
        )
        atexit.register(self.close)

    def close(self) -> None:
        """It ends when nobody can ask it any more."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()

    def __call__(self, function: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        """A function of any module, evaluated there; tensors among its arguments that it has changed are changed here too."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        question = f"{function.__module__}:{function.__qualname__}", arguments, named
        pickle.dump(question, self._process.stdin)
        self._process.stdin.flush()
        result, error, after = pickle.load(self._process.stdout)
        if error is not None:
            raise error
        for before, now in zip(arguments, after, strict=True):
            if isinstance(before, Tensor) and not torch.equal(before, now):
                before.copy_(now)
        return result

    def unsupported(self, call: Call) -> str | None:
        return self(_backend().unsupported, call)

    def forward(self, call: Call, plan: Plan) -> tuple[Tensor, Tensor, Tensor]:
        return self(_backend().forward, call, plan)

    def backward(self, call: Call, plan: Plan, o: Tensor, g: Tensor, grads: OutputGrads) -> InputGrads:
        return self(_backend().backward, call, plan, o, g, grads)

    def prepare_step(self, *prepared: Any, **options: Any) -> Callable[..., Tensor]:
        """A step that is prepared there whenever it is taken."""
        buffers = prepared[3:]

        def step(q: Tensor, k: Tensor, v: Tensor, *more: Any) -> Tensor:
            return self(stepped, q, k, v, *buffers, more, options)

        return step


@cache
def interpreted() -> Interpreted:
    """One for all tests of a process, started when it is first asked for."""
    return Interpreted()


def pretend(arch: str | None) -> None:
    """In the other process: take the tiles and products of an architecture, or those that it has by itself."""
    from fastmax.backends.triton import device

    device.architecture.cache_clear()
    device.INTERPRETED = arch or "sm_80"


def _backend() -> Any:
    from fastmax.backends import triton

    return triton


def stepped(*arguments: Any) -> Tensor:
    """In the other process: q, k, v, the buffers, what else a step is given, and the options."""
    *tensors, more, options = arguments
    return _backend().prepare_step(*tensors, **options)(*tensors[:3], *more)


def _answer(questions: Any, answers: Any) -> None:
    from importlib import import_module

    while True:
        try:
            name, arguments, named = pickle.load(questions)
        except EOFError:
            return
        module, _, function = name.partition(":")
        result = error = None
        try:
            result = getattr(import_module(module), function)(*arguments, **named)
        except (ValueError, AssertionError, RuntimeError, TypeError, LookupError, ArithmeticError) as found:
            error = found
        pickle.dump((result, error, [x if isinstance(x, Tensor) else None for x in arguments]), answers)
        answers.flush()


def main() -> None:
    questions, answers = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever is printed is no answer
    import triton  # noqa: F401  (the backend asks whether it interprets)

    from tests.backends import honest_interpreter, quick_interpreter

    torch.set_num_threads(1)
    honest_interpreter.install()
    if sys.argv[1] == "quick":
        quick_interpreter.install()
    _answer(questions, answers)


if __name__ == "__main__":
    main()
