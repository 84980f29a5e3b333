"""Tables of `fastmax-lab bench decay`: times with a decay over those without, by how strong it is."""

from collections.abc import Sequence

from fastmax_lab.bench.decay import DECODING, NONE
from fastmax_lab.measurements import Measurement
from fastmax_lab.report.table import mask, milliseconds, passes, table, times


def summary(measured: Sequence[Measurement]) -> str:
    """Return a table for each mask and pass, and the line of decoding. Ratios are medians of neighbouring measurements."""
    texts = ["Forgetting: order 2, fp32; ms without, then ratios by the mean decay per token"]
    for is_causal in (True, False):
        for backward in (False, True):
            cells = [
                d
                for d in measured
                if (d.settings.get("is_causal"), d.settings.get("backward")) == (is_causal, backward)
            ]
            if not cells:
                continue
            decays = [name for name in cells[0].values["seconds"] if name != NONE]
            header = [f"N, D, heads: {mask(is_causal)}, {passes(backward)}", NONE, *decays]
            texts.append(table(header, [_row(d, decays) for d in cells]))
    for d in measured:
        if d.name == DECODING:
            heads, head_dim = d.settings["heads"], d.settings["head_dim"]
            (ratio,) = (x["paired"] for name, x in d.values["seconds"].items() if name != NONE)
            texts.append(f"A decoding step, {heads} heads of {head_dim}: {times(ratio)}")
    return "\n\n".join(texts)


def _row(d: Measurement, decays: Sequence[str]) -> list[str]:
    of, took = d.settings, d.values["seconds"]
    first = f"{of['tokens']:,}, {of['head_dim']}, {of['heads']}"
    return [first, milliseconds(took[NONE]["median"]), *(times(took[name]["paired"]) for name in decays)]
