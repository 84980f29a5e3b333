"""SoftmaxAttention, which models are compared with: its weights are those that its outputs are made of."""

import pytest
import torch

from fastmax_lab.baselines.softmax_layer import SoftmaxAttention
from tests.support import assert_within_budget, randn


@pytest.mark.parametrize("decay", [None, "gated"])
def test_the_weights_are_those_of_softmax(decay: str | None) -> None:
    layer = SoftmaxAttention(8, 2, batch_first=True, dtype=torch.float64, normalize=False, decay=decay, memory=(1, 2))
    x = randn(2, 5, 8)
    output, weights = layer(x, x, x, is_causal=True, need_weights=True, average_attn_weights=False)
    assert weights is not None
    q, k, v = (part.unflatten(-1, (2, 4)).transpose(1, 2) for part in (x @ layer.in_proj_weight.mT).chunk(3, -1))
    if decay is None:
        logits = (q @ k.mT / 2).masked_fill(torch.ones(5, 5).triu(1) > 0, -torch.inf)
        assert_within_budget(weights, logits.softmax(-1), logits.softmax(-1))
    again = layer.out_proj((weights @ v).transpose(1, 2).flatten(2))
    assert_within_budget(again, output, output)
