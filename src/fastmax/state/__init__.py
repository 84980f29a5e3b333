"""Memories of earlier tokens for decoding: the running sum over keys, and the last tokens of a softmax window."""

from fastmax.state.state import FastmaxState
from fastmax.state.window import WindowState

__all__ = ["FastmaxState", "WindowState"]
