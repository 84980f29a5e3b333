"""Verdicts on exactness and scaling follow from the numbers, whichever way these go; the worst cases are the worst."""

import json
import re
from math import sqrt
from pathlib import Path
from typing import Any

import pytest
import torch
from lab.tests.records import record

from fastmax import fastmax_attention
from fastmax_lab.bench import exactness as bench
from fastmax_lab.experiments import exactness as reproduced
from fastmax_lab.measurements import Measurement, read
from fastmax_lab.report.page import drawing
from fastmax_lab.report.page.parts import AGREES, DIFFERS, OPEN, PARTLY, Chart, Claim, Section, Series
from fastmax_lab.report.page.sections import exactness, scaling, scaling_break_even, scaling_growth, scaling_memory

TOKENS = [1 << n for n in range(8, 16)]
STORED = Path(__file__).parents[2] / "results" / "exactness.jsonl"


# the gradient bound


def bound(changes: dict[str, float]) -> Claim:
    """Return the claim for one N with the paper's bound at 1. Everything is 0.5 or 0 unless it is changed."""
    names = [f"{premise}, {case}" for premise in (exactness.PREMISE, exactness.COMPUTED) for case in ("drawn", "worst")]
    row: dict[str, Any] = {"tokens": 8, "paper": 1.0, "sharp": 0.8}
    row |= {"largest": dict.fromkeys(names, 0.5), "most": dict.fromkeys(names, 0.5), "least": dict.fromkeys(names, 0.0)}
    for name, value in changes.items():
        row["least" if value < 0 else "largest"][name] = value
    measurements = [record({"head_dim": 32}, {"rows": [row]}, "gradient-bound")]
    return claim(exactness.section({"exactness": measurements}), exactness.BOUND)


def claim(section: Section, which: tuple[str, str]) -> Claim:
    (found,) = [one for one in section.claims if (one.source, one.says) == which]
    if section.blocks and found.verdict != OPEN:
        assert set(found.findings) <= {one for block in section.blocks for one in block.findings}
        names = [table.name for block in section.blocks for table in block.tables]
        names += [chart.name for block in section.blocks for chart in block.charts]
        assert found.rests_on in names, "a claim links to its numbers"
    return found


@pytest.mark.parametrize(
    ("changes", "verdict"),
    [
        ({}, AGREES),
        ({"0 <= s <= 1, worst": -0.1}, PARTLY),
        ({"-D <= s <= D, worst": 1.1}, PARTLY),
        ({"0 <= s <= 1, worst": 1.1}, DIFFERS),
        ({"0 <= s <= 1, drawn": 1.1, "-D <= s <= D, worst": 1.1}, DIFFERS),
    ],
)
def test_the_verdict_on_the_gradient_bound(changes: dict[str, float], verdict: str) -> None:
    assert bound(changes).verdict == verdict
    assert any("no lower bound" in note for note in bound(changes).notes) == any(
        value < 0 for value in changes.values()
    )


def test_the_worst_gradients_are_the_worst() -> None:
    """Those of docs/errata.md, section 4, and no case that is drawn exceeds the worst of its premise."""
    for row in bench.gradient_bound((8, 32, 128), 0, 32):
        n, largest = row["tokens"], row["largest"]
        assert largest["0 <= s <= 1, worst"] == pytest.approx(16 * (n - 1) / (2 * n + 3) ** 2, rel=1e-12)
        assert largest["-D <= s <= D, worst"] == pytest.approx(3 * sqrt(3) / 4 * (n - 1) / n**1.5, rel=1e-3)
        for premise in (exactness.PREMISE, exactness.COMPUTED):
            assert 0 < largest[f"{premise}, drawn"] <= largest[f"{premise}, worst"]
        assert largest["0 <= s <= 1, worst"] < row["sharp"] < row["paper"]
        assert (largest["-D <= s <= D, worst"] > row["paper"]) == (n >= 15)
        for name, size in largest.items():
            assert row["least"][name] < 0 < row["most"][name], "both signs occur"
            assert size == max(-row["least"][name], row["most"][name])


def test_the_range_of_gradients_is_that_of_autograd() -> None:
    torch.manual_seed(0)
    s, v = torch.randn(5, 7, dtype=torch.float64) - 3, torch.randn(7, 2, dtype=torch.float64)  # 1 + s is mostly below 0
    q, k = s.clone().requires_grad_(), torch.eye(7, dtype=torch.float64)
    o = fastmax_attention(q, k, v / v.abs().amax(0), scale=1.0, normalize=False)
    gradients = torch.stack([torch.autograd.grad(o[:, j].sum(), q, retain_graph=True)[0] for j in range(2)])
    assert bench._range(s, v) == pytest.approx((gradients.min().item(), gradients.max().item()))


def test_the_stored_gradients_are_those_of_the_item() -> None:
    (stored,) = [one for one in read(STORED) if one.name == "gradient-bound"]
    (item,) = [one for one in reproduced.items("cpu", []) if one.name == "gradient-bound"]
    assert stored.settings == json.loads(json.dumps(item.settings))
    found = exactness.section({"exactness": [stored]})
    assert claim(found, exactness.BOUND).verdict == PARTLY


# negative weights


@pytest.mark.parametrize(
    ("even", "odd", "verdict"), [(0, 0, AGREES), (0, 0.4, PARTLY), (1e-5, 0, DIFFERS), (0.1, 0.4, DIFFERS)]
)
def test_the_verdict_on_negative_weights(even: float, odd: float, verdict: str) -> None:
    rows = [
        {"head_dim": 16, "order": order, "scale": scale, "denominators": 0.0, "causal_denominators": 0.0,
         "negative": even if order == 2 else odd if scale == "1" else 0.0}
        for order in (1, 2) for scale in ("1", "1/D")
    ]  # fmt: skip
    measurements = [record({}, {"rows": rows}, "negative-weights")]
    found = claim(exactness.section({"exactness": measurements}), exactness.VALID)
    assert found.verdict == verdict
    assert found.number.startswith("negative: none for even orders") == (even == 0), "little is not nothing"


# scaling


def took(name: str, n: int, is_causal: bool = False, kind: str = "forward") -> float:
    """Linear or quadratic, crossing at 1024; the mask costs half as much again, and backward twice of all."""
    base = n if name.startswith("fastmax") else n * n / 1024
    return 1e-6 * base * (1.5 if is_causal and name.startswith("fastmax") else 1) * (3 if kind != "forward" else 1)


def scaled(head_dim: int, times: Any = took, memory: Any = None, without: tuple[str, ...] = ()) -> Measurement:
    """A measurement with the times and the memory that functions of the contestant and N give."""
    names = [name for name in ("vanilla", "softmax", "fastmax1", "fastmax2") if name not in without]
    time = [
        {"tokens": n, "is_causal": c, "pass": kind, "absent": {},
         "seconds": {name: {"best": times(name, n, c, kind)} for name in names}}
        for c in (False, True) for kind in ("forward", "forward + backward") for n in TOKENS
    ]  # fmt: skip
    needs = memory or (lambda name, n: n * n if name == "vanilla" else 100 * n)
    peaks = [
        {"tokens": n, "is_causal": c, "contestant": name, "before": 10, "peak": 10 + needs(name, n)}
        for c in (False, True) for name in names for n in TOKENS
    ]  # fmt: skip
    settings = {"head_dim": head_dim, "heads": 4, "rounds": 3, "longest": 1.5, "limit": 1 << 32}
    return record(settings, {"time": time, "memory": peaks})


def of_scaling(which: tuple[str, str], *measurements: Measurement) -> Claim:
    return claim(scaling.section({"scaling": list(measurements)}), which)


def test_the_verdict_on_growth() -> None:
    def steep(_: str, n: int, c: bool, kind: str) -> float:
        return took("vanilla", n, c, kind)

    def one_steep(name: str, n: int, c: bool, kind: str) -> float:
        return steep(name, n, c, kind) if name == "fastmax1" and c else took(name, n, c, kind)

    assert of_scaling(scaling_growth.LINEAR, scaled(32)).verdict == AGREES
    assert of_scaling(scaling_growth.LINEAR, scaled(32, steep)).verdict == DIFFERS
    found = of_scaling(scaling_growth.LINEAR, scaled(32, one_steep))
    assert found.verdict == PARTLY
    assert found.number.endswith("2.00 at the most")
    assert of_scaling(scaling_growth.LINEAR, scaled(32, without=("vanilla", "softmax"))).verdict == OPEN


def test_who_has_no_exponent_is_said() -> None:
    found = of_scaling(scaling_growth.LINEAR, scaled(32), scaled(128))
    assert found.verdict == AGREES
    assert next(note for note in found.notes if "not counted" in note).startswith("fastmax2 at D = 128")
    assert not [note for note in of_scaling(scaling_growth.LINEAR, scaled(32)).notes if "not counted" in note]


def test_the_verdict_on_memory() -> None:
    same = of_scaling(scaling_memory.MEMORY, scaled(32, memory=lambda _, n: 100 * n))
    quadratic = of_scaling(scaling_memory.MEMORY, scaled(32, memory=lambda _, n: n * n))
    assert (of_scaling(scaling_memory.MEMORY, scaled(32)).verdict, same.verdict, quadratic.verdict) == (
        AGREES,
        PARTLY,
        DIFFERS,
    )
    assert of_scaling(scaling_memory.MEMORY, scaled(32, without=("vanilla",))).verdict == OPEN
    rows = scaling_memory.memory_ratios([scaled(32)]).rows
    assert rows == (("vanilla", 32, TOKENS[-1], TOKENS[-1] / 100), ("softmax", 32, TOKENS[-1], 1.0))
    exponents = {row[2]: row[-1] for row in scaling_memory.memory_growth([scaled(32)]).rows}
    assert exponents == pytest.approx({"vanilla": 2, "softmax": 1, "fastmax1": 1, "fastmax2": 1})


@pytest.mark.parametrize(
    ("factor", "verdict"), [(1.5, DIFFERS), (4.2, DIFFERS), (20, AGREES), (32, AGREES), (100, DIFFERS)]
)
def test_the_verdict_on_the_mask(factor: float, verdict: str) -> None:
    def masked(name: str, n: int, c: bool, kind: str) -> float:
        return took(name, n) * (factor if c else 1) * (2 if kind != "forward" and c else 1)

    found = of_scaling(scaling_growth.MASKED, scaled(32, masked))
    assert found.verdict == verdict
    assert found.number == f"{factor:.1f} times"
    if factor == 20:  # which is D times for heads of 32, and not for those of 64
        both = of_scaling(scaling_growth.MASKED, scaled(32, masked), scaled(64, masked), scaled(256, masked))
        assert both.verdict == PARTLY
        assert both.notes[-1].startswith("Fastmax2 at D = 256")
        assert of_scaling(scaling_growth.MASKED, scaled(256, masked)).verdict == OPEN


def test_the_mask_is_judged_at_the_longest_length_of_both() -> None:
    measurement = scaled(32)
    for c in measurement.values["time"]:
        if c["is_causal"] and c["tokens"] > 8192:
            del c["seconds"]["fastmax2"]
    n, ratio = scaling_growth.masked_ratio(measurement, "forward", "fastmax2")
    assert n == 8192
    assert ratio == pytest.approx(1.5)


@pytest.mark.parametrize(
    ("crossing", "verdict", "said"),
    [
        (100, PARTLY, "at every N that was measured, from 256 on"),
        (500, PARTLY, "from 500 on"),
        (750, AGREES, "from 750 on"),
        (2000, AGREES, "from 2,000 on"),
        (3000, DIFFERS, "from 3,000 on"),
        (1e9, DIFFERS, "at no N that was measured, up to 32,768"),
    ],
)
def test_the_verdict_on_break_even(crossing: int, verdict: str, said: str) -> None:
    def crossed(name: str, n: int, *_: Any) -> float:
        return n * (1 if name.startswith("fastmax") else n / crossing)

    found = of_scaling(scaling.EVEN32, scaled(32, crossed))
    assert found.verdict == verdict
    assert found.number == f"faster than the plain formula {said}"
    assert of_scaling(scaling.EVEN128, scaled(32, crossed)).verdict == OPEN
    later = of_scaling(scaling.EVEN128, scaled(128, crossed)).verdict
    assert later == (AGREES if 700 <= crossing <= 2800 else verdict)


def test_break_even_is_open_without_the_plain_formula_or_where_lengths_do_not_tell() -> None:
    assert of_scaling(scaling.EVEN32, scaled(32, without=("vanilla",))).verdict == OPEN
    assert scaling_break_even._place((0, 1024), 1024) == "earlier"
    assert scaling_break_even._place((0, 1025), 1024) == ""
    assert scaling_break_even._place((2047, float("inf")), 1024) == ""
    assert scaling_break_even._place((2048, float("inf")), 1024) == "later"


def test_tables_of_break_even_are_short_and_have_numbers() -> None:
    measurements = [scaled(d) for d in (16, 32, 64, 128)]
    (block,) = [one for one in scaling.section({"scaling": measurements}).blocks if one.title == "Break-even"]
    for table in block.tables:
        assert len(table.rows) == 8
        unmasked = table.rows[0]
        assert unmasked[:2] == (16, "unmasked")
        assert unmasked[2:] == pytest.approx([1024] * 4)
        assert table.shown(unmasked, 2) == "1,024"
    assert scaling_break_even.even_exceptions(measurements)[0].text.startswith("In 0 of 64 comparisons")
    early = scaling_break_even.break_even_table(
        [scaled(16, lambda name, n, *_: n if name[0] == "f" else n * n)], "forward"
    )
    assert early.rows[0][2:] == ("below 256",) * 4


def test_exceptions_of_break_even_are_named() -> None:
    def late(name: str, n: int, c: bool, kind: str) -> float:
        base = n if name.startswith("fastmax") else n * n / 100
        return base * (20 if (name, c, kind) == ("fastmax2", True, "forward + backward") else 1)

    first, *said = scaling_break_even.even_exceptions([scaled(32, late)])
    assert first.text.startswith("In 14 of 16 comparisons")
    where = "from 2,000 on (D = 32, masked, forward + backward)"
    assert [one.text for one in said] == [
        f"fastmax2 is ahead of {theirs} {where}." for theirs in ("the plain formula", "PyTorch's kernel")
    ]


# the figure


def test_what_exceeds_memory_is_marked_above_the_frame_and_explained() -> None:
    def chart(missing: tuple[float, ...]) -> str:
        series = (Series("vanilla", (1, 2), (1, 2), missing=missing), Series("softmax", (1, 2, 4), (1, 2, 3)))
        return drawing.draw(Chart("marks", "", "N", "ms", series))[0].decode()

    assert drawing.MISSING in chart((4,))
    assert drawing.MISSING not in chart(())
    assert len(drawing.MISSING) + len("fastmax1") + len("fastmax2") <= drawing.LEGEND, "three columns, two rows"
    drawn = re.findall(r'<use [^>]* y="([\d.]+)" style="([^"]*)"', chart((4,)))
    (mark,) = [float(y) for y, style in drawn if f"{drawing.STYLES['vanilla'][0]}; stroke-width: 2.2" in style]
    points = [float(y) for y, style in drawn if drawing.STYLES["softmax"][0] in style][:3]
    assert mark < min(points) - 0.05 * (max(points) - min(points)), "the margin of the frame"
