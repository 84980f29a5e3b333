"""A call prepared for batched products: normalized tokens, values, decays and gradients of outputs, all in slots."""

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor
from torch.nn.functional import pad

from fastmax import dropout
from fastmax.backends.batched.features import Tokens, Words, blocks, width
from fastmax.backends.batched.slots import Slots, sequence_of, unflatten
from fastmax.call import Call, InputGrads, OutputGrads
from fastmax.core import EPS, normalize_with_scale
from fastmax.decay import bounded, wide
from fastmax.parts import gradient_of_sums, inverse
from fastmax.plan import DROPOUT_CHUNK, Plan, cheaper_form

SMALLEST_CHUNK = 64
LARGER_UNMASKED = 4
"""The factor on the length of chunks where no pairs are seen in them: fewer copies of the same state."""


CARD = 40 << 30
"""Bytes of memory that a device is taken to have if it does not report them."""

SHARE_OF_ALL, SHARE_OF_FREE = 8, 2


def temporary_bytes(device: torch.device) -> int:
    """Return the bytes that temporary tensors may take: a share of the device's memory, less if little of it is free."""
    total = free = CARD
    if device.type == "cpu":
        total = free = 4 << 30
    elif device.type == "cuda":  # pragma: no cover  (needs one)
        free, total = torch.cuda.mem_get_info(device)
        free += torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    elif device.type == "mps":  # pragma: no cover
        total = torch.mps.recommended_max_memory()
        free = max(0, total - torch.mps.driver_allocated_memory())
    elif device.type == "xpu":  # pragma: no cover
        free, total = torch.xpu.mem_get_info(device)
    return max(1 << 24, min(total // SHARE_OF_ALL, free // SHARE_OF_FREE))


def takes_dense_form(call: Call, plan: Plan, speed: float = 1.0) -> bool:
    """Return True for the dense form. With states or dropped features it serves only inside causal chunks."""
    options = call.options
    if options.order > 2:
        return True
    if call.drops_features or call.state_in is not None or options.return_state:
        return False
    sizes = call.q.shape[2], call.k.shape[2], call.head_dim, call.value_dim
    return (plan.form or cheaper_form(*sizes, options.order, options.is_causal, speed)) == "dense"


@dataclass
class Work:
    """One call in slots."""

    call: Call
    plan: Plan
    budget: int  # bytes of temporary tensors
    masks: tuple[dropout.Dropout, dropout.Dropout] | None = None  # of queries and keys

    @cached_property
    def is_dense(self) -> bool:
        return takes_dense_form(self.call, self.plan)

    @cached_property
    def half(self) -> torch.dtype:
        """The dtype of products. fp16 has not the range for sums, and the sums of a state are not about a centre."""
        call = self.call
        plain = call.state_in is None and not call.options.return_state and not call.drops_features
        return (
            torch.bfloat16 if plain and {x.dtype for x in (call.q, call.k, call.v)} == {torch.bfloat16} else call.dtype
        )

    @cached_property
    def columns(self) -> int:
        """The columns of values: Dv, 1 for the denominator, and what makes them a multiple of 8 for tensor cores."""
        return self.call.value_dim + 1 if self.half.itemsize > 2 else (self.call.value_dim // 8 + 1) * 8

    @cached_property
    def widest(self) -> int:
        call = self.call
        return max(width(block, call.head_dim) for block in blocks(call.head_dim, min(call.options.order, 2)))

    @cached_property
    def chunk(self) -> int:
        """The places of a slot. Traffic per token is F J / chunk for states and `chunk` for pairs: a root balances them."""
        call = self.call
        if self.plan.chunk is not None:
            return self.plan.chunk
        if call.drops_features:
            return DROPOUT_CHUNK
        best = SMALLEST_CHUNK
        while best * best < 0.75 * call.features * self.columns:
            best *= 2
        if not call.options.is_causal:
            best *= LARGER_UNMASKED
        longest = max(call.q.shape[2], call.k.shape[2])
        if call.cu_seqlens_q is not None:
            longest = -(-longest // max(1, call.cu_seqlens_q.shape[0] - 1))  # the mean
        while best > 16 and best >= 2 * longest:
            best //= 2
        return best

    @property
    def bytes_per_slot(self) -> int:
        """Return the bytes of the temporary tensors of a slot and key head: features, their gradient, and sums."""
        return (2 * self.half.itemsize * self.chunk * (1 + self.call.groups) + 12 * self.columns) * self.widest

    @property
    def bytes_per_head(self) -> int:
        """Return those of all slots of a key head, or of a row of all pairs."""
        call = self.call
        if self.is_dense:
            return max(1, 16 * call.groups * call.k.shape[2])
        sequences = 0 if call.cu_seqlens_k is None else call.cu_seqlens_k.shape[0] - 1
        return self.bytes_per_slot * max(1, -(-max(call.q.shape[2], call.k.shape[2]) // self.chunk) + sequences)

    @cached_property
    def at_once(self) -> int:
        """The slots of a span: as many as fit the budget."""
        heads = self.call.k.shape[0] * self.call.k.shape[1]
        return max(1, self.budget // (self.bytes_per_slot * heads))

    @cached_property
    def slots(self) -> tuple[Slots, Slots]:
        """The slots of queries and of keys. In the causal form both sides of a slot have the same positions."""
        call = self.call
        cu_q, cu_k = call.cu_seqlens_q, call.cu_seqlens_k
        queries, keys = call.q.shape[2], call.k.shape[2]
        if self.is_dense:
            return Slots(queries, queries, 1), Slots(keys, keys, 1)
        chunk, is_causal = self.chunk, call.options.is_causal
        if cu_q is None or cu_k is None:
            both = max(queries, keys) if is_causal else 0
            return tuple(Slots(n, chunk, max(1, -(-max(n, both) // chunk))) for n in (queries, keys))  # type: ignore[return-value]
        if cu_q is cu_k and queries == keys:
            return (Slots.packed(cu_q, queries, chunk),) * 2
        return (
            Slots.packed(cu_q, queries, chunk, (cu_k, keys) if is_causal else None),
            Slots.packed(cu_k, keys, chunk, (cu_q, queries) if is_causal else None),
        )

    def stack(self, x: Tensor) -> Tensor:
        """Reshape (B, Hq, slots, n, ...) to (B, Hkv, slots, G * n, ...)."""
        return unflatten(x, 1, self.call.k.shape[1], self.call.groups).transpose(2, 3).flatten(3, 4)

    def by_group(self, x: Tensor) -> Tensor:
        """Reshape (B, Hkv, slots, G * n, ...) to (B, Hkv, slots, G, n, ...)."""
        return unflatten(x, 3, self.call.groups, x.shape[3] // self.call.groups)

    def unstack(self, x: Tensor) -> Tensor:
        """Reshape (B, Hkv, slots, G * n, ...) to (B, Hq, slots, n, ...)."""
        return self.by_group(x).transpose(2, 3).flatten(1, 2)

    def dropped_tokens(self, side: int) -> Tensor | None:
        """Return the factors on whole tokens, (B, H, N, 1), where tokens are dropped."""
        if self.masks is None or self.call.dropout_mode != "1d":
            return None
        masks = self.masks[side]
        return masks.token_factors(0, masks.add.shape[-1], self.call.dtype)

    def words(self, side: int) -> Words | None:
        if self.masks is None or not self.call.drops_features:
            return None
        whole, slots = self.masks[side], self.slots[side]
        add, multiply = (slots.split(x) for x in (whole.add, whole.multiply))
        return Words(*((self.stack(add), self.stack(multiply)) if side == 0 else (add, multiply)), whole)

    @cached_property
    def normalized_queries(self) -> "Normalized":
        return Normalized.of(self.call.q.to(self.call.dtype), self.call.options.normalize)

    @cached_property
    def normalized_keys(self) -> "Normalized":
        x = self.call.k.to(self.call.dtype)
        mask = self.call.key_mask
        return Normalized.of(x if mask is None else x.masked_fill(~mask.unsqueeze(-1), 0), self.call.options.normalize)

    @cached_property
    def query_factor(self) -> Tensor | float:
        scale, per_head = self.call.scale, self.call.head_scale
        return scale if per_head is None else (per_head.to(self.call.dtype) * scale)[:, None, None]

    @cached_property
    def _keys_and_values(self) -> tuple[Tensor, Tensor, Tensor | None]:
        """Return k̂ and u in slots, and how many keys a channel sees that are not finite, (B, Hkv, Nk + 1, Dv).

        Zero times infinity is NaN, so such values are zeros in all sums, and the outputs that see them become NaN.
        """
        call = self.call
        x, v = self.normalized_keys.x, call.v.to(call.dtype)
        dropped = self.dropped_tokens(1)
        x = x if dropped is None else x * dropped
        keep = None if call.key_mask is None else call.key_mask.unsqueeze(-1)
        unseen = None
        if call.options.is_causal or call.cu_seqlens_k is not None:
            unread = _not_finite(x.sum(-1, keepdim=True))
            wrong = _not_finite(v) | unread
            v, x = v.masked_fill(wrong, 0), x.masked_fill(unread, 0)
            wrong = wrong if keep is None else wrong & keep
            unseen = pad(wrong.cumsum(2, dtype=torch.int32), (0, 0, 1, 0))
        u = pad(v, (0, self.columns - call.value_dim))
        u[..., call.value_dim] = 1
        if keep is not None:
            u = u.masked_fill_(~keep, 0)
        return self.slots[1].split(x), self.slots[1].split(u), unseen

    @cached_property
    def centres(self) -> tuple[Tensor, Tensor] | None:
        """The means of keys and of values, (B, Hkv, sequences or 1, D or Dv), if sums are of half precision.

        If causal, they are those of the first slot of a sequence, so that nothing of the future is in them.
        """
        if self.half.itemsize > 2 or self.is_dense:
            return None
        x, u, _ = self._keys_and_values
        packing = self.slots[1].packing
        sums = [each.sum(3) for each in (x, u)]
        if packing is not None:
            sums = [each[:, :, packing.starts] for each in sums]
        else:
            sums = [each[:, :, :1] if self.call.options.is_causal else each.sum(2, keepdim=True) for each in sums]
        count = sums[1][..., self.call.value_dim, None].clamp(min=1)
        return sums[0] / count, sums[1][..., : self.call.value_dim] / count

    def in_slots(self, centre: Tensor, side: int) -> Tensor:
        """Return the centre of each slot, (B, Hkv, slots or 1, 1, D)."""
        packing = self.slots[side].packing
        return (centre if packing is None else centre[:, :, packing.sequence]).unsqueeze(3)

    @cached_property
    def queries(self) -> Tokens:
        x = self.normalized_queries.x * self.query_factor
        dropped = self.dropped_tokens(0)
        x = self.stack(self.slots[0].split(x if dropped is None else x * dropped))
        centre = None if self.centres is None else self.in_slots(self.centres[0], 0)
        return Tokens(x, self.call.options.order, self.half, self.words(0), centre)

    @cached_property
    def keys(self) -> Tokens:
        x = self._keys_and_values[0]
        order, words = self.call.options.order, self.words(1)
        if self.centres is None:
            return Tokens(x, order, self.half, words)
        return Tokens(x - self.in_slots(self.centres[0], 1), order, self.half, words, plain=x)

    @cached_property
    def values(self) -> Tensor:
        """The rows [v less its centre, 1, 0 ...] of the keys that count, (B, Hkv, slots, n, J)."""
        u = self._keys_and_values[1]
        if self.centres is not None:
            one = slice(self.call.value_dim, self.call.value_dim + 1)
            u = torch.cat(
                [u[..., : one.start] - u[..., one] * self.in_slots(self.centres[1], 1), u[..., one.start :]], -1
            )
        return u

    def store(self, f: Tensor, o: Tensor, g: Tensor) -> None:
        """Store o = f / g [19] and g. A query without keys has g = 0 exactly and gets zeros."""
        value_dim = self.call.value_dim
        found = f[..., :value_dim]
        denominator = f[..., value_dim, None]
        if self.centres is not None:
            found = torch.addcmul(found, denominator, self.in_slots(self.centres[1], 0))
        found = found * inverse(denominator)
        found, denominator = (self.slots[0].join(self.unstack(x)) for x in (found, denominator))
        seen = self._not_finite_keys()
        o.copy_(found if seen is None else found.masked_fill(seen.repeat_interleave(self.call.groups, 1), torch.nan))
        g.copy_(denominator.squeeze(-1))

    def _not_finite_keys(self) -> Tensor | None:
        """Return True where a query sees a value that is not finite, (B, Hkv, Nq, Dv)."""
        call, counts = self.call, self._keys_and_values[2]
        queries, keys = call.q.shape[2], call.k.shape[2]
        if counts is None:
            return None
        position = torch.arange(queries, device=counts.device)
        if call.cu_seqlens_q is None or call.cu_seqlens_k is None:
            return counts[:, :, 1:] > 0 if queries == keys else counts[:, :, (position + 1).clamp(max=keys)] > 0
        cu_q, cu_k = (x.to(torch.int64) for x in (call.cu_seqlens_q, call.cu_seqlens_k))
        sequence = sequence_of(cu_q, position)
        start, stop = cu_k[sequence], cu_k[sequence + 1]
        if call.options.is_causal:
            stop = torch.minimum(stop, start + position - cu_q[sequence] + 1)
        return counts[:, :, stop] > counts[:, :, start]

    def output_grads(self, o: Tensor, g: Tensor, grads: OutputGrads) -> Tensor:
        """Return the gradient of [f, g] in slots, stacked, for values about their centre."""
        call, value_dim = self.call, self.call.value_dim
        w = gradient_of_sums(o, g, grads, self.columns, call.dtype)
        w = self.stack(self.slots[0].split(w))
        if self.centres is not None:
            w[..., value_dim] += (w[..., :value_dim] * self.in_slots(self.centres[1], 0)).sum(-1)
        return w

    def store_grads(self, dq: Tensor, dk: Tensor, du: Tensor, out: InputGrads) -> None:
        """Convert the gradients of q̂, k̂ and u to those of the raw inputs and of the scales."""
        call = self.call
        d = self.slots[0].join(self.unstack(dq))
        dropped = self.dropped_tokens(0)
        d = d if dropped is None else d * dropped
        if call.head_scale is not None:
            out.head_scale.add_((d * self.normalized_queries.x).sum((0, 2, 3)) * call.scale)
        out.q.copy_(self.normalized_queries.vjp(d * self.query_factor))
        dropped = self.dropped_tokens(1)
        d, dv = self.slots[1].join(dk), self.slots[1].join(du)[..., : call.value_dim]
        d = self.normalized_keys.vjp(d if dropped is None else d * dropped)
        if call.key_mask is not None:
            d, dv = (x.masked_fill(~call.key_mask.unsqueeze(-1), 0) for x in (d, dv))
        out.k.copy_(d)
        out.v.copy_(dv)

    @cached_property
    def decays(self) -> Tensor | None:
        """The sums of log_decay from the start of each slot, (B, Hkv, slots, n)."""
        if self.call.log_decay is None:
            return None
        x = bounded(self.call.log_decay)
        return self.slots[1].split(x.to(wide(x.device))).cumsum(-1)

    def fade_queries(self, x: Tensor, span: slice = slice(None)) -> Tensor:
        """Multiply rows of stacked queries, (B, Hkv, slots, G * n, J), by the decay since the start of their slot."""
        if self.decays is None:
            return x
        factors = self.decays[:, :, span, None, :, None].exp().to(x.dtype)
        return (self.by_group(x) * factors).flatten(3, 4)

    def fade_keys(self, x: Tensor) -> Tensor:
        """Multiply rows of keys by the decay from them to the end of their slot."""
        c = self.decays
        return x if c is None else x * (c[..., -1:] - c).exp().to(x.dtype).unsqueeze(-1)


def _not_finite(x: Tensor) -> Tensor:
    return (x - x) != 0  # two launches, where isfinite has four


@dataclass(frozen=True)
class Normalized:
    """Normalized tokens, and what their gradient needs."""

    x: Tensor
    how: str
    scale: Tensor | None

    @staticmethod
    def of(x: Tensor, how: str) -> "Normalized":
        """Normalize x of fp32 or fp64, in few launches: a mean about the first channel makes constant tokens zeros."""
        if how == "none":
            return Normalized(x, how, None)
        if how == "rms" or x.dtype == torch.float64 or x.shape[-1] == 0:
            x, scale = normalize_with_scale(x, centre=how == "standardize")
            return Normalized(x, how, scale)
        # squares of numbers above 2^64 overflow; factors are powers of two
        size = torch.linalg.vector_norm(x, torch.inf, -1, keepdim=True)
        shrink = torch.ones_like(size).masked_fill_(size > 2.0**56, 2.0**-32).masked_fill_(size > 2.0**92, 2.0**-68)
        x = torch.addcmul(-(x[..., :1] * shrink), x, shrink)
        x, _, scale = torch.native_layer_norm(x, x.shape[-1:], None, None, EPS)
        return Normalized(x, how, scale * shrink)

    def vjp(self, d: Tensor) -> Tensor:
        """Return the gradient of x from that of the normalized tokens."""
        if self.scale is None or not d.numel():
            return d
        if self.how == "standardize":  # in one launch, as that of layer_norm at the tokens that are normalized already
            channels, none = d.shape[-1:], torch.zeros_like(self.scale)
            one = torch.ones_like(self.scale)
            d = torch.ops.aten.native_layer_norm_backward(
                d.contiguous(), self.x.contiguous(), channels, none, one, None, None, [True, False, False]
            )[0]
            return d * self.scale
        return torch.addcmul(d, self.x, (d * self.x).mean(-1, keepdim=True), value=-1).mul_(self.scale)
