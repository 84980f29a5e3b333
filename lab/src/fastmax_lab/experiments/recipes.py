"""Recipes of small causal models: what each sets of `LMConfig`, around which attention, and what it keeps of the past."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import elu

from fastmax.api import fastmax_attention
from fastmax.features import feature_count
from fastmax.models import FastmaxLM, LMConfig
from fastmax.nn import FastmaxAttention
from fastmax_lab.baselines.near_far import near_far_layer
from fastmax_lab.baselines.softmax_layer import SoftmaxAttention

WINDOW = 64
CONV = 4
"""Tokens of the convolution before each attention. On recall from afar softmax had 11 % after 1,000 steps without it, and
100 % after 450 with it."""


def by_elu(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, *, is_causal: bool, log_decay: Tensor | None, **_: Any
) -> Tensor:
    """Attend with the features elu + 1 of linear attention, and a constant one."""
    options: dict[str, Any] = {"is_causal": is_causal, "log_decay": log_decay, "normalize": False, "scale": 1.0}
    o: Tensor = fastmax_attention(elu(q) + 1, elu(k) + 1, v, mask, order=1, **options)
    return o


class LinearAttention(FastmaxAttention):
    """FastmaxAttention with the features of linear attention (Katharopoulos 2020); with its gate, gated linear attention."""

    _attend = staticmethod(by_elu)


class HalfGatedAttention(FastmaxAttention):
    """FastmaxAttention in which every second head never forgets."""

    def _log_decay(self, key: Tensor) -> Tensor | None:
        decay = super()._log_decay(key)
        assert decay is not None
        forgets = torch.arange(self.num_kv_heads, device=decay.device) % 2 == 0
        return torch.where(forgets[:, None], decay, 0)


@dataclass(frozen=True)
class LayerRecipe:
    """The options of `LMConfig` and the layer of a model; `keeps` is what a layer without a window remembers of a token."""

    options: Mapping[str, Any] = field(default_factory=dict)
    layer: type[FastmaxAttention] = FastmaxAttention
    keeps: str = "sum"
    near: int = 0  # youngest tokens that it keeps beside a sum
    all_windows: bool = False

    def config(self, base: LMConfig) -> LMConfig:
        """Return the config of a model of the size of `base`."""
        options = {"conv": CONV, **self.options}
        if self.all_windows:
            options["window_layers"] = tuple(range(base.layers))
        head_dim = options.pop("head_dim", base.width // base.heads)
        return replace(base, heads=base.width // head_dim, **options)

    def state(self, config: LMConfig, tokens: int) -> int:
        """Return how many numbers the model keeps of a sequence of this length while it decodes."""
        head_dim = config.width // config.heads
        sums = config.heads * feature_count(config.qk_head_dim or head_dim, config.order) * (head_dim + 1)
        total = config.layers * config.width * max(config.conv - 1, 0)
        for layer in range(config.layers):
            if layer in config.window_layers:
                assert config.window is not None
                total += 2 * config.width * min(config.window - 1, tokens)
            elif self.keeps == "tokens":
                total += 2 * config.width * tokens
            else:
                total += sums + 2 * config.width * self.near
        return total


def _of(layer: type[FastmaxAttention] = FastmaxAttention, **options: Any) -> LayerRecipe:
    return LayerRecipe(MappingProxyType({"decay": None, **options}), layer)


FAR = (12.0, 12.0)
EXACT: dict[str, Any] = {"normalize": False, "decay": None}
RECIPES: dict[str, LayerRecipe] = {
    "softmax": LayerRecipe(EXACT, SoftmaxAttention, keeps="tokens"),
    "fastmax2, gated": _of(decay="gated"),
    "fastmax2": _of(),
    "fastmax2, half gated": _of(HalfGatedAttention, decay="gated"),
    "linear, gated": _of(LinearAttention, order=1, rotary=False, decay="gated"),
    "window": LayerRecipe({"window": WINDOW, "decay": None}, all_windows=True),
    "fastmax2, window first": _of(window=WINDOW, window_layers=(0,)),
    "fastmax2, gated far": _of(decay="gated", memory=FAR),
    "fastmax2, near 16": LayerRecipe({"decay": None}, near_far_layer(16), near=16),
    "fastmax2, gated, near 16": LayerRecipe({"decay": "gated"}, near_far_layer(16), near=16),
    "fastmax2, gated, narrow": _of(decay="gated", qk_head_dim=16),
    "fastmax4, gated, heads of 16": _of(order=4, decay="gated", head_dim=16),
    "fastmax2, gated, window first": _of(decay="gated", window=WINDOW, window_layers=(0,)),
    "fastmax1": _of(order=1),
    "fastmax2, paper's scale": _of(scale=1.0),
    "fastmax2, decay": _of(decay="learned"),
    "fastmax2, near 64": LayerRecipe({"decay": None}, near_far_layer(64), near=64),
    "softmax, no conv": LayerRecipe({**EXACT, "conv": 0}, SoftmaxAttention, keeps="tokens"),
    "fastmax2, gated, no conv": _of(decay="gated", conv=0),
    "fastmax4": _of(order=4),
}
"""The first ones decide most, so they are measured first. Without a word, a gate has the reaches of `LMConfig`."""


NARROW: dict[str, tuple[int, int, LayerRecipe]] = {
    f"fastmax2, gated, {d} beside {value_dim}": (d, value_dim, _of(decay="gated", qk_head_dim=d))
    for value_dim, dims in ((64, (16, 32, 64)), (128, (32, 64, 128)))
    for d in dims
}
"""Recipes by their channels of queries and keys beside those of values, with these two."""


def make(name: str, seed: int, base: LMConfig) -> FastmaxLM:
    """Make the model of a recipe. Models of one seed and the same parameters start from the same weights."""
    torch.manual_seed(seed)
    recipe = RECIPES[name] if name in RECIPES else NARROW[name][2]
    return FastmaxLM(recipe.config(base), recipe.layer)
