"""`fastmax doctor`: check every backend on this machine against fp64, time it beside softmax attention, keep the result."""

import statistics
import time
from collections.abc import Callable, Iterator
from importlib.metadata import version
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from fastmax import backends
from fastmax.api import fastmax_attention, fastmax_varlen_attention
from fastmax.call import Call, Options
from fastmax.reference import reference_attention

CHECKS_SECONDS, TIMINGS_SECONDS = 110.0, 45.0
"""No check of a backend, and no timing, starts later than this: compiling kernels takes most of the time."""

CLOSE = {torch.bfloat16: 2e-2, torch.float16: 4e-3, torch.float32: 1e-4}
"""The largest error of an output or a gradient, relative to its norm."""

TOKENS, DIM, HEADS, KEY_HEADS = 640, 64, 4, 2


class Case(NamedTuple):
    """A call of queries, keys and values, (batch, heads, tokens, channels), whose result is compared."""

    name: str
    dtype: torch.dtype
    is_causal: bool
    decays: bool = False
    pads: bool = False
    packs: bool = False
    order: int = 2
    tokens: int = TOKENS


CASES = (
    Case("bf16, causal", torch.bfloat16, is_causal=True, tokens=3000),
    Case("bf16, unmasked, padded", torch.bfloat16, is_causal=False, pads=True, tokens=3000),
    Case("bf16, causal, forgetting", torch.bfloat16, is_causal=True, decays=True),
    Case("bf16, packed", torch.bfloat16, is_causal=True, packs=True),
    Case("bf16, order 1", torch.bfloat16, is_causal=True, order=1),
    Case("fp16, causal", torch.float16, is_causal=True),
    Case("fp32, causal", torch.float32, is_causal=True),
)


class Check(NamedTuple):
    """The result of a case: the largest relative error, or why there is none."""

    backend: str
    case: str
    error: float | None
    passed: bool
    note: str = ""


class Timing(NamedTuple):
    """Milliseconds of forward + backward by contestant."""

    tokens: int
    milliseconds: dict[str, float]


def names(device: torch.device) -> list[str]:
    """Return the backends that run on a device."""
    x = torch.empty(1, 1, 1, 8, device=device)
    calls = {
        name: Call(x, x, x, options=Options(scale=1.0, out_dtype=x.dtype, backend=name)) for name in backends.NAMES
    }
    return [name for name, call in calls.items() if backends.load(name).unsupported(call) is None]


def checks(device: torch.device, cases: tuple[Case, ...] = CASES) -> Iterator[Check]:
    """Yield the results of all cases and backends. A failing backend does not stop the others."""
    available = names(device)
    taken = dict.fromkeys(available, 0.0)
    for case in cases:
        inputs, do = _inputs(case)
        expected = _results(case, "reference", [x.double() for x in inputs], do.double())
        for name in available:
            if taken[name] > CHECKS_SECONDS / len(available):
                yield Check(name, case.name, None, passed=False, note="not run, for lack of time: run it again")
                continue
            before = time.perf_counter()
            yield _check(case, name, [x.to(device) for x in inputs], do.to(device), expected)
            taken[name] += time.perf_counter() - before


def timings(device: torch.device, contestants: list[str]) -> Iterator[Timing]:
    """Yield the times of forward + backward of backends beside softmax attention, causal."""
    on_cpu = device.type == "cpu"
    dtype, heads = (torch.float32, 4) if on_cpu else (torch.bfloat16, 16)
    stop = time.perf_counter() + TIMINGS_SECONDS
    # where launches count, the tiles of "chunked" take seconds
    left = ["softmax", *(name for name in contestants if on_cpu or name != "chunked")]
    for tokens in (512, 2048, 4096) if on_cpu else (1024, 4096, 16384, 65536):
        q, k, v, do = (torch.randn(1, heads, tokens, DIM, dtype=dtype, device=device) for _ in range(4))
        taken: dict[str, list[float]] = {name: [] for name in left}
        for round_number in range(6):
            for name in left:
                if time.perf_counter() > stop:
                    break
                seconds = _seconds(_contestant(name), [q, k, v], do)
                if round_number:  # the first one compiles
                    taken[name].append(seconds * 1e3)
        found = {name: statistics.median(each) for name, each in taken.items() if each}
        if not found:
            return
        yield Timing(tokens, found)


def _check(case: Case, name: str, inputs: list[Tensor], do: Tensor, expected: list[Tensor]) -> Check:
    try:
        found = _results(case, name, inputs, do)
    except Exception as reason:  # of a compiler or a driver: it is what is to be reported
        return Check(
            name, case.name, None, passed=False, note=f"{type(reason).__name__}: {' '.join(str(reason).split())[:120]}"
        )
    error = max(_distance(x, e) for x, e in zip(found, expected, strict=True))
    return Check(name, case.name, error, passed=error < CLOSE[case.dtype])


def _distance(x: Tensor, expected: Tensor) -> float:
    return float((x.cpu().double() - expected).norm() / expected.norm())


def _inputs(case: Case) -> tuple[list[Tensor], Tensor]:
    generator = torch.Generator().manual_seed(1)
    sizes = [(1, heads, case.tokens, DIM) for heads in (HEADS, KEY_HEADS, KEY_HEADS, HEADS)]
    q, k, v, do = (torch.randn(size, generator=generator).to(case.dtype) for size in sizes)
    decay = -torch.rand(1, KEY_HEADS, case.tokens, generator=generator) / 50
    return [q, k, v, *([decay] if case.decays else [])], do


def _results(case: Case, backend: str, inputs: list[Tensor], do: Tensor) -> list[Tensor]:
    """Return the output and the gradients. The backend "reference" is the definition."""
    leaves = [x.detach().requires_grad_() for x in inputs]
    q, k, v = leaves[:3]
    options: dict[str, Any] = {"order": case.order, "is_causal": case.is_causal, "enable_gqa": True}
    if case.order == 2:
        options["scale"] = DIM**-0.5
    if case.decays:
        options["log_decay"] = leaves[3]
    attend: Callable[..., Any] = fastmax_attention
    if backend == "reference":
        attend = reference_attention
    else:
        options["backend"] = backend
    if case.pads:
        options["attn_mask"] = (torch.arange(case.tokens, device=q.device) % 5 > 0).view(1, 1, 1, -1)
    o = _packed(attend, q, k, v, options) if case.packs else attend(q, k, v, **options)
    return [o.detach(), *torch.autograd.grad(o, leaves, do.to(o.dtype))]


def _packed(attend: Callable[..., Any], q: Tensor, k: Tensor, v: Tensor, options: dict[str, Any]) -> Tensor:
    """Attend within three sequences, one of them empty."""
    ends = [0, 100, 100, q.shape[2]]
    if attend is reference_attention:
        return torch.cat(
            [attend(*(x[:, :, a:b] for x in (q, k, v)), **options) for a, b in ((0, 100), (100, ends[-1]))], 2
        )
    cu = torch.tensor(ends, dtype=torch.int32, device=q.device)
    flat = [x.squeeze(0).transpose(0, 1) for x in (q, k, v)]
    o: Tensor = fastmax_varlen_attention(flat[0], flat[1], flat[2], cu, cu, **options)
    return o.transpose(0, 1).unsqueeze(0)


def _contestant(name: str) -> Callable[..., Tensor]:
    if name == "softmax":
        return lambda q, k, v: scaled_dot_product_attention(q, k, v, is_causal=True)
    return lambda q, k, v: fastmax_attention(q, k, v, is_causal=True, scale=DIM**-0.5, backend=name)


def _seconds(attend: Callable[..., Tensor], inputs: list[Tensor], do: Tensor) -> float:
    leaves = [x.detach().requires_grad_() for x in inputs]
    _wait(do.device)
    start = time.perf_counter()
    torch.autograd.grad(attend(*leaves), leaves, do)
    _wait(do.device)
    return time.perf_counter() - start


def _wait(device: torch.device) -> None:
    if device.type != "cpu":
        torch.accelerator.synchronize(device)


def run(device: torch.device, show: Callable[[str], None]) -> bool:
    """Check and time all backends, keep what was found of Triton, and show a report. Return True if all passed."""
    found = []
    show(f"{'backend':10} {'check':28} {'error':>9}")
    for one in checks(device):
        found.append(one)
        error = "" if one.error is None else f"{one.error:.1e}"
        show(f"{one.backend:10} {one.case:28} {error:>9}  {'passed' if one.passed else 'FAILED'} {one.note}".rstrip())
    show("\nforward + backward, causal, ms (softmax: torch's scaled_dot_product_attention)")
    failed = {one.backend for one in found if not one.passed}
    times = list(timings(device, [name for name in names(device) if name not in failed]))
    for each in times:
        show(f"N = {each.tokens:<6,} " + "  ".join(f"{name} {ms:.3g}" for name, ms in each.milliseconds.items()))
    kept = _keep(device, [one for one in found if one.backend == "triton"])
    show(f"\n{kept}\nA report to paste into an issue:\n")
    for line in _report(device, found, times):
        show(line)
    return all(one.passed for one in found)


def _keep(device: torch.device, found: list[Check]) -> str:
    """Store whether Triton has passed, and return what that means."""
    if not found:
        return "No Triton kernels run on this device."
    from fastmax.backends.triton import checked

    passed = all(one.passed for one in found)
    if passed or any(one.error is not None and not one.passed for one in found):
        checked.store(device, passed=passed)
    if passed:
        return f"""The Triton kernels passed: backend="auto" uses them here from now on. `fastmax doctor --reset` ends that.
{checked.path()}"""
    return 'The Triton kernels did not pass: backend="auto" uses plain PyTorch here. Please report it.'


def _report(device: torch.device, found: list[Check], times: list[Timing]) -> Iterator[str]:
    yield f"fastmax {version('fastmax')} | torch {torch.__version__} | {device.type} | {torch.get_num_threads()} threads"
    if device.type == "cuda":  # pragma: no cover  (needs one)
        from fastmax.backends.triton import checked

        yield checked.key(device)
    for name in dict.fromkeys(one.backend for one in found):
        mine = [one for one in found if one.backend == name]
        worst = max((one.error for one in mine if one.error is not None), default=float("nan"))
        failed = "; ".join(f"{one.case}: {one.note or one.error}" for one in mine if not one.passed)
        passed = f"{sum(one.passed for one in mine)} of {len(mine)} passed, worst error {worst:.1e}"
        yield f"{name}: {passed}{failed and '; ' + failed}"
    for each in times:
        yield f"N = {each.tokens}: " + ", ".join(f"{name} {ms:.3g} ms" for name, ms in each.milliseconds.items())
