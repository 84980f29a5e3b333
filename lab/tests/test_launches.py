"""Launches, bytes and flops counted on meta tensors, and the estimates made of them."""

from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch

from fastmax.plan import Plan
from fastmax_lab import _roofline, cli
from fastmax_lab._cells import Cell
from fastmax_lab.bench import gpu_estimate
from fastmax_lab.bench.gpu_estimate import values_of
from fastmax_lab.bench.launches import Launches, count
from fastmax_lab.measurements import read


def test_an_operation_is_a_launch_and_a_view_is_none() -> None:
    x = torch.empty(4, 8, device="meta")
    with Launches() as counted:
        y = x.mT.unsqueeze(0).reshape(1, 8, 4) @ x.expand(1, 4, 8)  # 8 x 4 times 4 x 8
        z = torch.empty_like(y).copy_(y)
        z.add_(1)
    assert counted.by_operation == Counter(bmm=1, copy_=1, add_=1)
    assert counted.flops == {torch.float32: 2 * 8 * 4 * 8}
    product, copy, in_place = 4 * (32 + 32 + 64), 4 * (64 + 64), 4 * (64 + 64)
    assert counted.bytes == product + copy + in_place


def test_expanded_memory_counts_once() -> None:
    with Launches() as counted:
        torch.empty(1, 8, device="meta").expand(100, 8).sum(1)
    assert counted.bytes == 4 * (8 + 100)


@pytest.mark.parametrize("wait", [torch.Tensor.item, torch.Tensor.tolist, torch.Tensor.cpu, torch.Tensor.nonzero])
def test_a_wait_for_the_device_is_an_error(wait: object) -> None:
    with Launches(), pytest.raises((RuntimeError, NotImplementedError)):
        wait(torch.empty((), device="meta"))


def test_products_of_a_call_are_counted_by_their_dtype() -> None:
    found = count(128, heads=2, head_dim=8)
    assert found.total > 5
    assert found.flops.total() >= 2 * 2 * 128 * 128 * (8 + 9) / 2, "at least the causal half of the dense form"
    both = count(128, heads=2, head_dim=8, backward=True)
    assert both.total > found.total
    assert both.flops.total() > 2 * found.flops.total()


def test_an_estimate_adds_launches_bytes_and_products() -> None:
    a100 = _roofline.GPUS["A100"]
    none = {"launches": 0, "bytes": 0, "half_flops": 0, "fp32_flops": 0}
    for name, amount, seconds in (
        ("launches", 1000, 5e-3),
        ("bytes", 2039e9, 1 / 0.8),
        ("half_flops", 156e12, 1.0),
        ("fp32_flops", 9.75e12, 1.0),
    ):
        assert _roofline.estimated_seconds(none | {name: amount}, a100) == pytest.approx(seconds), name


def test_the_pace_of_flash_attention_is_the_published_one() -> None:
    cell = Cell(16384, 64, 2, is_causal=True, backward=False, dtype="bfloat16", heads=16)
    assert _roofline.flash_seconds(cell, "A100") == pytest.approx(3.14e-3, rel=0.01)
    assert _roofline.flash_seconds(cell, "MI300X") is None


def test_the_command_says_that_it_estimates(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(gpu_estimate, "TOKENS", (64, 128))
    out = tmp_path / "estimate.jsonl"
    assert cli.main(["bench", "gpu-estimate", "--quick", "--out", str(out)]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("ESTIMATES, not measurements")
    assert "FA-2, A100" in " ".join(printed.split())
    found = [(one.settings["tokens"], one.values["flex_forward"]) for one in read(out)]
    assert found == [(tokens, passes) for tokens in (64, 128) for passes in (0, 1, 0, 1)]


BUDGET_OF_SPAN = 16384
"""Tokens of 16 heads with 64 channels in bf16 that are one span where a device has 40 GB."""


@pytest.mark.parametrize("tokens", [1024, 4096, BUDGET_OF_SPAN])
@pytest.mark.parametrize("order", [1, 2])
@pytest.mark.parametrize("is_causal", [True, False])
def test_few_launches_at_any_length_within_a_span(tokens: int, order: int, is_causal: bool) -> None:
    assert count(tokens, order=order, is_causal=is_causal).total <= 200
    assert count(tokens, order=order, is_causal=is_causal, backward=True).total <= 500


@pytest.mark.parametrize("backward", [False, True])
def test_bytes_grow_with_the_length(backward: bool) -> None:
    """In proportion, but for tables: a call that does not fit is cut by heads, which hand nothing on."""
    found = [count(n, backward=backward).bytes for n in (8192, 16384, 32768, 65536)]
    for short, long in pairwise(found):
        assert long <= 2.01 * short


@pytest.mark.parametrize("backward", [False, True])
def test_few_launches_with_everything_that_a_call_may_have(backward: bool) -> None:
    """Meta tensors raise an error where the host reads from the device, so nothing here waits for it."""
    meta: dict[str, Any] = {"device": "meta"}
    decay, mask = torch.empty(1, 16, 4096, **meta), torch.empty(1, 1, 4096, dtype=torch.bool, **meta)
    cu = torch.empty(9, dtype=torch.int32, **meta)
    seed = torch.empty((), dtype=torch.int64, **meta)
    factorized = Plan("factorized")
    plain = {"plan": factorized, "backward": backward}
    limit = 850 if backward else 300
    for more in (
        {"log_decay": decay},
        {"key_mask": mask, "head_scale": torch.empty(16, **meta)},
        {"cu_seqlens_q": cu, "cu_seqlens_k": cu},
        {"cu_seqlens_q": cu, "cu_seqlens_k": cu, "log_decay": decay},
        {"state_in": torch.empty(1, 16, 2145, 65, **meta)},
    ):
        assert count(4096, **plain, **more).total <= limit, list(more)
    options = {"dropout_seed": seed, "dropout_p": 0.1}
    assert count(4096, **plain, **options).total <= 4 * limit  # where features are dropped, masks are hashed


@pytest.mark.parametrize("backward", [False, True])
def test_estimates_for_an_a100_are_within_reach_of_flash_attention(backward: bool) -> None:
    """At 65,536 tokens both passes are estimated to take less time than those of FlashAttention-2.

    At 4,096 they run in FlexAttention, at 80 % of its pace.
    """
    for tokens, with_flex, most in ((4096, True, 1.5), (16384, False, 4.0), (65536, False, 1.0)):
        found = count(tokens, backward=backward, with_flex=with_flex)
        assert bool(found.flex) == with_flex
        cell = Cell(tokens, 64, 2, is_causal=True, backward=backward, dtype="bfloat16", heads=16)
        flash, taken = _roofline.flash_seconds(cell, "A100"), _roofline.estimate(values_of(found), cell, "A100")
        assert flash is not None
        assert taken is not None
        assert taken <= most * flash, tokens
