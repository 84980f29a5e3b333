"""replace_attention: Fastmax must really run inside PyTorch's own transformers, in every mode, with the same weights."""

import copy
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from fastmax.nn import FastmaxAttention
from fastmax.nn.replace import replace_attention
from tests.nn.layer_oracle import oracle
from tests.support import randn

B, L, S, E, H = 2, 6, 5, 16, 4
PADDING = torch.tensor(
    [[False] * L, [False] * 4 + [True] * 2]
)  # left aligned, as nn.TransformerEncoder's fast path wants it
TRIANGLE = torch.ones(L, L, dtype=torch.bool).tril()
ALL = torch.ones(1, 1, dtype=torch.bool)


class Calls(TorchDispatchMode):
    """Counts calls of the op. (A forward hook would not do: it makes PyTorch leave its fast path.)"""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += func.name().startswith("fastmax::forward")
        return func(*args, **(kwargs or {}))


@contextmanager
def evaluating(model: nn.Module, grad: Callable[[], AbstractContextManager[Any]]) -> Iterator[None]:
    model.eval()
    with grad():
        yield


MODES: dict[str, Callable[[nn.Module], AbstractContextManager[Any]]] = {
    "train": lambda _: nullcontext(),
    "eval": lambda model: evaluating(model, nullcontext),
    "no_grad": lambda model: evaluating(model, torch.no_grad),
    "inference": lambda model: evaluating(model, torch.inference_mode),
}


def encoder_layer(m: nn.TransformerEncoderLayer, x: Tensor, allowed: Tensor) -> Tensor:
    """Compute an encoder layer by hand."""

    def attend(x: Tensor) -> Tensor:
        return oracle(m.self_attn, x, x, x, allowed)[0]

    def feed(x: Tensor) -> Tensor:
        return m.linear2(m.linear1(x).relu())

    if m.norm_first:
        x = x + attend(m.norm1(x))
        return x + feed(m.norm2(x))
    x = m.norm1(x + attend(x))
    return m.norm2(x + feed(x))


def decoder_layer(m: nn.TransformerDecoderLayer, x: Tensor, memory: Tensor, allowed: Tensor, seen: Tensor) -> Tensor:
    x = m.norm1(x + oracle(m.self_attn, x, x, x, allowed)[0])
    x = m.norm2(x + oracle(m.multihead_attn, x, memory, memory, seen)[0])
    return m.norm3(x + m.linear2(m.linear1(x).relu()))


def new_layer(kind: type[Any] = nn.TransformerEncoderLayer, **options: Any) -> Any:
    layer = kind(E, H, 32, dropout=0.0, dtype=torch.float64, **{"batch_first": True, **options})
    for parameter in layer.parameters():
        nn.init.normal_(parameter, std=0.3)  # not the zeros and ones that hide mistakes
    return layer


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("padded", [False, True], ids=["", "padded"])
@pytest.mark.parametrize("causal", [False, True], ids=["", "causal"])
@pytest.mark.parametrize("options", [{}, {"norm_first": True}, {"batch_first": False}], ids=str)
def test_an_encoder_layer_in_every_mode(mode: str, padded: bool, causal: bool, options: dict[str, bool]) -> None:
    model = new_layer(**options)
    assert replace_attention(model).replaced == ("self_attn",)
    x = randn(B, L, E)
    mask = ~TRIANGLE if causal else None
    with MODES[mode](model), Calls() as calls:
        given = x if model.self_attn.batch_first else x.transpose(0, 1)
        o = model(given, src_mask=mask, src_key_padding_mask=PADDING if padded else None)
    assert calls.count == 1
    allowed = (TRIANGLE if causal else ALL) & (~PADDING[:, None, None, :] if padded else ALL)
    expected = encoder_layer(model, x, allowed)
    torch.testing.assert_close(o if model.self_attn.batch_first else o.transpose(0, 1), expected)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("padded", [False, True], ids=["", "padded"])
@pytest.mark.parametrize("causal", [False, True], ids=["", "causal"])
def test_a_whole_encoder_in_every_mode(mode: str, padded: bool, causal: bool) -> None:
    model = nn.TransformerEncoder(new_layer(), 3)
    assert model.use_nested_tensor
    assert replace_attention(model).replaced == tuple(f"layers.{i}.self_attn" for i in range(3))
    x = randn(B, L, E)
    mask = ~TRIANGLE if causal else None
    with MODES[mode](model), Calls() as calls:
        o = model(x, mask=mask, src_key_padding_mask=PADDING if padded else None)
    assert calls.count == 3
    allowed = (TRIANGLE if causal else ALL) & (~PADDING[:, None, None, :] if padded else ALL)
    for layer in model.layers:
        x = encoder_layer(layer, x, allowed)
    torch.testing.assert_close(o, x)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("hint", [None, True])
def test_a_causal_decoder_with_cross_attention(mode: str, hint: bool | None) -> None:
    model = nn.TransformerDecoder(new_layer(nn.TransformerDecoderLayer), 2)
    names = tuple(f"layers.{i}.{name}" for i in range(2) for name in ("self_attn", "multihead_attn"))
    assert replace_attention(model).replaced == names
    x, memory = randn(B, L, E), randn(B, S, E)
    hidden = torch.tensor([[False] * S, [True] + [False] * (S - 1)])
    with MODES[mode](model), Calls() as calls:
        o = model(x, memory, tgt_mask=~TRIANGLE, tgt_is_causal=hint, memory_key_padding_mask=hidden)
    assert calls.count == 4
    for layer in model.layers:
        x = decoder_layer(layer, x, memory, TRIANGLE, ~hidden[:, None, None, :])
    torch.testing.assert_close(o, x)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")
def test_untouched_encoders_do_not_call_the_op() -> None:
    model = nn.TransformerEncoder(new_layer(), 2).eval()
    with torch.no_grad(), Calls() as calls:
        model(randn(B, L, E), src_key_padding_mask=PADDING)
    assert calls.count == 0


def test_weights_device_dtype_and_mode_are_kept() -> None:
    model = nn.Transformer(E, H, 1, 1, 32, dropout=0.25, batch_first=True, dtype=torch.float64)
    model.encoder.eval()
    model.decoder.layers[0].self_attn.in_proj_weight.requires_grad_(False)
    before = dict(model.named_parameters())
    flags = {name: (p.requires_grad, p.dtype) for name, p in before.items()}
    rng = torch.get_rng_state()
    result = replace_attention(model, 4, scale=0.3, dropout_mode="1d")
    assert torch.equal(torch.get_rng_state(), rng)
    assert list(dict(model.named_parameters())) == list(before)
    assert all(p is before[name] for name, p in model.named_parameters())
    assert {name: (p.requires_grad, p.dtype) for name, p in model.named_parameters()} == flags
    assert result.replaced == (
        "encoder.layers.0.self_attn",
        "decoder.layers.0.self_attn",
        "decoder.layers.0.multihead_attn",
    )
    assert not result.skipped
    for name in result.replaced:
        layer = model.get_submodule(name)
        assert type(layer) is FastmaxAttention
        assert layer.training is not name.startswith("encoder")
        assert (layer.options.order, layer.scale, layer.dropout, layer.options.dropout_mode) == (4, 0.3, 0.25, "1d")


class Subclass(nn.MultiheadAttention):
    pass


def test_what_is_skipped_is_named() -> None:
    model = nn.ModuleDict({"a": Subclass(E, H), "b": nn.MultiheadAttention(E, H), "c": FastmaxAttention(E, H, order=3)})
    ours = model["c"]
    result = replace_attention(model)
    assert result.replaced == ("b",)
    assert result.skipped == {"a": "tests.nn.test_replace.Subclass is a subclass of nn.MultiheadAttention"}
    assert type(model["a"]) is Subclass
    assert model["c"] is ours


class FlashAttn(nn.Linear):
    pass


NOTHING = (
    r"replace_attention looked for torch\.nn\.MultiheadAttention in {} and found none, so nothing was replaced; {}$"
)


def test_a_model_without_attention_is_told_so() -> None:
    message = NOTHING.format("Linear", "none of its modules is called attention either")
    with pytest.warns(UserWarning, match=message):
        result = replace_attention(nn.Linear(3, 3))
    assert result == ((), {})


def test_attentions_that_are_not_known_are_named() -> None:
    model = nn.Sequential(FlashAttn(3, 3), FlashAttn(3, 3), Subclass(E, H), FastmaxAttention(E, H))
    kinds = [
        r"tests\.nn\.test_replace\.FlashAttn is no nn\.MultiheadAttention \(0 and 1 more\)",
        r"tests\.nn\.test_replace\.Subclass is a subclass of nn\.MultiheadAttention \(2\)",
        "1 of its modules is a FastmaxAttention already",
    ]
    with pytest.warns(UserWarning, match=NOTHING.format("Sequential", "; ".join(kinds))) as caught:
        result = replace_attention(model)
    assert caught[0].filename == __file__, "the warning should point at the call"
    assert list(result.skipped) == ["0", "1", "2"]
    model.append(nn.MultiheadAttention(E, H))
    assert replace_attention(model) == (("4",), result.skipped)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")
@pytest.mark.parametrize("mode", MODES)
def test_an_encoder_built_of_a_layer_that_has_fastmax_already(mode: str) -> None:
    """It makes nested tensors of padded batches in evaluation."""
    layer = new_layer()
    assert replace_attention(layer).replaced == ("self_attn",)
    assert layer.self_attn._qkv_same_embed_dim
    model, x = nn.TransformerEncoder(layer, 2), randn(B, L, E)
    with MODES[mode](model), Calls() as calls:
        o = model(x, src_key_padding_mask=PADDING)
    assert calls.count == 2
    for layer in model.layers:
        x = encoder_layer(layer, x, ~PADDING[:, None, None, :])
    kept = ~PADDING if mode in ("no_grad", "inference") else torch.ones_like(PADDING)
    torch.testing.assert_close(o[kept], x[kept])


def test_a_module_under_two_names_stays_one_module() -> None:
    shared = nn.MultiheadAttention(E, H)
    model = nn.Sequential(nn.ModuleList([shared]), nn.ModuleDict({"x": shared}))
    assert replace_attention(model, learn_scale=True).replaced == ("0.0", "1.x")
    assert model.get_submodule("0.0") is model.get_submodule("1.x")
    assert len([name for name, _ in model.named_parameters() if "head_scale" in name]) == 1


def test_the_attention_itself_cannot_be_replaced_in_place() -> None:
    with pytest.raises(ValueError, match=r"use FastmaxAttention\.from_attention"):
        replace_attention(nn.MultiheadAttention(E, H))


def gates(model: nn.Module) -> list[str]:
    return [name.removesuffix(".gate") for name, _ in model.named_modules() if name.endswith("gate")]


@pytest.mark.parametrize("source", [S, L], ids=["other length", "same length"])
@pytest.mark.parametrize("decay", ["gated", "learned"])
def test_cross_attention_never_decays(decay: str, source: int) -> None:
    model = nn.Transformer(E, H, 1, 2, 32, dropout=0.0, batch_first=True, dtype=torch.float64).eval()
    replace_attention(model, decay=decay, memory=(1.0, 2.0), rotary=True)
    assert gates(model) == ["encoder.layers.0.self_attn", *(f"decoder.layers.{i}.self_attn" for i in range(2))]
    layer = model.decoder.layers[0]
    x, memory = randn(B, L, E), randn(B, source, E)
    expected, _ = oracle(layer.multihead_attn, x, memory, memory, ALL)
    torch.testing.assert_close(layer.multihead_attn(x, memory, memory, need_weights=False)[0], expected)
    assert model(memory, x, tgt_mask=~TRIANGLE).shape == x.shape


def test_keys_of_another_width_are_of_another_sequence() -> None:
    model = nn.ModuleDict({"a": nn.MultiheadAttention(E, H, kdim=6), "b": nn.MultiheadAttention(E, H, vdim=6)})
    replace_attention(model, decay="gated")
    assert gates(model) == ["b"]


def test_cross_attention_in_other_models_is_refused_and_can_be_left_out() -> None:
    def model() -> nn.ModuleDict:
        return nn.ModuleDict({name: nn.MultiheadAttention(E, H, batch_first=True) for name in ("self", "cross")})

    x, memory = torch.randn(B, L, E), torch.randn(B, L, E)
    both, one = model(), model()
    replace_attention(both, decay="gated")
    with pytest.raises(
        ValueError,
        match=r"For cross attention, make it without a decay \(replace_attention gives options to chosen `layers`\)",
    ):
        both["cross"](x, memory, memory)
    replace_attention(one, decay="gated", layers="self")
    replace_attention(one, layers="cross")
    one["self"](x, x, x)
    one["cross"](x, memory, memory)
    assert gates(one) == ["self"]


ENCODER, DECODER = ("encoder.layers.0.self_attn", "encoder.layers.1.self_attn"), "decoder.layers.0."


@pytest.mark.parametrize(
    ("layers", "expected"),
    [
        ("encoder.layers.1.self_attn", ENCODER[1:]),
        ("encoder.*", ENCODER),
        ("*.[1-9].self_attn", ENCODER[1:]),
        (["encoder.layers.0.*", "*.multihead_attn"], (ENCODER[0], f"{DECODER}multihead_attn")),
        (lambda name, layer: "0.self" in name and layer.embed_dim == E, (ENCODER[0], f"{DECODER}self_attn")),
    ],
    ids=["name", "pattern", "class", "several", "function"],
)  # fmt: skip
def test_chosen_layers_are_replaced(layers: Any, expected: tuple[str, ...]) -> None:
    model = nn.Transformer(E, H, 2, 1, 32, dropout=0.0, batch_first=True)
    result = replace_attention(model, layers=layers)
    everything = {*ENCODER, f"{DECODER}self_attn", f"{DECODER}multihead_attn"}
    assert result.replaced == expected
    assert result.skipped == dict.fromkeys(everything - set(expected), "layers leaves it out")
    for name in everything:
        kind = FastmaxAttention if name in expected else nn.MultiheadAttention
        assert type(model.get_submodule(name)) is kind


def test_each_group_of_layers_has_its_options() -> None:
    model = nn.TransformerEncoder(new_layer(), 3)
    replace_attention(model, 1, layers=("layers.0.*", "layers.2.*"))
    assert model.use_nested_tensor is False
    assert replace_attention(model, 4, scale=0.3).replaced == ("layers.1.self_attn",)
    assert [layer.self_attn.options.order for layer in model.layers] == [1, 4, 1]
    x = randn(B, L, E)
    o = model(x)
    for layer in model.layers:
        x = encoder_layer(layer, x, ALL)
    torch.testing.assert_close(o, x)


@pytest.mark.parametrize(
    ("layers", "message"),
    [
        (
            "encoder",
            r"'encoder' matches no torch\.nn\.MultiheadAttention in Transformer; there are: encoder\.layers\.0\.self",
        ),
        (["encoder.*", "ecoder.*"], r"'ecoder\.\*' matches no"),
        ([], "layers matches no"),
        (lambda _name, _layer: False, "layers matches no"),
    ],
)
def test_a_choice_of_nothing_is_refused(layers: Any, message: str) -> None:
    model = nn.Transformer(E, H, 1, 1, 32, batch_first=True)
    with pytest.raises(ValueError, match=message):
        replace_attention(model, layers=layers)
    assert not any(isinstance(module, FastmaxAttention) for module in model.modules()), "all or nothing"


def test_replaced_models_copy_and_exchange_weights_with_softmax() -> None:
    softmax = nn.TransformerEncoder(new_layer(), 2).eval()
    model = copy.deepcopy(softmax)
    replace_attention(model)
    model.load_state_dict(softmax.state_dict(), strict=True)
    softmax.load_state_dict(model.state_dict(), strict=True)
    x = randn(B, L, E)
    with torch.no_grad():
        assert torch.equal(
            copy.deepcopy(model)(x, src_key_padding_mask=PADDING), model(x, src_key_padding_mask=PADDING)
        )


def test_a_replaced_encoder_compiles_in_one_graph() -> None:
    torch.compiler.reset()
    model = nn.TransformerEncoder(new_layer(), 2).eval()
    replace_attention(model)
    x = randn(B, L, E)
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    mask = ~TRIANGLE
    with torch.no_grad():
        torch.testing.assert_close(compiled(x, src_key_padding_mask=PADDING), model(x, src_key_padding_mask=PADDING))
        torch.testing.assert_close(compiled(x, mask=mask, is_causal=True), model(x, mask=mask))


@pytest.mark.parametrize("options", [{}, {"order": 1}, {"learn_scale": True, "rotary": True}], ids=str)
def test_a_transformer_trains_end_to_end(options: dict[str, Any]) -> None:
    """Write the source backwards: which needs the attention, causal and cross."""
    torch.manual_seed(0)
    model = nn.ModuleDict(
        {
            "embed": nn.Embedding(12, 32),
            "place": nn.Embedding(8, 32),
            "body": nn.Transformer(32, 4, 1, 1, 64, dropout=0.0, batch_first=True),
            "head": nn.Linear(32, 12),
        }
    )
    assert len(replace_attention(model, **options).replaced) == 3
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    mask = nn.Transformer.generate_square_subsequent_mask(8)
    losses = []
    for _ in range(60):
        source = torch.randint(1, 12, (64, 8))
        target = source.flip(1)
        shifted = torch.cat([torch.zeros(64, 1, dtype=torch.long), target[:, :-1]], 1)
        inputs = [model["embed"](x) + model["place"].weight for x in (source, shifted)]
        o = model["body"](*inputs, tgt_mask=mask)
        loss = nn.functional.cross_entropy(model["head"](o).flatten(0, 1), target.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert sum(losses[-5:]) < 0.5 * sum(losses[:5])
