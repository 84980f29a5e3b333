"""WindowState: bounded memory, rows as if alone, copies that share nothing, and what is refused."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from fastmax.state import WindowState
from fastmax.window import windowed_softmax
from tests.support import randn

B, HQ, H, D, DV, W, SCALE = 3, 4, 2, 6, 5, 8, 0.3


def empty(dtype: torch.dtype = torch.float64) -> WindowState:
    return WindowState.empty(B, H, D, DV, window=W, scale=SCALE, dtype=dtype)


def tokens(count: int) -> list[Tensor]:
    return [randn(B, heads, count, size) for heads, size in ((HQ, D), (H, D), (H, DV))]


def filled(count: int) -> WindowState:
    state = empty()
    state.step(*tokens(count))
    return state


def tensors(state: WindowState) -> list[Tensor]:
    return [state._keys, state._values, state.tokens]


def test_rows_are_as_if_alone_however_they_are_cut_and_hidden() -> None:
    inputs, mask = tokens(60), torch.rand(B, 60) < 0.6
    mask[0] = True
    mask[1, :40] = False
    state, parts, edge = empty(), [], 0
    for size in (1, 1, 12, 3, 20, 1, 1, 1, 20):
        piece = slice(edge, edge + size)
        hidden = mask[:, piece]
        parts.append(state.step(*(x[:, :, piece] for x in inputs), None if hidden.all() else hidden))
        edge += size
    o = torch.cat(parts, 2)
    assert state.tokens.tolist() == mask.sum(1).tolist()
    for row in range(B):
        alone = [x[row : row + 1, :, mask[row]] for x in inputs]
        expected = windowed_softmax(*alone, window=W, scale=SCALE)
        torch.testing.assert_close(o[row : row + 1, :, mask[row]], expected)
    assert not o.mT[:, 0].mT[~mask].any()


def test_gaps_are_forgotten_once_they_left_the_window() -> None:
    """Then steps need no mask any more."""
    state = empty()
    state.step(*tokens(6), torch.tensor([[True] * 6, [False] * 6, [True, False] * 3]))
    gaps = [state._gaps]
    for _ in range(7):
        state.step(*tokens(1))
        gaps.append(state._gaps)
    assert gaps == [6, 6, 5, 4, 3, 2, 1, 0]


@pytest.mark.parametrize(
    "sizes", [[1] * 40, [500], [500, 1], [500, 1, 3]], ids=["single", "long", "one more", "few more"]
)
def test_memory_is_bounded(sizes: list[int]) -> None:
    state = empty()
    with torch.no_grad():
        for size in sizes:
            state.step(*tokens(size))
    assert state.length == W - 1
    assert sum(x.numel() * x.itemsize for x in tensors(state)[:2]) == state.nbytes
    assert all(x.untyped_storage().nbytes() <= 2 * B * H * W * D * 8 for x in tensors(state)[:2])


def test_gradients_flow_through_the_state() -> None:
    inputs = [x.requires_grad_() for x in tokens(30)]
    state = empty()
    pieces = zip(*(x.split(7, 2) for x in inputs), strict=True)
    o = torch.cat([state.step(*piece) for piece in pieces], 2)
    do = torch.randn_like(o)
    whole = windowed_softmax(*inputs, window=W, scale=SCALE)
    expected = torch.autograd.grad(whole, inputs, do)
    for got, wanted in zip(torch.autograd.grad(o, inputs, do), expected, strict=True):
        torch.testing.assert_close(got, wanted)
    assert not any(x.requires_grad for x in tensors(state.detach()))


COPIES: dict[str, Any] = {
    "clone": lambda s: s.clone(),
    "detach": lambda s: s.detach(),
    "to": lambda s: s.to(dtype=torch.float64),
    "select": lambda s: s.select(torch.arange(B)),
    "state_dict": lambda s: WindowState.from_state_dict(s.state_dict()),
}


@pytest.mark.parametrize("copied", COPIES.values(), ids=COPIES)
def test_copies_go_on_alike_and_share_nothing(copied: Any) -> None:
    state, more = filled(20), tokens(3)
    other = copied(state)
    assert not {x.data_ptr() for x in tensors(state)} & {x.data_ptr() for x in tensors(other)}
    expected = state.clone().step(*more)
    assert torch.equal(other.step(*more), expected)
    assert torch.equal(state.step(*more), expected), "the copy should not change the state"


def test_beams() -> None:
    state, more = filled(20), tokens(3)
    index = torch.tensor([2, 0, 0])
    expected = state.clone().step(*more)
    torch.testing.assert_close(state.reorder(index).step(*(x[index] for x in more)), expected[index])
    twice = state.repeat_interleave(2)
    assert twice.batch == 2 * B
    torch.testing.assert_close(twice.step(*(x.repeat_interleave(2, 0) for x in more)), expected.repeat_interleave(2, 0))
    with pytest.raises(ValueError, match=r"index must have one entry per batch element, shape \(3,\), got \(2,\)"):
        state.reorder(index[:2])


def test_saved_and_loaded(tmp_path: Path) -> None:
    state, more = empty(), tokens(3)
    state.step(*tokens(9), torch.rand(B, 9) < 0.4)
    state.save(tmp_path / "state")
    loaded = WindowState.load(tmp_path / "state")
    assert (loaded.window, loaded.scale, loaded.dtype) == (W, SCALE, torch.float64)
    other = empty()
    other.load_state_dict(state.state_dict())
    expected = state.step(*more)
    assert torch.equal(loaded.step(*more), expected)
    assert torch.equal(other.step(*more), expected)
    (tmp_path / "cut").write_bytes((tmp_path / "state").read_bytes()[:50])
    with pytest.raises(ValueError, match="does not hold a WindowState"):
        WindowState.load(tmp_path / "cut")


def test_refusals() -> None:
    state, (q, k, v) = filled(20), tokens(2)
    for call, message in (
        ((q, k[:, :1], v), r"key must be of shape \(B, heads, N, D\) = \(3, 2, 2, 6\), got \(3, 1, 2, 6\)"),
        ((q, k, v[:, :, :1]), "value must be of shape"),
        ((q[:, :, :1], k, v), "query must be of shape"),
        ((q[:, :3], k, v), "query heads must be a multiple of the 2 of the state, got 3"),
        ((q, k, v, torch.ones(B, 2)), "key_mask must be boolean"),
        ((q, k, v, torch.ones(B, 3, dtype=torch.bool)), r"of shape \(3, 2\)"),
    ):
        with pytest.raises(ValueError, match=message):
            state.step(*call)
    assert state.tokens.tolist() == [20] * B
    entries = state.state_dict()
    for change, message in (
        ({"more": 1}, "a window state has the entries keys, scale, tokens, values, window; got"),
        ({"keys": 3}, "keys must be a tensor, got int"),
        ({"window": 3}, "window must be an int above the 7 tokens that are kept, got 3"),
        ({"values": entries["values"][:, :, 1:]}, "keys and values must be of shapes"),
        ({"tokens": entries["tokens"][:1]}, "tokens must be int64"),
        ({"scale": float("nan")}, "scale must be finite"),
    ):
        with pytest.raises(ValueError, match=message):
            WindowState.from_state_dict({**entries, **change})
    with pytest.raises(ValueError, match="expected window=9, got window=8"):
        WindowState.empty(B, H, D, DV, window=9, scale=SCALE, dtype=torch.float64).load_state_dict(entries)


def test_repr() -> None:
    shown = "WindowState(batch=3, num_kv_heads=2, head_dim=6, value_dim=5, window=8, scale=0.3, dtype=torch.float64,"
    assert repr(empty()).startswith(shown)
