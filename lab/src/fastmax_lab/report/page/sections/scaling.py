"""Scaling: time and memory against the number of tokens (Figure 3)."""

from fastmax_lab.measurements import Measurement
from fastmax_lab.report.page.parts import Chart, Lead, PageBlock, Section, Series, untested
from fastmax_lab.report.page.results import Results
from fastmax_lab.report.page.sections.scaling_break_even import break_even_table, even_claim, even_exceptions
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
from fastmax_lab.report.page.words import times

NAME = "scaling"
TITLE = "Scaling: time and memory against N (Figure 3)"
EVEN32 = ("Table 2", "The break-even point of second-order Fastmax with D = 32 is N = 1024.")
EVEN128 = ("Section 3.1", "With D = 128, Fastmax1 is ahead of softmax from N = 1400 on.")
CLAIMS = (LINEAR, MASKED, MEMORY, EVEN32, EVEN128)


def section(results: Results) -> Section:
    measurements = sorted(results.get(NAME, []), key=lambda one: one.settings["head_dim"])
    if not measurements:
        return Section(NAME, TITLE, claims=tuple(untested(*claim) for claim in CLAIMS))
    slopes = slope_table(measurements)
    linear, masked, memory = linear_claim(slopes), masked_claim(measurements), memory_claim(measurements)
    even32 = even_claim(measurements, EVEN32, 32, "fastmax2", 1024)
    even128 = even_claim(measurements, EVEN128, 128, "fastmax1", 1400)
    s = measurements[0].settings
    intro = (
        f"One attention block of {s['heads']} heads, fp32, random inputs, batch 1. Contestants take turns, best of "
        f"{s['rounds']} rounds. vanilla is softmax by the plain formula, softmax PyTorch's fused kernel. A contestant stops "
        f"where a call is expected to take over {s['longest']:g} s. An x above a figure marks the N from which on the N × N "
        f"matrices of the plain formula exceed {s['limit'] / 2**30:g} GiB."
    )
    forward = [c for d in measurements for c in charts(d, FORWARD)]
    leads = _leads(measurements)
    shown = [lead.chart.name for lead in leads]
    both = [c for d in measurements for c in charts(d, BOTH) if c.name not in shown]
    blocks = (
        PageBlock("Forward", tuple(forward), linear.findings, (slopes,)),
        PageBlock("Forward and backward", tuple(both), (), (), folded=True),
        PageBlock("Masked against unmasked", (), masked.findings, (masked_table(measurements),)),
        PageBlock(
            "Peak memory of forward and backward, unmasked",
            tuple(memory_chart(d) for d in measurements),
            memory.findings,
            (memory_growth(measurements), memory_ratios(measurements), memory_table(measurements)),
        ),
        PageBlock(
            "Break-even",
            (),
            (*even32.findings, *even128.findings, *even_exceptions(measurements)),
            (break_even_table(measurements, FORWARD), break_even_table(measurements, BOTH)),
        ),
    )
    claims = (linear, masked, memory, even32, even128)
    return Section(NAME, TITLE, intro, blocks, claims, _headline(measurements), leads)


def _leads(measurements: list[Measurement]) -> tuple[Lead, ...]:
    """Draw the causal training step of the heads nearest to 64 channels, and say how Fastmax2 ends beside softmax."""
    nearest = min(measurements, key=lambda one: abs(one.settings["head_dim"] - 64))
    cells = [c for c in cells_of(nearest, True, BOTH) if {"softmax", "fastmax2"} <= c["seconds"].keys()]
    if not cells:
        return ()
    seconds = cells[-1]["seconds"]
    ratio = times(seconds["softmax"]["best"] / seconds["fastmax2"]["best"])
    said = f"With gradients, PyTorch's softmax kernel takes {ratio} the time of Fastmax2 at N = {cells[-1]['tokens']:,}"
    return (Lead(charts(nearest, BOTH)[1], said),)


def charts(measurement: Measurement, kind: str) -> list[Chart]:
    found = []
    d = measurement.settings["head_dim"]
    for is_causal in (False, True):
        cells = cells_of(measurement, is_causal, kind)
        series = []
        for name in cells[0]["seconds"]:
            points = [(c["tokens"], c["seconds"][name]["best"] * 1e3) for c in cells if name in c["seconds"]]
            missing = tuple(c["tokens"] for c in cells if c["absent"].get(name) == "memory")
            x, y = zip(*points, strict=True) if points else ((), ())
            series.append(Series(name, x, y, missing=missing[:1]))
        name = f"scaling-{'backward' if kind == BOTH else 'forward'}-{mask_name(is_causal)}-d{d}"
        title = f"D = {d}, {mask_name(is_causal)}"
        found.append(Chart(name, title, "tokens N", f"{kind}, ms", tuple(series), True, True, 2))
    return found


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
