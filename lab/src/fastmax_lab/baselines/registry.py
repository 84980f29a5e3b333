"""The registry: every attention to compare with, by its name."""

from fastmax.nn import ForgetGate
from fastmax_lab.baselines import NAMES, BaselineOptions
from fastmax_lab.baselines.fastmax import MEMORY, Fastmax, Released
from fastmax_lab.baselines.informer import Informer
from fastmax_lab.baselines.interface import Attention
from fastmax_lab.baselines.linear import Linear
from fastmax_lab.baselines.performer import Performer
from fastmax_lab.baselines.reformer import Reformer
from fastmax_lab.baselines.softmax import Softmax, Vanilla


def attention(
    name: str,
    *,
    head_dim: int,
    num_heads: int,
    max_length: int,
    embed_dim: int | None = None,
    options: BaselineOptions | None = None,
) -> Attention:
    """Return the attention of that name, one of `NAMES`, for sequences of up to `max_length` tokens.

    `embed_dim` is the width of the layer's input, by default that of all heads together.
    """
    o = BaselineOptions() if options is None else options
    width = head_dim * num_heads if embed_dim is None else embed_dim
    if name == "softmax":
        gate = None if o.decay == "none" else ForgetGate(width, num_heads, MEMORY, kind=o.decay)
        return Softmax(dropout=o.dropout, standardized=o.standardized, gate=gate)
    if name == "vanilla":
        return Vanilla(dropout=o.dropout)
    if name == "linear":
        return Linear()
    if name == "performer":
        return Performer(head_dim=head_dim, num_features=o.performer_features)
    if name == "informer":
        return Informer(max_length=max_length, factor=o.informer_factor, dropout=o.dropout)
    if name == "reformer":
        return Reformer(
            head_dim=head_dim,
            num_heads=num_heads,
            max_length=max_length,
            rounds=o.reformer_rounds,
            chunk=o.reformer_chunk,
            dropout=o.dropout,
        )
    if name == "released":
        return Released(dropout=o.dropout, dropout_mode=o.dropout_mode)
    if name in NAMES:
        return Fastmax(
            head_dim=head_dim,
            num_heads=num_heads,
            order=int(name.removeprefix("fastmax")),
            scale=o.scale,
            dropout=o.dropout,
            dropout_mode=o.dropout_mode,
            backend=o.backend,
            decay=o.decay,
            embed_dim=width,
        )
    raise ValueError(f"attention must be one of {', '.join(NAMES)}, got {name!r}")
