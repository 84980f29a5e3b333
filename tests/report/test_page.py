"""The report of a miniature of everything: tables rebuilt from the JSON, no number that is not in it, files and claims."""

import csv
import json
from collections.abc import Iterator
from html import escape
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fastmax.cli import main
from fastmax.report.page import build, documents, html, words
from fastmax.report.page.parts import OPEN, Chart, Claim, Section, Series, Table
from fastmax.report.page.sections import dropout, language, lra, lra_speed, lra_time, recall, scaling
from tests.reproduce import miniature


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    with pytest.MonkeyPatch.context() as patch:
        return miniature.measured(tmp_path_factory.mktemp("reproduced"), patch)


@pytest.fixture(scope="module")
def report(results: Path) -> Path:
    assert main(["report", str(results)]) == 0
    return results / "report"


@pytest.fixture(scope="module")
def sections(results: Path) -> list[Section]:
    return build.sections(documents.load(results))


def numbers(value: Any) -> Iterator[float]:
    if isinstance(value, bool) or value is None or isinstance(value, str):
        return
    if isinstance(value, int | float):
        yield float(value)
    else:
        for one in value.values() if isinstance(value, dict) else value:
            yield from numbers(one)


def every(results: Path) -> list[dict[str, Any]]:
    return [json.loads(path.read_text()) for path in sorted(results.glob("*/*.json"))]


def test_everything_is_written(report: Path, sections: list[Section]) -> None:
    charts, tables = build.charts(sections), build.tables(sections)
    assert {one.name for one in sections if one.blocks} == set(words.NAMES)
    for chart in charts:
        for kind in ("svg", "png", "csv"):
            assert (report / "figures" / f"{chart.name}.{kind}").stat().st_size > 50
    assert len({chart.name for chart in charts}) == len(charts)
    assert len({table.name for table in tables}) == len(tables)
    assert {path.stem for path in (report / "tables").glob("*.csv")} == {table.name for table in tables}


def test_the_page_needs_no_network(report: Path) -> None:
    page = (report / "index.html").read_text()
    for needle in ("http://", "https://", "src=", "@import", "url("):
        found = [part for part in page.split(needle)[1:] if not part.startswith(("www.w3.org", "#"))]
        assert not [part for part in found if not part.startswith(("purl.org", "creativecommons", "matplotlib.org"))], (
            needle
        )
    assert "NaN" not in page


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
    held = {round(x * factor, 9) for d in every(results) for x in numbers(d["result"]) for factor in (1, 1e3, 100)}
    held |= {
        round((row["peak"] - row["before"]) / 2**20, 9)
        for d in every(results) if d["experiment"] == "scaling" for row in d["result"]["memory"]
    }  # fmt: skip
    checked = 0
    for section in sections:
        if section.name in ("scaling", "exactness", "maps", "recall", "language"):
            for chart in build.charts([section]):
                values = [y for one in chart.series for y in (one.x if chart.categories else one.y)]
                assert {round(y, 9) for y in values} <= held, chart.name
                checked += len(values)
    assert checked > 50


def test_tables_are_rebuilt_from_the_json(results: Path, sections: list[Section]) -> None:
    tables = {table.name: table for table in build.tables(sections)}
    found = every(results)
    runs = [d for d in found if d["experiment"] == "dropout"]
    assert len(tables["dropout"].rows) == 4
    for mode, rate, seeds, loss, deviation, lowest, _, accuracy, _ in tables["dropout"].rows:
        own = [d["result"] for d in runs if (d["settings"]["mode"], d["settings"]["rate"]) == (mode, rate)]
        assert seeds == len(own) == 2
        assert loss == pytest.approx(mean(r["curve"][-1][1] for r in own))
        assert deviation == pytest.approx(stdev(r["curve"][-1][1] for r in own))
        assert lowest == pytest.approx(mean(min(p[1] for p in r["curve"]) for r in own))
        assert accuracy == pytest.approx(100 * mean(r["accuracy"] for r in own))
    softmax = next(d for d in found if d["experiment"] == "language" and d["settings"]["attention"] == "softmax")
    for name, lr, loss, _, gap, *_ in tables["language-listops-32"].rows:
        own = next(d for d in found if d["experiment"] == "language" and d["settings"]["attention"] == name)
        assert (lr, loss) == (own["settings"]["lr"], own["result"]["val_loss"])
        assert gap == pytest.approx(loss - softmax["result"]["val_loss"])
    for name, test, dev, theirs, *means in tables["lra-accuracy"].rows:
        assert means == [test, dev, theirs], "there is one task"
        if name == lra.BEST:
            continue
        runs = [d for d in found if d["experiment"] == "lra" and d["settings"]["attention"] == name]
        own = next(d["result"] for d in runs if d["settings"]["steps"] == 40)
        assert (test, dev) == pytest.approx((100 * own["test"]["accuracy"], 100 * own["dev_accuracy"]))
        listops = {"softmax": 38.37, "fastmax1": 37.20, "fastmax2": 37.40, "linear": 16.13}
        assert theirs == listops.get(name.removesuffix(", paper's scale"))
    speed = {d["settings"]["task"]: d["result"] for d in found if d["experiment"] == "lra-speed"}
    table = tables["lra-speed-0"]
    for row in table.rows:
        for task, at in (("listops", 1), ("text", 4)):
            best = {name: t["best"] for name, t in speed[task]["seconds"].items()}
            assert table.columns[at] == f"{task}, steps/s"
            assert row[at : at + 2] == pytest.approx((1 / best[row[0]], best["vanilla"] / best[row[0]]))


def test_equal_time_counts_steps_by_what_they_cost(results: Path, sections: list[Section]) -> None:
    table = next(t for t in build.tables(sections) if t.name == "lra-equal-time")
    (timed,) = [d for d in every(results) if d["experiment"] == "lra-pace"]
    best = {name: t["best"] for name, t in timed["result"]["seconds"].items()}
    rows = {row[1]: row for row in table.rows}
    kernels = {name: name for name in ("fastmax1", "fastmax2", "fastmax2, gated", "softmax")}
    kernels |= {"softmax, plain formula": "vanilla", "fastmax2, paper's scale": "fastmax2"}
    assert rows.keys() == kernels.keys()
    for name, kernel in kernels.items():
        most = 60 if name == "fastmax1" else 40  # it has a longer run
        assert rows[name][2] == pytest.approx(best[kernel] / best["fastmax2"])
        assert rows[name][3] == pytest.approx(min(40, 40 * best["fastmax2"] / best[kernel]))
        assert rows[name][6] == pytest.approx(min(most, 40 * best["softmax"] / best[kernel]))
        assert rows[name][8] == pytest.approx(200 * (0.5 / 16) ** 0.5), "16 examples are tested"
    curve = {
        (d["settings"]["attention"], d["settings"]["steps"]): d["result"]["curves"]["dev"]
        for d in every(results) if d["experiment"] == "lra"
    }  # fmt: skip
    for name, steps, early, late in (("fastmax2", 40, 4, None), ("softmax", 40, None, 7), ("fastmax1", 60, None, 7)):
        for column in (early, late):
            if column is not None:
                seen = [100 * p[2] for p in curve[name, steps] if p[0] <= rows[name][column - 1]]
                assert rows[name][column] == max(seen, default=None)


def test_equal_time_shows_the_look_before_and_the_one_after() -> None:
    def run(attention: str, looks: list[tuple[int, float]]) -> dict[str, Any]:
        settings = {"task": "text", "attention": attention, "seed": 0, "steps": 100, "batch": 16, "length": 64}
        curves = {"dev": [[step, 0.5, accuracy] for step, accuracy in looks], "train": []}
        return {"settings": settings, "result": {"curves": curves, "test": {"examples": 100}}}

    timed = {"task": "text", "batch": 16, "length": 64, "group_lengths": None, "attention_dropout": None}
    pace = {"settings": timed, "result": {"seconds": {"fastmax2": {"best": 1.0}, "softmax": {"best": 2.5}}}}
    runs = [run("fastmax2", [(50, 0.55), (100, 0.6)]), run("softmax", [(25, 0.5), (50, 0.59), (100, 0.63)])]
    table = lra_time.table(runs, [], [pace])
    assert table is not None
    rows = {row[1]: row for row in table.rows}
    assert rows["softmax"][3:8] == pytest.approx((40, 50.0, 59.0, 100, 63.0))
    assert rows["fastmax2"][3:8] == pytest.approx((100, 60.0, 60.0, 100, 60.0))
    assert "softmax 50.0 % (at its next look 59.0)" in lra_time.claim(table).evidence


def test_accuracy_against_the_clock(results: Path, sections: list[Section]) -> None:
    (chart,) = [chart for chart in build.charts(sections) if chart.name == "lra-accuracy-listops-clock"]
    (timed,) = [d for d in every(results) if d["experiment"] == "lra-pace"]
    runs = {
        (d["settings"]["attention"], d["settings"]["steps"]): d["result"]["curves"]["dev"]
        for d in every(results) if d["experiment"] == "lra"
    }  # fmt: skip
    expected = {name: (name, 40, name) for name in ("fastmax1", "fastmax2", "fastmax2, gated", "softmax")}
    expected |= {
        "softmax, plain formula": ("softmax", 40, "vanilla"),
        "fastmax1, 60 steps": ("fastmax1", 60, "fastmax1"),
        "fastmax2, paper's scale": ("fastmax2, paper's scale", 40, "fastmax2"),
    }
    assert {one.label for one in chart.series} == expected.keys()
    for one in chart.series:
        name, steps, kernel = expected[one.label]
        minutes = timed["result"]["seconds"][kernel]["best"] / 60
        assert one.x == pytest.approx([step * minutes for step, _, _ in runs[name, steps]])
        assert one.y == pytest.approx([100 * accuracy for _, _, accuracy in runs[name, steps]])
        assert one.dashed is (one.label != name)


def timed(task: str, name: str, early: float | None, late: float, steps: int = 10) -> lra_time.Row:
    return lra_time.Row(task, name, 1.0, 10, early, early, steps, late, 3.0)


def judged(*rows: lra_time.Row) -> Claim:
    return lra_time.claim(Table("t", "", (), rows))


def test_equal_time_is_judged_beyond_noise() -> None:
    def verdict(*pairs: tuple[float | None, float | None], late: tuple[float, float] = (50.0, 50.0)) -> str:
        """Accuracies of Fastmax and of softmax in a task each; `late` are those after longer runs of Fastmax."""
        rows = []
        for task, (ours, theirs) in zip(("text", "retrieval"), pairs, strict=False):
            rows += [timed(task, name, ours, late[0], steps=20) for name in ("fastmax1", "fastmax2")]
            rows += [timed(task, name, theirs, late[1]) for name in ("softmax", "softmax, plain formula")]
        return judged(*rows).verdict

    assert verdict((60.0, 50.0)) == verdict((60.0, None), (50.5, 50.0)) == "holds"
    assert verdict((50.5, 50.0), (50.0, 50.5)) == OPEN
    assert verdict((52.9, None)) == OPEN, "guessing is not ahead of what nobody has looked at"
    assert verdict((50.0, 60.0)) == "does not hold"
    assert verdict((50.0, 60.0), (60.0, 50.0)) == "holds in part"
    assert verdict((50.0, 50.0), late=(60.0, 50.0)) == "holds"
    assert verdict((60.0, 50.0), late=(60.0, 65.0)) == "holds in part"


def test_softmax_has_what_it_had_at_its_next_look() -> None:
    softmax = timed("text", "softmax", 50.0, 60.0)
    fastmax = timed("text", "fastmax2", 60.0, 60.0)
    assert judged(fastmax, softmax).verdict == "holds"
    assert judged(fastmax, softmax._replace(early_next=58.0)).verdict == OPEN
    assert judged(fastmax, softmax._replace(early=None, early_next=58.0)).verdict == OPEN


def test_softmax_that_goes_on_alone_is_no_comparison() -> None:
    assert judged(timed("text", "fastmax2", 55.0, 55.0), timed("text", "softmax", 55.0, 70.0)).verdict == OPEN


def test_what_ended_early_and_behind_is_not_said_to_be_faster() -> None:
    def claimed(late: float) -> Claim:
        return judged(timed("text", "fastmax2", 60.0, 60.0), timed("text", "softmax", 50.0, late))

    assert claimed(62.0).verdict == "holds"
    assert claimed(70.0).verdict == "holds in part"
    assert claimed(70.0).evidence.endswith("in the end: text: fastmax2 60.0 %, softmax 70.0 %.")


def test_means_are_over_tasks_that_an_attention_has_all_of() -> None:
    runs = [trained("text", "softmax", 0.6), trained("image", "softmax", 0.3), trained("text", "linear", 0.5)]
    table = lra.accuracies(runs, "a", "")
    rows = {row[0]: row for row in table.rows}
    at = table.columns.index("mean")
    assert rows["softmax"][at : at + 2] == pytest.approx((45.0, 45.0))
    assert rows["softmax"][at + 2] == pytest.approx((61.95 + 40.57) / 2)
    assert rows["linear"][at] is None


def test_the_best_fastmax_is_chosen_by_dev_accuracy_in_each_task() -> None:
    runs = [trained("text", "fastmax1", 0.6), trained("text", "fastmax2", 0.7), trained("image", "fastmax1", 0.4)]
    runs += [trained("image", "fastmax2", 0.3), trained("text", "softmax", 0.9), trained("image", "softmax", 0.9)]
    runs[0]["result"]["dev_accuracy"] = 0.8
    table = lra.accuracies(runs, "a", "")
    row = dict(zip(table.columns, table.rows[-1], strict=True))
    assert row["attention"] == lra.BEST
    assert (row["text"], row["text, dev"], row["text, paper"]) == (60.0, 80.0, None)
    assert (row["image"], row["mean"], row["mean, paper"]) == (40.0, 50.0, None)
    assert lra.BEST not in [row[0] for row in lra.accuracies(runs[-3:], "a", "").rows], "there is no choice"


def test_runs_of_fewer_steps_stand_in_a_table_of_their_own(sections: list[Section]) -> None:
    tables = {table.name: table for table in build.tables(sections)}
    assert [row[0] for row in tables["lra-accuracy-short"].rows] == ["linear"]
    assert [row[0] for row in tables["lra-accuracy-longer"].rows] == ["fastmax1"]
    assert [row[2] for row in tables["lra-budget"].rows] == [60, 40, 20]


@pytest.mark.parametrize(("pairs", "said"), [(147_086, False), (16_328, True)])
def test_other_data_than_the_benchmarks_is_said(pairs: int, said: bool) -> None:
    document = {"settings": {"task": "retrieval"}, "result": {"examples": {"train": pairs}}}
    assert ("16,328 citation pairs" in lra._intro([document])) is said


def test_settings_are_compared_with_softmax_of_the_same_seeds(results: Path, sections: list[Section]) -> None:
    (table,) = [table for table in build.tables(sections) if table.name == "lra-settings-listops"]
    found = [d for d in every(results) if d["experiment"] == "lra-settings"]
    accuracy = {
        (d["settings"]["attention"], d["settings"]["seed"]): 100 * d["result"]["test"]["accuracy"] for d in found
    }
    rows = {row[0]: row for row in table.rows}
    assert set(rows) == {name for name, _ in accuracy}
    assert rows["softmax"][2] == pytest.approx((accuracy["softmax", 0] + accuracy["softmax", 1]) / 2)
    assert rows["softmax"][6] == 2
    assert rows["fastmax2"][4] == pytest.approx(accuracy["fastmax2", 0] - accuracy["softmax", 0])
    dev = [d["result"]["dev_accuracy"] for row in table.rows for d in found if d["settings"]["attention"] == row[0]]
    assert dev[0] == max(dev)


def trained(task: str, attention: str, accuracy: float, steps: int = 1000) -> dict[str, Any]:
    settings = {"task": task, "attention": attention, "steps": steps, "batch": 16, "seed": 0}
    result = {"test": {"accuracy": accuracy, "examples": 2000}, "dev_accuracy": accuracy}
    return {"settings": settings, "result": result}


def test_accuracies_are_judged_where_something_was_learned() -> None:
    def judged(*runs: tuple[str, float, float], steps: int = 1000) -> tuple[str, str]:
        documents = [
            trained(task, name, accuracy, steps)
            for task, softmax, fastmax in runs
            for name, accuracy in (("softmax", softmax), ("fastmax2", fastmax), ("fastmax1", fastmax - 0.1))
        ]
        claim = lra._equal(documents)
        return claim.verdict, claim.evidence

    five = [(task, 0.6, 0.595) for task in ("listops", "text", "retrieval", "image", "pathfinder")]
    assert judged(*five)[0] == "holds"
    assert judged(*five, steps=100)[0] == OPEN
    assert judged(*[(task, 0.6, 0.5) for task, _, _ in five])[0] == "does not hold"
    verdict, said = judged(*five[:4], ("pathfinder", 0.51, 0.49))
    assert verdict == "holds in part"
    assert "mean gap of the best by dev -0.5 points over 4 tasks" in said
    assert "nothing is decided: pathfinder" in said
    assert "best by dev fastmax2 59.5" in said


def test_losses_are_judged_where_training_was_long_enough() -> None:
    def judged(*runs: tuple[str, int, float]) -> str:
        documents = [trained(task, name, 0.5, steps) for task, steps, _ in runs for name in ("softmax", "fastmax1")]
        for d, loss in zip(documents, [x for _, _, gap in runs for x in (1.0 + gap, 1.0)], strict=True):
            d["result"]["curves"] = {"train": [[10, loss, 0.5]]}
        return lra._curves(documents).verdict

    assert judged(("text", 1500, -0.1), ("retrieval", 600, 0.1)) == "holds"
    assert judged(("text", 1500, 0.1), ("retrieval", 600, -0.1)) == "does not hold"
    assert judged(("text", 1500, 0.1), ("image", 1500, -0.1)) == "holds in part"
    assert judged(("retrieval", 600, -0.1)) == OPEN


def test_what_still_guesses_is_said_with_how_long_was_tried() -> None:
    (found,) = lra.guessing([trained("text", "softmax", 0.51), trained("text", "fastmax1", 0.66)])
    assert found.text.endswith("guessing: text, 1,000 steps of 16 examples: softmax.")
    assert lra.guessing([trained("image", "softmax", 0.2), trained("text", "fastmax1", 0.66)]) == []
    listops = trained("listops", "softmax", 0.175)
    assert lra.guessing([listops]) == []
    listops["result"]["most_frequent"] = 0.17
    assert lra.guessing([listops]), "always the same class"


def test_speed_against_accuracy() -> None:
    """Of each task the runs of equal steps that most attentions have, unless all guess; means where all tasks have both."""

    def timed(task: str, seconds: float) -> dict[str, Any]:
        names = ("vanilla", "softmax", "fastmax1", "linear", "fastmax2")
        times = {name: {"best": seconds / (1 + i)} for i, name in enumerate(names)}
        used = {name: {"peak": (2 + i) * 2**20, "before": 2**20} for i, name in enumerate(names)}
        settings = {"task": task, "attention_dropout": 0.0}
        return {"settings": settings, "result": {"seconds": times, "bytes": used}}

    runs = [trained("text", name, accuracy) for name, accuracy in (("softmax", 0.6), ("fastmax1", 0.5))]
    runs += [trained("text", "fastmax2, paper's scale", 0.65), trained("text", "fastmax2, gated", 0.8)]
    runs += [trained("text", "fastmax1", 0.7, 4000)]
    runs += [trained("image", name, accuracy) for name, accuracy in (("softmax", 0.3), ("fastmax1", 0.4))]
    runs += [trained("image", name, 0.1 * i, 100) for i, name in enumerate(("softmax", "fastmax1", "linear"))]
    runs += [trained("listops", "softmax", 0.3)]
    runs += [trained("retrieval", name, 0.51) for name in ("softmax", "fastmax1")]
    tasks = ("text", "image", "listops", "retrieval")
    charts = lra_speed.speed_accuracy({"lra": runs, "lra-speed": [timed(task, 2.0) for task in tasks]})
    shown = {
        chart.name.removeprefix("lra-speed-accuracy"): {one.label: (*one.x, *one.y, *one.area) for one in chart.series}
        for chart in charts
    }
    assert shown == {
        "-text": {"softmax": (2, 60, 360), "fastmax1": (3, 50, 540), "fastmax2, paper's scale": (5, 65, 900)},
        "-image": {"softmax": (2, 0, 450), "fastmax1": (3, 10, 675), "linear": (4, 20, 900)},
        "": {"softmax": (2, 30, 600), "fastmax1": (3, 30, 900)},
    }
    assert lra_speed.speed_accuracy({}) == []


def test_who_recalls_is_said_for_each_head_dimension() -> None:
    def run(name: str, width: int, pairs: int, accuracy: float) -> dict[str, Any]:
        settings = {"attention": name, "width": width, "heads": 2, "pairs": pairs}
        return {"settings": settings, "result": {"accuracy": accuracy}}

    runs = [run("softmax", width, 64, 1.0) for width in (32, 64)] + [run("linear", 32, 16, 1.0)]
    runs += [run("fastmax2", 64, 64, 0.995), run("fastmax2", 32, 64, 0.9)]
    said = recall.found_by_heads(runs)
    assert (
        said
        == "Over 99 % of 64 pairs are recalled with heads of 16 by softmax; with heads of 32 by fastmax2 and softmax"
    )
    assert recall.found_by_heads(runs[-1:]).endswith("with heads of 16 by none")


def test_break_even_is_between_the_lengths_where_the_faster_changes() -> None:
    def cell(tokens: int, ours: float, theirs: float) -> dict[str, Any]:
        return {"tokens": tokens, "seconds": {"fastmax2": {"best": ours}, "vanilla": {"best": theirs}}}

    cells = [cell(100, 2.0, 1.0), cell(400, 4.0, 8.0)]
    said, n = scaling.break_even(cells, "fastmax2", "vanilla")
    assert said == "200"
    assert n == pytest.approx(200)
    assert scaling.break_even(cells[1:], "fastmax2", "vanilla") == ("below 400", None)
    assert scaling.break_even(cells[:1], "fastmax2", "vanilla") == ("above 100", None)
    assert scaling.break_even([], "fastmax2", "vanilla") == ("–", None)
    first, last, power = scaling.growth(cells, "vanilla", 32)
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
    begin, end, power = scaling.growth(cells, "fastmax2", 32)
    assert (begin, end) == (8192, 65536)
    assert power == pytest.approx(1.0, abs=0.1)
    assert scaling.growth(cells[: tokens.index(first) + 2], "fastmax2", 32)[0] == first
    assert scaling.growth(cells[: tokens.index(first) + 1], "fastmax2", 32) == (None, None, None)


def test_older_results_may_lack_facts_of_their_machine() -> None:
    machine = {"processor": "P", "cores": 2, "threads": 1, "torch": "2", "fastmax": "0", "command": "c"}
    old = {"experiment": "lra", "name": "n", "settings": {}, "result": {}, "seconds": 1, "machine": machine}
    (row,) = html.runs({"lra": [old]}).rows
    assert row == ("lra", "n", None, 1, "P", 1, "2", "0", None, "c")
    assert "1 measurements on P (2 cores), torch 2" in html._provenance({"lra": [old]})


@given(st.data())
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_folder_that_is_not_finished_can_be_drawn(results: Path, data: st.DataObject) -> None:
    """Any part of the files, such as there are while an experiment runs: sections, tables and data of all charts."""
    whole = documents.load(results)
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
    assert "Of 5 claims of the paper: 2 hold, 1 does not hold and 2 were not tested here." in said


def test_claims_without_results_are_open() -> None:
    for one in build.SECTIONS:
        section = one.section({})
        assert all(claim.verdict == OPEN for claim in section.claims)
        assert not section.blocks


def test_short_trainings_decide_nothing(sections: list[Section]) -> None:
    verdicts = {claim.says: claim.verdict for one in sections for claim in one.claims}
    for claim in (lra.EQUAL, lra.STEPS, language.SAME, dropout.BEST):
        assert verdicts[claim[1]] == OPEN, claim


def rows_of_dropout(quadratic: float, standard: float, seeds: int = 3) -> Table:
    """One rate; without dropout the loss rises from 0.5 to 1."""
    rows = [("none", 0.0, 3, 1.0, 0.01, 0.5, 0.01, 50.0, 1.0)]
    rows += [
        (mode, 0.1, seeds, loss, 0.01, 0.5, 0.01, 50.0, 1.0)
        for mode, loss in (("quadratic", quadratic), ("standard", standard))
    ]
    return Table("dropout", "", (), tuple(rows))


@pytest.mark.parametrize(
    ("quadratic", "standard", "best", "helps"),
    [
        (0.6, 0.8, "holds", "holds"),
        (0.9, 0.6, "does not hold", "holds"),
        (1.2, 1.205, "holds in part", "does not hold"),
        (1.005, 0.9, "does not hold", "holds in part"),
    ],
)
def test_rules_of_dropout(quadratic: float, standard: float, best: str, helps: str) -> None:
    claims = dropout.claims_of(rows_of_dropout(quadratic, standard))
    assert [claim.verdict for claim in claims] == [best, helps]
    single = dropout.claims_of(rows_of_dropout(quadratic, standard, seeds=1))
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
        ("[1]", "is no result of"),
        ('{"experiment": "x"}', "is no result of"),
    ],
)
def test_wrong_folders_are_refused(
    content: str | None, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if content is not None:
        (tmp_path / "x").mkdir()
        (tmp_path / "x" / "y.json").write_text(content)
    assert main(["report", str(tmp_path)]) == 1
    assert message in capsys.readouterr().err
    with pytest.raises(SystemExit) as absent:
        main(["report", str(tmp_path / "absent")])
    assert absent.value.code == 2
