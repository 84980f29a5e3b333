"""One step of decoding: the new token joins the recent ones in place, and its query reads the sum and sees all of those."""

import torch
from torch import Tensor

from fastmax.backends.native import abi
from fastmax.core import EPS
from fastmax.decay import check_decays

_COUNT, _FOLD, _Q, _K, _V, _O, _MASK, _SCALES, _DECAY = (
    abi.STEP.places[name] for name in ("recent_count", "fold", "q", "k", "v", "o", "mask", "head_scale", "log_decay")
)


def can_step(device: torch.device, order: int, head_dim: int, value_dim: int) -> bool:
    library = abi.load()
    return (
        not isinstance(library, str) and device.type == "cpu" and order <= 2 and max(head_dim, value_dim) <= abi.MAX_DIM
    )


class NativeStep:
    """A step on these buffers, for tokens of the shapes, strides and dtypes of these: all but addresses is packed."""

    def __init__(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        total: Tensor | None,
        recent_k: Tensor,
        recent_u: Tensor,
        recent_decay: Tensor | None,
        total_decay: Tensor | None,
        log_decay: Tensor | None,
        *,
        order: int,
        scale: float,
        normalize: str,
        level: str | None = None,
    ) -> None:
        library = abi.load()
        assert not isinstance(library, str), library
        batch, query_heads, _, head_dim = q.shape
        key_heads, value_dim = v.shape[1], v.shape[3]
        self._library, self._step = library, library.functions["step"]
        self._level = library.best if level is None else library.level(level)
        self._contiguous = all(x.stride(3) == 1 or x.shape[3] == 1 for x in (q, k, v))
        self._shape, self._dtype = (batch, query_heads, 1, value_dim), v.dtype
        self._buffers = {
            "total": total, "recent_k": recent_k, "recent_u": recent_u, "recent_decay": recent_decay,
            "total_decay": total_decay,
        }  # fmt: skip
        # packed once; a step inserts its numbers
        self._words = abi.STEP.pack(
            type=abi.TYPES[recent_k.dtype], batch=batch, query_heads=query_heads, key_heads=key_heads, head_dim=head_dim,
            value_dim=value_dim, order=order, normalize=abi.NORMALIZATIONS[normalize], recent_capacity=recent_k.shape[2],
            scale=scale, eps=EPS, **{name: x.data_ptr() for name, x in self._buffers.items() if x is not None},
        )  # fmt: skip
        self._address, _ = self._words.buffer_info()
        o = torch.empty(self._shape, dtype=v.dtype, device="cpu")
        for name, x in (("q", q), ("k", k), ("v", v), ("o", o), ("log_decay", log_decay)):
            if x is not None:
                abi.STEP.put(self._words, **{name: x if self._contiguous else x.contiguous()})

    def __call__(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        head_scale: Tensor | None,
        key_mask: Tensor | None,
        log_decay: Tensor | None,
        recent_count: int,
        fold: int,
    ) -> Tensor:
        """Take the step that `fastmax.state.decode.prepare_step` defines."""
        o = torch.empty(self._shape, dtype=self._dtype, device="cpu")
        if not self._contiguous:
            q, k, v = q.contiguous(), k.contiguous(), v.contiguous()
        mask = None if key_mask is None else key_mask.contiguous()
        scales = None if head_scale is None else head_scale.to(torch.float64).contiguous()
        words = self._words
        words[_COUNT], words[_FOLD] = recent_count, fold
        words[_Q], words[_K], words[_V], words[_O] = q.data_ptr(), k.data_ptr(), v.data_ptr(), o.data_ptr()
        words[_MASK] = 0 if mask is None else mask.data_ptr()
        words[_SCALES] = 0 if scales is None else scales.data_ptr()
        words[_DECAY] = 0 if log_decay is None else log_decay.data_ptr()
        status = self._step(self._level, self._address, self._library.parallel_for, torch.get_num_threads())
        if status:
            error = abi.refusal("step", words, status)
            if isinstance(error, abi.DecayValueError) and log_decay is not None:
                check_decays(log_decay if key_mask is None else torch.where(key_mask.unsqueeze(1), log_decay, 0))
            raise error
        return o


prepare_step = NativeStep
