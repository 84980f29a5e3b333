"""The running sum over keys, and its file format."""

from fastmax.state.state import FastmaxState

__all__ = ["FastmaxState"]
