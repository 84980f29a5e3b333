"""FastmaxAttention exported, traced and compiled with sizes that change, as nn.MultiheadAttention can be."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim

from fastmax import fastmax_attention
from fastmax.nn import FastmaxAttention, replace_attention

B, L, E, H = 3, 7, 16, 4
KINDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "rotary, gqa, learned": {"rotary": True, "num_kv_heads": 2, "learn_scale": True},
    "narrow": {"qk_head_dim": 2, "rotary": True, "decay": "gated"},
    "extras": {"add_bias_kv": True, "add_zero_attn": True},
    "learned decay": {"decay": "learned"},
    "gated": {"decay": "gated", "rotary": True, "normalize": "rms"},
}
CALLS: dict[str, dict[str, Any]] = {"unmasked": {}, "causal": {"is_causal": True}, "weights": {"need_weights": True}}


QUICK = (("plain", "unmasked"), ("gated", "causal"))
"""The others, which take longer to compile, are for `make test-slow`."""


class SelfAttention(nn.Module):
    def __init__(self, options: dict[str, Any], call: dict[str, Any]) -> None:
        super().__init__()
        self.attention = FastmaxAttention(E, H, batch_first=True, **options)
        self.call = {"need_weights": False, **call}

    def forward(self, x: Tensor) -> Any:
        o, weights = self.attention(x, x, x, **self.call)
        return o if weights is None else (o, weights)


@pytest.mark.parametrize(
    ("kind", "call"),
    [
        pytest.param(kind, call, marks=() if (kind, call) in (*QUICK, ("extras", "weights")) else pytest.mark.slow)
        for kind in KINDS
        for call in CALLS
    ],
)
def test_exported_with_a_dynamic_batch_and_length(kind: str, call: str) -> None:
    model = SelfAttention(KINDS[kind], CALLS[call]).eval()
    sizes = {"x": {0: Dim("batch"), 1: Dim("length")}}
    program = torch.export.export(model, (torch.randn(B, L, E),), dynamic_shapes=sizes).module()
    for batch, length in ((5, 9), (2, 4)):
        x = torch.randn(batch, length, E)
        torch.testing.assert_close(program(x), model(x))


@pytest.mark.parametrize("padded", [False, True], ids=["", "padded"])
def test_a_replaced_encoder_is_exported_with_a_dynamic_batch(padded: bool) -> None:
    layer = nn.TransformerEncoderLayer(E, H, 32, dropout=0.0, batch_first=True)
    model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).eval()
    replace_attention(model)

    def inputs(batch: int) -> tuple[Tensor, None, Tensor | None]:
        lengths = torch.arange(batch) % L + 1
        return torch.randn(batch, L, E), None, torch.arange(L) >= lengths[:, None] if padded else None

    size = {0: Dim("batch")}
    program = torch.export.export(model, inputs(B), dynamic_shapes=(size, None, size if padded else None)).module()
    given = inputs(8)
    torch.testing.assert_close(program(*given), model(*given))


@pytest.mark.filterwarnings("ignore:.torch.jit.trace.*is deprecated:DeprecationWarning")
@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning")
@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
@pytest.mark.parametrize("options", KINDS.values(), ids=KINDS)
def test_traced(options: dict[str, Any], call: dict[str, Any]) -> None:
    model, x = SelfAttention(options, call).eval(), torch.randn(B, L, E)
    with torch.no_grad():
        traced = torch.jit.trace(model, (x,), strict=False)
        other = torch.randn(B, L, E)
        torch.testing.assert_close(traced(other), model(other))


@pytest.mark.parametrize(
    ("kind", "call"),
    # weights come from attention_matrix, which takes long to compile and knows nothing of rotations and groups
    [
        pytest.param(
            kind, call, marks=[] if (kind, call) in (("plain", "unmasked"), ("gated", "causal")) else pytest.mark.slow
        )
        for kind in KINDS
        for call in CALLS
        if call != "weights" or kind in ("plain", "learned decay")
    ],
)
def test_compiled_in_one_graph_with_dynamic_sizes(kind: str, call: str) -> None:
    torch.compiler.reset()
    model = SelfAttention(KINDS[kind], CALLS[call])
    compiled = torch.compile(model, fullgraph=True, dynamic=True, backend="aot_eager")
    for batch, length in ((B, L), (5, 9)):
        x = torch.randn(batch, length, E)
        torch.testing.assert_close(compiled(x), model(x))


@pytest.mark.parametrize("dynamic", [None, True])
def test_a_scale_that_changes_from_call_to_call_compiles(dynamic: bool | None) -> None:
    torch.compiler.reset()

    def attend(q: Tensor, scale: float) -> Tensor:
        return fastmax_attention(q, q, q, scale=scale)

    compiled = torch.compile(attend, fullgraph=True, dynamic=dynamic, backend="aot_eager")
    q = torch.randn(2, 5, 8)
    for scale in (0.3, 0.4, 0.5, 0.6):
        torch.testing.assert_close(compiled(q, scale), attend(q, scale))
