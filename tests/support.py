"""Shared by the tests: random inputs, the one tolerance, ways to force a form or a chunk, and the examples as modules."""

import importlib.util
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from fastmax import api
from fastmax.call import Options, normalization
from fastmax.nn import FastmaxAttention
from fastmax.plan import RULE, Plan

EXAMPLES = Path(__file__).parent.parent / "examples"


def example(name: str) -> ModuleType:
    """A file of examples/, which is no package, as a module."""
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _softmax(q: Tensor, k: Tensor, v: Tensor, *_: Any, is_causal: bool, **__: Any) -> Tensor:
    return scaled_dot_product_attention(q, k, v, is_causal=is_causal)


class NoSumOverKeys(FastmaxAttention):
    """A layer with softmax in place of the polynomial: it trains, but has no state and no shards."""

    _attend = staticmethod(_softmax)


def randn(*shape: int, dtype: torch.dtype = torch.float64, grad: bool = False) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64).to(dtype).requires_grad_(grad)


def assert_within_budget(
    actual: Tensor, oracle: Tensor, dense: Tensor, precision: torch.dtype | None = None, *, budgets: float = 1
) -> None:
    """Against the fp64 oracle: at most twice the error of the dense form in the same precision, plus rounding.

    Rounding is that of a few operations on numbers of the size of the inputs, which are of order 1, or of the result. For
    fp64 itself, of which no finer oracle is at hand, it is that of the sums, a thousand times as much. `precision` is that of
    the products, where it is less than that of the result. Tests have one such budget; the fuzzer, which sees many thousand
    roundings, says more where it has another proof.
    """
    assert actual.dtype == dense.dtype, (actual.dtype, dense.dtype)
    assert actual.shape == oracle.shape == dense.shape, (actual.shape, oracle.shape, dense.shape)
    if not oracle.numel():
        return
    error = (actual.double() - oracle).abs().max().item()
    budget = 2 * (dense.double() - oracle).abs().max().item()
    operations = 16_000 if actual.dtype == torch.float64 else 16
    budget += operations * torch.finfo(precision or actual.dtype).eps * max(1.0, oracle.abs().max().item())
    budget *= budgets
    assert error <= budget, f"error {error:.3g} exceeds the budget of {budget:.3g}"


def with_grads(f: Callable[..., Tensor], inputs: list[Tensor], do: Tensor, **options: Any) -> list[Tensor]:
    """The output and the gradients of the inputs."""
    leaves = [x.detach().requires_grad_() for x in inputs]
    o = f(*leaves, **options)
    return [o.detach(), *torch.autograd.grad(o, leaves, do.to(o.dtype))]


def gradcheck(f: Callable[..., Any], inputs: Sequence[Tensor]) -> bool:
    """Compare fp64 gradients with finite differences, by random projections of the Jacobians.

    With tolerances as strict as these an entry that is off by a thousandth fails; the default ones would let 1 % pass.
    """
    return torch.autograd.gradcheck(f, tuple(inputs), fast_mode=True, atol=1e-8, rtol=1e-5)


_plan: ContextVar[Plan] = ContextVar("plan", default=RULE)


@contextmanager
def forced(
    *, dense: bool | None = None, chunk: int | None = None, budget: int | None = None, tile: int | None = None
) -> Iterator[None]:
    """Set how the two functions below cut the work: form, causal chunk, elements per feature tile, dense tile."""
    form = None if dense is None else "dense" if dense else "factorized"
    token = _plan.set(Plan(form, chunk, tile, budget))
    try:
        yield
    finally:
        _plan.reset(token)


def fastmax_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | Tensor | None = None,
    normalize: bool | str = True,
    log_decay: Tensor | None = None,
    initial_state: Tensor | None = None,
    cu_seqlens: tuple[Tensor, Tensor] | None = None,
    **options: Any,
) -> Any:
    """The public function, by the plan that is forced."""
    plan = _plan.get()
    if plan.form == "factorized" and options.get("order", 2) > 2 and options.get("backend", "auto") == "auto":
        options["backend"] = "chunked"  # the only one that has it
    chosen = Options(
        is_causal=is_causal,
        normalize=normalization(normalize),
        scale=None if isinstance(scale, Tensor) else scale,
        dropout_p=dropout_p,
        **options,
    )
    return api._attend(query, key, value, attn_mask, scale, log_decay, initial_state, chosen, cu_seqlens, plan)


def fastmax_varlen_attention(
    query: Tensor, key: Tensor, value: Tensor, cu_seqlens_q: Tensor, cu_seqlens_k: Tensor, *more: Any, **options: Any
) -> Any:
    """The same for packed sequences."""
    q, k, v = (x.transpose(0, 1) for x in (query, key, value))
    result = fastmax_attention(q, k, v, *more, cu_seqlens=(cu_seqlens_q, cu_seqlens_k), **options)
    return (result[0].transpose(0, 1), result[1]) if isinstance(result, tuple) else result.transpose(0, 1)
