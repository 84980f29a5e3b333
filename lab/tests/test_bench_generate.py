"""`fastmax-lab bench generate` at small sizes: measured, told and drawn."""

from pathlib import Path

import pytest

from fastmax_lab.bench import generate
from fastmax_lab.measurements import Recorder
from fastmax_lab.report.generate import draw, growth, growth_per_layer, summary


def test_it_is_measured_told_and_drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("matplotlib")
    for name, value in {"LAYERS": 1, "HEAD_DIM": 8, "VOCABULARY": 50, "CHUNK": 16, "TOKENS": 2}.items():
        monkeypatch.setattr(generate, name, value)
    monkeypatch.setattr(generate, "CONTEXTS", [64, 128, 256])
    monkeypatch.setattr(generate, "LAYER_COUNTS", (1, 3))

    def here(name: str, contexts: list[int], layers: int) -> dict[str, int]:
        return {str(context): peak for context, peak in generate._generate(name, contexts, layers).items()}

    monkeypatch.setattr(generate, "_measure_memory", here)
    record = Recorder("bench generate", tmp_path / "generate.jsonl")
    generate.run(record, quick=True)
    *cells, grown = measured = record.made
    assert [cell.settings["context"] for cell in cells] == [64, 128]
    first, second = (cell.values["cache_bytes"] for cell in cells)
    token = 2 * generate.KV_HEADS * 8 * 4  # key and value of a head of 8 channels in fp32
    assert first["fastmax"] == second["fastmax"]
    assert (first["softmax"], second["softmax"]) == (token * 64, token * 128), "of the context, not of the steps timed"
    text = summary(measured)
    assert "FastmaxCache" in text
    assert "| 128 " in text
    assert growth(measured, "fastmax") < 1e9
    grown.values["growth_by_layers"] = {"1": 5_000_000, "3": 5_500_000}
    assert growth_per_layer(measured) == 250_000
    assert "5.0 MB with 1 layer, 5.5 MB with 3 layers: 0.25 MB per added layer" in summary(measured)
    draw(measured, tmp_path / "picture.png")
    assert (tmp_path / "picture.png").stat().st_size > 1000


@pytest.mark.slow
def test_a_measurement_that_fails_says_so() -> None:
    with pytest.raises(RuntimeError, match="measuring the memory of nothing failed"):
        generate._measure_memory("nothing", [8], 1)
