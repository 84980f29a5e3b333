"""Layers with a softmax window: nn.MultiheadAttention with a band of a mask, in every call that layers know."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fastmax.distributed import parallelize
from fastmax.nn import FastmaxAttention, LayerOptions, replace_attention, rotate
from fastmax.state import FastmaxState, WindowState
from tests.support import randn

B, L, E, H, W = 3, 150, 16, 4, 7


def layer(**options: Any) -> FastmaxAttention:
    base = {"embed_dim": E, "num_heads": H, "batch_first": True, "dtype": torch.float64, "window": W}
    built = FastmaxAttention(**{**base, **options})
    for name, parameter in built.named_parameters():
        if "bias" in name:
            nn.init.normal_(parameter)
    return built


def band(is_causal: bool, window: int = W) -> Tensor:
    """True where attention is not allowed, as nn.MultiheadAttention has it."""
    away = torch.arange(L)[:, None] - torch.arange(L)
    return (away < 0) | (away >= window) if is_causal else away.abs() >= window


@pytest.mark.parametrize("is_causal", [True, False], ids=["causal", "both sides"])
@pytest.mark.parametrize("batch_first", [False, True])
@pytest.mark.parametrize("average", [False, True])
def test_it_is_multihead_attention_with_a_banded_mask(is_causal: bool, batch_first: bool, average: bool) -> None:
    m, x = layer(batch_first=batch_first), randn(B, L, E, grad=True)
    softmax = nn.MultiheadAttention(E, H, batch_first=batch_first, dtype=torch.float64)
    softmax.load_state_dict(m.state_dict(), strict=True)
    given = x if batch_first else x.transpose(0, 1)
    expected, matrix = softmax(given, given, given, attn_mask=band(is_causal), average_attn_weights=average)
    o, weights = m(given, given, given, is_causal=is_causal, average_attn_weights=average)
    torch.testing.assert_close(o, expected)
    torch.testing.assert_close(weights, matrix)
    short = m(given, given, given, is_causal=is_causal, need_weights=False)
    assert short[1] is None
    torch.testing.assert_close(short[0], expected)
    do = torch.randn_like(o)
    got = torch.autograd.grad(o, [x, *m.parameters()], do)
    for mine, wanted in zip(got, torch.autograd.grad(expected, [x, *softmax.parameters()], do), strict=True):
        torch.testing.assert_close(mine, wanted)
    alone = x[0]
    torch.testing.assert_close(m(alone, alone, alone, is_causal=is_causal)[0], o[0] if batch_first else o[:, 0])


def test_rotary_positions_and_shared_heads() -> None:
    m, x = layer(rotary=True, num_kv_heads=2), randn(B, L, E)
    q, k, v = m._projected(x, x, x)
    k, v = k.repeat_interleave(2, 1), v.repeat_interleave(2, 1)
    o = nn.functional.scaled_dot_product_attention(rotate(q), rotate(k), v, ~band(True))
    torch.testing.assert_close(m(x, x, x, is_causal=True)[0], m.out_proj(o.transpose(1, 2).flatten(2)))


@pytest.mark.parametrize("is_causal", [True, False], ids=["causal", "both sides"])
def test_a_hidden_token_takes_no_place(is_causal: bool) -> None:
    m, x = layer(), randn(B, L, E)
    padding = torch.rand(B, L) < 0.3
    padding[1, :20] = True
    padding[2, 20:] = True
    o, weights = m(x, x, x, padding, is_causal=is_causal)
    assert torch.equal(o[padding], m.out_proj.bias.expand_as(o[padding]))
    for row in range(B):
        alone = x[row : row + 1, ~padding[row]]
        expected, matrix = m(alone, alone, alone, is_causal=is_causal)
        torch.testing.assert_close(o[row, ~padding[row]], expected[0])
        torch.testing.assert_close(weights[row, ~padding[row]][:, ~padding[row]], matrix[0])


def test_sequences_of_nested_tensors() -> None:
    m, sequences = layer(), [randn(30, E), randn(50, E)]
    x = torch.nested.as_nested_tensor(sequences, layout=torch.jagged)
    o, _ = m(x, x, x, need_weights=False, is_causal=True)
    for got, alone in zip(o.unbind(), sequences, strict=True):
        torch.testing.assert_close(got, m(alone, alone, alone, is_causal=True)[0])


def test_dropout_is_that_of_weights_in_training() -> None:
    m, x = layer(dropout=0.5), randn(B, L, E)
    kept = copy.deepcopy(m).eval()
    whole, _ = kept(x, x, x, is_causal=True, need_weights=False)
    assert not torch.allclose(m(x, x, x, is_causal=True, need_weights=False)[0], whole)
    state, exact = m.new_state(B), kept.new_state(B)
    for piece in x.split(50, 1):
        assert not torch.allclose(m.step(piece, state), kept.step(piece, exact))
    torch.testing.assert_close(kept.step(x, state), kept.step(x, exact), msg="the state should be whole")


def test_autocast_and_half_precision() -> None:
    m, x = layer(dtype=torch.float32, rotary=True), randn(B, L, E, dtype=torch.float32)
    exact, _ = m(x, x, x, is_causal=True, need_weights=False)
    with torch.autocast("cpu", torch.bfloat16):
        o, _ = m(x, x, x, is_causal=True, need_weights=False)
        state = m.new_state(B)
        pieces = torch.cat([m.step(piece, state) for piece in x.split(30, 1)], 1)
    assert o.dtype == pieces.dtype == torch.bfloat16
    half = m.bfloat16()
    halved, _ = half(*(x.bfloat16(),) * 3, is_causal=True, need_weights=False)
    for other in (o, pieces, halved):
        torch.testing.assert_close(other.float(), exact, rtol=0, atol=0.02)
    assert half.new_state(B).dtype == torch.bfloat16


@pytest.mark.parametrize("padded", [False, True], ids=["", "padded"])
def test_compiled_in_one_graph(padded: bool) -> None:
    torch.compiler.reset()
    m, x = layer(dtype=torch.float32, rotary=True), torch.randn(B, L, E)
    padding = torch.rand(B, L) < 0.3 if padded else None
    compiled = torch.compile(m, fullgraph=True, backend="aot_eager")
    call = {"key_padding_mask": padding, "is_causal": True, "need_weights": False}
    torch.testing.assert_close(compiled(x, x, x, **call)[0], m(x, x, x, **call)[0])


@pytest.mark.parametrize("mode", ["train", "inference"])
@pytest.mark.parametrize("padded", [False, True], ids=["", "padded"])
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")
def test_softmax_is_kept_in_chosen_layers_of_an_encoder(mode: str, padded: bool) -> None:
    block = nn.TransformerEncoderLayer(E, H, 32, dropout=0.0, batch_first=True, dtype=torch.float64)
    softmax = nn.TransformerEncoder(block, 2)
    model = copy.deepcopy(softmax)
    assert replace_attention(model, window=W, layers="layers.1.*").replaced == ("layers.1.self_attn",)
    padding = torch.arange(L) >= torch.tensor([L, 120, 3])[:, None] if padded else None
    x = randn(B, L, E)
    if mode == "inference":
        model.eval(), softmax.eval()
    with torch.inference_mode(mode == "inference"):
        o = model(x, src_key_padding_mask=padding)
        y = softmax.layers[0](x, src_key_padding_mask=padding)
        expected = softmax.layers[1](y, src_mask=band(False), src_key_padding_mask=padding)
    kept = torch.ones(B, L, dtype=torch.bool) if padding is None else ~padding
    torch.testing.assert_close(o[kept], expected[kept])


def test_cross_attention_has_no_window() -> None:
    model = nn.Transformer(E, H, 1, 1, 32, batch_first=True)
    replace_attention(model, 4, window=W)
    windows = {name: m.options.window for name, m in model.named_modules() if isinstance(m, FastmaxAttention)}
    assert windows == {
        "encoder.layers.0.self_attn": W,
        "decoder.layers.0.self_attn": W,
        "decoder.layers.0.multihead_attn": None,
    }
    m, x = layer(), randn(B, L, E)
    with pytest.raises(ValueError, match=r"a layer with a window is for self attention.*without a window"):
        m(x, randn(B, L, E), x)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"window": 0}, "window must be a positive number of tokens or None, got 0"),
        ({"window": 2.0}, r"window must be a positive number of tokens or None, got 2\.0"),
        ({"window": 2, "decay": "gated"}, "learn_scale and decay are for layers without"),
        ({"window": 2, "learn_scale": True}, "learn_scale and decay are for layers without"),
        ({"window": 2, "add_zero_attn": True}, "window is not supported with add_bias_kv"),
        ({"window": 2, "kdim": 6}, "window is for self attention: kdim must be embed_dim = 16, got 6"),
    ],
)
def test_options_are_checked(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        layer(**options)


def test_refusals() -> None:
    m, x = layer(), randn(B, L, E)
    per_head = torch.zeros(B, H, L, L, dtype=torch.bool)
    per_head[:, 0, :, 3] = True
    with pytest.raises(ValueError, match="a layer with a window needs one mask for all heads"):
        m(x, x, x, attn_mask=per_head.flatten(0, 1))
    with pytest.raises(
        TypeError, match=r"state must be a WindowState, as layer\.new_state returns one, got FastmaxState"
    ):
        m.step(x, FastmaxState.empty(B, H, E // H))
    with pytest.raises(TypeError, match=r"state must be a FastmaxState.*got WindowState"):
        layer(window=None).step(x, m.new_state(B))
    with pytest.raises(ValueError, match="expected window=7, got window=8"):
        m.step(x, layer(window=8).new_state(B))
    with pytest.raises(ValueError, match=r"expected scale=0\.5, got scale=0\.3"):
        m.step(x, layer(scale=0.3).new_state(B))
    with pytest.raises(ValueError, match="need_weights must be False"):
        m(x, x, x, is_causal=True, state=m.new_state(B))


def test_a_window_shares_no_sequence() -> None:
    from fastmax.distributed.parallelize import _refusal

    assert parallelize(layer(), None).sequence is None
    assert "a softmax window is no sum over keys" in str(_refusal([layer()]))


def test_repr() -> None:
    assert FastmaxAttention(E, H, window=W).extra_repr() == "embed_dim=16, num_heads=4, window=7, scale=0.5"
    assert LayerOptions(window=W, order=1).scale_of(64) == 0.125
    assert isinstance(layer().new_state(1), WindowState)
