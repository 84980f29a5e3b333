"""Which part of the kernel's grid to measure, and where: options of `fastmax-lab bench kernel`, without torch."""

from dataclasses import dataclass

from fastmax_lab._settings import setting


@dataclass(frozen=True)
class Selection:
    """A part of the grid; lengths and head dimensions may be any, also beside the grid."""

    tokens: tuple[int, ...] | None = setting("only these lengths, any", default=None, at_least=1, at_most=1 << 22)
    head_dim: tuple[int, ...] | None = setting(
        "only these head dimensions, any", default=None, metavar="D", at_least=1, at_most=256
    )
    order: int | None = setting("only this order", default=None, at_least=1, at_most=2)
    dtype: str | None = setting("only this dtype", default=None, choices=("float32", "bfloat16"))
    device: str = setting("the native kernel, or the Triton backend on a GPU", default="cpu", choices=("cpu", "cuda"))
