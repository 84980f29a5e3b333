"""Layers that forget: where their decays start, what learns them, and what they do not go with."""

import copy
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from fastmax import fastmax_attention, reference_attention
from fastmax.nn import FastmaxAttention, ForgetGate, replace_attention, rotate
from fastmax.nn.gate import start_bias
from tests.support import randn

B, L, E, H = 2, 9, 16, 4
KINDS = pytest.mark.parametrize("decay", ["learned", "gated"])


def layer(**options: Any) -> FastmaxAttention:
    built = FastmaxAttention(**{"embed_dim": E, "num_heads": H, "batch_first": True, "dtype": torch.float64, **options})
    for name, parameter in built.named_parameters():
        if "gate" in name:
            nn.init.normal_(parameter)
    return built


@KINDS
@pytest.mark.parametrize("num_kv_heads", [H, 2])
@pytest.mark.parametrize("causal", [False, True], ids=["", "causal"])
def test_it_is_the_reference_on_its_projections(decay: str, num_kv_heads: int, causal: bool) -> None:
    m, x = layer(decay=decay, num_kv_heads=num_kv_heads), randn(B, L, E)
    padding = torch.tensor([[False] * L, [True] * 2 + [False] * 4 + [True] + [False] * 2])
    assert m.gate is not None
    q, k, v = m._projected(x, x, x)
    o = reference_attention(
        q,
        k,
        v,
        ~padding[:, None, None, :],
        is_causal=causal,
        scale=m.scale,
        enable_gqa=True,
        log_decay=m.gate(x).expand(B, num_kv_heads, L),
    )
    got, _ = m(x, x, x, padding, need_weights=False, is_causal=causal)
    torch.testing.assert_close(got, m.out_proj(o.transpose(1, 2).flatten(2)))
    plain = copy.deepcopy(m)
    plain.gate = None
    assert not torch.allclose(plain(x, x, x, padding, need_weights=False, is_causal=causal)[0], got)


@pytest.mark.parametrize("batch_first", [False, True])
@KINDS
def test_layouts(decay: str, batch_first: bool) -> None:
    m, x = layer(decay=decay, batch_first=batch_first), randn(B, L, E)
    expected = torch.stack([m(one, one, one, is_causal=True)[0] for one in x], 0 if batch_first else 1)
    given = x if batch_first else x.transpose(0, 1)
    torch.testing.assert_close(m(given, given, given, is_causal=True)[0], expected)


@pytest.mark.parametrize("normalize", ["rms", True])
def test_rms_commutes_with_rotations_and_positions_may_shift(normalize: bool | str) -> None:
    """A layer normalizes, then rotates. With "rms" that is the same as to rotate, then normalize; else it is not."""
    m, x = layer(decay="gated", rotary=True, normalize=normalize), randn(B, L, E)
    q, k, v = m._projected(x, x, x)
    q, k = q + 1, k + 1  # a mean that standardizing would remove
    assert m.gate is not None
    results = []
    for shift in (0, 100):
        places = torch.arange(L) + shift
        rotated_q, rotated_k = (rotate(y, positions=places) for y in (q, k))
        options: dict[str, Any] = {"is_causal": True, "scale": m.scale, "log_decay": m.gate(x), "normalize": normalize}
        results.append(fastmax_attention(rotated_q, rotated_k, v, **options))
        inner_q, inner_k = (rotate(m._standardized(y), positions=places) for y in (q, k))
        results.append(fastmax_attention(inner_q, inner_k, v, **{**options, "normalize": False}))
    before, after, before_shifted, after_shifted = results
    torch.testing.assert_close(after_shifted, after)
    same = [torch.allclose(before, after, atol=1e-6), torch.allclose(before_shifted, before, atol=1e-6)]
    assert same == [normalize == "rms"] * 2


@KINDS
def test_state_dicts(decay: str) -> None:
    m, x = layer(decay=decay), randn(B, L, E)
    names = {"gate.bias", "gate.weight"} if decay == "gated" else {"gate.bias"}
    assert {name for name in m.state_dict() if "gate" in name} == names
    twin = layer(decay=decay)
    assert not torch.equal(twin(x, x, x)[0], m(x, x, x)[0])
    twin.load_state_dict(m.state_dict(), strict=True)
    assert torch.equal(twin(x, x, x)[0], m(x, x, x)[0])
    softmax = nn.MultiheadAttention(E, H, batch_first=True, dtype=torch.float64)
    result = twin.load_state_dict(softmax.state_dict(), strict=False)
    assert set(result.missing_keys) == names
    assert result.unexpected_keys == []


@KINDS
def test_replaced_layers_forget(decay: str) -> None:
    block = nn.TransformerEncoderLayer(E, H, 32, dropout=0.0, batch_first=True, dtype=torch.float64)
    model = nn.TransformerEncoder(block, 2, enable_nested_tensor=False)
    replace_attention(model, decay=decay, memory=(1.0, 3.0), normalize="rms", rotary=True)
    for child in model.layers:
        assert isinstance(child.self_attn, FastmaxAttention)
        assert isinstance(child.self_attn.gate, ForgetGate)
        assert child.self_attn.options.memory == (1.0, 3.0)
        assert child.self_attn.gate.bias.dtype == torch.float64
    x = randn(B, L, E)
    o = model(x)
    first = copy.deepcopy(model)
    for child in first.layers:
        child.self_attn.gate = None
    assert not torch.allclose(first(x), o)
    o.square().sum().backward()
    assert all(p.grad is not None and bool((p.grad != 0).any()) for n, p in model.named_parameters() if "gate" in n)


@KINDS
@pytest.mark.parametrize("causal", [False, True], ids=["", "causal"])
def test_gradients_reach_the_gate_from_its_start(decay: str, causal: bool) -> None:
    m = FastmaxAttention(E, H, decay=decay, batch_first=True, memory=(1.0, 3.0))
    x = torch.randn(B, L, E)
    m(x, x, x, is_causal=causal)[0].square().sum().backward()
    assert m.gate is not None
    for parameter in m.gate.parameters():
        assert parameter.grad is not None
        assert bool((parameter.grad != 0).any(-1).all())


def test_decays_start_with_the_reaches_that_were_asked_for() -> None:
    for kind in ("learned", "gated"):
        gate = ForgetGate(E, 5, (2.0, 6.0), kind=kind)
        log_decay = gate(torch.randn(B, L, E))
        torch.testing.assert_close(
            log_decay.exp().mean((0, 2) if kind == "gated" else 1), 1 - 2.0 ** -torch.arange(2.0, 7)
        )
        reach = gate.reach(log_decay)
        torch.testing.assert_close(reach, 2.0 ** torch.arange(2.0, 7), rtol=0.2, atol=0)
    assert start_bias(1, (3.0, 9.0)).shape == (1,)
    gate.bias.data.zero_()
    gate.reset_parameters()
    assert torch.equal(gate.bias, start_bias(5, (2.0, 6.0)))
    with pytest.raises(ValueError, match="decay must be None, 'learned' or 'gated', got 'other'"):
        ForgetGate(E, 5, (2.0, 6.0), kind="other")


def test_decays_of_half_precision_layers_are_made_in_single() -> None:
    """A decay close to 1 would be 1, and its logarithm 0."""
    gate = ForgetGate(E, 2, (12.0, 12.0), kind="learned", dtype=torch.bfloat16)
    log_decay = gate(torch.randn(B, L, E, dtype=torch.bfloat16))
    assert log_decay.dtype == torch.float32
    assert bool((log_decay < 0).all())
    m = FastmaxAttention(E, H, decay="gated", batch_first=True, dtype=torch.bfloat16)
    x = torch.randn(B, L, E, dtype=torch.bfloat16)
    assert m(x, x, x, is_causal=True)[0].dtype == torch.bfloat16


@pytest.mark.parametrize("keys", [5, L])
@KINDS
def test_decay_is_for_self_attention_whatever_the_lengths(decay: str, keys: int) -> None:
    """With equal lengths, keys would fade by the places of queries that they have nothing to do with."""
    m, query, key = layer(decay=decay), randn(B, L, E), randn(B, keys, E)
    with pytest.raises(ValueError, match=r"query and key must be the same tensor, got two.*without a decay"):
        m(query, key, key, need_weights=False)
    m(query, query, randn(B, L, E), need_weights=False)  # values may be others


@KINDS
@pytest.mark.parametrize("copies", ["checkpoint", "cast"])
def test_self_attention_whose_inputs_are_copies(decay: str, copies: str) -> None:
    """Checkpointing detaches each input, and FSDP casts each: they are one tensor no more."""
    m, x = layer(decay=decay), randn(B, L, E).requires_grad_()

    def run(*inputs: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = m(*inputs, need_weights=False)[0]
        return output

    expected = torch.autograd.grad(run(x, x, x).square().sum(), (x, *m.parameters()))
    if copies == "checkpoint":
        o = checkpoint(run, x, x, x, use_reentrant=True)
        o.square().sum().backward()
        actual = [x.grad, *(parameter.grad for parameter in m.parameters())]
    else:
        o = run(*(x.clone() for _ in range(3)))
        actual = list(torch.autograd.grad(o.square().sum(), (x, *m.parameters())))
    torch.testing.assert_close(actual, list(expected))


def test_a_gate_by_itself() -> None:
    """log_decay for those who call the function: one line beside their own projections."""
    x = torch.randn(B, L, E)
    gate = ForgetGate(E, H, memory=(1.0, 3.0))
    log_decay = gate(x)
    assert log_decay.shape == (B, H, L)
    nn.init.normal_(gate.weight)
    log_decay = gate(x)
    torch.testing.assert_close(log_decay, nn.functional.logsigmoid(x @ gate.weight.mT + gate.bias).mT)
    q, k, v = (torch.randn(B, H, L, E) for _ in range(3))
    fastmax_attention(q, k, v, is_causal=True, log_decay=log_decay).square().sum().backward()
    assert all(bool((parameter.grad != 0).all()) for parameter in gate.parameters())
    assert repr(gate) == f"ForgetGate(width={E}, heads={H}, memory=(1.0, 3.0))"
    assert repr(ForgetGate(E, H, kind="learned")) == f"ForgetGate(heads={H}, memory=(2.0, 12.0))"
    with pytest.raises(ValueError, match=r"memory must be two positive numbers, got \(0\.0, 3\.0\)"):
        ForgetGate(E, H, memory=(0.0, 3.0))


@KINDS
def test_repr(decay: str) -> None:
    assert f"decay={decay!r}, memory=(1.0, 3.0)" in layer(decay=decay, memory=(1.0, 3.0)).extra_repr()
