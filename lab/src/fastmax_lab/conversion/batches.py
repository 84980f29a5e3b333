"""The batches of a conversion: some held out for its report, the rest in turn, starting anywhere."""

from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import Any

from torch import Tensor, nn

Batch = Mapping[str, Any]


def split(source: Iterable[Batch], held_out: int) -> tuple[list[Batch], Iterator[Batch]]:
    """Return the first `held_out` batches, and an endless iterator over the rest."""
    if held_out < 1:
        raise ValueError(f"held_out must be at least 1, got {held_out}")
    first_pass = iter(source)
    aside = list(islice(first_pass, held_out))
    if len(aside) < held_out:
        raise ValueError(f"held_out = {held_out} batches are set aside, but there are only {len(aside)}")
    return aside, _endless(source, first_pass, held_out)


def _endless(source: Iterable[Batch], current: Iterator[Batch], held_out: int) -> Iterator[Batch]:
    total = 0
    while True:
        seen = 0
        for batch in current:
            seen += 1
            yield batch
        total += seen
        if seen == 0:
            raise ValueError(
                f"the batches ended after {held_out + total}, of which {held_out} are held out, and cannot be passed over "
                "again: give a list, a DataLoader or a longer generator"
            )
        current = iter(source)
        for _ in islice(current, held_out):
            pass


def on(device: Any, batch: Batch) -> dict[str, Any]:
    """Return the batch with its tensors on a device."""
    return {name: x.to(device) if isinstance(x, Tensor) else x for name, x in batch.items()}


def counted(batch: Batch, like: Tensor, decoder: bool) -> Tensor:
    """Return (B, N, 1), 1 where a token of `like`, (B, N, E), counts: everywhere if no mask of the batch has that shape."""
    names = ("decoder_attention_mask",) if decoder else ("attention_mask",)
    for name in names:
        mask = batch.get(name)
        if isinstance(mask, Tensor) and mask.shape == like.shape[:2]:
            return mask.unsqueeze(-1).to(like.dtype)
    return like.new_ones(*like.shape[:2], 1)


def tokens_of(batch: Batch) -> int:
    """Return the number of tokens of the tensor that the model reads first."""
    for name in ("attention_mask", "input_ids", "inputs_embeds", "pixel_values", "input_features", "input_values"):
        x = batch.get(name)
        if isinstance(x, Tensor):
            return int(x.sum()) if name == "attention_mask" else x.shape[0] * (x.shape[1] if x.dim() > 1 else 1)
    return 0


def without_cache(model: nn.Module) -> dict[str, bool]:
    """Return the argument that keeps a decoder from filling a cache, for a model that has it."""
    config = getattr(model, "config", None)
    return {"use_cache": False} if getattr(config, "use_cache", None) is not None else {}
