"""Exactness and gradients."""

from typing import Any

from fastmax_lab.measurements import Measurement
from fastmax_lab.report.page.parts import (
    AGREES,
    DIFFERS,
    PARTLY,
    Chart,
    Claim,
    Finding,
    PageBlock,
    Section,
    Series,
    Table,
    untested,
)
from fastmax_lab.report.page.results import Results, one

NAME = "exactness"
SHARES = ("negative", "denominators", "causal_denominators")
TITLE = "Exactness and gradients"
BOUND = ("Section 2.3", "Gradients of the score are bounded: 0 ≤ ∂o/∂s ≤ 10 ‖v‖∞ / (2N + 3), since 0 ≤ s ≤ 1.")
PREMISE, COMPUTED = "0 <= s <= 1", "-D <= s <= D"
"""The range of s by the paper, and the true one: the beginnings of the names of cases."""
VALID = ("Equation 10", "Attention weights are not negative and sum to one.")
SAVED = ("Section 2.5", "Custom gradients reduce what is stored from O(N D²), masked O(N D³), to O(N D).")


def section(results: Results) -> Section:
    measurements = results.get(NAME, [])
    blocks: list[PageBlock] = []
    claims: list[Claim] = []
    headline = ""
    error = one(measurements, "error")
    if error is not None:
        blocks.append(_error(error))
        last = error.values["rows"][-1]
        headline = (
            f"exactness: at N = {last['tokens']:,} the error of Fastmax2 in fp32 is {last['errors']['fastmax2']:.1e}, "
            f"of softmax {last['errors']['softmax']:.1e}"
        )
    bound = one(measurements, "gradient-bound")
    blocks += [] if bound is None else [_bound(bound)]
    claims.append(untested(*BOUND) if bound is None else _bound_claim(bound))
    negative = one(measurements, "negative-weights")
    blocks += [] if negative is None else [_negative(negative)]
    claims.append(untested(*VALID) if negative is None else _negative_claim(negative))
    saved = one(measurements, "saved-memory")
    blocks += [] if saved is None else [_saved(saved)]
    claims.append(untested(*SAVED) if saved is None else _saved_claim(saved))
    return Section(
        NAME,
        TITLE,
        "Errors, gradients, weights and memory, without any training.",
        tuple(blocks),
        tuple(claims),
        headline,
    )


def _error(measurement: Measurement) -> PageBlock:
    rows = measurement.values["rows"]
    names = list(rows[0]["errors"])
    series = [
        Series(
            name, tuple(r["tokens"] for r in rows), tuple(r["errors"][name] for r in rows), dashed="definition" in name
        )
        for name in names
    ]
    chart = Chart(
        "exactness-error",
        "fp32 against fp64, causal, last queries",
        "tokens N",
        "relative error",
        tuple(series),
        True,
        True,
        2,
    )
    table = Table(
        "exactness-error", "Relative error of fp32 against the definition in fp64", ("N", *names),
        tuple((r["tokens"], *(r["errors"][name] for name in names)) for r in rows), (",", *(".1e" for _ in names)),
    )  # fmt: skip
    worst = max(r["errors"]["fastmax2"] / r["errors"]["softmax"] for r in rows)
    text = (
        f"The error of Fastmax2 is at most {worst:.1f} times that of PyTorch's softmax attention at the same N: Fastmax is "
        "computed exactly, not approximated."
    )
    return PageBlock("Error over N", (chart,), (Finding(text),), (table,))


def _bound(measurement: Measurement) -> PageBlock:
    rows = measurement.values["rows"]
    n = tuple(r["tokens"] for r in rows)
    series = [
        Series(name.replace("<=", "≤"), n, tuple(r["largest"][name] for r in rows)) for name in rows[0]["largest"]
    ]
    series += [
        Series("the paper's bound", n, tuple(r["paper"] for r in rows), dashed=True),
        Series("sharper bound", n, tuple(r["sharp"] for r in rows), dashed=True),
    ]
    chart = Chart(
        "exactness-bound",
        "Largest gradient over ‖v‖∞, order 2",
        "tokens N",
        "largest |∂o/∂s| / ‖v‖∞",
        tuple(series),
        True,
        True,
        2,
    )
    return PageBlock("The gradient bound", (chart,), _bound_claim(measurement).findings)


def _bound_claim(measurement: Measurement) -> Claim:
    rows = measurement.values["rows"]
    inside, outside = (_closest(rows, premise) for premise in (PREMISE, COMPUTED))
    least, at = min(
        (least, r["tokens"]) for r in rows for name, least in r["least"].items() if name.startswith(PREMISE)
    )
    below = any(least < 0 for r in rows for least in r["least"].values())
    number = f"{_percent(inside)} of the bound under its premise; {_percent(outside)} for standardized tokens"
    notes = ["Standardized tokens have s from -D to D, which the paper's premise leaves out."]
    notes += (
        [f"The least gradient under the premise is {least:.2g} ‖v‖∞ (N = {at}): 0 is no lower bound."] if below else []
    )
    verdict = DIFFERS if inside > 1 else PARTLY if below or outside > 1 else AGREES
    return Claim(*BOUND, verdict, number, tuple(notes), "exactness-bound")


def _closest(rows: list[dict[str, Any]], premise: str) -> float:
    """Return the largest gradient as a share of the paper's upper bound."""
    shares = [size / r["paper"] for r in rows for name, size in r["largest"].items() if name.startswith(premise)]
    return float(max(shares))


def _percent(share: float) -> str:
    """Format a share. A share that is not 0 is never shown as 0 %."""
    return f"{100 * share:.0f} %" if share == 0 or share >= 0.01 else f"{100 * share:.1g} %"


def _negative(measurement: Measurement) -> PageBlock:
    rows = measurement.values["rows"]
    table = Table(
        "exactness-negative", ("Gaussian queries and keys, N = 64: shares of negative weights, and of denominators that "
"are not positive"),
        ("D", "order", "scale", "negative weights, %", "denominators, %", "masked, %"),
        tuple(
            (r["head_dim"], r["order"], r["scale"], *(100 * r[share] for share in SHARES))
            for r in rows
        ),
        ("", "", "", ".2f", ".2f", ".2f"),
    )  # fmt: skip
    claim = _negative_claim(measurement)
    return PageBlock("Negative weights", (), claim.findings, (table,))


def _negative_claim(measurement: Measurement) -> Claim:
    rows = measurement.values["rows"]
    even = max(r["negative"] for r in rows if r["order"] % 2 == 0)
    odd = max(r["negative"] for r in rows if r["order"] % 2)
    written = [r for r in rows if r["order"] == 1 and r["scale"] == "1"]
    safe = max(r["negative"] for r in rows if r["order"] % 2 and r["scale"] == "1/D")
    worst = max(written, key=lambda r: r["denominators"])
    low, high = min(r["negative"] for r in written), max(r["negative"] for r in written)
    of_even = _percent(even) if even else "none"
    number = f"negative: {of_even} for even orders, {_percent(low)} to {_percent(high)} for order 1 as written"
    notes = (
        f"Of the denominators of order 1 as written up to {_percent(worst['denominators'])} are not positive.",
        f"At the scale 1/D, the default here, {_percent(safe)} of the weights of odd orders are negative.",
        "Weights sum to one because they are divided by their sum; that was not measured.",
    )
    return Claim(*VALID, DIFFERS if even else PARTLY if odd else AGREES, number, notes, "exactness-negative")


def _saved(measurement: Measurement) -> PageBlock:
    rows = measurement.values["rows"]
    columns = ("N", "mask", "custom gradient, KiB", "plain autograd, KiB", "ratio")
    lines = []
    for r in rows:
        ours, theirs = (r["bytes"][way] / 1024 for way in ("custom gradient", "plain autograd"))
        lines.append((r["tokens"], "masked" if r["is_causal"] else "unmasked", ours, theirs, theirs / ours))
    title = f"Bytes kept from forward for backward, one head of {rows[0]['head_dim']}, order 2"
    table = Table("exactness-saved", title, columns, tuple(lines), (",", "", ",.0f", ",.0f", ".1f"))
    claim = _saved_claim(measurement)
    return PageBlock("Memory of the gradient", (), claim.findings, (table,))


def _saved_claim(measurement: Measurement) -> Claim:
    rows = measurement.values["rows"]
    per_token = {r["bytes"]["custom gradient"] / r["tokens"] for r in rows}
    low, high = f"{min(per_token):,.0f}", f"{max(per_token):,.0f}"
    number = f"{low if low == high else f'{low} to {high}'} bytes a token for a head of {rows[0]['head_dim']}"
    notes = ("Not counted is the sum over keys, which an unmasked pass may keep where it is smaller than the keys.",)
    return Claim(*SAVED, AGREES if len(per_token) == 1 else PARTLY, number, notes, "exactness-saved")
