"""Scaling: how times change with the number of heads and channels, and a block of the size of Llama 2's."""

from fastmax_lab.measurements import Measurement
from fastmax_lab.report.page.parts import AGREES, DIFFERS, PARTLY, Claim, Finding, PageBlock, Table, untested
from fastmax_lab.report.page.sections.scaling_cells import (
    FORWARD,
    ORDERS,
    Cell,
    cells_of,
    exponent,
    is_factorized,
    mask_name,
)
from fastmax_lab.report.page.words import listed

HALVES = ("Section 2.4", "Quadrupling the heads and doubling the channels halves the cost.")


def channels_finding(measurements: list[Measurement]) -> Finding:
    """Tell how times grow with D where all took the factorized form, forward and unmasked."""
    parts = []
    for name in ORDERS:
        took: dict[int, dict[int, float]] = {}
        for d in measurements:
            head_dim = d.settings["head_dim"]
            for c in cells_of(d, False, FORWARD):
                if name in c["seconds"] and is_factorized(c, name, head_dim):
                    took.setdefault(c["tokens"], {})[head_dim] = c["seconds"][name]["best"]
        shared = [n for n, of in took.items() if len(of) == len(measurements) > 1]
        if shared:
            low, high, power = exponent(sorted(took[max(shared)].items()))
            theirs = "2" if name == "fastmax1" else "3"
            parts.append(
                f"Forward and unmasked, {name} was timed with D = {low} to {high} at N = {max(shared):,}. "
                f"Its time grows as D to the power {power:.2f}, its operations as D to the power {theirs}."
            )
    return Finding(" ".join(parts))


def llama_block(every: list[Measurement]) -> tuple[PageBlock, ...]:
    """Return the block of 32 heads of 128, as Llama 2 has, where it was measured."""
    found = next((one for one in every if one.name == "d128-heads32"), None)
    if found is None:
        return ()
    rows = [
        (mask_name(c["is_causal"]), c["pass"], c["tokens"], *(_ratio(c, name, "softmax") for name in ORDERS), c_seconds)
        for c in found.values["time"]
        for c_seconds in [c["seconds"].get("softmax", {}).get("best")]
    ]
    table = Table(
        "scaling-llama",
        "Seconds of PyTorch's softmax over those of Fastmax, one block of 32 heads of 128",
        ("mask", "pass", "N", "fastmax1", "fastmax2", "softmax, s"),
        tuple(rows),
        ("", "", ",", ".2f", ".2f", ".3f"),
        folded=False,
    )
    return (PageBlock("A block as in Llama 2: 32 heads of 128", (), (), (table,)),)


def _ratio(cell: Cell, ours: str, theirs: str) -> float | None:
    took = cell["seconds"]
    return float(took[theirs]["best"] / took[ours]["best"]) if {ours, theirs} <= took.keys() else None


def heads_claim(every: list[Measurement]) -> Claim:
    """Judge what four times the heads at twice the width cost: within a fifth of a half, at every measured shape."""
    found = next((one for one in every if one.name == "heads"), None)
    if found is None:
        return untested(*HALVES, "blocks of more heads and channels were not measured in this folder")
    rows = heads_table(found).rows
    ratios = [row[-1] for row in rows]
    verdict = AGREES if all(0.4 <= ratio <= 0.6 for ratio in ratios) else PARTLY if min(ratios) < 1 else DIFFERS
    return Claim(
        *HALVES, verdict, f"fastmax2: {listed([f'{ratio:.2f}' for ratio in ratios])} of the time", (), "scaling-heads"
    )


def heads_table(found: Measurement) -> Table:
    """Return the time of each second shape over that of the first, which has a quarter of the heads."""
    cells = found.values["time"]
    rows = tuple(
        (
            f"{a['heads']} × {a['head_dim']}",
            f"{b['heads']} × {b['head_dim']}",
            *(b["seconds"][name]["best"] / a["seconds"][name]["best"] for name in ORDERS),
        )
        for a, b in zip(cells[::2], cells[1::2], strict=True)
    )
    title = (
        f"Time of four times the heads at twice the width, over that before, N = {found.settings['tokens']:,}, forward"
    )
    return Table("scaling-heads", title, ("heads × D", "then", *ORDERS), rows, ("", "", ".2f", ".2f"), folded=False)


def heads_block(every: list[Measurement]) -> tuple[PageBlock, ...]:
    """Return the block on more heads of fewer channels, where it was measured."""
    found = next((one for one in every if one.name == "heads"), None)
    if found is None:
        return ()
    return (PageBlock("More heads of fewer channels", (), (), (heads_table(found),)),)
