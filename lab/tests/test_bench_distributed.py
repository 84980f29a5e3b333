"""`fastmax-lab bench distributed`: what it counts is what was exchanged, and the cost model is the arithmetic of the page."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch.distributed import ProcessGroup

from fastmax.features import feature_count
from fastmax_lab import cli
from fastmax_lab.bench import distributed, ring
from fastmax_lab.bench.traffic import Traffic
from fastmax_lab.measurements import read
from fastmax_lab.report.distributed import duration, size
from tests.distributed.cases import Case, shard
from tests.distributed.pool import SIZE, Pool


def measured(group: ProcessGroup, tokens: int) -> dict[str, float]:
    return distributed.cell(group.size(), tokens, 2)


@pytest.mark.slow
def test_a_cell_is_what_the_model_says(pool: Pool) -> None:
    layer = ring.RingLayer(distributed.HEADS, distributed.HEADS, distributed.HEAD_DIM)
    statement = (SIZE - 1) * 4 * 8
    for cell in pool.run(SIZE, measured, 64):
        assert cell["received"] == 2 * ring.received(layer, SIZE) + statement, "forward, backward and the comparison"
        assert cell["ring_received"] == 3 * 3 * 16 * 2 * 4 * 32 * 2
        assert cell["seconds"] > 0


@pytest.mark.slow
def test_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(distributed, "WORLDS", (1, 2))
    monkeypatch.setattr(distributed, "TOKENS", (64,))
    out = tmp_path / "d.jsonl"
    assert cli.main(["bench", "distributed", "--quick", "--out", str(out)]) == 0
    *cells, last = read(out)
    assert [cell.settings["world"] for cell in cells] == [1, 2]
    assert cells[0].values["received"] == 0
    assert last.name == distributed.ON_PAPER
    shown = capsys.readouterr().out
    assert "400 Gbit/s" in shown
    assert "a ring receives more from" in shown


def test_the_cost_model() -> None:
    layer = ring.RingLayer()
    assert layer.state_bytes == 4 * 8 * 2145 * 65
    assert [ring.received(layer, world) // layer.state_bytes for world in (1, 2, 4, 8, 1024)] == [0, 1, 3, 4, 11]
    for world in (2, 8, 1024):
        n = ring.crossover(layer, world)
        per_rank = ring.ring_received(layer, n // world * world, world)
        assert per_rank == pytest.approx(ring.received(layer, world), rel=world / n), (
            "but for tokens that fill no shard"
        )
    machine = ring.MACHINES[0]
    short, long = (ring.seconds(layer, machine, n, 64) for n in (10**6, 10**9))
    assert short["exchange"] == long["exchange"]
    assert long["compute"] == pytest.approx(1000 * short["compute"])
    assert long["ring compute"] == pytest.approx(1e6 * short["ring compute"])


def test_numbers_are_shown_in_units() -> None:
    assert [duration(s) for s in (0.0, 2e-6, 0.02, 3.0, 7200.0, 172800.0)] == [
        "0",
        "2 us",
        "20 ms",
        "3 s",
        "2 h",
        "2 days",
    ]
    assert [size(s) for s in (12, 4096, 4.5e6, 2e9)] == ["12 B", "4.1 kB", "4.5 MB", "2 GB"]


def test_only_collectives_are_counted() -> None:
    with Traffic(2) as traffic:
        torch.ones(3) + 1
    assert traffic.received == 0


def traffic(group: ProcessGroup, case: Case) -> int:
    with Traffic(group.size()) as counted:
        shard(group, case)
    return counted.received


@pytest.mark.slow
@pytest.mark.parametrize("decays", [False, True])
@pytest.mark.parametrize("is_causal", [False, True])
def test_the_bytes_do_not_grow_with_the_sequence(pool: Pool, is_causal: bool, decays: bool) -> None:
    small = Case((8, 8, 8), is_causal=is_causal, decays=decays)
    large = replace(small, queries=(200, 300, 100))
    packed = [replace(x, ends=((0, 5, sum(x.queries)),) * 2) for x in (small, large)]
    received, more, *of_packed = (pool.run(3, traffic, case) for case in (small, large, *packed))
    assert received == more
    assert of_packed[0] == of_packed[1]
    # batch 2, two heads, fp64; forward and backward; the statement is four numbers from each of the two others
    state = 8 * 2 * 2 * (feature_count(3, 2) * 5 + decays)
    sweeps = 2 if decays and not is_causal else 1
    exchanged = 2 * sweeps * 2 * state if is_causal or decays else 2 * (2 * 2 * state // 3)
    assert received == [exchanged + 2 * 4 * 8] * 3
