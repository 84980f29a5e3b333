"""Launches, bytes and flops counted on meta tensors, and the estimates made of them."""

from collections import Counter
from pathlib import Path

import pytest
import torch

from fastmax_lab import _roofline, cli
from fastmax_lab._cells import Cell
from fastmax_lab.bench import gpu_estimate
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
    assert [one.settings["tokens"] for one in read(out)] == [64, 64, 128, 128]
