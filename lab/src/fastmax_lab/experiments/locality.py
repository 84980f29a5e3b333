"""The locality of attention maps, as numbers that do not depend on their size."""

import torch
from torch import Tensor


def locality(maps: Tensor, *, is_causal: bool) -> list[dict[str, float]]:
    """Measure maps (B, H, N, N) by head: means over samples and queries that see at least two keys.

    keys      the effective number of keys, exp of the entropy of a row, over the number it sees: 1 if all weigh the same
    distance  the mean distance in tokens, weighted, over that of equal weights: 1 if place does not matter
    largest   the largest weight of a row
    """
    weights = maps.double().clamp(min=0)
    weights = weights / weights.sum(-1, keepdim=True).clamp(min=1e-300)
    tokens = maps.shape[-1]
    place = torch.arange(tokens, device=maps.device)
    apart = (place[:, None] - place).abs().double()
    seen = (place[:, None] >= place).double() if is_causal else torch.ones_like(apart)
    many = seen.sum(-1) >= 2
    entropy = -torch.xlogy(weights, weights).sum(-1)
    keys = entropy.exp() / seen.sum(-1)
    distance = (weights * apart).sum(-1) / ((seen * apart).sum(-1) / seen.sum(-1)).clamp(min=1e-300)
    values = {"keys": keys, "distance": distance, "largest": weights.amax(-1)}
    means = {name: value[..., many].mean((0, 2)).tolist() for name, value in values.items()}
    return [{name: means[name][head] for name in means} for head in range(maps.shape[1])]
