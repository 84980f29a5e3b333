"""A differential fuzzer: random calls on every backend, level, form, cut and number of threads, against the fp64 definition.

    python -m tools.fuzz --minutes 10 --seed 1

Cases are those of tests/backends/conformance.py, on longer sequences and wider heads: dtypes, layouts, masks, GQA, packed
sequences, states, decay, scales, dropout, which gradients are wanted. A failure is shrunk, printed, and ends the run with
code 1; the same seed finds it again. It is run from the root of the repository.
"""

import argparse
import sys
import time
from collections import Counter

import torch
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from tests.backends.conformance import RefusedError, Variant, calls, check, in_fp64, threads, variants

from fastmax.call import Call, OutputGrads
from fastmax.plan import Plan

BATCH = 50
"""Cases between two looks at the clock; each batch has a seed of its own, counted on from that of the run."""

SIZES = ((150, 24), (150, 24), (40, 70), (400, 12), (20, 140))
"""The most tokens, and the most channels per head: not both at once, for the definition takes N² F."""


EDGE = 4
"""Of many thousand roundings some are rare: so many budgets may be used up by a call that is right in fp64."""


def check_twice(variant: Variant, call: Call, grads: OutputGrads, plan: Plan, done: Counter[str]) -> None:
    """Within the budget of tests; or a little above it in a narrow precision, and within it in fp64."""
    try:
        check(variant, call, grads, plan)
    except AssertionError:
        if call.dtype == torch.float64:
            raise
        check(variant, call, grads, plan, budgets=EDGE)
        check(variant, *in_fp64(call, grads), plan)
        done["above one budget"] += 1


def batch(number: int, found: list[Variant], done: Counter[str]) -> None:
    """One batch of cases; raises what the first wrong one raises, shrunk."""
    size = SIZES[number % len(SIZES)]

    @seed(number)
    @settings(
        max_examples=BATCH,
        database=None,
        deadline=None,
        phases=(Phase.generate, Phase.shrink),
        suppress_health_check=list(HealthCheck),
        print_blob=False,
    )
    @given(
        variant=st.sampled_from(found),
        case=calls(*size),
        workers=st.integers(1, 4),
        chunk=st.sampled_from([None, None, 7, 32, 64, 96]),
        tile=st.sampled_from([None, 7, 64]),
        budget=st.sampled_from([None, 1, 1000]),
    )
    def one(
        variant: Variant,
        case: tuple[Call, OutputGrads],
        workers: int,
        chunk: int | None,
        tile: int | None,
        budget: int | None,
    ) -> None:
        plan = variant.plan._replace(chunk=chunk, dense_tile=tile, feature_budget=budget)
        with threads(workers):
            try:
                check_twice(variant, *case, plan, done)
            except RefusedError:
                done["refused"] += 1
                return
        done[f"{variant.name}{'' if variant.level is None else ' ' + variant.level}"] += 1
        if case[0].dropout_mode is not None:
            done["with dropout"] += 1

    one()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0, help="of the first batch")
    parser.add_argument("--minutes", type=float, default=1.0, help="how long to go on")
    parser.add_argument("--cases", type=int, default=None, help="or how many cases to stop after")
    parser.add_argument("--backend", default=None, help="only this one")
    options = parser.parse_args()
    if options.minutes <= 0 or (options.cases is not None and options.cases < 1) or options.seed < 0:
        parser.error("--minutes and --cases must be above 0, --seed at least 0")
    # an interpreter of GPU code takes a minute for what the others do in a second
    here = [x.values[0] for x in variants() if "interpreted" not in [mark.name for mark in x.marks]]
    found = [x for x in here if options.backend in (None, x.name)]
    if not found:
        parser.error(f"--backend must be one that is here, {', '.join(sorted({x.name for x in here}))}")
    end, done, number = time.monotonic() + 60 * options.minutes, Counter[str](), options.seed
    torch.set_num_threads(1)
    while time.monotonic() < end and (options.cases is None or BATCH * (number - options.seed) < options.cases):
        try:
            batch(number, found, done)
        except BaseException:
            print(
                f"fuzz: batch {number} failed: python -m tools.fuzz --seed {number} --cases 1",
                file=sys.stderr,
                flush=True,
            )
            raise
        number += 1
    counts = ", ".join(f"{name} {count}" for name, count in sorted(done.items()))
    print(f"fuzz: {BATCH * (number - options.seed)} cases from seed {options.seed} are clean: {counts}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
