"""The walk of a tensor: how many files and Python calls of the library a forward call goes through."""

import sys
from collections.abc import Callable
from itertools import groupby
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import torch
from torch import Tensor

import fastmax
from fastmax import _eager_path, fastmax_attention
from fastmax.backends import native
from tests.support import randn

ROOT = str(Path(fastmax.__file__).parent)
MOST_FILES, MOST_CALLS = 9, 50

needs_native = pytest.mark.skipif(not native.levels(), reason="there are no native kernels to prepare a call for")


def walk(f: Callable[[], Any]) -> list[str]:
    """The files of the library whose functions are called, call by call."""
    calls: list[str] = []

    def watch(frame: FrameType, event: str, _: Any) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(ROOT):
            calls.append(frame.f_code.co_filename[len(ROOT) + 1 :])

    before = sys.getprofile()
    sys.setprofile(watch)
    try:
        f()
    finally:
        sys.setprofile(before)
    return calls


def inputs(tokens: int) -> tuple[Tensor, Tensor, Tensor]:
    q, k, v = (randn(2, tokens, 3, 8, dtype=torch.float32).transpose(1, 2).requires_grad_() for _ in range(3))
    return q, k, v


@needs_native
def test_a_call_like_one_before() -> None:
    """With gradients: each file is entered once."""
    x = inputs(20)
    fastmax_attention(*x, is_causal=True)
    assert _eager_path.count_prepared_calls()
    calls = walk(lambda: fastmax_attention(*x, is_causal=True))
    entered = [file for file, _ in groupby(calls)]
    assert calls
    assert len(calls) <= MOST_CALLS, calls
    assert len(entered) <= MOST_FILES, entered
    assert len(entered) == len(set(entered)), f"a file is entered again: {entered}"


@needs_native
def test_the_first_call_of_a_shape() -> None:
    fastmax_attention(*inputs(21), is_causal=True)  # what is imported and cached once
    x = inputs(22)
    calls = walk(lambda: fastmax_attention(*x, is_causal=True))
    assert len(calls) <= MOST_CALLS, calls
