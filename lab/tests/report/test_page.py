"""The report of a miniature of everything: tables rebuilt from the JSON, no number that is not in it, files and claims."""

import csv
import json
import re
from collections.abc import Iterator
from html import escape
from math import inf
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from lab.tests.records import record

from fastmax_lab.cli import main
from fastmax_lab.measurements import Measurement
from fastmax_lab.report.page import build, html
from fastmax_lab.report.page.parts import OPEN, Chart, Claim, Section, Series, Table
from fastmax_lab.report.page.results import Results, load
from fastmax_lab.report.page.sections import (
    dropout,
    language,
    lra,
    lra_claims,
    lra_runs,
    recall,
    scaling_break_even,
    scaling_growth,
)


@pytest.fixture(scope="module")
def report(results: Path) -> Path:
    assert main(["report", str(results)]) == 0
    return results / "report"


def numbers(value: Any) -> Iterator[float]:
    if isinstance(value, bool) or value is None or isinstance(value, str):
        return
    if isinstance(value, int | float):
        yield float(value)
    else:
        for one in value.values() if isinstance(value, dict) else value:
            yield from numbers(one)


def every(results: Path) -> list[Measurement]:
    return [one for found in load(results).values() for one in found]


def test_everything_is_written(report: Path, sections: list[Section]) -> None:
    charts, tables = build.charts(sections), build.tables(sections)
    assert all(one.blocks for one in sections)
    for chart in charts:
        for kind in ("svg", "png", "csv"):
            assert (report / "figures" / f"{chart.name}.{kind}").stat().st_size > 50
    assert len({chart.name for chart in charts}) == len(charts)
    assert len({table.name for table in tables}) == len(tables)
    assert {path.stem for path in (report / "tables").glob("*.csv")} == {"runs", *(table.name for table in tables)}


def test_the_page_needs_no_network(report: Path) -> None:
    page = (report / "index.html").read_text()
    for needle in ("http://", "https://", "src=", "@import", "url("):
        found = [part for part in page.split(needle)[1:] if not part.startswith(("www.w3.org", "#"))]
        assert not [part for part in found if not part.startswith(("purl.org", "creativecommons", "matplotlib.org"))], (
            needle
        )
    shown, data = page.split('id="explorer-data">')
    assert not re.search(r"(?<![\w+/])NaN(?![\w+/=])", shown), "letters of a picture in base64 are none"
    json.loads(data[: data.index("</script>")], parse_constant=pytest.fail)  # maps are base64, which may spell it


def test_csv_files_hold_the_tables(report: Path, sections: list[Section]) -> None:
    for table in build.tables(sections):
        with (report / "tables" / f"{table.name}.csv").open(newline="") as file:
            rows = list(csv.reader(file))
        assert len(rows) == 1 + len(table.rows)
        for written, row in zip(rows[1:], table.rows, strict=True):
            assert written == ["" if cell is None else str(cell) for cell in row]


def test_the_page_shows_the_tables(report: Path, sections: list[Section]) -> None:
    page = (report / "index.html").read_text()
    for table in build.tables(sections)[1:]:
        start = page.index(f'data-name="{table.name}"')
        part = page[start : page.index("</table>", start)]
        assert part.count("<tr>") == 1 + len(table.rows)
        for row in table.rows:
            for column in range(len(row)):
                assert escape(table.shown(row, column)) in part


def test_what_is_drawn_unaveraged_is_in_the_json(results: Path, sections: list[Section]) -> None:
    """Times in ms, memory in MiB, accuracies in per cent are the numbers of the JSON; curves over seeds are means."""
    held = {round(x * factor, 9) for d in every(results) for x in numbers(d.values) for factor in (1, 1e3, 100)}
    held |= {
        round((row["peak"] - row["before"]) / 2**20, 9)
        for d in every(results) if d.experiment == "scaling" for row in d.values.get("memory", [])
    }  # fmt: skip
    checked = 0
    for section in sections:
        if section.name in ("scaling", "exactness", "maps", "recall", "language"):
            for chart in build.charts([section]):
                series = [one for one in chart.series if not one.guide]
                values = [y for one in series for y in (one.x if chart.categories else one.y)]
                assert {round(y, 9) for y in values} <= held, chart.name
                checked += len(values)
    assert checked > 50


def test_tables_are_rebuilt_from_the_json(results: Path, sections: list[Section]) -> None:
    tables = {table.name: table for table in build.tables(sections)}
    found = every(results)
    runs = [d for d in found if d.experiment == "dropout"]
    assert len(tables["dropout"].rows) == 4
    for mode, rate, seeds, loss, deviation, lowest, _, accuracy, _ in tables["dropout"].rows:
        own = [d.values for d in runs if (d.settings["mode"], d.settings["rate"]) == (mode, rate)]
        assert seeds == len(own) == 2
        assert loss == pytest.approx(mean(r["curve"][-1][1] for r in own))
        assert deviation == pytest.approx(stdev(r["curve"][-1][1] for r in own))
        assert lowest == pytest.approx(mean(min(p[1] for p in r["curve"]) for r in own))
        assert accuracy == pytest.approx(100 * mean(r["accuracy"] for r in own))
    softmax = next(d for d in found if d.experiment == "language" and d.settings["attention"] == "softmax")
    for name, lr, loss, _, gap, *_ in tables["language-listops-32"].rows:
        run = next(d for d in found if d.experiment == "language" and d.settings["attention"] == name)
        assert (lr, loss) == (run.settings["lr"], run.values["val_loss"])
        assert gap == pytest.approx(loss - softmax.values["val_loss"])
    dev = {row[0]: row[1] for row in tables["lra-accuracy-dev"].rows}
    for name, test, theirs in tables["lra-accuracy"].rows:
        if name == lra.BEST:
            continue
        runs = [d for d in found if d.experiment == "lra" and d.settings["attention"] == name]
        run = next(d for d in runs if d.settings["steps"] == 40)
        scores = 100 * run.values["test"]["accuracy"], 100 * run.values["dev_accuracy"]
        shown = (None, None) if lra_runs.at_chance(run) else pytest.approx(scores)
        assert (test, dev[name]) == shown
        listops = {"softmax": 38.37, "fastmax1": 37.20, "fastmax2": 37.40, "linear": 16.13}
        assert theirs == listops.get(name.removesuffix(", paper's scale"))
    speed = {d.settings["task"]: d.values for d in found if d.experiment == "lra-speed"}
    for name, unit in (("lra-speed-0", "steps/s"), ("lra-ratio-0", "× vanilla")):
        for row in tables[name].rows:
            for task, at in (("listops", 1), ("text", 3)):
                best = {name: t["best"] for name, t in speed[task]["seconds"].items()}
                assert tables[name].columns[at] == f"{task}, {unit}"
                assert row[at] == pytest.approx((1.0 if unit == "steps/s" else best["vanilla"]) / best[row[0]])


def test_settings_are_compared_with_softmax_of_the_same_seeds(results: Path, sections: list[Section]) -> None:
    (table,) = [table for table in build.tables(sections) if table.name == "lra-settings-listops"]
    found = [d for d in every(results) if d.experiment == "lra-settings"]
    accuracy = {(d.settings["attention"], d.settings["seed"]): 100 * d.values["test"]["accuracy"] for d in found}
    rows = {row[0]: row for row in table.rows}
    assert set(rows) == {name for name, _ in accuracy}
    assert rows["softmax"][2] == pytest.approx((accuracy["softmax", 0] + accuracy["softmax", 1]) / 2)
    assert rows["softmax"][6] == 2
    assert rows["fastmax2"][4] == pytest.approx(accuracy["fastmax2", 0] - accuracy["softmax", 0])
    dev = [d.values["dev_accuracy"] for row in table.rows for d in found if d.settings["attention"] == row[0]]
    assert dev[0] == max(dev)


def test_who_recalls_is_said_for_each_head_dimension() -> None:
    def run(name: str, width: int, pairs: int, accuracy: float) -> Measurement:
        settings = {"attention": name, "width": width, "heads": 2, "pairs": pairs}
        return record(settings, {"accuracy": accuracy})

    runs = [run("softmax", width, 64, 1.0) for width in (32, 64)] + [run("linear", 32, 16, 1.0)]
    runs += [run("fastmax2", 64, 64, 0.995), run("fastmax2", 32, 64, 0.9)]
    said = recall.found_by_heads(runs)
    assert (
        said
        == "Almost all of 64 pairs are recalled with heads of 16 by softmax; with heads of 32 by fastmax2 and softmax"
    )
    assert recall.found_by_heads(runs[-1:]).endswith("with heads of 16 by none")


def test_break_even_is_between_the_lengths_where_the_faster_changes() -> None:
    def cell(tokens: int, ours: float, theirs: float) -> dict[str, Any]:
        return {"tokens": tokens, "seconds": {"fastmax2": {"best": ours}, "vanilla": {"best": theirs}}}

    cells = [cell(100, 2.0, 1.0), cell(400, 4.0, 8.0)]
    assert scaling_break_even.break_even(cells, "fastmax2", "vanilla") == pytest.approx((200, 200))
    assert scaling_break_even.break_even(cells[1:], "fastmax2", "vanilla") == (0, 400)
    assert scaling_break_even.break_even(cells[:1], "fastmax2", "vanilla") == (100, inf)
    assert scaling_break_even.break_even([], "fastmax2", "vanilla") is None
    first, last, power = scaling_growth.growth(cells, "vanilla", 32)
    assert (first, last) == (100, 400)
    assert power == pytest.approx(1.5)


@pytest.mark.parametrize(("is_causal", "first"), [(False, 1024), (True, 2048)])
def test_growth_is_that_of_the_factorized_form(is_causal: bool, first: int) -> None:
    """Quadratic until the factorized form is cheaper, linear then, with one disturbed measurement among the longest."""
    tokens = [1 << n for n in range(6, 17)]
    times = [1e-9 * n * min(n, 1024) * (1.3 if n == 1 << 15 else 1) for n in tokens]
    cells = [
        {"tokens": n, "is_causal": is_causal, "seconds": {"fastmax2": {"best": t}}}
        for n, t in zip(tokens, times, strict=True)
    ]
    begin, end, power = scaling_growth.growth(cells, "fastmax2", 32)
    assert (begin, end) == (8192, 65536)
    assert power == pytest.approx(1.0, abs=0.1)
    assert scaling_growth.growth(cells[: tokens.index(first) + 2], "fastmax2", 32)[0] == first
    assert scaling_growth.growth(cells[: tokens.index(first) + 1], "fastmax2", 32) == (None, None, None)


def test_older_results_may_lack_facts_of_their_machine() -> None:
    old = record({}, {})
    (row,) = html.runs({"lra": [old]}).rows
    assert row == ("lra", "n", None, 1.0, "P", None, None, "2", None, None, "c")
    assert html._provenance({"lra": [old]}) == "1 measurements on P (2 cores), torch 2."


def sentences(results: Results) -> Iterator[str]:
    """Yield what the report says in our words: a table has more numbers, and a claim quotes the paper."""
    yield html._provenance(results)
    for part in build.sections(results):
        yield from (part.intro, part.headline, *(lead.sentence for lead in part.leads))
        for claim in part.claims:
            yield from (claim.number, *claim.notes)
        for block in part.blocks:
            yield from (block.title, *(one.text for one in block.findings))
            yield from (*(chart.title for chart in block.charts), *(table.title for table in block.tables))


def test_a_sentence_has_at_most_three_numbers() -> None:
    """In the report of the stored results. Dates and versions are not counted."""
    texts = list(sentences(load(Path(__file__).parents[2] / "results")))
    found = [one for text in texts for one in re.split(r"(?<=[.;:])\s+", re.sub(r"[\d-]{10}|torch \S+", "", text))]
    assert len(found) > 100
    assert not [one for one in found if len(re.findall(r"(?<![\w.\-/√])\d[\d,.]*", one)) > 3]


@given(st.data())
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_folder_that_is_not_finished_can_be_drawn(results: Path, data: st.DataObject) -> None:
    """Any part of the files, such as there are while an experiment runs: sections, tables and data of all charts."""
    whole = load(results)
    part = {
        name: [found[i] for i in sorted(data.draw(st.sets(st.integers(0, len(found) - 1), min_size=1)))]
        for name, found in whole.items() if data.draw(st.booleans())
    }  # fmt: skip
    sections = build.sections(part)
    for table in build.tables(sections):
        for row in table.rows:
            assert len(row) == len(table.columns)
            for column in range(len(row)):
                table.shown(row, column)
    for chart in build.charts(sections):
        chart.data()
    html._conclusions(sections)


def test_claims_are_counted_in_words() -> None:
    claims = tuple(Claim("", "", verdict, "") for verdict in ("holds", "holds", "does not hold", OPEN, OPEN))
    said = html._conclusions([Section("s", "", claims=claims)])
    assert "claims 2 hold, 1 does not hold and 2 remain open." in said


def test_claims_without_results_are_open() -> None:
    for one in build.SECTIONS:
        section = one.section({})
        assert all(claim.verdict == OPEN for claim in section.claims)
        assert not section.blocks


def test_short_trainings_decide_nothing(sections: list[Section]) -> None:
    verdicts = {claim.says: claim.verdict for one in sections for claim in one.claims}
    for claim in (lra_claims.EQUAL, lra_claims.STEPS, language.SAME, dropout.BEST):
        assert verdicts[claim[1]] == OPEN, claim


def runs_of_dropout(quadratic: float, standard: float, seeds: int = 3) -> list[Measurement]:
    """One rate; without dropout the loss rises from 0.5 to 1. Seeds of the quadratic way differ by 0.01."""
    ways = {("none", 0.0): 1.0, ("quadratic", 0.1): quadratic, ("standard", 0.1): standard, ("1d", 0.1): standard}
    return [
        record(
            {"mode": mode, "rate": rate, "seed": seed},
            {"curve": [[1, 0.5], [2, loss]], "test_loss": end, "accuracy": 0.5},
        )
        for (mode, rate), loss in ways.items()
        for seed in range(3 if mode == "none" else seeds)
        for end in [loss + 0.01 * (seed - 1) * (mode == "quadratic")]
    ]


@pytest.mark.parametrize(
    ("quadratic", "standard", "best", "helps"),
    [
        (0.6, 0.8, "holds", "holds"),
        (0.9, 0.6, "does not hold", "holds"),
        (1.2, 1.205, OPEN, "does not hold"),
        (1.005, 0.9, "does not hold", OPEN),
    ],
)
def test_rules_of_dropout(quadratic: float, standard: float, best: str, helps: str) -> None:
    claims = dropout.claims_of(runs_of_dropout(quadratic, standard))
    assert [claim.verdict for claim in claims] == [best, helps]
    single = dropout.claims_of(runs_of_dropout(quadratic, standard, seeds=1))
    assert [claim.verdict for claim in single] == [OPEN, OPEN], "one seed decides nothing"


@pytest.mark.parametrize(
    ("none", "said"),
    [(1.0, "the test loss is lowest, 1.000, without any"), (2.0, "has 1d at rate 0.1; without dropout 2.000")],
)
def test_the_headline_of_dropout(none: float, said: str) -> None:
    rows = (("none", 0.0, 1, none), ("1d", 0.1, 1, 1.5))
    assert dropout._headline(Table("t", "", (), rows)).endswith(said)


def test_a_chart_says_what_it_draws() -> None:
    series = (Series("a", (1, 2), (3, 4), (None, 0.5)), Series("b", (1,), (2,), missing=(8,)))
    data = Chart("c", "C", "x", "y", series).data()
    assert data.rows == (
        ("a", 1, 3, None, None),
        ("a", 2, 4, 0.5, None),
        ("b", 1, 2, None, None),
        ("b", 8, None, None, None),
    )


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "has no results"),
        ("{", "is not JSON"),
        ("[1]", "is no measurement"),
        ('{"experiment": "x"}', "is no measurement"),
    ],
)
def test_wrong_folders_are_refused(
    content: str | None, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if content is not None:
        (tmp_path / "x.jsonl").write_text(content)
    assert main(["report", str(tmp_path)]) == 1
    assert message in capsys.readouterr().err
    with pytest.raises(SystemExit) as absent:
        main(["report", str(tmp_path / "absent")])
    assert absent.value.code == 2
