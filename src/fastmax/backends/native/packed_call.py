"""A call as the C structure of native/api.h, and what must live until it has run."""

import torch
from torch import Tensor

from fastmax.backends.native import abi
from fastmax.call import Call
from fastmax.core import EPS
from fastmax.dropout import dropped_of_2_16
from fastmax.plan import BF16_SPEED, Plan, cheaper_form, kernel_chunk


class PackedCall:
    grads = abi.NO_TENSOR * 6
    mask: abi.Fields = (0, 0, 0, 0)
    dropout: abi.Fields = (0, 0, 0)
    state_is_total = False
    forms = cu_queries = cu_keys = head_scale = d_head_scale = state_out = d_state_out = d_state_in = 0

    def __init__(self, call: Call, plan: Plan, o: Tensor, g: Tensor, *, has_state: bool):
        self.kept: list[Tensor] = []
        options = call.options
        batch, query_heads, queries, head_dim = call.q.shape
        _, key_heads, keys, value_dim = call.v.shape
        # of a packed batch each sequence has a form; there may be none to have one
        mode = call.dropout_mode
        drops_features = mode == "standard" or mode == "quadratic"
        sequences, uniform = -1, abi.FORMS["factorized" if drops_features else "dense"]
        if call.cu_seqlens_q is not None and call.cu_seqlens_k is not None:
            cu_q, cu_k = call.cu_seqlens_q.to(torch.int64), call.cu_seqlens_k.to(torch.int64)
            sequences = cu_q.shape[0] - 1
            self.cu_queries, self.cu_keys = self.pointer(cu_q), self.pointer(cu_k)
            lengths = zip(cu_q.diff().tolist(), cu_k.diff().tolist(), strict=True)
            forms = [_form(call, plan, *n, has_state or drops_features) for n in lengths]
            self.forms = self.pointer(torch.tensor(forms, dtype=torch.int64, device="cpu"))
        else:
            uniform = _form(call, plan, queries, keys, has_state or drops_features)
        self.uniform = uniform
        self.numbers = (
            abi.TYPES[g.dtype], batch, query_heads, key_heads, queries, keys, head_dim, value_dim,
            options.order, options.is_causal, abi.NORMALIZATIONS[options.normalize], _chunk(call, plan, drops_features),
            sequences, uniform, self.forms, call.scale, EPS,
        )  # fmt: skip
        self.tensors = (
            *self.tensor(call.q), *self.tensor(call.k), *self.tensor(call.v), *self.tensor(o), *self.tensor(g),
            *(abi.NO_TENSOR if call.log_decay is None else self.tensor(call.log_decay)),
        )  # fmt: skip
        self.state_in = 0 if call.state_in is None else self.pointer(call.state_in)
        if call.key_mask is not None:
            mask = call.key_mask.expand(batch, key_heads, keys)
            self.kept.append(mask)
            self.mask = (mask.data_ptr(), *mask.stride())
        if call.head_scale is not None:
            self.head_scale = self.pointer(call.head_scale.to(torch.float64))
        if mode is not None:
            seed = self.pointer(call.dropout_seed)
            self.dropout = (abi.DROPOUTS[mode], dropped_of_2_16(options.dropout_p), seed)

    def tensor(self, x: Tensor | None) -> abi.Fields:
        if x is None:
            return abi.NO_TENSOR
        strides = x.stride()
        if len(strides) == 4 and strides[3] != 1 and x.shape[3] != 1:
            x = x.contiguous()
            strides = x.stride()
            self.kept.append(x)
        return (x.data_ptr(), *strides[:3], abi.TYPES[x.dtype])

    def pointer(self, x: Tensor | None) -> int:
        if x is None:
            return 0
        self.kept.append(x.contiguous())
        return int(self.kept[-1].data_ptr())

    def run(self, function: str, level: str | None, *, fills: tuple[Tensor, ...]) -> None:
        library = abi.load()
        assert not isinstance(library, str), library
        for x in fills:
            library.huge_pages(x)
        packed = abi.CALL.pack(
            *self.numbers, *self.tensors, *self.grads, *self.mask, self.cu_queries, self.cu_keys,
            self.head_scale, self.d_head_scale, self.state_in, self.state_out, self.d_state_out, self.d_state_in,
            *self.dropout, self.state_is_total,
        )  # fmt: skip
        library.run(function, packed, level)


def in_rows(strides: tuple[int, ...], x: Tensor) -> bool:
    return strides[-1] == 1 or x.shape[-1] == 1


def _chunk(call: Call, plan: Plan, drops_features: bool) -> int:
    if plan.chunk is not None:
        return max(32, plan.chunk + -plan.chunk % 32)  # whole vectors of every level
    return kernel_chunk(call.q.shape[3], call.options.order, call.options.is_causal, drops_features)


def _form(call: Call, plan: Plan, queries: int, keys: int, needs_features: bool) -> int:
    order = call.options.order
    if plan.form == "factorized" and order > 2:
        raise ValueError(f"order {order} has only the dense form, got form={plan.form!r}")
    if needs_features:  # a state is the factorized form's; the dense one has no features to drop
        return abi.FORMS["factorized"]
    if order > 2:
        return abi.FORMS["dense"]
    form = plan.form
    if form is None:
        speed = BF16_SPEED if _pairs_bf16(call, plan) else 1.0
        form = cheaper_form(queries, keys, call.q.shape[3], call.v.shape[3], order, call.options.is_causal, speed)
    return abi.FORMS[form]


def _pairs_bf16(call: Call, plan: Plan) -> bool:
    """Return True if the dense form multiplies in bf16, as `Bf16Products::serve` of native/forms/products_bf16.h does."""
    if call.log_decay is not None or call.q.dtype != torch.bfloat16:
        return False
    library = abi.load()
    assert not isinstance(library, str), library
    all_bf16 = call.k.dtype == call.v.dtype == call.options.out_dtype == torch.bfloat16
    return all_bf16 and (plan.level or library.running[0]) == abi.BF16_LEVEL
