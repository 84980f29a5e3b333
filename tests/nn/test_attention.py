"""FastmaxAttention against a dense oracle of its own, and against nn.MultiheadAttention wherever that has a say."""

import copy
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from fastmax import attention_matrix
from fastmax.nn import FastmaxAttention
from fastmax.nn.options import LayerOptions
from tests.nn.layer_oracle import oracle
from tests.support import randn

B, L, S, E, H = 2, 7, 5, 16, 4


def layer(**options: Any) -> FastmaxAttention:
    built = FastmaxAttention(**{"embed_dim": E, "num_heads": H, "batch_first": True, "dtype": torch.float64, **options})
    for name, parameter in built.named_parameters():
        if "bias" in name or "gate" in name:  # zeros by default, which would hide a bias that is not added
            nn.init.normal_(parameter)
    return built


ALL = torch.ones(1, 1, 1, 1, dtype=torch.bool)
TRIANGLE = torch.ones(L, L, dtype=torch.bool).tril()
PADDING = torch.tensor([[False] * L, [False, True, False, False, True, True, False]])

KINDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "order 1": {"order": 1},
    "order 3": {"order": 3},
    "order 4": {"order": 4},
    "no bias": {"bias": False},
    "bias_kv": {"add_bias_kv": True},
    "zero_attn": {"add_zero_attn": True},
    "both extras": {"add_bias_kv": True, "add_zero_attn": True},
    "gqa": {"num_kv_heads": 2, "add_bias_kv": True},
    "rotary": {"rotary": True, "rotary_base": 100.0},
    "rotary, extras, gqa": {"rotary": True, "num_kv_heads": 1, "add_bias_kv": True, "add_zero_attn": True},
    "learned scale": {"learn_scale": True},
    "scale": {"scale": 0.7},
    "raw": {"normalize": False},
    "rms": {"normalize": "rms"},
    "learned decay": {"decay": "learned"},
    "gated": {"decay": "gated"},
    "gated, order 1": {"decay": "gated", "order": 1},
    "narrow": {"qk_head_dim": 2},
    "wide": {"qk_head_dim": 6, "add_bias_kv": True, "add_zero_attn": True},
    "narrow, rotary, gated, gqa, extras": {"qk_head_dim": 2, "rotary": True, "decay": "gated", "num_kv_heads": 2},
    "gated, rotary, gqa, rms": {
        "decay": "gated",
        "rotary": True,
        "num_kv_heads": 2,
        "normalize": "rms",
        "learn_scale": True,
    },
}


@pytest.mark.parametrize("options", KINDS.values(), ids=KINDS)
@pytest.mark.parametrize("causal", [False, True], ids=["", "causal"])
@pytest.mark.parametrize("padded", [False, True], ids=["", "padded"])
def test_it_is_what_it_is_by_definition(options: dict[str, Any], causal: bool, padded: bool) -> None:
    m, x = layer(**options), randn(B, L, E, grad=True)
    allowed = (TRIANGLE if causal else ALL) & (~PADDING[:, None, None, :] if padded else ALL)
    call = {"key_padding_mask": PADDING if padded else None, "is_causal": causal, "average_attn_weights": False}
    o, weights = m(x, x, x, **call)
    expected, matrix = oracle(m, x, x, x, allowed)
    torch.testing.assert_close(o, expected)
    torch.testing.assert_close(weights, matrix)
    leaves = [x, *m.parameters()]
    do = torch.randn_like(o)
    for got, wanted in zip(torch.autograd.grad(o, leaves, do), torch.autograd.grad(expected, leaves, do), strict=True):
        torch.testing.assert_close(got, wanted)
    assert m(x, x, x, need_weights=False, **call)[1] is None
    torch.testing.assert_close(m(x, x, x, need_weights=False, **call)[0], o)
    torch.testing.assert_close(m(x, x, x, **{**call, "average_attn_weights": True})[1], matrix.mean(1))


CROSS: dict[str, dict[str, Any]] = {
    "plain": {},
    "bias_kv": {"add_bias_kv": True},
    "gqa": {"num_kv_heads": 2},
    "narrow": {"qk_head_dim": 2, "num_kv_heads": 2, "add_bias_kv": True, "add_zero_attn": True},
}


@pytest.mark.parametrize("options", CROSS.values(), ids=CROSS)
@pytest.mark.parametrize("dims", [{}, {"kdim": 6, "vdim": 10}], ids=["", "kdim, vdim"])
@pytest.mark.parametrize("causal", [False, True], ids=["", "causal"])
def test_cross_attention(options: dict[str, Any], dims: dict[str, int], causal: bool) -> None:
    m = layer(**options, **dims)
    query, key, value = randn(B, L, E), randn(B, S, m.kdim), randn(B, S, m.vdim)
    o, weights = m(query, key, value, is_causal=causal, average_attn_weights=False)
    allowed = torch.ones(L, S, dtype=torch.bool).tril() if causal else ALL
    expected, matrix = oracle(m, query, key, value, allowed)
    torch.testing.assert_close(o, expected)
    torch.testing.assert_close(weights, matrix)
    if not dims:
        torch.testing.assert_close(m(query, key, key)[0], m(query, key, key.clone())[0])
        torch.testing.assert_close(m(query, query, query)[0], m(query, query.clone(), query.clone())[0])


@pytest.mark.parametrize("per_head", [False, True])
@pytest.mark.parametrize("dtype", [torch.bool, torch.float64])
@pytest.mark.parametrize("options", [{}, {"num_kv_heads": 2, "add_zero_attn": True}], ids=["plain", "gqa, zero_attn"])
def test_masks_of_three_dimensions(per_head: bool, dtype: torch.dtype, options: dict[str, Any]) -> None:
    m, x = layer(**options), randn(B, L, E)
    hidden = torch.rand(B, H if per_head else 1, 1, L) < 0.3
    allowed = (TRIANGLE & ~hidden).expand(B, H, L, L)
    mask = (~allowed).flatten(0, 1)
    mask = mask if dtype == torch.bool else torch.zeros(mask.shape, dtype=dtype).masked_fill(mask, -torch.inf)
    torch.testing.assert_close(m(x, x, x, attn_mask=mask)[0], oracle(m, x, x, x, allowed)[0])


@pytest.mark.parametrize("batch_first", [False, True])
@pytest.mark.parametrize("average", [False, True])
@pytest.mark.parametrize("options", [{}, {"add_bias_kv": True, "add_zero_attn": True}], ids=["plain", "extras"])
def test_layouts_are_those_of_torch(batch_first: bool, average: bool, options: dict[str, Any]) -> None:
    m = layer(batch_first=batch_first, **options)
    softmax = nn.MultiheadAttention(E, H, batch_first=batch_first, dtype=torch.float64, **options)
    query, key = randn(B, L, E), randn(B, S, E)
    given = (query, key) if batch_first else (query.transpose(0, 1), key.transpose(0, 1))
    ours, theirs = (
        f(given[0], given[1], given[1], key_padding_mask=PADDING[:, :S], average_attn_weights=average)
        for f in (m, softmax)
    )
    assert [x.shape for x in ours] == [x.shape for x in theirs]
    assert m(given[0], given[1], given[1], need_weights=False)[0].is_contiguous()
    expected, matrix = oracle(m, query, key, key, ~PADDING[:, None, None, :S])
    torch.testing.assert_close(ours[0] if batch_first else ours[0].transpose(0, 1), expected)
    torch.testing.assert_close(ours[1], matrix.mean(1) if average else matrix)
    alone, theirs = (
        f(query[1], key[1], key[1], key_padding_mask=PADDING[1, :S], average_attn_weights=average) for f in (m, softmax)
    )
    assert [x.shape for x in alone] == [x.shape for x in theirs]
    torch.testing.assert_close(alone[0], expected[1])
    torch.testing.assert_close(alone[1], ours[1][1])


@pytest.mark.parametrize(
    "options",
    [{}, {"bias": False}, {"kdim": 6, "vdim": 10}, {"add_bias_kv": True}, {"kdim": 6, "add_bias_kv": True}],
    ids=str,
)
def test_parameters_and_their_initial_values_are_those_of_torch(options: dict[str, Any]) -> None:
    torch.manual_seed(1)
    softmax = nn.MultiheadAttention(E, H, **options)
    torch.manual_seed(1)
    m = FastmaxAttention(E, H, **options)
    assert list(m.state_dict()) == list(softmax.state_dict())
    for ours, theirs in zip(m.state_dict().values(), softmax.state_dict().values(), strict=True):
        assert torch.equal(ours, theirs)
    fresh = FastmaxAttention(E, H, **options)
    fresh.load_state_dict(softmax.state_dict(), strict=True)
    softmax.load_state_dict(fresh.state_dict(), strict=True)


def test_shapes_of_shared_heads() -> None:
    m = FastmaxAttention(E, H, num_kv_heads=2, add_bias_kv=True)
    shapes = {name: tuple(p.shape) for name, p in m.named_parameters()}
    assert shapes["in_proj_weight"] == (E + 2 * 8, E)
    assert shapes["in_proj_bias"] == (E + 2 * 8,)
    assert shapes["bias_k"] == shapes["bias_v"] == (1, 1, 8)
    m = FastmaxAttention(E, H, num_kv_heads=2, kdim=6, vdim=10)
    shapes = {name: tuple(p.shape) for name, p in m.named_parameters()}
    assert (shapes["q_proj_weight"], shapes["k_proj_weight"], shapes["v_proj_weight"]) == ((E, E), (8, 6), (8, 10))
    assert all(bool(p.isfinite().all()) for p in m.parameters())
    assert bool((m.in_proj_bias == 0).all())


def test_shapes_of_narrow_queries_and_keys() -> None:
    m = FastmaxAttention(E, H, qk_head_dim=2, num_kv_heads=2, add_bias_kv=True)
    shapes = {name: tuple(p.shape) for name, p in m.named_parameters()}
    assert shapes["in_proj_weight"] == (8 + 4 + 8, E)
    assert shapes["in_proj_bias"] == (8 + 4 + 8,)
    assert (shapes["bias_k"], shapes["bias_v"]) == ((1, 1, 4), (1, 1, 8))
    assert m.scale == 1 / 2**0.5
    m = FastmaxAttention(E, H, qk_head_dim=2, kdim=6, vdim=10)
    shapes = {name: tuple(p.shape) for name, p in m.named_parameters()}
    assert (shapes["q_proj_weight"], shapes["k_proj_weight"], shapes["v_proj_weight"]) == ((8, E), (8, 6), (E, 10))
    assert [tuple(p.shape) for p in FastmaxAttention(E, H, qk_head_dim=4).parameters()] == [
        tuple(p.shape) for p in nn.MultiheadAttention(E, H).parameters()
    ]


def test_a_narrow_layer_is_saved_copied_and_remade(tmp_path: Path) -> None:
    m, x = layer(qk_head_dim=2, rotary=True, decay="gated"), randn(B, L, E)
    expected = m(x, x, x, is_causal=True)[0]
    torch.save(m.state_dict(), tmp_path / "layer")
    fresh = layer(qk_head_dim=2, rotary=True, decay="gated")
    fresh.load_state_dict(torch.load(tmp_path / "layer"))
    again = FastmaxAttention.from_attention(m, m.options)
    again.gate = m.gate
    for other in (fresh, again, copy.deepcopy(m), pickle.loads(pickle.dumps(m))):
        assert torch.equal(other(x, x, x, is_causal=True)[0], expected)
    with pytest.raises(RuntimeError, match="size mismatch for in_proj_weight"):
        layer(rotary=True, decay="gated").load_state_dict(m.state_dict())


def test_the_scale_of_a_layer() -> None:
    assert [FastmaxAttention(32, 2, order=p).scale for p in (1, 2, 3, 4)] == [1 / 16, 1 / 4, 1 / 16, 1 / 4]
    m = FastmaxAttention(32, 2, learn_scale=True)
    assert m.head_scale is not None
    assert m.head_scale.tolist() == [0.25, 0.25]
    assert "head_scale" in m.state_dict()
    x = torch.randn(3, 5, 32)
    m(x, x, x)[0].square().sum().backward()  # (of the plain sum it would be zero in expectation)
    assert m.head_scale.grad is not None
    assert bool((m.head_scale.grad != 0).all())
    m.head_scale.data.fill_(9.0)
    m._reset_parameters()
    assert m.head_scale.tolist() == [0.25, 0.25]


@pytest.mark.parametrize("causal", [False, True])
def test_rotary_layers_depend_on_relative_position_only(causal: bool) -> None:
    m, x = layer(rotary=True), randn(B, L, E)
    shifted = torch.cat([randn(B, 4, E), x], 1)  # four tokens that nobody may see move the others on
    padding = (torch.arange(L + 4) < 4).expand(B, -1)
    o, weights = m(x, x, x, is_causal=causal)
    o_shifted, weights_shifted = m(shifted, shifted, shifted, key_padding_mask=padding, is_causal=causal)
    torch.testing.assert_close(o_shifted[:, 4:], o)
    torch.testing.assert_close(weights_shifted[:, 4:, 4:], weights)
    turned = x[:, torch.randperm(L, generator=torch.Generator().manual_seed(3))]
    assert not torch.allclose(m(turned, turned, turned, is_causal=causal)[0].sum(1), o.sum(1)), "order should matter"


def test_a_query_that_sees_nothing_gets_the_bias() -> None:
    m, x = layer(), randn(B, L, E)
    padding = PADDING.clone()
    padding[1] = True
    o, weights = m(x, x, x, key_padding_mask=padding)
    assert torch.equal(o[1], m.out_proj.bias.expand(L, E))
    assert bool((weights[1] == 0).all())


@pytest.mark.parametrize(
    ("options", "causal"),
    [
        ({"rotary": True, "num_kv_heads": 2, "learn_scale": True}, True),
        pytest.param({"rotary": True, "num_kv_heads": 2, "learn_scale": True}, False, marks=pytest.mark.slow),
        pytest.param({}, True, marks=pytest.mark.slow),
        pytest.param({}, False, marks=pytest.mark.slow),
        pytest.param({"add_bias_kv": True}, True, marks=pytest.mark.slow),
        pytest.param({"add_bias_kv": True}, False, marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_compiled_in_one_graph(options: dict[str, Any], causal: bool) -> None:
    torch.compiler.reset()  # recompilations are counted over all tests
    m, x = layer(dtype=torch.float32, **options), torch.randn(B, L, E)
    compiled = torch.compile(m, fullgraph=True, backend="aot_eager")
    as_float = torch.zeros(B, L).masked_fill(PADDING, -torch.inf)
    for padding in (None, PADDING, as_float):
        call = {"key_padding_mask": padding, "is_causal": causal, "need_weights": False}
        o, expected = compiled(x, x, x, **call)[0], m(x, x, x, **call)[0]
        torch.testing.assert_close(o, expected)
        wanted = torch.autograd.grad(expected.square().sum(), list(m.parameters()))
        for got, grad in zip(torch.autograd.grad(o.square().sum(), list(m.parameters())), wanted, strict=True):
            torch.testing.assert_close(got, grad)
    with pytest.raises(RuntimeError, match="key_padding_mask must be 0"):
        compiled(x, x, x, key_padding_mask=as_float + 1, is_causal=causal, need_weights=False)


def test_compiled_masks_that_must_be_read_break_the_graph_only() -> None:
    m, x = layer(dtype=torch.float32), torch.randn(B, L, E)
    mask = nn.Transformer.generate_square_subsequent_mask(L)
    compiled = torch.compile(m, backend="aot_eager")
    torch.testing.assert_close(compiled(x, x, x, attn_mask=mask)[0], m(x, x, x, is_causal=True)[0])


@pytest.mark.parametrize(
    "options", [{}, {"rotary": True, "add_bias_kv": True, "add_zero_attn": True}], ids=["plain", "rotary, extras"]
)
def test_autocast(options: dict[str, Any]) -> None:
    m, x = layer(dtype=torch.float32, **options), torch.randn(B, L, E)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        o, weights = m(x, x, x, key_padding_mask=PADDING, is_causal=True)
    assert o.dtype == weights.dtype == torch.bfloat16
    expected, matrix = m(x, x, x, key_padding_mask=PADDING, is_causal=True)
    # Projections, values and outputs are each rounded to bf16 once or twice; 2^-8 is half a unit of it.
    assert (o.float() - expected).norm() <= 4 * 2**-8 * expected.norm()
    assert (weights.float() - matrix).norm() <= 4 * 2**-8 * matrix.norm()
    if not options:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            q, k, _ = m._projected(x, x, x)
        exact = attention_matrix(q.float(), k.float(), ~PADDING[:, None, None, :], True, scale=m.scale)
        assert torch.equal(weights, exact.bfloat16().mean(1))
    o.float().sum().backward()
    assert all(p.grad is not None and bool(p.grad.isfinite().all()) for p in m.parameters())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_layers(dtype: torch.dtype) -> None:
    m = layer(dtype=dtype, learn_scale=True)
    x = torch.randn(B, L, E, dtype=dtype)
    o, weights = m(x, x, x)
    assert o.dtype == weights.dtype == dtype
    expected, _ = oracle(m.double(), x.double(), x.double(), x.double(), ALL)
    assert (o.double() - expected).norm() <= 8 * torch.finfo(dtype).eps * expected.norm()


def test_gradient_checkpointing() -> None:
    m, x = layer(), randn(B, L, E, grad=True)
    leaves = [x, *m.parameters()]

    def run(x: Tensor) -> Tensor:
        return m(x, x, x, is_causal=True, need_weights=False)[0].square().sum()

    plain = torch.autograd.grad(run(x), leaves)
    saved = torch.autograd.grad(checkpoint(run, x, use_reentrant=False), leaves)
    for a, b in zip(plain, saved, strict=True):
        assert torch.equal(a, b)


def test_copies_and_pickles() -> None:
    m, x = layer(learn_scale=True, rotary=True, add_bias_kv=True), randn(B, L, E)
    expected = m(x, x, x)[0]
    for twin in (copy.deepcopy(m), pickle.loads(pickle.dumps(m))):
        assert torch.equal(twin(x, x, x)[0], expected)
        assert twin.options == m.options
        assert all(a is not b for a, b in zip(m.parameters(), twin.parameters(), strict=True))
    other = layer(learn_scale=True, rotary=True, add_bias_kv=True)
    other.load_state_dict(m.state_dict(), strict=True)
    assert torch.equal(other(x, x, x)[0], expected)


def test_from_attention_takes_over_everything_and_leaves_the_original_alone() -> None:
    softmax = nn.MultiheadAttention(E, H, add_bias_kv=True, batch_first=True, dtype=torch.float64).eval()
    softmax.in_proj_bias.requires_grad_(False)
    seen: list[nn.Module] = []
    handle = softmax.register_forward_hook(lambda module, _inputs, _output: seen.append(module))
    names = list(softmax.state_dict())
    m = FastmaxAttention.from_attention(softmax, LayerOptions(order=4, learn_scale=True))
    assert not m.training
    for name, parameter in softmax.named_parameters():
        assert m.get_parameter(name) is parameter
    assert list(softmax.state_dict()) == names
    assert [name for name, _ in softmax.named_modules()] == ["", "out_proj"]
    x = randn(B, L, E)
    torch.testing.assert_close(m(x, x, x)[0], oracle(m, x, x, x, ALL)[0])
    assert seen == [m]
    handle.remove()
    m(x, x, x)
    assert seen == [m]


def test_dropout_is_for_training_only() -> None:
    m, x = layer(dropout=0.5).eval(), randn(B, L, E)
    torch.testing.assert_close(m(x, x, x)[0], oracle(m, x, x, x, ALL)[0])


def test_the_chosen_backend_is_asked_for() -> None:
    m, x = layer(backend="nonsense"), randn(B, L, E)
    with pytest.raises(ValueError, match=r"backend must be one of .*, got 'nonsense'"):
        m(x, x, x)


def test_repr_says_what_is_not_default() -> None:
    assert FastmaxAttention(E, H).extra_repr() == "embed_dim=16, num_heads=4, order=2, scale=0.5"
    m = FastmaxAttention(E, H, 0.1, batch_first=True, num_kv_heads=2, learn_scale=True, rotary=True, normalize=False)
    assert m.extra_repr() == (
        "embed_dim=16, num_heads=4, order=2, learn_scale=True, num_kv_heads=2, dropout=0.1, batch_first=True, "
        "normalize=False, rotary=True"
    )
    assert FastmaxAttention(E, H, qk_head_dim=1).extra_repr() == (
        "embed_dim=16, num_heads=4, order=2, scale=1.0, qk_head_dim=1"
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"embed_dim": 15}, "embed_dim must be divisible by num_heads, got 15 and 4"),
        ({"num_heads": 0}, "must be greater than 0"),
        ({"num_kv_heads": 3}, "num_kv_heads must divide num_heads = 4, got 3"),
        ({"num_kv_heads": 0}, "num_kv_heads must divide num_heads = 4, got 0"),
        ({"qk_head_dim": 0}, "qk_head_dim must be a positive number of channels or None, got 0"),
        ({"qk_head_dim": 2.0}, r"qk_head_dim must be a positive number of channels or None, got 2\.0"),
        ({"qk_head_dim": 3, "rotary": True}, "rotary needs an even head dimension, got 3"),
        ({"order": 5}, "order must be from 1 to 4, got 5"),
        ({"scale": float("nan")}, "scale must be finite, got nan"),
        ({"rotary": True, "embed_dim": 12}, "rotary needs an even head dimension, got 3"),
        ({"rotary_base": 0.0}, "rotary_base must be positive, got 0.0"),
        ({"decay": "fast"}, "decay must be None, 'learned' or 'gated', got 'fast'"),
        ({"decay": "gated", "memory": (2.0, -1.0)}, r"memory must be two positive numbers, got \(2\.0, -1\.0\)"),
        ({"decay": "gated", "add_bias_kv": True}, "is not supported with add_bias_kv and add_zero_attn"),
        ({"decay": "learned", "add_zero_attn": True}, "is not supported with add_bias_kv and add_zero_attn"),
        ({"decay": "gated", "kdim": 6}, "decay is for self attention: kdim must be embed_dim = 16, got 6"),
        ({"normalize": "layer"}, "normalize must be True, False or \"rms\", got 'layer'"),
        ({"dropout_mode": "2d"}, "dropout_mode must be one of standard, 1d, quadratic, got '2d'"),
    ],
)
def test_options_are_checked(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        layer(**options)


def test_inputs_are_checked() -> None:
    m = layer(kdim=6)
    query, key, value = randn(B, L, E), randn(B, S, 6), randn(B, S, E)
    with pytest.raises(ValueError, match=r"key must have 6 features, got shape \(2, 7, 16\)"):
        m(query, query, query)
    with pytest.raises(ValueError, match="must all be 3-D, or all 2-D if unbatched"):
        m(query, key[0], value)
    with pytest.raises(
        ValueError, match=r"one batch size.*layout \(B, L, E\); got query \(2, 7, 16\), key \(1, 5, 6\)"
    ):
        m(query, key[:1], value[:1])
    with pytest.raises(ValueError, match="key and value one length"):
        m(query, key, value[:, 1:])
    with pytest.raises(ValueError, match="attn_mask must be causal"):
        m(query, key, value, attn_mask=torch.ones(L, S, dtype=torch.bool).tril())


@pytest.mark.parametrize("dims", [{}, {"kdim": 6}, {"num_kv_heads": 2}], ids=str)
def test_whether_the_embedding_dimensions_are_the_same_is_told_truly(dims: dict[str, int]) -> None:
    assert FastmaxAttention(E, H, **dims)._qkv_same_embed_dim is ("kdim" not in dims)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")
@pytest.mark.parametrize("causal", [False, True], ids=["", "causal"])
def test_nested_tensors(causal: bool) -> None:
    m, sequences = layer(), [randn(3, E), randn(5, E)]
    x = torch.nested.nested_tensor(sequences)
    o, weights = m(x, x, x, need_weights=False, is_causal=causal)
    assert weights is None
    for got, alone in zip(o.unbind(), sequences, strict=True):
        torch.testing.assert_close(got, m(alone, alone, alone, is_causal=causal)[0])
    with pytest.raises(ValueError, match=r"query is a nested tensor.*key_padding_mask"):
        m(x, x, x)
    with pytest.raises(ValueError, match="a nested tensor takes no mask, only is_causal"):
        m(x, x, x, need_weights=False, attn_mask=TRIANGLE)
