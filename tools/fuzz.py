"""A differential fuzzer: random calls on every backend, level, form, cut and number of threads, against the fp64 definition.

    python -m tools.fuzz --minutes 10 --seed 1

Half of the batches are calls of tests/backends/conformance.py, on longer sequences and wider heads: dtypes, layouts, masks,
GQA, packed sequences, states, decay, scales, dropout, which gradients are wanted. A quarter are calls that are prepared once
and made again with other data, forward and backward; a quarter are sequences that a state decodes token by token, in pieces,
with updates in between. A failure is shrunk, printed, and ends the run with code 1; the same seed finds it again. It is
run from the root of the repository.
"""

import argparse
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from tests.backends.conformance import RefusedError, Variant, calls, check, defined, in_fp64, output_grads, threads
from tests.backends.conformance import variants as all_variants
from tests.support import assert_within_budget
from tools.fuzz_decoding import Decoding, decodings, stepped
from torch import Tensor

from fastmax.backends import native
from fastmax.call import Call, OutputGrads

BATCH = 50
"""Cases between two looks at the clock; the seed of a batch is that of the run plus its number."""

SIZES = ((150, 24), (150, 24), (40, 70), (400, 12), (20, 140))
"""The most tokens, and the most channels per head: not both at once, for the definition takes N² F."""

EDGE = 4
"""The budgets that a call which is right in fp64 may use, because some of many thousand roundings are rare."""


def twice(one: Callable[..., None], call: Call, grads: OutputGrads, done: Counter[str]) -> None:
    """Check that errors are within the tests' budget, or a little above it in a narrow precision but within it in fp64."""
    try:
        one(call, grads, budgets=1)
    except AssertionError:
        if call.dtype == torch.float64:
            raise
        one(call, grads, budgets=EDGE)
        one(*in_fp64(call, grads), budgets=1)
        done["above one budget"] += 1


def any_call(found: list[Variant], size: tuple[int, int], done: Counter[str]) -> Callable[[], None]:
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

        def run(call: Call, grads: OutputGrads, budgets: float) -> None:
            check(variant, call, grads, plan, budgets=budgets)

        with threads(workers):
            try:
                twice(run, *case, done)
            except RefusedError:
                done["refused"] += 1
                return
        done[f"{variant.name}{'' if variant.level is None else ' ' + variant.level}"] += 1
        if case[0].dropout_mode is not None:
            done["with dropout"] += 1

    return one


def plain(call: Call) -> Call:
    """Return the call with queries, keys, values and decays only, with 0 for what a mask has hidden."""
    k, v = (x if call.key_mask is None else torch.where(call.key_mask.unsqueeze(-1), x, 0.5) for x in (call.k, call.v))
    options = call.options._replace(return_state=False, dropout_p=0.0)
    nothing = dict.fromkeys(("key_mask", "head_scale", "state_in", "cu_seqlens_q", "cu_seqlens_k", "dropout_seed"))
    return replace(call, k=k, v=v, options=options, **nothing)


def negative(x: Tensor) -> Tensor:
    """Return other data in separate memory, with the same strides."""
    whole = torch.empty(0, dtype=x.dtype).set_(x.untyped_storage())  # type: ignore[call-overload]
    return whole.neg().as_strided(x.shape, x.stride(), x.storage_offset())


def again(prepared: Any, variant: Variant, call: Call, grads: OutputGrads, budgets: float) -> None:
    do = grads.o
    assert do is not None
    o, g, total = prepared.forward_for_grads(call.q, call.k, call.v, call.log_decay)
    assert torch.equal(o, prepared.forward(call.q, call.k, call.v, call.log_decay))
    found = prepared.backward(call.q, call.k, call.v, call.log_decay, o, g, total, do)
    names = ("o", "g", "d_q", "d_k", "d_v", *(() if call.log_decay is None else ("d_log_decay",)))
    exact, same = (defined(call, OutputGrads(do, None, None), exact=x) for x in (True, False))
    for name, x in zip(names, (o, g, *found), strict=False):
        try:
            assert_within_budget(x, exact[name], same[name], variant.precision(call), budgets=budgets)
        except AssertionError as error:
            raise AssertionError(f"{name} of a prepared call: {error}") from None


def prepared_call(_: list[Variant], size: tuple[int, int], done: Counter[str]) -> Callable[[], None]:
    @given(case=calls(*size), workers=st.integers(1, 4))
    def one(case: tuple[Call, OutputGrads], workers: int) -> None:
        call = plain(case[0])
        if native.unsupported(call) is not None:
            done["refused"] += 1
            return
        do = output_grads(call)._replace(g=None, state=None)

        def run(call: Call, grads: OutputGrads, budgets: float) -> None:
            made = native.prepare(call)
            variant = Variant("native", native.levels()[0], "cpu", native.form(call))
            others = replace(call, k=negative(call.k), v=negative(call.v))
            for data in (call, others, call):
                again(made, variant, data, grads, budgets)

        with threads(workers):
            if native.prepare(call) is None:
                done["cannot be prepared"] += 1
                return
            twice(run, call, do, done)
        done["prepared"] += 1

    return one


def decoding(_: list[Variant], size: tuple[int, int], done: Counter[str]) -> Callable[[], None]:
    @given(case=decodings(*size), workers=st.integers(1, 4))
    def one(case: Decoding, workers: int) -> None:
        def run(call: Call, grads: OutputGrads, budgets: float) -> None:
            o, seen = stepped(replace(case, call=call))
            exact, same = (defined(call, grads, exact=x)["o"][:, :, seen] for x in (True, False))
            assert_within_budget(o, exact, same, budgets=budgets)

        with threads(workers):
            twice(run, case.call, OutputGrads(None, None, None), done)
        done["decoded"] += 1

    return one


KINDS = (any_call, prepared_call, any_call, decoding)


def batch(number: int, found: list[Variant], done: Counter[str]) -> None:
    """Run a batch of cases. Raise what the first wrong one raises, shrunk."""
    case = KINDS[number % len(KINDS)](found, SIZES[number % len(SIZES)], done)
    chosen = settings(
        max_examples=BATCH,
        database=None,
        deadline=None,
        phases=(Phase.generate, Phase.shrink),
        suppress_health_check=list(HealthCheck),
        print_blob=False,
    )
    seed(number)(chosen(case))()


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
    here = [x.values[0] for x in all_variants() if "interpreted" not in [mark.name for mark in x.marks]]
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
