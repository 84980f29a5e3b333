"""A guard against the fused softmax kernel of nn.TransformerEncoderLayer, which never calls self_attn."""

from typing import Any

from torch import nn


class FusedPathGuard(nn.Module):
    """A child that is never called. The encoder layer takes its fused path only if no module inside it has a hook.

    The hook sits on a child, because a layer made by `FastmaxAttention.from_attention` shares its hooks with the
    original, which must keep its fused path.
    """

    def __init__(self) -> None:
        super().__init__()
        self.register_forward_pre_hook(_nothing)


def _nothing(_module: nn.Module, _inputs: Any) -> None:
    pass
