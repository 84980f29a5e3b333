"""The measured numbers of README and docs are in lab/results."""

import pytest

pytest.importorskip("fastmax_lab")

from tools import find_numbers


@pytest.mark.parametrize("page", find_numbers.SOURCES)
def test_measured_numbers_are_in_the_results(page: str) -> None:
    found = list(find_numbers.found_in(page))
    assert found
    assert not [(at, [one.text for one in wanted]) for at, wanted, place in found if not place]


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
    assert number.fits(0.00251)
    assert not number.fits(0.0026)
