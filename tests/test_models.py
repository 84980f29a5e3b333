"""FastmaxLM: pieces equal the whole, and what it generates is what its full forward says."""

import dataclasses
from typing import Any

import pytest
import torch
from torch import Tensor

from fastmax import models
from fastmax.models import BlockState, FastmaxLM, LMConfig
from tests.support import NoSumOverKeys

V, N = 23, 30
KINDS: dict[str, dict[str, Any]] = {
    "default": {},
    "conv": {"conv": 4},
    "conv of one": {"conv": 1},
    "plain": {"decay": None, "rotary": False},
    "learned, rms": {"decay": "learned", "normalize": "rms", "memory": (1.0, 3.0)},
    "order 1": {"order": 1},
    "narrow": {"qk_head_dim": 2, "window": 5, "window_layers": (1,)},
    "window": {"window": 5, "window_layers": (1,)},
    "window, conv": {"window": 9, "window_layers": (0,), "conv": 3, "learn_scale": True},
}


def model(dtype: torch.dtype = torch.float64, **options: Any) -> FastmaxLM:
    small = {"vocabulary": V, "layers": 2, "width": 16, "heads": 4, "mlp_ratio": 2, "memory": (1.0, 4.0)}
    made = FastmaxLM(LMConfig(**{**small, **options})).to(dtype).eval()
    for name, parameter in made.named_parameters():  # some start at zero, or so small that all tokens look alike
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, std=0.3 if "tokens" in name else 1.0)
    torch.nn.init.normal_(made.norm.weight)  # or greedy decoding would soon repeat itself
    return made


def prompt(batch: int = 3, tokens: int = N) -> Tensor:
    return torch.randint(V, (batch, tokens))


def tensors(states: list[BlockState]) -> list[Tensor]:
    """All that states hold on to."""
    found: list[Tensor] = []
    for state in states:
        entries = state.attention.state_dict().values()
        found += [x for x in (*entries, state.before) if isinstance(x, Tensor)]
    return found


@pytest.mark.parametrize("sizes", [[N], [1] * N, [7, 1, 1, 10, 11]], ids=["whole", "single", "pieces"])
@pytest.mark.parametrize("options", KINDS.values(), ids=KINDS)
def test_pieces_equal_the_whole(options: dict[str, Any], sizes: list[int]) -> None:
    m, tokens = model(**options), prompt()
    states = m.new_states(3)
    pieces = [m(piece, states) for piece in tokens.split(sizes, 1)]
    torch.testing.assert_close(torch.cat(pieces, 1), m(tokens))


@pytest.mark.parametrize("batch", [1, 8])
@pytest.mark.parametrize("length", [1, 2, N])
@pytest.mark.parametrize("options", KINDS.values(), ids=KINDS)
def test_greedy_is_the_argmax_of_full_forwards(options: dict[str, Any], length: int, batch: int) -> None:
    m, tokens = model(**options), prompt(batch, length)
    expected = tokens
    with torch.no_grad():
        for _ in range(25):
            expected = torch.cat((expected, m(expected)[:, -1].argmax(-1, keepdim=True)), 1)
    if batch > 1:
        assert len(set(expected[:, length:].flatten().tolist())) > 3, "tokens that never change would prove nothing"
    assert torch.equal(m.generate(tokens, 25, temperature=0), expected)


def test_a_long_prompt_is_read_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    m, tokens = model(conv=3), prompt()
    expected = m.generate(tokens, 5, temperature=0)
    monkeypatch.setattr(models, "PIECE", 4)
    assert torch.equal(m.generate(tokens, 5, temperature=0), expected)


def test_chance_comes_from_the_generator() -> None:
    m, tokens = model(), prompt(1, 4)
    first, second, other = (
        m.generate(tokens, 20, generator=torch.Generator().manual_seed(seed)).tolist() for seed in (1, 1, 2)
    )
    assert first == second != other
    assert first[0][:4] == tokens[0].tolist()
    one = m.generate(tokens, 20, top_k=1, temperature=5.0)
    assert torch.equal(one, m.generate(tokens, 20, temperature=0))
    assert torch.equal(m.generate(tokens, 20, temperature=1e-4), one)


def test_only_the_likeliest_are_taken() -> None:
    m, tokens = model(), prompt(200, 1)[:1].expand(200, 1)
    likeliest = set(m(tokens)[0, -1].topk(3).indices.tolist())
    taken = set(m.generate(tokens, 1, top_k=3, temperature=10.0)[:, -1].tolist())
    assert taken == likeliest
    assert len(set(m.generate(tokens, 1, temperature=10.0)[:, -1].tolist())) > 3


@torch.no_grad()
def test_the_states_do_not_grow() -> None:
    m = model(conv=3)
    states, sizes = m.new_states(2), []
    for piece in prompt(2, 400).split(1, 1):
        m(piece, states)
        sizes.append(sum(x.numel() for x in tensors(states)))
    assert max(sizes[200:]) == max(sizes[100:200]), "the recent tokens come and go"
    assert all(x.grad_fn is None for x in tensors(states))
    for state in states:
        if state.before is not None:
            assert state.before.untyped_storage().nbytes() <= 8 * 2 * 3 * 16


def test_bfloat16() -> None:
    m = model(torch.bfloat16, conv=3)
    tokens = prompt()
    states = m.new_states(3)
    assert [state.attention.dtype for state in states] == [torch.float32] * 2
    with torch.no_grad():
        logits = torch.cat([m(piece, states) for piece in tokens.split(1, 1)], 1)
        whole, exact = m(tokens), m.double()(tokens)
    assert logits.dtype == torch.bfloat16
    error, budget = ((x.double() - exact).abs().max() for x in (logits, whole))
    assert error <= 2 * budget
    assert m.bfloat16().generate(tokens, 3).shape == (3, N + 3)


def test_gradients_flow_through_states() -> None:
    m, tokens = model(conv=2), prompt()
    states = m.new_states(3)
    loss = torch.stack([m(piece, states).square().sum() for piece in tokens.split(10, 1)]).sum()
    leaves = list(m.parameters())
    expected = torch.autograd.grad(m(tokens).square().sum(), leaves)
    for got, wanted in zip(torch.autograd.grad(loss, leaves), expected, strict=True):
        torch.testing.assert_close(got, wanted)


def test_parameter_groups() -> None:
    m = model(conv=2)
    matrices, rest = m.parameter_groups(0.1)
    assert (matrices["weight_decay"], rest["weight_decay"]) == (0.1, 0.0)
    names = {id(p): name for name, p in m.named_parameters()}
    decayed, others = ({names[id(p)] for p in group["params"]} for group in (matrices, rest))  # type: ignore[attr-defined]
    assert decayed | others == set(names.values())
    assert "tokens.weight" in decayed
    assert {"blocks.0.attention.gate.weight", "blocks.0.conv.weight", "norm.weight"} <= others


@pytest.mark.parametrize(
    ("tokens", "options", "message"),
    [
        (torch.zeros(2, 0, dtype=torch.int64), {}, r"tokens must be of shape \(B, N\) with N >= 1, got \(2, 0\)"),
        (torch.zeros(2, dtype=torch.int64), {}, r"tokens must be of shape \(B, N\) with N >= 1, got \(2,\)"),
        (prompt(), {"temperature": -1.0}, r"temperature must be at least 0, got -1\.0"),
        (prompt(), {"top_k": 0}, "top_k must be from 1 to the vocabulary of 23, got 0"),
        (prompt(), {"top_k": 24}, "top_k must be from 1 to the vocabulary of 23, got 24"),
    ],
)
def test_refusals(tokens: Tensor, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        model().generate(tokens, 1, **options)


def test_a_model_of_another_layer_trains_and_has_no_states() -> None:
    config = dataclasses.replace(model().config, normalize=False, decay=None)
    m = FastmaxLM(config, NoSumOverKeys)
    m(prompt()).square().mean().backward()
    with pytest.raises(ValueError, match="NoSumOverKeys is no sum over keys"):
        m.generate(prompt(), 1)
