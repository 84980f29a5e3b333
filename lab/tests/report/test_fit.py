"""Reports in 80 columns: those of every benchmark that is recorded, and of what else prints a table."""

from importlib import import_module
from pathlib import Path

import pytest

from fastmax_lab.commands import data
from fastmax_lab.measurements import read
from fastmax_lab.report import lra
from fastmax_lab.report.fit import fit, show
from fastmax_lab.report.table import table

RESULTS = Path(__file__).parents[2] / "results" / "bench"
RECORDED = {
    "core": "core", "kernel": "kernel-short", "decode": "decode", "generate": "generate", "dropout": "dropout",
    "decay": "decay", "distributed": "distributed", "lra": "lra",
}  # fmt: skip


def words(text: str) -> list[str]:
    """In no order: a table that is set in parts says its first column again."""
    return sorted({word for word in text.replace("|", " ").split() if word.strip(":-#")})


@pytest.mark.parametrize("name", RECORDED)
def test_a_benchmark_fits(name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    measured = read(RESULTS / f"{RECORDED[name]}.jsonl")
    report: str = import_module(f"fastmax_lab.report.{name}").summary(measured)
    show(report)
    printed = capsys.readouterr().out
    assert max(map(len, printed.splitlines())) <= 80
    assert words(printed) == words(report), "nothing is lost"


def test_the_other_tables_fit(tmp_path: Path) -> None:
    found = [
        {"config": {"task": task, "attention": attention}, "test": {"accuracy": accuracy}}
        for task in ("listops", "text", "retrieval", "image", "pathfinder")
        for attention in ("softmax", "fastmax2")
        for accuracy in (0.61234, 0.7)
    ]
    for report in (lra.accuracies(found), data.overview(tmp_path)):
        fitted = fit(report, 80)
        # the path of the data folder is one word, as long as it is
        assert max(len(line) for line in fitted.splitlines() if str(tmp_path) not in line) <= 80
        assert words(fitted) == words(report)


def test_what_fits_stays_as_it_is() -> None:
    text = f"Title\n\n{table(['N', 'time'], [['1', '10 ms']])}\n\n- a list"
    assert fit(text, 80) == text


def test_parts_and_prose() -> None:
    rows = [["a", "1 ms", "this cell is prose, so it is wrapped where there is no room for it", "2 ms"]]
    wide = table(["name", "forward", "what it is", "backward pass"], rows)
    assert fit(wide, 44).splitlines() == [
        "name  forward  what it is           backward",
        "                                        pass",
        "----  -------  -------------------  --------",
        "a        1 ms  this cell is prose,      2 ms",
        "               so it is wrapped",
        "               where there is no",
        "               room for it",
    ]
    assert fit(wide, 24).splitlines()[-4:] == ["name  backward", "          pass", "----  --------", "a         2 ms"]
