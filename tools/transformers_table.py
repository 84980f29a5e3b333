"""Write the table of architectures in docs/transformers.md: the findings of `verify`, and the properties that must hold.

python tools/transformers_table.py
"""

import sys
import warnings
from pathlib import Path

import torch
import transformers

sys.path.insert(0, str(Path(__file__).parent.parent))

from tests.integrations.architectures import ARCHITECTURES, REFUSED, SOME_LAYERS, WITHOUT, Architecture
from tests.integrations.properties import (
    PADDED,
    generated,
    moved_by_padding,
    oracle_outputs,
    outputs,
    weights_without_gradient,
)

from fastmax.integrations.transformers import register, verify

PAGE = Path(__file__).parent.parent / "docs" / "transformers.md"
BEGIN, END = "<!-- written by tools/transformers_table.py -->", "<!-- end -->"
HEADER = ["architecture", "Fastmax", "softmax, window", "oracle", "FastmaxCache", "remarks"]
ROUNDING = 1e-5
"""Less than this is rounding in fp32."""


def supported(architecture: Architecture) -> list[str]:
    model = architecture.build("fastmax")
    padded = architecture.kind in PADDED
    error, moved = 0.0, 0.0
    for side in ("left", "right") if padded else (None,):
        inputs = architecture.inputs(side)
        actual, expected = outputs(model, inputs), oracle_outputs(architecture, inputs)
        difference = (actual - expected).abs()
        if side is not None and actual.shape[1] >= inputs["attention_mask"].shape[1]:
            mask = inputs["attention_mask"].bool()
            difference[:, : mask.shape[1]][~mask] = 0  # the outputs of padding itself mean nothing
        error = max(error, difference.max().item())
        if side is not None:
            moved = max(moved, moved_by_padding(model, inputs))
    found = verify(model, architecture.inputs())
    without = weights_without_gradient(model, architecture.inputs())
    remarks = [f"{name} is an nn.MultiheadAttention: `replace_attention`" for name in found.multihead]
    remarks += [f"{name} is unchanged" for name in found.ignored]
    remarks += [f"{name} has outputs without a gradient" for name in without]
    remarks += [f"padding moves outputs by {moved:.0e}"] if moved > ROUNDING else []
    cache = "-"
    if architecture.kind == "decoder":
        inputs = architecture.inputs("left")
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            tokens = [generated(model, inputs, name) for name in ("fastmax", "dynamic", "none")]
        cache = "same tokens" if all(torch.equal(tokens[0], other) for other in tokens[1:]) else "OTHER TOKENS"
        if any("keeps all keys and values" in str(warning.message) for warning in caught):
            remarks.append("its cache grows")
    return [
        architecture.model_type + (" (fp32)" if architecture.dtype == torch.float32 else ""),
        str(len(found.fastmax)),
        str(len(found.softmax)) if found.softmax else "",
        f"{error:.0e}",
        cache,
        "; ".join(remarks),
    ]


def unsupported(architecture: Architecture) -> list[str]:
    try:
        model = architecture.build("fastmax")
        found = verify(model, architecture.inputs("right"))
        if not found.refused:
            outputs(model, architecture.inputs("right"))
    except (KeyError, TypeError, AttributeError, RuntimeError, ValueError) as error:
        kind = type(error).__name__
        return [architecture.model_type, "fails", f"{kind}: {' '.join(str(error).split())[:90]}"]
    if found.refused:
        return [architecture.model_type, "refused", next(iter(found.refused.values())).partition(": ")[0]]
    if found.fastmax:
        others = len(architecture.changes["layer_types"]) - len(found.fastmax)
        return [
            architecture.model_type,
            f"{len(found.fastmax)} layers",
            f"{others} of other kinds unchanged",
        ]
    return [architecture.model_type, "ignored", f"{len(found.ignored)} attention modules do not use the interface"]


def markdown(header: list[str], rows: list[list[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def main() -> None:
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    register()
    rows = [supported(architecture) for architecture in ARCHITECTURES]
    others = [unsupported(architecture) for architecture in (*SOME_LAYERS, *REFUSED, *WITHOUT)]
    text = "\n\n".join(
        [
            BEGIN,
            f"{len(rows)} architectures, two layers each (of each part), random weights, in fp64 unless marked; transformers "
            f"{transformers.__version__}, torch {torch.__version__.partition('+')[0]}.",
            markdown(HEADER, rows),
            "What else was tried:",
            markdown(["architecture", "", ""], others),
            END,
        ]
    )
    page = PAGE.read_text()
    before, _, rest = page.partition(BEGIN)
    PAGE.write_text(f"{before}{text}{rest.partition(END)[2]}")


if __name__ == "__main__":
    main()
