"""Learning rates that are tuned alike: the same for every attention, and one further where the best is the last at an end."""

from collections.abc import Mapping, Sequence


def rates_of(tried: Mapping[float, float], rates: Sequence[float]) -> tuple[list[float], float | None]:
    """Return the rates to try and, when all of them have been, the best; None before. `tried` has scores, higher is better.

    If the best of `rates`, in order, is the lowest or the highest, half of it or twice as much is to be tried, too.
    """
    wanted = list(rates)
    if not tried.keys() >= set(rates):
        return wanted, None
    best = max(rates, key=tried.__getitem__)
    wanted += [best / 2] if best == rates[0] else [2 * best] if best == rates[-1] else []
    return wanted, max(wanted, key=tried.__getitem__) if tried.keys() >= set(wanted) else None
