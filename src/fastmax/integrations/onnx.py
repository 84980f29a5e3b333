"""The export to ONNX: Fastmax in plain operators, for runtimes that do not have it (extra "onnx")."""

from collections.abc import Sequence
from math import factorial
from os import PathLike, fspath
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import ExportedProgram

from fastmax.call import Call
from fastmax.core import normalized, similarity, tensor_power


def plain(program: ExportedProgram) -> ExportedProgram:
    """Return the program with Fastmax written out in operators that every runtime has."""
    table = torch.export.default_decompositions()
    table.update({torch.ops.fastmax.forward.default: _forward})  # type: ignore[no-untyped-call]
    written_out: ExportedProgram = program.run_decompositions(table)
    return written_out


def export_onnx(
    model: nn.Module,
    args: tuple[Any, ...],
    path: str | PathLike[str],
    *,
    dynamic_shapes: Any = None,
    input_names: Sequence[str] | None = None,
    output_names: Sequence[str] | None = None,
) -> None:
    """Export `model(*args)` through torch.export into an ONNX file.

    Unmasked attention and padding stay linear in the number of tokens; causal attention is dense there, O(N²), since the
    sum over a prefix would have to be kept for every token. States, packed sequences and dropout are not exported.

        >>> layer, x = FastmaxAttention(16, 2, batch_first=True).eval(), torch.randn(1, 8, 16)
        >>> export_onnx(layer, (x, x, x), folder / "layer.onnx")

    Args:
        model: in evaluation mode; it returns tensors.
        dynamic_shapes: as for torch.export.export, for example ({1: Dim("tokens")},) for an input of (batch, tokens).
        args: what the model is called with while it is traced.
        path: the file to write.
        input_names: of the ONNX graph.
        output_names: of the ONNX graph.
    """
    if model.training:
        raise ValueError("the model is in training mode: call model.eval() first, or dropout is exported with it")
    with torch.no_grad():
        program = plain(torch.export.export(model, args, dynamic_shapes=dynamic_shapes))
    torch.onnx.export(
        program,
        args,
        fspath(path),
        dynamo=True,
        input_names=input_names,
        output_names=output_names,
        external_data=False,
        verbose=False,
    )


def _forward(*values: Any) -> tuple[Tensor, Tensor, Tensor]:
    """Compute fastmax::forward for the tensors of a Call: o, g and no state."""
    call = Call.unflatten(values)
    for name, used in {
        "packed sequences": call.cu_seqlens_q is not None,
        "states": call.state_in is not None or call.options.return_state,
        "dropout": call.dropout_seed is not None,
        "log_decay": call.log_decay is not None,
    }.items():
        if used:
            raise ValueError(f"{name} cannot be exported in plain operators")
    dtype = torch.promote_types(torch.promote_types(call.q.dtype, call.v.dtype), torch.float32)
    q, k = (normalized(x.to(dtype), call.options.normalize) for x in (call.q, call.k))
    q = q * call.scale if call.head_scale is None else q * (call.scale * call.head_scale.to(dtype))[:, None, None]
    counts = (
        torch.ones_like(call.v[..., :1])
        if call.key_mask is None
        else call.key_mask.unsqueeze(-1).expand(*call.v.shape[:3], 1)
    )
    u = torch.cat((call.v, torch.ones_like(call.v[..., :1])), -1).to(dtype)
    u = torch.where(counts.bool(), u, 0)
    groups = q.shape[1] // k.shape[1]
    if groups > 1:
        k, u = (x.repeat_interleave(groups, 1) for x in (k, u))
    order = call.options.order
    if call.options.is_causal:
        fg = similarity(q @ k.mT, order).tril() @ u
    else:
        fg = torch.zeros((), dtype=dtype)
        for degree in range(order + 1):
            fg = fg + tensor_power(q, degree) @ (tensor_power(k, degree).mT @ u) / factorial(degree)
    f, g = fg[..., :-1], fg[..., -1:]
    o = torch.where(g == 0, 0, f / torch.where(g == 0, 1, g))
    return o.to(call.options.out_dtype or call.v.dtype), g.squeeze(-1), fg.new_empty(0)
