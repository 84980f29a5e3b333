"""`fastmax-lab bench kernel --device cuda` and `fastmax-lab tune` without a GPU."""

import itertools
from dataclasses import asdict, replace
from functools import partial

import pytest
import torch
from lab.tests.records import record

from fastmax.backends.triton.tiles import Tiles, tiles_for
from fastmax_lab import _roofline, cli
from fastmax_lab._cells import Cell
from fastmax_lab.bench import gpu, tune
from fastmax_lab.report.gpu import summary

CELL = Cell(16384, 64, 2, is_causal=True, backward=False, dtype="bfloat16", heads=16)
no_gpu = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")


def test_the_bound_is_that_of_flops_or_of_memory() -> None:
    a100 = _roofline.known("NVIDIA A100-SXM4-80GB")
    assert a100 == _roofline.GPUS["A100"]
    assert _roofline.known("GeForce 256") is None
    assert _roofline.least_seconds(CELL, a100) == pytest.approx(CELL.factorized_flops / 312e12)
    memory = replace(CELL, order=1, head_dim=32)
    assert _roofline.least_seconds(memory, a100) == pytest.approx(4 * 16384 * 16 * 32 * 2 / 2039e9)
    assert _roofline.least_seconds(replace(CELL, dtype="float32"), a100) > 5 * _roofline.least_seconds(CELL, a100)


def test_a_cell_is_measured_and_shown() -> None:
    small = replace(CELL, tokens=64, heads=1, backward=True)
    measured = gpu.measure(small, rounds=1, device="cpu")
    assert set(measured["seconds"]) == {"triton", "chunked", "sdpa"}
    text = summary([record(asdict(small) | {"gpu": "NVIDIA H100 80GB HBM3", "triton": "Triton 3.7.1"}, measured)])
    assert "989 TFLOP/s" in text
    assert "64, 64, 2 bfloat16" in text
    unknown = {"first_call": 2.0, "seconds": {"triton": 0.01, "chunked": 0.03, "sdpa": 0.02}}
    text = summary([record(asdict(CELL) | {"gpu": "another", "triton": "Triton"}, unknown)])
    assert "Data sheet" not in text
    assert "2.00x" in text
    assert "2.0 s" in text


def test_a_slow_contestant_sits_out(monkeypatch: pytest.MonkeyPatch) -> None:
    runs = dict.fromkeys(("triton", "chunked", "sdpa"), 0)

    def counted(name: str) -> None:
        runs[name] += 1

    monkeypatch.setattr(gpu, "_contestants", lambda *_: {name: partial(counted, name) for name in runs})
    monkeypatch.setattr(gpu, "_seconds", lambda call, _: (call(), 4.0 if call.args == ("chunked",) else 0.1)[1])
    measured = gpu.measure(CELL, rounds=20, device="cpu", max_seconds=10.0)
    assert runs == {"triton": 21, "chunked": 3, "sdpa": 20}  # the first call of triton compiles
    assert measured["seconds"]["chunked"] == 4.0


def test_the_grid() -> None:
    cells = list(gpu.cells((1024, 4096), (64,), (1, 2), ("bfloat16",)))
    assert len(cells) == 8
    assert all(cell.is_causal for cell in cells)


def test_tuning_finds_better_tiles_and_says_what_differs() -> None:
    table = tiles_for("sm_80", 64, 64, 2, torch.bfloat16)

    def seconds(tiles: Tiles) -> float | None:
        return None if tiles.stages == 3 else 1.0 - 0.3 * (tiles.chunk == 2048) - 0.2 * (tiles.warps == 4)

    best, taken, first = tune.tuned(table, 64, seconds)
    assert (best.chunk, best.warps, first) == (2048, 4, 1.0)
    assert taken == pytest.approx(0.5)
    assert tune.row("sm_80", 64, "bfloat16", table, best, taken, first) == (
        "sm_80, D = 64, bfloat16: chunk=2048, warps=4 takes 500.00 ms, the table's 1000.00 ms"
    )
    assert "nothing is faster" in tune.row("sm_80", 64, "bfloat16", table, table, 1.0, 1.0)
    with pytest.raises(ValueError, match="do not run on this GPU"):
        tune.tuned(table, 64, lambda _: None)


def test_tiles_that_are_tried_fit_together() -> None:
    blocks = set()
    for dim in (16, 128):
        for tiles in tune.neighbours(tiles_for("gfx942", dim, dim, 2, torch.bfloat16), dim):
            assert tiles.chunk % tiles.longest == 0
            assert max(tiles.sums, tiles.unroll) <= tiles.block <= dim
            blocks.add((dim, tiles.block))
    assert blocks == {(16, 16), (128, 16), (128, 32)}


def test_tiles_that_do_not_compile_are_passed_over() -> None:
    errors = pytest.importorskip("triton.runtime.errors")

    def fails(error: Exception) -> float:
        raise error

    assert tune.attempted(lambda: 0.5) == 0.5
    assert tune.attempted(partial(fails, errors.OutOfResources(2, 1, "shared memory"))) is None
    assert tune.attempted(partial(fails, errors.PTXASError("registers"))) is None
    assert tune.attempted(partial(fails, RuntimeError("PassManager::run failed"))) is None
    with pytest.raises(torch.AcceleratorError):
        tune.attempted(partial(fails, torch.AcceleratorError("illegal access")))


@pytest.mark.parametrize("arch", ["sm_80", "sm_90", "sm_100", "sm_120", "gfx942"])
def test_tiles_of_the_table_fit_together(arch: str) -> None:
    dims = (16, 32, 64, 128)
    for dim, value_dim, order in itertools.product(dims, dims, (1, 2)):
        for products in (torch.bfloat16, torch.float32):
            tiles = tiles_for(arch, dim, value_dim, order, products)
            assert tiles.chunk % tiles.longest == 0
            assert (
                dim % tiles.block
                == tiles.block % tiles.sums
                == tiles.block % tiles.unroll
                == dim % tiles.vjp_unroll
                == 0
            )


@no_gpu
@pytest.mark.parametrize(
    ("command", "code", "said"),
    [
        (["tune"], 1, "it needs a GPU that torch can use, and there is none\n"),
        (
            ["bench", "kernel", "--device", "cuda", "--quick"],
            2,
            "must be one of auto, cpu on this machine, got 'cuda'\n",
        ),
    ],
)
def test_without_a_gpu_it_is_one_line(
    command: list[str], code: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(command) == code
    printed = capsys.readouterr().err
    assert printed.endswith(said)
    assert printed.count("\n") == 1
