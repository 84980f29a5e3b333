"""The plan: docs/design.md says what the rule picks and which steps a call takes, and so it is."""

import re
from pathlib import Path
from typing import Any

import pytest

from fastmax.features import feature_count
from fastmax.plan import (
    BF16_SPEED,
    RULE,
    Accumulate,
    Attend,
    Plan,
    Step,
    calls_chunk,
    cheaper_form,
    dense_cost,
    dense_costs_too_much,
    factorized_cost,
    kernel_chunk,
    steps,
)  # fmt: skip

PAGE = (Path(__file__).parents[1] / "docs" / "design.md").read_text()


def section(number: int) -> str:
    return PAGE.split(f"\n## {number}. ")[1].split("\n## ")[0]


ROWS = [
    [int(x) for x in row.groups()]
    for row in re.finditer(r"^\| (\d+) \| (\d) \| (\d+) \| (\d+) \| (\d+) \| (\d+) \|$", section(3), re.MULTILINE)
]


def test_the_page_speaks_of_the_rule() -> None:
    assert "`plan.py`" in section(3)
    assert "N_q N_k (D + D_v + 1)" in section(3)
    assert len(ROWS) >= 6
    assert "Unmasked with bf16 pairs it is as long as causal without them." in section(3)


@pytest.mark.parametrize(("dim", "order", "features", "unmasked", "causal", "causal_bf16"), ROWS)
def test_the_table_of_the_longest_dense_sequences(
    dim: int, order: int, features: int, unmasked: int, causal: int, causal_bf16: int
) -> None:
    assert feature_count(dim, order) == features
    longest = {(False, 1.0): unmasked, (True, 1.0): causal}
    longest |= {(False, BF16_SPEED): causal, (True, BF16_SPEED): causal_bf16}
    for (is_causal, speed), n in longest.items():
        assert cheaper_form(n, n, dim, dim, order, is_causal, speed) == "dense"
        assert cheaper_form(n + 1, n + 1, dim, dim, order, is_causal, speed) == "factorized"


def parsed(kind: str, values: str) -> Step:
    found = [x.split("=")[-1].strip() for x in values.split(",")]
    numbers = [int(x) for x in found if x.isdigit()]
    return Accumulate(*numbers) if kind == "Accumulate" else Attend(*numbers[:2], found[2] == "True", *numbers[2:])


def test_the_steps_of_the_examples() -> None:
    """Every step that the page shows is one that is made, and those around the dots."""
    examples = re.search(r"```text\n(.*?)```", section(4), re.DOTALL)
    assert examples is not None
    shown = [parsed(*found) for found in re.findall(r"(Attend|Accumulate)\(([^)]*)\)", examples.group(1))]
    common: dict[str, Any] = {"chunk": calls_chunk(2145, 1), "has_state": False, "return_state": False}
    forms = [cheaper_form(n, n, 64, 64, 2, is_causal) for n, is_causal in ((500, False), (5000, False), (5000, True))]
    assert forms == ["dense", "factorized", "factorized"]
    short = steps(500, 500, form="dense", is_causal=False, **common)
    long = steps(5000, 5000, form="factorized", is_causal=False, **common)
    causal = steps(5000, 5000, form="factorized", is_causal=True, **common)
    decode = steps(1, 1, form="dense", chunk=512, is_causal=True, has_state=True, return_state=True)
    assert shown == [*short, *long, *causal[:4], causal[-1], *decode]
    assert len(causal) == 19


def test_steps_cover_every_pair_once() -> None:
    """In order: what a query reads of the state, and sees densely, are the keys up to its own, each of them once."""
    for queries, keys in ((100, 100), (70, 100), (100, 70), (1, 5), (0, 5), (5, 0), (0, 0)):
        for is_causal in (False, True):
            for form in ("dense", "factorized"):
                for chunk in (16, 33, 128):
                    in_state, seen = 0, {}
                    made = steps(
                        queries, keys, form=form, chunk=chunk, is_causal=is_causal, has_state=False, return_state=True
                    )
                    for step in made:
                        if isinstance(step, Accumulate):
                            assert step.start == in_state
                            in_state = step.stop
                            continue
                        for i in range(step.start, step.stop):
                            dense = range(step.key_start, min(step.key_stop, i + 1) if is_causal else step.key_stop)
                            assert i not in seen
                            seen[i] = [*range(in_state if step.reads_state else 0), *dense]
                    assert in_state == keys
                    assert seen == {i: list(range(min(keys, i + 1) if is_causal else keys)) for i in range(queries)}


def test_costs_and_chunks() -> None:
    assert dense_cost(10, 20, 4, 6, is_causal=False) == 10 * 20 * 11
    assert dense_cost(10, 20, 4, 6, is_causal=True) == 10 * 20 * 11 / 2
    assert factorized_cost(10, 20, 4, 6, 2) == 30 * 15 * 7
    assert not dense_costs_too_much(500, 500, 64, 64, 3)
    assert dense_costs_too_much(100_000, 100_000, 4, 4, 3)
    for features in (10, 100, 561, 2145, 8385):
        for heads in (1, 4, 64):
            chunk = calls_chunk(features, heads)
            assert chunk & (chunk - 1) == 0
            assert chunk * 8 >= features
    assert all(kernel_chunk(dim, order, causal) % 32 == 0 for dim in (16, 64) for order in (1, 2) for causal in (0, 1))
    assert Plan() == RULE
