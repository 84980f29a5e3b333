"""Scaling: time and memory against the number of tokens (Figure 3)."""

from dataclasses import replace

from fastmax_lab.measurements import Measurement
from fastmax_lab.report.page.parts import Chart, LeadFigure, PageBlock, Section, Series, untested
from fastmax_lab.report.page.results import Results, group
from fastmax_lab.report.page.sections.scaling_break_even import (
    alone_claim,
    alone_table,
    break_even_table,
    even_claim,
    even_exceptions,
)
from fastmax_lab.report.page.sections.scaling_cells import BOTH, FORWARD, cells_of, mask_name
from fastmax_lab.report.page.sections.scaling_growth import (
    LINEAR,
    MASKED,
    linear_claim,
    masked_claim,
    masked_table,
    slope_table,
)
from fastmax_lab.report.page.sections.scaling_memory import (
    MEMORY,
    memory_chart,
    memory_claim,
    memory_growth,
    memory_ratios,
    memory_table,
)
from fastmax_lab.report.page.sections.scaling_shapes import (
    HALVES,
    channels_finding,
    heads_block,
    heads_claim,
    llama_block,
)
from fastmax_lab.report.page.words import listed, times

NAME = "scaling"
TITLE = "Scaling: time and memory against N (Figure 3)"
EVEN32 = ("Table 2", "The break-even point of second-order Fastmax with D = 32 is N = 1024.")
EVEN128 = ("Section 3.1", "With D = 128, Fastmax1 is ahead of softmax from N = 1400 on.")
CLAIMS = (LINEAR, MASKED, MEMORY, EVEN32, EVEN128, HALVES)


def section(results: Results) -> Section:
    every = results.get(NAME, [])
    grids = [one for one in every if "limit" in one.settings and "-heads" not in one.name]
    measurements = sorted(grids, key=lambda one: one.settings["head_dim"])
    if not measurements:
        return Section(NAME, TITLE, claims=tuple(untested(*claim) for claim in CLAIMS))
    slopes = slope_table(measurements)
    linear, masked, memory = linear_claim(slopes), masked_claim(measurements), memory_claim(measurements)
    alone = next((one for one in every if one.name == "forms-d32"), None)
    even32 = alone_claim(alone, measurements, EVEN32, 1024)
    halves = heads_claim(every)
    even128 = even_claim(measurements, EVEN128, 128, "fastmax1", 1400)
    s = measurements[0].settings
    intro = (
        f"One attention block of {s['heads']} heads, fp32, random inputs, batch 1. Contestants take turns, best of the "
        "rounds. vanilla is softmax by the plain formula, softmax PyTorch's fused kernel. A contestant stops "
        f"where a call is expected to take over {_longest(measurements)}. An x above a figure marks the N from which on the "
        f"N × N matrices of the plain formula exceed {s['limit'] / 2**30:g} GiB. Dotted lines grow as N and as N²."
    )
    leads, across = _leads(measurements), len(measurements)
    forward, both = ([chart(d, c, kind) for c in (False, True) for d in measurements] for kind in (FORWARD, BOTH))
    blocks = (
        PageBlock(
            "Forward", tuple(forward), (*linear.findings, channels_finding(measurements)), (slopes,), columns=across
        ),
        PageBlock("Forward and backward", tuple(both), (), (), folded=True, columns=across),
        *llama_block(every),
        *heads_block(every),
        PageBlock("Masked against unmasked", (), masked.findings, (masked_table(measurements),)),
        PageBlock(
            "Peak memory of forward and backward, unmasked",
            tuple(memory_chart(d) for d in measurements),
            memory.findings,
            (memory_growth(measurements), memory_ratios(measurements), memory_table(measurements)),
            columns=across,
        ),
        PageBlock(
            "Break-even",
            (),
            (*even32.findings, *even128.findings, *even_exceptions(measurements)),
            (*alone_table(alone), break_even_table(measurements, FORWARD), break_even_table(measurements, BOTH)),
        ),
    )
    claims = (linear, masked, memory, even32, even128, halves)
    return Section(NAME, TITLE, intro, blocks, claims, _headline(measurements), leads)


def _leads(measurements: list[Measurement]) -> tuple[LeadFigure, ...]:
    """Draw the causal training step of the heads nearest to 64 channels, and say how Fastmax2 ends beside softmax."""
    nearest = min(measurements, key=lambda one: abs(one.settings["head_dim"] - 64))
    cells = [c for c in cells_of(nearest, True, BOTH) if {"softmax", "fastmax2"} <= c["seconds"].keys()]
    if not cells:
        return ()
    seconds = cells[-1]["seconds"]
    ratio = times(seconds["softmax"]["best"] / seconds["fastmax2"]["best"])
    said = f"With gradients, PyTorch's softmax kernel takes {ratio} the time of Fastmax2 at N = {cells[-1]['tokens']:,}"
    return (LeadFigure(_lead(chart(nearest, True, BOTH)), said),)


def _lead(drawn: Chart) -> Chart:
    return replace(drawn, name=f"{drawn.name}-lead", small=False)


def chart(measurement: Measurement, is_causal: bool, kind: str) -> Chart:
    """Draw the times of one head dimension, with guides that grow as N and as N²."""
    d = measurement.settings["head_dim"]
    cells = cells_of(measurement, is_causal, kind)
    series = []
    for name in cells[0]["seconds"]:
        points = [(c["tokens"], c["seconds"][name]["best"] * 1e3) for c in cells if name in c["seconds"]]
        missing = tuple(c["tokens"] for c in cells if c["absent"].get(name) == "memory")
        x, y = zip(*points, strict=True) if points else ((), ())
        series.append(Series(name, x, y, missing=missing[:1]))
    name = f"scaling-{'backward' if kind == BOTH else 'forward'}-{mask_name(is_causal)}-d{d}"
    title = f"D = {d}, {mask_name(is_causal)}"
    drawn = (*series, *_guides(series))
    return Chart(name, title, "tokens N", f"{kind}, ms", drawn, True, True, 2, small=True)


def _guides(series: list[Series]) -> list[Series]:
    """Return a line below all others that grows as N, and one above all others that grows as N², within their range."""
    points = [point for one in series for point in zip(one.x, one.y, strict=True)]
    if len({x for x, _ in points}) < 2:
        return []
    (first, last), low = (end(x for x, _ in points) for end in (min, max)), min(y for _, y in points)
    high = max(y for x, y in points if x == first)
    top = min(last, first * (max(y for _, y in points) / high / 2) ** 0.5)  # where the guide leaves the frame
    square = [] if top <= first else [Series("N²", (first, top), (2 * high, 2 * high * (top / first) ** 2), guide=True)]
    return [Series("N", (first, last), (low / 2, low / 2 * last / first), guide=True), *square]


def _longest(measurements: list[Measurement]) -> str:
    by_limit = group(measurements, lambda one: one.settings["longest"])
    least = min(by_limit)
    longer = [
        f"{limit:g} s at D = {listed([str(d.settings['head_dim']) for d in of])}"
        for limit, of in by_limit.items()
        if limit != least
    ]
    return f"{least:g} s" + (f" ({listed(longer)})" if longer else "")


def _headline(measurements: list[Measurement]) -> str:
    for d in measurements:
        cells = [c for c in cells_of(d, False, FORWARD) if {"vanilla", "fastmax2"} <= c["seconds"].keys()]
        if cells:
            c = cells[-1]
            ratio = c["seconds"]["vanilla"]["best"] / c["seconds"]["fastmax2"]["best"]
            return (
                f"scaling: Fastmax2 forward is {times(ratio)} as fast as softmax by the plain formula at "
                f"N = {c['tokens']:,}, D = {d.settings['head_dim']}"
            )
    return ""
