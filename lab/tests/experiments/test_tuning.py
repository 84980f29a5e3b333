"""Learning rates that are tuned alike."""

import pytest

from fastmax_lab.experiments.tuning import rates_of

RATES = (1e-3, 2e-3, 4e-3)


@pytest.mark.parametrize(
    ("tried", "wanted", "best"),
    [
        ({}, [], None),
        ({1e-3: 0.9, 2e-3: 0.5}, [], None),
        ({1e-3: 0.1, 2e-3: 0.5, 4e-3: 0.3}, [], 2e-3),
        ({1e-3: 0.6, 2e-3: 0.5, 4e-3: 0.3}, [5e-4], None),
        ({1e-3: 0.6, 2e-3: 0.5, 4e-3: 0.3, 5e-4: 0.7}, [5e-4], 5e-4),
        ({1e-3: 0.1, 2e-3: 0.5, 4e-3: 0.6, 8e-3: 0.2}, [8e-3], 4e-3),
    ],
)
def test_a_rate_beyond_the_best_is_tried_where_that_is_at_an_end(
    tried: dict[float, float], wanted: list[float], best: float | None
) -> None:
    assert rates_of(tried, RATES) == ([*RATES, *wanted], best)
