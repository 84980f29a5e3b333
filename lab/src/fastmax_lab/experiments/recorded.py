"""The attention matrix of any layer while a model runs: what its attention makes of the identity as values."""

from types import TracebackType
from typing import Any

import torch
from torch import Tensor, nn

from fastmax.nn import FastmaxAttention
from fastmax_lab.baselines.interface import Attention


class LayerMaps:
    """`with LayerMaps(model) as maps: model(tokens)`: `maps.found` has a matrix (B, H, N, N) for each recording layer."""

    def __init__(self, model: nn.Module) -> None:
        self.layers = [layer for layer in model.modules() if hasattr(layer, "record")]
        self.found: list[Tensor] = []

    def __enter__(self) -> "LayerMaps":
        for layer in self.layers:
            layer.record = self.found.append  # type: ignore[assignment]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for layer in self.layers:
            layer.record = None  # type: ignore[assignment]


def recording(layer: type[FastmaxAttention]) -> type[FastmaxAttention]:
    """Return a layer class with the same parameters and results that passes its attention matrix to `record`, if set."""
    attend: Any = layer.__dict__.get("_attend", FastmaxAttention.__dict__["_attend"]).__func__

    class Recording(layer):  # type: ignore[valid-type, misc]
        record: Any = None

        def _attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, **options: Any) -> Tensor:
            if self.record is not None:
                self.record(attend(q, k, _identity(v), mask, **options).detach())
            o: Tensor = attend(q, k, v, mask, **options)
            return o

    return Recording


@torch.no_grad()
def vision_maps(model: nn.Module, images: Tensor) -> list[Tensor]:
    """Return the maps of every attention of `fastmax_lab.baselines` in the model, (B, H, N, N)."""
    found: list[Tensor] = []

    def hook(inner: Any, inputs: tuple[Any, ...], options: dict[str, Any], _output: Tensor) -> None:
        q, k, v, *mask = inputs
        found.append(inner.forward(q, k, _identity(v), *mask, **options))

    hooks = [
        layer.register_forward_hook(hook, with_kwargs=True) for layer in model.modules() if isinstance(layer, Attention)
    ]
    model.eval()
    model(images)
    model.train()
    for one in hooks:
        one.remove()
    return found


def _identity(v: Tensor) -> Tensor:
    tokens = v.shape[-2]
    return torch.eye(tokens, dtype=v.dtype, device=v.device).expand(*v.shape[:-2], tokens, tokens)
