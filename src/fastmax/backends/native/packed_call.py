"""A call as the C structure of native/api.h, and what must live until it has run."""

import torch
from torch import Tensor

from fastmax.backends.native import abi
from fastmax.call import Call
from fastmax.core import EPS
from fastmax.dropout import dropped_of_2_16
from fastmax.plan import BF16_SPEED, Plan, cheaper_form, kernel_chunk


class PackedCall:
    """The words of a call. Gradients and states that go out are put in by their names afterwards."""

    def __init__(self, call: Call, plan: Plan, o: Tensor, g: Tensor, *, has_state: bool):
        self.kept: list[Tensor] = []
        options, mode = call.options, call.dropout_mode
        drops_features = mode == "standard" or mode == "quadratic"
        batch, query_heads, queries, head_dim = call.q.shape
        _, key_heads, keys, value_dim = call.v.shape
        # of a packed batch each sequence has a form; there may be none to have one
        self.uniform = abi.FORMS["factorized" if drops_features else "dense"]
        if call.cu_seqlens_k is None:
            self.uniform = _form(call, plan, queries, keys, has_state or drops_features)
        self.words = abi.CALL.pack(
            type=abi.TYPES[g.dtype], batch=batch, query_heads=query_heads, key_heads=key_heads, queries=queries, keys=keys,
            head_dim=head_dim, value_dim=value_dim, order=options.order, is_causal=options.is_causal,
            normalize=abi.NORMALIZATIONS[options.normalize], chunk=_chunk(call, plan, drops_features),
            sequences=-1 if call.cu_seqlens_k is None else call.cu_seqlens_k.shape[0] - 1, form=self.uniform,
            scale=call.scale, eps=EPS,
        )  # fmt: skip
        self.put(q=call.q, k=call.k, v=call.v, o=o, g=g, log_decay=call.log_decay)
        if call.state_in is not None:
            self.point("state_in", call.state_in)
        if call.cu_seqlens_q is not None and call.cu_seqlens_k is not None:
            cu_q, cu_k = call.cu_seqlens_q.to(torch.int64), call.cu_seqlens_k.to(torch.int64)
            lengths = zip(cu_q.diff().tolist(), cu_k.diff().tolist(), strict=True)
            forms = [_form(call, plan, *n, has_state or drops_features) for n in lengths]
            self.point("forms", torch.tensor(forms, dtype=torch.int64, device="cpu"))
            self.point("cu_queries", cu_q)
            self.point("cu_keys", cu_k)
        if call.key_mask is not None:
            mask = call.key_mask.expand(batch, key_heads, keys)
            self.kept.append(mask)
            strides = zip(("mask_batch_stride", "mask_head_stride", "mask_token_stride"), mask.stride(), strict=True)
            self.set(mask=mask.data_ptr(), **dict(strides))
        if call.head_scale is not None:
            self.point("head_scale", call.head_scale.to(torch.float64))
        if mode is not None:
            self.set(dropout=abi.DROPOUTS[mode], dropped=dropped_of_2_16(options.dropout_p))
            self.point("dropout_seed", call.dropout_seed)

    def put(self, **tensors: Tensor | None) -> None:
        """Fill in tensors, the channels of each made contiguous."""
        for name, x in tensors.items():
            if x is not None and x.dim() == 4 and x.stride(3) != 1 and x.shape[3] != 1:
                self.kept.append(x.contiguous())
                tensors[name] = self.kept[-1]
        abi.CALL.put(self.words, **tensors)

    def point(self, name: str, x: Tensor | None) -> None:
        """Fill in the address of a contiguous copy, or of x itself."""
        if x is not None:
            self.kept.append(x.contiguous())
            self.set(**{name: self.kept[-1].data_ptr()})

    def set(self, **values: int) -> None:
        """Fill in numbers and addresses."""
        for name, value in values.items():
            self.words[abi.CALL.places[name]] = value

    def run(self, function: str, level: str | None, *, fills: tuple[Tensor, ...]) -> None:
        library = abi.load()
        assert not isinstance(library, str), library
        for x in fills:
            library.huge_pages(x)
        library.run(function, self.words, level)


def in_rows(x: Tensor) -> bool:
    """Return True if the channels of each token are contiguous."""
    return x.stride(-1) == 1 or x.shape[-1] == 1


def _chunk(call: Call, plan: Plan, drops_features: bool) -> int:
    if plan.chunk is not None:
        return max(32, plan.chunk + -plan.chunk % 32)  # whole vectors of every level
    is_causal = call.options.is_causal
    both_ways = call.log_decay is not None and not is_causal
    return kernel_chunk(call.q.shape[3], call.options.order, is_causal, drops_features, both_ways)


def _form(call: Call, plan: Plan, queries: int, keys: int, needs_features: bool) -> int:
    order = call.options.order
    if plan.form == "factorized" and order > 2:
        raise ValueError(f"order {order} has only the dense form, got form={plan.form!r}")
    if needs_features:  # a state is the factorized form's; the dense one has no features to drop
        return abi.FORMS["factorized"]
    if order > 2:
        return abi.FORMS["dense"]
    form = plan.form
    if form is None and call.log_decay is not None:
        return abi.FORMS["by_reach"]
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
