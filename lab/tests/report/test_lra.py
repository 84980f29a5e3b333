"""The report on the Long Range Arena: tables, accuracy at equal time, and the rules that judge."""

from dataclasses import replace
from pathlib import Path

import pytest
from lab.tests.records import record

from fastmax_lab.measurements import Measurement
from fastmax_lab.report.page import build
from fastmax_lab.report.page.parts import OPEN, Claim, Section, Table
from fastmax_lab.report.page.results import load
from fastmax_lab.report.page.sections import lra, lra_claims, lra_runs, lra_small, lra_speed, lra_time


def of(results: Path, experiment: str) -> list[Measurement]:
    return load(results)[experiment]


def test_equal_time_counts_steps_by_what_they_cost(results: Path, sections: list[Section]) -> None:
    table = next(t for t in build.tables(sections) if t.name == "lra-equal-time")
    (timed,) = of(results, "lra-pace")
    median, best = ({name: t[which] for name, t in timed.values["seconds"].items()} for which in ("median", "best"))
    rows = {row[1]: row for row in table.rows}
    kernels = {name: name for name in ("fastmax1", "fastmax2", "fastmax2, gated", "softmax")}
    kernels |= {"softmax, plain formula": "vanilla", "fastmax2, paper's scale": "fastmax2"}
    assert rows.keys() == kernels.keys()
    for name, kernel in kernels.items():
        most = 60 if name == "fastmax1" else 40  # it has a longer run
        assert rows[name][2] == pytest.approx(median[kernel] / median["fastmax2"])
        assert rows[name][3] == pytest.approx(best[kernel] / best["fastmax2"])
        assert rows[name][4] == pytest.approx(min(40, 40 * median["fastmax2"] / median[kernel]))
        assert rows[name][7] == pytest.approx(min(most, 40 * median["softmax"] / median[kernel]))
        assert rows[name][9] == pytest.approx(2 * (2 * (2500 / 16 + 1.1**2)) ** 0.5), "16 examples, seeds differ by 1.1"
    curve = {
        (d.settings["attention"], d.settings["steps"]): d.values["curves"]["dev"]
        for d in of(results, "lra")
    }  # fmt: skip
    for name, steps, early, late in (("fastmax2", 40, 5, None), ("softmax", 40, None, 8), ("fastmax1", 60, None, 8)):
        for column in (early, late):
            if column is not None:
                seen = [100 * p[2] for p in curve[name, steps] if p[0] <= rows[name][column - 1]]
                assert rows[name][column] == max(seen, default=None)


def test_equal_time_shows_the_look_before_and_the_one_after() -> None:
    def run(attention: str, looks: list[tuple[int, float]]) -> Measurement:
        settings = {"task": "text", "attention": attention, "seed": 0, "steps": 100, "batch": 16, "length": 64}
        curves = {"dev": [[step, 0.5, accuracy] for step, accuracy in looks], "train": []}
        return record(settings, {"curves": curves, "examples": {"val": 100}})

    timed = {"task": "text", "batch": 16, "length": 64, "group_lengths": None, "attention_dropout": None}
    pace = record(
        timed, {"seconds": {"fastmax2": {"median": 1.0, "best": 0.9}, "softmax": {"median": 2.5, "best": 2.4}}}
    )
    runs = [run("fastmax2", [(50, 0.55), (100, 0.6)]), run("softmax", [(25, 0.5), (50, 0.59), (100, 0.63)])]
    table = lra_time.table(runs, [], [pace])
    assert table is not None
    rows = {row[1]: row for row in table.rows}
    assert rows["softmax"][4:9] == pytest.approx((40, 50.0, 59.0, 100, 63.0))
    assert rows["fastmax2"][4:9] == pytest.approx((100, 60.0, 60.0, 100, 60.0))


def test_time_to_accuracy_is_that_of_the_first_look_and_of_the_quickest_run() -> None:
    def run(attention: str, steps: int, looks: list[tuple[int, float]]) -> Measurement:
        settings = {"task": "text", "attention": attention, "seed": 0, "steps": steps, "batch": 16, "length": 64}
        return record(settings, {"curves": {"dev": [[step, 0.5, accuracy] for step, accuracy in looks]}})

    timed = {"task": "text", "batch": 16, "length": 64, "group_lengths": None, "attention_dropout": None}
    pace = record(
        timed, {"seconds": {"fastmax1": {"median": 6.0, "best": 6.0}, "softmax": {"median": 60.0, "best": 60.0}}}
    )
    equal = [run("fastmax1", 100, [(50, 0.55), (100, 0.61)]), run("softmax", 100, [(50, 0.6), (100, 0.63)])]
    longer = [run("fastmax1", 300, [(90, 0.62)]), run("fastmax1", 400, [(200, 0.7)])]
    table = lra_time.to_accuracy(equal, longer, [pace])
    assert table.rows == (("text", 60.0, "fastmax1", 90, 9.0, 0.18), ("text", 60.0, "softmax", 50, 50.0, 1.0))
    (chart,) = lra_time.to_accuracy_chart(table)
    assert {one.label: one.x for one in chart.series} == {"fastmax1": (9.0,), "softmax": (50.0,)}


def test_accuracy_against_the_clock(results: Path, sections: list[Section]) -> None:
    (chart,) = [chart for chart in build.charts(sections) if chart.name == "lra-accuracy-listops-clock"]
    (timed,) = of(results, "lra-pace")
    runs = {
        (d.settings["attention"], d.settings["steps"]): d.values["curves"]["dev"]
        for d in of(results, "lra")
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
        minutes = timed.values["seconds"][kernel]["median"] / 60
        assert one.x == pytest.approx([step * minutes for step, _, _ in runs[name, steps]])
        assert one.y == pytest.approx([100 * accuracy for _, _, accuracy in runs[name, steps]])
        assert one.dashed is (one.label != name)


def timed(task: str, name: str, early: float | None, late: float, steps: int = 1000) -> lra_time.Row:
    return lra_time.Row(task, name, 1.0, 1.0, 500, early, early, steps, late, 3.0)


def judged(*rows: lra_time.Row) -> Claim:
    return lra_time.claim(Table("t", "", (), rows))


def test_equal_time_is_judged_beyond_noise() -> None:
    def verdict(*pairs: tuple[float | None, float | None], late: tuple[float, float] = (50.0, 50.0)) -> str:
        """Accuracies of Fastmax1 and of softmax in a task each; `late` are those after longer runs of Fastmax1."""
        rows = []
        for task, (ours, theirs) in zip(("text", "retrieval"), pairs, strict=False):
            rows += [timed(task, "fastmax1", ours, late[0], steps=4000), timed(task, "fastmax2", 99.0, 99.0)]
            rows += [timed(task, name, theirs, late[1]) for name in ("softmax", "softmax, plain formula")]
        return judged(*rows).verdict

    assert verdict((60.0, 50.0)) == verdict((60.0, None)) == "holds"
    assert verdict((50.5, 50.0), (50.0, 50.5)) == OPEN
    assert verdict((60.0, None), (50.5, 50.0)) == "holds in part", "level in one of two"
    assert verdict((52.9, None)) == OPEN, "chance level is not ahead of a run that was not evaluated yet"
    assert verdict((50.0, 60.0)) == "does not hold"
    assert verdict((50.0, 60.0), (60.0, 50.0)) == "holds in part"
    assert verdict((50.0, 50.0), late=(60.0, 50.0)) == "holds"
    assert verdict((60.0, 50.0), late=(60.0, 65.0)) == OPEN, "ahead first, behind in the end"


def test_softmax_has_what_it_had_at_its_next_look() -> None:
    softmax = timed("text", "softmax", 50.0, 60.0)
    fastmax = timed("text", "fastmax1", 60.0, 60.0)
    assert judged(fastmax, softmax).verdict == "holds"
    assert judged(fastmax, softmax._replace(early_next=58.0)).verdict == OPEN
    assert judged(fastmax, softmax._replace(early=None, early_next=58.0)).verdict == OPEN
    level = softmax._replace(early=60.0, early_next=70.0)
    assert judged(fastmax, level).verdict == OPEN, "what it had later does not put Fastmax behind"


def test_softmax_that_goes_on_alone_is_no_comparison() -> None:
    runs = timed("text", "fastmax1", 55.0, 55.0), timed("text", "softmax", 55.0, 70.0)
    assert judged(*runs).verdict == OPEN
    other = timed("text", "fastmax2", 55.0, 70.0, steps=3000)
    assert judged(*runs, other).verdict == OPEN, "that another went on says nothing of Fastmax1"


def test_a_claim_on_fastmax1_needs_fastmax1_and_enough_steps() -> None:
    assert judged(timed("text", "fastmax2", 90.0, 90.0), timed("text", "softmax", 50.0, 50.0)).verdict == OPEN
    short = timed("text", "fastmax1", 90.0, 90.0, steps=60), timed("text", "softmax", 50.0, 50.0, steps=60)
    assert judged(*short).verdict == OPEN


def test_what_ended_early_and_behind_is_not_said_to_be_faster() -> None:
    def claimed(late: float) -> Claim:
        return judged(timed("text", "fastmax1", 60.0, 60.0), timed("text", "softmax", 50.0, late))

    assert claimed(62.0).verdict == "holds"
    assert claimed(70.0).verdict == "holds in part"
    assert claimed(70.0).notes == ("Fastmax1 ended early and behind softmax on text.", lra_time.ONE_RATE)
    assert claimed(70.0).number == "dev accuracy on text when fastmax2 ends: 60.0 % against 50.0 %"


def trained(task: str, attention: str, accuracy: float, steps: int = 1000, kind: str = "") -> Measurement:
    settings = {"task": task, "attention": attention, "steps": steps, "batch": 16, "seed": 0}
    result = {"test": {"accuracy": accuracy, "examples": 2000}, "dev_accuracy": accuracy}
    return record(settings, result, f"{task}-{attention}{kind}-seed0")


def test_means_are_over_tasks_that_an_attention_has_all_of() -> None:
    runs = [trained("text", "softmax", 0.6), trained("image", "softmax", 0.3), trained("text", "linear", 0.5)]
    table = lra.accuracies(runs)
    rows = {row[0]: row for row in table.rows}
    at = table.columns.index("mean")
    assert rows["softmax"][at:] == pytest.approx((45.0, (61.95 + 40.57) / 2))
    assert rows["linear"][at] is None
    assert [row[-1] for row in lra.dev_accuracies(runs).rows] == [pytest.approx(45.0), None]


def test_the_small_table_has_the_rate_of_the_best_try_and_a_dash_for_what_is_not_finished() -> None:
    def small(attention: str, kind: str, lr: float, accuracy: float, seed: int = 0) -> Measurement:
        settings = {"attention": attention, "lr": lr, "seed": seed}
        result = {"test": {"accuracy": accuracy}, "dev_accuracy": accuracy}
        return record(settings, result, f"image-{attention}-{kind}-lr{lr}-seed{seed}")

    tried = [
        small("softmax", "tuning", 1e-3, 0.2),
        small("softmax", "tuning", 2e-3, 0.3),
        small("linear", "tuning", 1e-3, 0.2),
    ]
    ended = [small("softmax", "whole", 2e-3, accuracy, seed) for seed, accuracy in enumerate((0.4, 0.5))]
    softmax, linear = lra_small.accuracies(*lra_small.parts([*tried, *ended])).rows
    assert softmax[:4] == ("softmax", 2e-3, 2, pytest.approx(45.0))
    assert softmax[5:] == (2, None, None)
    assert linear == ("linear", 1e-3, 1, None, None, 0, None, None)


def test_what_has_not_left_chance_level_is_a_dash_and_is_not_drawn() -> None:
    runs = [trained("text", "softmax", 0.6), trained("text", "fastmax1", 0.51), trained("pathfinder", "softmax", 0.5)]
    table = lra.accuracies(runs)
    cells = {row[0]: dict(zip(table.columns, row, strict=True)) for row in table.rows}
    assert cells["softmax"]["text (1,000 steps)"] == 60.0
    assert cells["fastmax1"]["text (1,000 steps)"] is None
    assert cells["softmax"]["pathfinder (1,000 steps)"] is None
    assert [d.settings["task"] for d in lra_runs.learned(runs)] == ["text", "text"]


def test_the_best_fastmax_is_chosen_by_dev_accuracy_in_each_task() -> None:
    runs = [trained("text", "fastmax1", 0.6), trained("text", "fastmax2", 0.7), trained("image", "fastmax1", 0.4)]
    runs += [trained("image", "fastmax2", 0.3), trained("text", "softmax", 0.9), trained("image", "softmax", 0.9)]
    runs[0].values["dev_accuracy"] = 0.8
    table = lra.accuracies(runs)
    row = dict(zip(table.columns, table.rows[-1], strict=True))
    assert row["attention"] == lra.BEST
    assert (row["text (1,000 steps)"], row["text (1,000 steps), paper"]) == (60.0, None)
    assert (row["image (1,000 steps)"], row["mean"], row["mean, paper"]) == (40.0, 50.0, None)
    assert lra.dev_accuracies(runs).rows[-1] == (lra.BEST, 80.0, 40.0, 60.0)
    assert lra.BEST not in [row[0] for row in lra.accuracies(runs[-3:]).rows], "there is no choice"


def test_runs_of_more_steps_stand_in_a_table_of_their_own(sections: list[Section]) -> None:
    tables = {table.name: table for table in build.tables(sections)}
    assert [row[:3] for row in tables["lra-accuracy-longer"].rows] == [("listops", "fastmax1", 60)]
    assert tables["lra-accuracy-longer"].rows[0][5] == 40
    assert [row[2] for row in tables["lra-budget"].rows] == [60, 40]


@pytest.mark.parametrize(("pairs", "said"), [(147_086, False), (16_328, True)])
def test_other_data_than_the_benchmarks_is_said(pairs: int, said: bool) -> None:
    settings = {"task": "retrieval", "seed": 0, "lr": 2e-4}
    measurement = record(settings, {"examples": {"train": pairs}})
    assert ("16,328 citation pairs" in lra._intro([measurement])) is said


def test_what_may_favour_fastmax_is_said() -> None:
    measurement = record({"task": "text", "seed": 0, "lr": 5e-4}, {})
    for words in ("One seed.", "tried out with Fastmax", "the dev set is the test set"):
        assert words in lra._intro([measurement])


def test_accuracies_are_judged_where_something_was_learned() -> None:
    def judged(*runs: tuple[str, float, float], steps: int = 1000, gated: float | None = None) -> Claim:
        measurements = [
            trained(task, name, accuracy, steps)
            for task, softmax, fastmax in runs
            for name, accuracy in (("softmax", softmax), ("fastmax2", fastmax - 0.1), (lra_runs.PAPER, fastmax))
        ]
        if gated is not None:
            measurements += [trained(task, "fastmax2, gated", gated, steps) for task, _, _ in runs]
        return lra_claims.equal(measurements, [])

    five = [(task, 0.6, 0.595) for task in ("listops", "text", "retrieval", "image", "pathfinder")]
    assert judged(*five).verdict == "holds"
    assert judged(*five, steps=100).verdict == OPEN
    behind = [(task, 0.6, 0.5) for task, _, _ in five]
    assert judged(*behind).verdict == "does not hold"
    assert judged(*behind, gated=0.7).verdict == "does not hold", "the gate is not the paper's"
    claim = judged(*five[:4], ("pathfinder", 0.51, 0.49), gated=0.51)
    assert claim.verdict == "holds in part"
    assert claim.number == "largest gap: listops, -0.5 points, standard error 2.2"
    assert claim.notes == ("Open, because all are at chance level or the runs are short: pathfinder.",)
    uneven = [(task, 0.6, 0.6 + gap) for (task, _, _), gap in zip(five, (-0.3, 0.3, 0, 0, 0), strict=True)]
    assert judged(*uneven).verdict == "holds in part", "one task far behind"
    assert judged(("text", 0.6, 0.58)).verdict == "holds in part", "two points of one task are noise"


def test_losses_are_judged_where_training_was_long_enough_and_something_learned() -> None:
    def judged(*runs: tuple[str, int, float], accuracy: float = 0.6) -> str:
        measurements = [
            trained(task, name, accuracy, steps) for task, steps, _ in runs for name in ("softmax", "fastmax1")
        ]
        for d, loss in zip(measurements, [x for _, _, gap in runs for x in (1.0 + gap, 1.0)], strict=True):
            d.values["curves"] = {"train": [[10 * i, loss + 0.01 * (-1) ** i, 0.5] for i in range(10)]}
        return lra_claims.by_steps(measurements, []).verdict

    assert judged(("text", 1500, -0.1), ("retrieval", 600, 0.1)) == "holds"
    assert judged(("text", 1500, 0.1), ("retrieval", 600, -0.1)) == "does not hold"
    assert judged(("text", 1500, 0.1), ("image", 1500, -0.1)) == "holds in part"
    assert judged(("text", 1500, 0.005)) == "holds", "within the noise of the last batches"
    assert judged(("retrieval", 600, -0.1)) == OPEN
    assert judged(("retrieval", 1500, -0.1), accuracy=0.5) == OPEN


def test_runs_at_chance_level_are_listed_with_their_length() -> None:
    found = lra.chance([trained("text", "softmax", 0.51), trained("text", "fastmax1", 0.66)])
    assert found.rows == (("text", 1000, 16, "softmax"),)
    assert lra.chance([trained("text", "softmax", 0.51)] * 3).rows == found.rows, "three seeds are one attention"
    assert not lra.chance([trained("image", "softmax", 0.2), trained("text", "fastmax1", 0.66)]).rows
    listops = trained("listops", "softmax", 0.175)
    assert not lra.chance([listops]).rows
    listops.values["most_frequent"] = 0.17
    assert lra.chance([listops]).rows, "always the same class"


def test_speed_against_accuracy() -> None:
    """Take for each task the runs of equal steps that most attentions have, and means over these; none at chance level."""

    def timed(task: str, seconds: float) -> Measurement:
        names = ("vanilla", "softmax", "fastmax1", "linear", "fastmax2")
        times = {name: {"median": seconds / (1 + i)} for i, name in enumerate(names)}
        used = {name: {"peak": (2 + i) * 2**20, "before": 2**20} for i, name in enumerate(names)}
        settings = {"task": task, "attention_dropout": 0.0}
        return record(settings, {"seconds": times, "bytes": used})

    runs = [trained("text", name, accuracy) for name, accuracy in (("softmax", 0.6), ("fastmax1", 0.5625))]
    runs += [trained("text", "fastmax2, paper's scale", 0.65), trained("text", "fastmax2, gated", 0.8)]
    runs += [trained("text", "fastmax1", 0.7, 4000)]
    runs += [trained("image", name, accuracy) for name, accuracy in (("softmax", 0.3), ("fastmax1", 0.4))]
    runs += [trained("image", name, 0.25 + 0.25 * i, 100) for i, name in enumerate(("softmax", "fastmax1", "linear"))]
    runs += [trained("listops", "softmax", 0.3)]
    runs += [trained("retrieval", name, 0.51) for name in ("softmax", "fastmax1")]
    tasks = ("text", "image", "listops", "retrieval")
    charts = lra_speed.speed_accuracy({"lra": runs, "lra-speed": [timed(task, 2.0) for task in tasks]})
    shown = {
        chart.name.removeprefix("lra-speed-accuracy"): {one.label: (*one.x, *one.y, *one.area) for one in chart.series}
        for chart in charts
    }
    assert shown == {
        "-text": {
            "vanilla": (1, 60, 1),
            "softmax": (2, 60, 2),
            "fastmax1": (3, 56.25, 3),
            "fastmax2, paper's scale": (5, 65, 5),
        },
        "-image": {"vanilla": (1, 25, 1), "softmax": (2, 25, 2), "fastmax1": (3, 50, 3), "linear": (4, 75, 4)},
    }
    assert [chart.title for chart in charts] == [
        "text, 1,000 steps; the largest circle is 5 MiB",
        "image, 100 steps; the largest circle is 4 MiB",
    ]
    runs = [trained(task, name, 0.6) for task in ("text", "image") for name in ("softmax", "fastmax1")]
    *_, means = lra_speed.speed_accuracy({"lra": runs, "lra-speed": [timed(task, 2.0) for task in tasks]})
    assert means.name == "lra-speed-accuracy"
    assert lra_speed.speed_accuracy({}) == []


def test_the_mean_gap_at_tuned_rates_is_drawn_against_speed() -> None:
    names = ("vanilla", "softmax", "fastmax1", "fastmax2")
    times = {name: {"median": 1 / (1 + i)} for i, name in enumerate(names)}
    used = {name: {"peak": 2**20, "before": 0} for name in names}
    timed = [
        record({"task": task, "attention_dropout": 0.0}, {"seconds": times, "bytes": used})
        for task in ("image", "listops")
    ]
    runs = [*at_rates("image", (-1.0, -1.0, -1.0)), *at_rates("listops", (-3.0, -3.0, -3.0))]
    (chart,) = lra_speed.mean_gap({"lra-settings": runs, "lra-speed": timed})
    assert {one.label: (*one.x, *one.y) for one in chart.series} == {
        "vanilla": (1, 0), "softmax": pytest.approx((2, 0)), "fastmax1": pytest.approx((3, -2)),
        lra_runs.PAPER: pytest.approx((4, -2)),
    }  # fmt: skip
    assert lra_speed.mean_gap({"lra-settings": at_rates("image", (-1.0, -1.0, -1.0)), "lra-speed": timed}) == []


def test_speed_without_the_plain_formula_decides_nothing() -> None:
    def timed(task: str, *names: str) -> Measurement:
        result = {"seconds": {name: {"median": 1.0} for name in names}, "bytes": {}, "tokens": 4000}
        return record({"task": task, "attention_dropout": 0.0}, result)

    some = [timed("text", "fastmax2", "softmax"), timed("listops", "fastmax1")]
    section = lra_speed.section({"lra-speed": some})
    assert section.claims[0].verdict == OPEN
    assert section.blocks[0].findings[0].text == "The plain formula was not timed."
    table = section.blocks[0].tables[0]
    assert [(row[0], row[1], row[3]) for row in table.rows] == [
        ("fastmax2", 1.0, None),
        ("softmax", 1.0, None),
        ("fastmax1", None, 1.0),
    ]
    slow = timed("text", "vanilla", "softmax", "fastmax1", "fastmax2")
    assert lra_speed.section({"lra-speed": [slow]}).claims[0].verdict == "does not hold"


def at_rates(task: str, gaps: tuple[float, ...], rates: tuple[float, ...] = (1e-3, 2e-3, 4e-3)) -> list[Measurement]:
    """Runs of softmax, Fastmax1 and the paper's Fastmax2, which are `gaps` points and nats from softmax, a gap per seed."""
    runs = []
    for seed, gap in enumerate(gaps):
        for lr in rates if seed == 0 else rates[:1]:
            for name, far in (("softmax", 0.0), ("fastmax1", gap), (lra_runs.PAPER, gap)):
                share = 0.3 + 0.01 * seed + 0.01 * far - lr  # the first rate is the best
                run = trained(task, name, share, 1500)
                run = replace(run, settings=run.settings | {"lr": lr, "seed": seed, "length": 64})
                run.values.update(dev_accuracy=share, curves={"train": [[1, 2.0 + far, 0.5]]})
                runs.append(run)
    return runs


def equal_time(*gaps: float) -> tuple[list[Measurement], list[Measurement]]:
    """Return runs of equal time at tuned rates, and the pace of their steps."""
    runs = at_rates("image", gaps)
    for run in runs:
        run.settings.update(batch=16, steps={"softmax": 1000}.get(run.settings["attention"], 4000))
    timed = {"task": "image", "batch": 16, "length": 64, "group_lengths": None, "attention_dropout": None}
    of_step = {name: {"median": seconds} for name, seconds in (("softmax", 1.0), ("fastmax1", 0.2))}
    return runs, [record(timed, {"seconds": of_step})]


def test_equal_time_at_tuned_rates_is_judged_first() -> None:
    def judged(*gaps: float) -> Claim:
        return lra_claims.by_clock(None, *equal_time(*gaps))

    claim = judged(8.0, 9.0, 8.5)
    assert claim.verdict == "holds"
    assert claim.number == "test accuracy on image in 0.80 of softmax's time: +8.5 points, standard error 1.0"
    assert (claim.rests_on, claim.seeds) == ("lra-clock-image", 3)
    assert claim.notes == ("At tuned rates there are runs on image.",)
    assert judged(-8.0, -9.0, -8.5).verdict == "does not hold"
    assert judged(0.5, -0.5, 0.2).verdict == OPEN
    assert judged(8.0).verdict == OPEN, "one seed"
    assert lra_claims.by_clock(None, at_rates("image", (8.0, 9.0)), []).verdict == OPEN, "no step was timed"


def test_runs_at_one_rate_on_other_tasks_may_hold_a_claim_back() -> None:
    level = Table("t", "", (), (timed("text", "fastmax1", 50.0, 50.0), timed("text", "softmax", 50.0, 70.0)))
    ahead = Table(
        "t", "", (), (*level.rows, timed("image", "fastmax1", 60.0, 60.0), timed("image", "softmax", 50.0, 50.0))
    )
    assert lra_claims.by_clock(level, *equal_time(8.0, 9.0, 8.5)).verdict == "holds", "the others are open"
    assert lra_claims.by_clock(ahead, *equal_time(8.0, 9.0, 8.5)).verdict == "holds in part"


def test_runs_at_one_rate_stand_beside_those_at_tuned_rates() -> None:
    rows = timed("text", "fastmax1", 60.0, 60.0), timed("text", "softmax", 50.0, 50.0)
    claim = lra_claims.by_clock(Table("t", "", (), rows), [], [])
    assert claim == judged(*rows), "without tuned runs they are judged"
    assert lra_claims._of_one_rate(claim) == (
        "With one rate for all and one seed it holds: dev accuracy on text when fastmax2 ends: 60.0 % against 50.0 %.",
    )


def test_accuracies_at_tuned_rates_are_judged_first() -> None:
    full = [trained("text", "softmax", 0.6), trained("text", lra_runs.PAPER, 0.5)]
    claim = lra_claims.equal(full, [*at_rates("image", (-1.0, 1.0, 0.5)), *at_rates("listops", (-8.0, -9.0, -8.5))])
    assert claim.verdict == "holds in part"
    assert claim.number.startswith("largest gap at tuned rates: fastmax2, paper's scale on listops of 64 tokens, -8.5")
    assert claim.seeds == 3
    assert claim.notes[1].startswith("At full length, with one rate for all and one seed, the largest is text, -10.0")
    assert lra_claims.equal(full, at_rates("listops", (-8.0, -9.0, -8.5))).verdict == "does not hold"
    for too_few in (at_rates("image", (-8.0,)), at_rates("image", (-8.0, -8.5), rates=(1e-3,))):
        assert lra_claims.equal(full, too_few) == lra_claims.equal(full, [])


def test_losses_at_tuned_rates_are_judged_first() -> None:
    claim = lra_claims.by_steps([], at_rates("image", (0.1, 0.2, 0.15)))
    assert claim.verdict == "holds"
    assert claim.number == "training loss on image of 64 tokens, at tuned rates: +0.150 nats, standard error 0.029"
    assert lra_claims.by_steps([], at_rates("image", (-0.1, -0.2, -0.15))).verdict == "does not hold"
    assert lra_claims.by_steps([], at_rates("image", (-0.1, 0.2, -0.15))).verdict == "holds", "within the noise"
