"""Near keys by exp, far keys by the polynomial: against the definition, at lengths around those of chunks."""

import pytest
import torch

from fastmax_lab.baselines.near_far import near_far, near_far_layer


@pytest.mark.parametrize("decays", [False, True])
@pytest.mark.parametrize("near", [1, 16, 100])
@pytest.mark.parametrize("tokens", [10, 64, 130, 300])
def test_it_is_the_definition(tokens: int, near: int, decays: bool) -> None:
    torch.manual_seed(0)
    q, k, v = leaves = [torch.randn(2, 3, tokens, 8, dtype=torch.float64, requires_grad=True) for _ in range(3)]
    log_decay = -torch.rand(2, 3, tokens, dtype=torch.float64) if decays else None
    options = {"is_causal": True, "scale": 0.3, "normalize": False, "order": 2}
    o = near_far(q, k, v, near=near, log_decay=log_decay, **options)
    s, distance = 0.3 * q @ k.mT, torch.arange(tokens)[:, None] - torch.arange(tokens)
    weights = torch.where(distance < near, s.exp(), 1 + s + s.square() / 2)
    if log_decay is not None:
        c = log_decay.cumsum(-1)
        weights = weights * (c.unsqueeze(-1) - c.unsqueeze(-2)).masked_fill(distance < 0, 0).exp()
    weights = weights.masked_fill(distance < 0, 0)
    expected = weights @ v / weights.sum(-1, keepdim=True)
    torch.testing.assert_close(o, expected)
    do = torch.randn_like(o)
    for got, wanted in zip(torch.autograd.grad(o, leaves, do), torch.autograd.grad(expected, leaves, do), strict=True):
        torch.testing.assert_close(got, wanted)


def test_a_layer_of_it_is_fastmax_where_nothing_is_near() -> None:
    torch.manual_seed(0)
    layer = near_far_layer(16)(16, 2, batch_first=True, rotary=True, decay="gated").double()
    x = torch.randn(1, 100, 16, dtype=torch.float64)
    o = layer(x, x, x, is_causal=True, need_weights=False)[0]
    layer.__class__ = near_far_layer(0)
    none = layer(x, x, x, is_causal=True, need_weights=False)[0]
    layer.__class__ = near_far_layer(0).__mro__[1]
    torch.testing.assert_close(none, layer(x, x, x, is_causal=True, need_weights=False)[0])
    assert not torch.allclose(o, none)
