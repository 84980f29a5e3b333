"""The measured and computed numbers of README and docs are where they come from."""

import json
import re
from dataclasses import replace

import pytest

pytest.importorskip("fastmax_lab")

from tools import find_numbers


@pytest.mark.parametrize("page", find_numbers.pages())
def test_numbers_are_in_the_results_or_computed(page: str) -> None:
    found = list(find_numbers.found_in(page))
    assert found or page not in find_numbers.SOURCES
    assert not [(at, [one.text for one in wanted]) for at, wanted, place in found if not place]


def test_lists_hold_nothing_that_is_gone() -> None:
    for listed in (find_numbers.PROSE, find_numbers.KNOWN):
        for page, of in listed.items():
            texts = {
                one.text for line in find_numbers.lines_of(page) for one in find_numbers.numbers(line.text, every=True)
            }
            assert not of.keys() - texts, page
    for page, sections in find_numbers.SOURCES.items():
        assert not sections.keys() - {"", *(line.heading for line in find_numbers.lines_of(page))}, page


@pytest.mark.parametrize("page", ["docs/distributed.md", "docs/gpu.md", "docs/learning.md", "docs/reproduction.md"])
def test_altered_numbers_are_noticed(page: str) -> None:
    """A few are not: another number of the same row, or of a table, is as large."""
    noticed = []
    for line in find_numbers.lines_of(page):
        for digits in re.findall(r"(?<= )\d\.\d\d+(?= )", line.text):
            altered = f"{1.13 * float(digits):.{len(digits) - 2}f}"
            found = find_numbers.found_on(page, replace(line, text=line.text.replace(digits, altered)))
            noticed.append(altered == digits or not all(place for _, place in found))
    assert len(noticed) >= 9
    assert sum(noticed) >= 0.9 * len(noticed)


def test_outputs_of_examples_are_as_they_were_printed() -> None:
    text = (find_numbers.ROOT / "docs" / "examples.md").read_text(encoding="utf-8")
    shown = re.findall(r"```text\n(.*?)```", text, re.DOTALL)
    records = (find_numbers.RESULTS / "examples.jsonl").read_text(encoding="utf-8").splitlines()
    for block, record in zip(shown, records, strict=True):
        assert block in "\n".join([*json.loads(record)["values"]["printed"], ""])


def test_numbers_that_are_made_up_are_not_found() -> None:
    row = list(find_numbers.numbers("| 212.7 ms | 18.9x | 3.33x |"))
    assert len(row) == 3
    assert find_numbers.where(row, ("bench/",)) == ""


def test_what_counts_as_a_number() -> None:
    texts = [
        one.text for one in find_numbers.numbers("in 2 of 5 cases 1.23 ± 0.04 s, 18.7x; `0.123` at N = 4,096, 30 %")
    ]
    assert texts == ["1.23 ±", "0.04 s", "18.7x", "30 %"]
    (number,) = find_numbers.numbers("2.5 ms")
    assert number.is_in([find_numbers.Number("", 0.00251)])
    assert not number.is_in([find_numbers.Number("", 0.0026)])
    assert not number.is_in([find_numbers.Number("", 0.0025, kind="B")])
    assert [one.text for one in find_numbers.numbers("12 tokens of 512, 0.5", in_row=True)] == ["512", "0.5"]
