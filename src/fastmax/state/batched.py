"""BatchedState: what all states do alike, batch element by batch element and in a file."""

from collections.abc import Callable
from os import PathLike
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from fastmax.state import file


class BatchedState:
    """The memory of a batch of sequences. Its methods return something new, which shares no memory with it."""

    batch: int
    FORMAT: ClassVar[str]

    def _map(self, f: Callable[[Tensor], Tensor]) -> Self:
        """Return a state of the same options with these tensors, which must be new."""
        raise NotImplementedError

    def state_dict(self) -> dict[str, Any]:
        """Return a detached copy of everything, for torch.save and `load_state_dict`."""
        raise NotImplementedError

    @classmethod
    def from_state_dict(cls, state_dict: dict[str, Any]) -> Self:
        """Return a copy of the state that `state_dict` describes."""
        raise NotImplementedError

    def select(self, index: Tensor) -> Self:
        """Return the batch elements at `index`, (n,): any number of them, in any order, repeated or not."""
        return self._map(lambda x: x.index_select(0, index))

    def reorder(self, index: Tensor) -> Self:
        """Return a state of the same batch in which beam i goes on from the state of beam index[i]."""
        if tuple(index.shape) != (self.batch,):
            raise ValueError(
                f"index must have one entry per batch element, shape ({self.batch},), got {tuple(index.shape)}"
            )
        return self.select(index)

    def repeat_interleave(self, repeats: int) -> Self:
        """Return each batch element `repeats` times in a row, to start a beam search from."""
        return self._map(lambda x: x.repeat_interleave(repeats, 0))

    def clone(self) -> Self:
        """Return a copy, through which gradients flow."""
        return self._map(Tensor.clone)

    __copy__ = clone

    def detach(self) -> Self:
        """Return a copy from which no gradient flows back."""
        return self._map(lambda x: x.detach().clone())

    def save(self, path: str | PathLike[str]) -> None:
        """Write a safetensors file (needs the extra "hf"), atomically: a reader finds the old file or the new one, whole."""
        file.save(self.state_dict(), path, self.FORMAT)

    @classmethod
    def load(cls, path: str | PathLike[str], device: torch.device | str = "cpu") -> Self:
        """Return the state in a file that `save` wrote; ValueError if it holds anything else, or is not whole."""
        try:
            return cls.from_state_dict(file.load(path, device, cls.FORMAT))
        except ValueError as error:
            raise ValueError(f"{path} does not hold a {cls.__name__}: {error}") from error
