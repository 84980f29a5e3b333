"""Decoding by a layer must be its causal forward over the whole text, however that is cut into pieces."""

import copy
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fastmax.nn import FastmaxAttention, LayerOptions
from fastmax.state import FastmaxState
from fastmax.state.recent import capacity
from tests.support import NoSumOverKeys, assert_within_budget, randn

B, L, E, H = 3, 40, 16, 4
assert capacity(E // H, E // H, 2) < L, "tokens must go to the sum"
KINDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "order 1": {"order": 1},
    "order 3": {"order": 3},
    "rms": {"normalize": "rms"},
    "raw": {"normalize": False, "scale": 0.1},
    "rotary": {"rotary": True, "rotary_base": 50.0},
    "rotary, raw": {"rotary": True, "normalize": False, "scale": 0.1},
    "learned scale": {"learn_scale": True},
    "gqa": {"num_kv_heads": 2},
    "learned decay": {"decay": "learned", "memory": (1.0, 4.0)},
    "gated": {"decay": "gated", "memory": (1.0, 4.0)},
    "narrow": {"qk_head_dim": 2, "rotary": True, "decay": "gated", "memory": (1.0, 4.0), "num_kv_heads": 2},
    "window": {"window": 7},
    "window, narrow": {"window": 7, "qk_head_dim": 2},
    "window of one": {"window": 1},
    "window, long": {"window": 100, "num_kv_heads": 2},
    "window, rotary, gqa": {"window": 11, "rotary": True, "num_kv_heads": 2},
    "all": {
        "decay": "gated",
        "memory": (1.0, 4.0),
        "rotary": True,
        "normalize": "rms",
        "learn_scale": True,
        "num_kv_heads": 2,
    },
}


def layer(**options: Any) -> FastmaxAttention:
    built = FastmaxAttention(**{"embed_dim": E, "num_heads": H, "batch_first": True, "dtype": torch.float64, **options})
    for name, parameter in built.named_parameters():
        if "bias" in name or "gate" in name:  # zeros, or far from where they matter
            nn.init.normal_(parameter)
        if "head_scale" in name:
            nn.init.uniform_(parameter, 0.1, 0.5)
    return built


def left_padding(lengths: list[int], total: int) -> Tensor:
    """True where a token is padding, as nn.MultiheadAttention has it."""
    return torch.arange(total) < total - torch.tensor(lengths)[:, None]


@pytest.mark.parametrize("padded", [False, True], ids=["", "padded"])
@pytest.mark.parametrize("cuts", [[L], [1], [25], [30, 31, 32], [20, 25]], ids=str)
@pytest.mark.parametrize("grad", [False, True], ids=["no grad", "grad"])
@pytest.mark.parametrize("options", KINDS.values(), ids=KINDS)
def test_pieces_equal_the_whole(options: dict[str, Any], grad: bool, cuts: list[int], padded: bool) -> None:
    """A prompt, then a few tokens or single ones; the prompt may be padded on the left."""
    m, x = layer(**options), randn(B, L, E, grad=grad)
    padding = left_padding([L, L - 3, L - 5], L) if padded and cuts[0] > 5 else None
    with torch.set_grad_enabled(grad):
        expected, _ = m(x, x, x, padding, need_weights=False, is_causal=True)
        state = m.new_state(B)
        prompt = x[:, : cuts[0]]
        hidden = None if padding is None else padding[:, : cuts[0]]
        parts = [m(prompt, prompt, prompt, hidden, need_weights=False, is_causal=True, state=state)[0]]
        edges = [*cuts, *range(cuts[-1] + 1, L + 1)]
        parts += [m.step(x[:, start:end], state) for start, end in pairwise(edges)]
    o = torch.cat(parts, 1)
    torch.testing.assert_close(o, expected)
    assert state.tokens.tolist() == ([L, L - 3, L - 5] if padding is not None else [L] * B)
    if grad:
        leaves, do = [x, *m.parameters()], torch.randn_like(o)
        got = torch.autograd.grad(o, leaves, do)
        for mine, wanted in zip(got, torch.autograd.grad(expected, leaves, do), strict=True):
            torch.testing.assert_close(mine, wanted)


@pytest.mark.parametrize("batch_first", [False, True])
def test_layouts(batch_first: bool) -> None:
    m, x = layer(batch_first=batch_first, **KINDS["all"]), randn(B, L, E)
    expected = m(*(x if batch_first else x.transpose(0, 1),) * 3, need_weights=False, is_causal=True)[0]
    pieces = [p if batch_first else p.transpose(0, 1) for p in x.split(7, 1)]
    state = m.new_state(B)
    o = torch.cat([m.step(piece, state) for piece in pieces], 1 if batch_first else 0)
    torch.testing.assert_close(o, expected)
    alone = m.new_state(1)  # unbatched
    o = torch.cat([m.step(piece, alone) for piece in x[1].split(7, 0)], 0)
    torch.testing.assert_close(o, expected[1] if batch_first else expected[:, 1])


def test_rows_of_other_lengths_are_as_if_alone() -> None:
    """Also with padding on the right, and in the middle of a text: what is hidden takes no place."""
    m, x = layer(**KINDS["all"]), randn(2, 12, E)
    hidden = torch.tensor([[False] * 12, [False] * 5 + [True] * 3 + [False] * 4])
    state = m.new_state(2)
    parts = [m.step(x[:, s], state, hidden[:, s]) for s in (slice(8), slice(8, 9), slice(9, 12))]
    alone = x[1:, ~hidden[1]]
    expected, _ = m(alone, alone, alone, need_weights=False, is_causal=True)
    torch.testing.assert_close(torch.cat(parts, 1)[1:, ~hidden[1]], expected)


def test_a_state_is_one_of_the_layer() -> None:
    m = layer(order=1, learn_scale=True, num_kv_heads=2, normalize="rms")
    state = m.new_state(5)
    assert (state.batch, state.num_kv_heads, state.head_dim, state.value_dim) == (5, 2, E // H, E // H)
    assert (state.order, state.normalize, state.dtype) == (1, "rms", torch.float64)
    assert state.scale is m.head_scale
    assert layer(rotary=True).new_state(1).normalize is False
    assert layer().new_state(1).scale == layer().scale == 0.5
    assert layer(dtype=torch.bfloat16).new_state(1).dtype == torch.float32
    assert layer(dtype=torch.float32).new_state(1, dtype=torch.float64).dtype == torch.float64
    assert layer().new_state(1, device="meta").device.type == "meta"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"order": 1, "scale": 0.5}, "expected order=2, got order=1"),
        ({"scale": 0.7}, r"expected scale=0\.5, got scale=0\.7"),
        ({"learn_scale": True}, r"expected scale=0\.5, got scale=\[0\.5, 0\.5, 0\.5, 0\.5\]"),
        ({"normalize": "rms"}, "expected normalize=True, got normalize=rms"),
        ({"rotary": True}, "expected normalize=True, got normalize=False"),
        ({"num_kv_heads": 2}, "expected num_kv_heads=4, got num_kv_heads=2"),
        ({"qk_head_dim": 2, "scale": 0.5}, "expected head_dim=4, got head_dim=2"),
        ({"embed_dim": 32, "scale": 0.5}, "expected head_dim=4, value_dim=4, got head_dim=8, value_dim=8"),
    ],
)
def test_states_of_other_layers_are_refused(change: dict[str, Any], message: str) -> None:
    m = FastmaxAttention(E, H, batch_first=True)
    state = FastmaxAttention(**{"embed_dim": E, "num_heads": H, **change}).new_state(B)
    with pytest.raises(ValueError, match=f"with the layer they are for.*{message}"):
        m.step(torch.randn(B, 1, E), state)
    assert state.tokens.tolist() == [0] * B


def test_a_state_that_was_saved_is_not_refused(tmp_path: Path) -> None:
    m, x = layer(learn_scale=True), randn(B, 3, E)
    state = m.new_state(B)
    m.step(x, state)
    state.save(tmp_path / "state")
    torch.testing.assert_close(m.step(x, FastmaxState.load(tmp_path / "state")), m.step(x, state))


def test_refusals() -> None:
    m, x = layer(), randn(B, 2, E)
    state = m.new_state(B)
    for call, message in (
        ({"need_weights": True, "is_causal": True}, "need_weights must be False"),
        ({"need_weights": False}, "is_causal must be True"),
        (
            {"need_weights": False, "attn_mask": torch.ones(2, 2, dtype=torch.bool).triu(1)},
            "is_causal must be True",
        ),
    ):
        with pytest.raises(ValueError, match=message):
            m(x, x, x, state=state, **call)
    with pytest.raises(ValueError, match="query and key must be the same tokens, got 2 and 1"):
        m(x, x[:, :1], x[:, :1], need_weights=False, is_causal=True, state=state)
    with pytest.raises(ValueError, match=r"key must be of shape .*\(3, 4, any, 4\), got \(1, 4, 2, 4\)"):
        m.step(x[:1], state)
    with pytest.raises(TypeError, match=r"state must be a FastmaxState, as layer\.new_state returns one, got Tensor"):
        m.step(x, state.tensor)
    assert state.tokens.tolist() == [0] * B
    for extra in ("add_bias_kv", "add_zero_attn"):
        with pytest.raises(ValueError, match="add_bias_kv and add_zero_attn are not supported while decoding"):
            layer(**{extra: True}).new_state(B)
        with pytest.raises(ValueError, match="add_bias_kv and add_zero_attn are not supported while decoding"):
            layer(**{extra: True}).step(x, state)
    with pytest.raises(ValueError, match="NoSumOverKeys is no sum over keys"):
        NoSumOverKeys(E, H).new_state(B)


@pytest.mark.parametrize("options", [{}, {"decay": "gated"}], ids=["", "gated"])
def test_dropout_drops_and_the_state_stays_whole(options: dict[str, Any]) -> None:
    m, x = layer(dropout=0.5, **options), randn(B, 8, E)
    exact, state, kept = m.new_state(B), m.new_state(B), copy.deepcopy(m).eval()
    for piece in x.split(4, 1):
        torch.manual_seed(1)
        o = m.step(piece, state)
        torch.manual_seed(1)
        assert torch.equal(m.step(piece, FastmaxState.from_state_dict(exact.state_dict())), o)
        assert not torch.allclose(o, kept.step(piece, exact))
    torch.testing.assert_close(state.tensor, exact.tensor)
    m.dropout = 1e-9  # by which nothing is dropped, here
    torch.testing.assert_close(m.step(x, state), kept.step(x, exact))
    torch.testing.assert_close(state.tensor, exact.tensor)
    assert state.tokens.tolist() == exact.tokens.tolist() == [16] * B


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision(dtype: torch.dtype) -> None:
    m = layer(**{**KINDS["all"], "dtype": dtype})
    x, state = randn(B, L, E, dtype=dtype), m.new_state(B)
    with torch.no_grad():
        o = torch.cat([m.step(piece, state) for piece in x.split(1, 1)], 1)
        whole, _ = m(x, x, x, need_weights=False, is_causal=True)
        exact, _ = m.double()(*(x.double(),) * 3, need_weights=False, is_causal=True)
    assert o.dtype == dtype
    assert_within_budget(o, exact, whole)


def test_replaced_layers_decode_too() -> None:
    softmax = nn.MultiheadAttention(E, H, batch_first=True, dtype=torch.float64)
    m = FastmaxAttention.from_attention(softmax, LayerOptions(rotary=True, decay="gated"))
    x, state = randn(B, 5, E), m.new_state(B)
    expected, _ = m(x, x, x, need_weights=False, is_causal=True)
    torch.testing.assert_close(torch.cat([m.step(piece, state) for piece in x.split(2, 1)], 1), expected)
