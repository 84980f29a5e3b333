"""The rules of the sections on learning (maps, dropout, language, settings, recall) on made-up numbers."""

import base64
from typing import Any

import numpy as np
import pytest
from lab.tests.records import record

from fastmax_lab.measurements import Measurement
from fastmax_lab.report.page.map_panel import Panel, draw_panel, map_of, typical
from fastmax_lab.report.page.parts import AGREES, DIFFERS, OPEN, PARTLY, Chart, Series
from fastmax_lab.report.page.sections import dropout, language, lra_settings, maps, recall, recall_far
from fastmax_lab.report.page.tuned import Gap, compared, edges, gap, tuned

PAPER = "fastmax2, paper's scale"
SEEDS = (0, 1, 2)
JITTER = (0.0, 0.01, -0.01)


def test_a_gap_is_of_pairs() -> None:
    found = gap({0: 3.0, 1: 5.0, 7: 100.0}, {0: 1.0, 1: 2.0, 2: 0.0})
    assert found == Gap(2.5, pytest.approx(0.5), 2)
    assert gap({0: 1.0}, {1: 1.0}) is None


@pytest.mark.parametrize(
    ("mean", "error", "other", "side"),
    [(1.0, 0.49, 0.0, 1), (-1.0, 0.49, 0.0, -1), (1.0, 0.51, 0.0, 0), (1.0, None, 0.0, 0), (1.0, 0.1, 0.51, 0)],
)
def test_a_gap_is_clear_beyond_two_standard_errors(mean: float, error: float | None, other: float, side: int) -> None:
    assert Gap(mean, error, 3).side(other) == side


def trained(name: str, seed: int, data: str, *, keys: float, loss: float, score: float) -> Measurement:
    where = {"data": data, "model": {"layers": 1, "heads": 2, "dim": 8}} if data in ("mnist", "shapes") else {
        "text": data, "layers": 1, "heads": 2, "width": 8, "tokens": 16,
    }  # fmt: skip
    scored = {"accuracy": score} if "data" in where else {"bits_per_character": score}
    heads = [{"keys": keys + change, "distance": 1.0, "largest": 0.1} for change in (-0.01, 0.01)]
    settings = {"attention": name, "seed": seed, "steps": 9, "batch": 8, **where}
    return record(settings, {"train_loss": loss, "locality": [heads], **scored})


def maps_of(
    data: str, *, keys: float = 0.5, loss: float = 0.1, names: tuple[str, ...] = ("softmax", PAPER), seeds: int = 3
) -> list[Measurement]:
    """Softmax spreads over 0.3 of the keys; the loss is of Fastmax2."""
    return [
        trained(
            name, seed, data, keys=(0.3 if name == "softmax" else keys) + JITTER[seed] * (name != "softmax"),
            loss=0.1 if name == "softmax" else loss + JITTER[seed], score=0.9,
        )
        for name in names for seed in range(seeds)
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("mnist", "shakespeare", "verdict"),
    [(0.5, 0.6, AGREES), (0.2, 0.1, DIFFERS), (0.5, 0.1, PARTLY), (0.5, 0.302, PARTLY), (0.301, 0.302, OPEN)],
)
def test_how_local_maps_are(mnist: float, shakespeare: float, verdict: str) -> None:
    measurements = maps_of("mnist", keys=mnist) + maps_of("shakespeare", keys=shakespeare)
    claim = maps.local_claim(measurements)
    assert claim.verdict == verdict
    data, most = max((("mnist", mnist), ("shakespeare", shakespeare)), key=lambda one: abs(one[1] - 0.3))
    assert (
        claim.number == f"a row spreads over {100 * most:.0f} % of the keys against 30 % on {data}, standard error 0.6"
    )
    assert claim.seeds == 3


def test_locality_is_judged_by_the_paper_s_scale() -> None:
    """The other scale spreads wider, and does not count."""
    both = maps_of("mnist", keys=0.2) + maps_of("shakespeare", keys=0.2)
    wider = maps_of("mnist", keys=0.9, names=("fastmax2",)) + maps_of("shakespeare", keys=0.9, names=("fastmax2",))
    claim = maps.local_claim(both + wider)
    assert claim.verdict == DIFFERS
    assert claim.number.startswith("a row spreads over 20 %")


@pytest.mark.parametrize(
    ("mnist", "shakespeare", "verdict"),
    [(0.1, 0.1, AGREES), (0.111, 0.05, AGREES), (0.112, 0.1, PARTLY), (0.1, 0.2, PARTLY), (0.112, 0.2, DIFFERS)],
)
def test_what_converges(mnist: float, shakespeare: float, verdict: str) -> None:
    """At most two standard errors, 2 * 0.01 / √3, above softmax, however far below chance level."""
    measurements = maps_of("mnist", loss=mnist) + maps_of("shakespeare", loss=shakespeare)
    claim = maps.learns_claim(measurements)
    assert claim.verdict == verdict
    worst = ("mnist", mnist) if mnist > shakespeare else ("shakespeare", shakespeare)
    assert (
        mnist == shakespeare
        or claim.number == f"training loss on {worst[0]}: {worst[1]:.3f} against 0.100, standard error 0.006"
    )


def test_a_single_seed_does_not_show_what_converges() -> None:
    assert maps.learns_claim(maps_of("mnist", seeds=1) + maps_of("shakespeare", seeds=1)).verdict == OPEN


@pytest.mark.parametrize("claim", [maps.local_claim, maps.learns_claim])
def test_maps_of_the_real_data_sets_are_needed(claim: Any) -> None:
    """A pair on generated data, and one of the two on real data, decide nothing."""
    generated = maps_of("shapes") + maps_of("listops")
    assert claim(generated + maps_of("mnist", names=("softmax",))).verdict == OPEN
    assert claim(generated + maps_of("mnist") + maps_of("shakespeare", names=("softmax", "fastmax2"))).verdict == OPEN
    assert "shakespeare" in claim(maps_of("mnist")).notes[-1]
    assert claim(maps_of("mnist") + maps_of("shakespeare")).verdict == AGREES


def test_maps_say_what_was_trained() -> None:
    assert maps.models(maps_of("mnist") + maps_of("shakespeare")).rows == (
        ("mnist", 1, "2 of 4", 9, "8 images"),
        ("shakespeare", 1, "2 of 4", 9, "8 x 16 characters"),
    )


def with_maps(name: str, shares: list[list[float]]) -> Measurement:
    """Every map holds its layer and head; the second sample is empty."""
    packed = [
        [[_packed(np.full((2, 2), 10 * i + j)) for j in range(len(layer))], [_packed(np.zeros((2, 2)))] * len(layer)]
        for i, layer in enumerate(shares)
    ]
    heads = [[{"keys": keys, "distance": 1.0, "largest": 0.1} for keys in layer] for layer in shares]
    result = {"locality": heads, "maps": packed, "tokens": 2, "samples": [], "train_loss": 1.0, "accuracy": 0.5}
    settings = {"attention": name, "seed": 0, "data": "mnist", "steps": 9, "batch": 8}
    return record(settings | {"model": {"layers": 2, "heads": 2, "dim": 8}}, result)


def _packed(levels: np.ndarray) -> str:
    return base64.b64encode(levels.astype("<u2").tobytes()).decode()


def test_the_map_of_the_head_in_the_middle_of_its_layer_is_drawn() -> None:
    measured = with_maps("softmax", [[0.9, 0.2], [0.4, 0.6, 0.5]])
    assert [typical(measured, layer) for layer in (0, 1)] == [1, 2]
    chosen = map_of(measured, 1, 2, "a")
    assert (chosen.layer, chosen.head, chosen.keys) == (2, 3, 0.5)
    assert chosen.weights == pytest.approx(np.full((2, 2), 12 / 65535))


def test_panels_have_every_weight_of_the_json() -> None:
    measurements = [with_maps(name, [[0.5], [0.3], [0.4]]) for name in ("softmax", PAPER)]
    panel, every_head = maps.panels(measurements)
    table = panel.data()
    assert table.columns == ("attention", "layer", "head", "query", "key", "weight")
    assert [row[:5] for row in table.rows[:3]] == [
        ("(a) softmax", 3, 1, 0, 0),
        ("(a) softmax", 3, 1, 0, 1),
        ("(a) softmax", 3, 1, 1, 0),
    ]
    assert {row[5] for row in table.rows} == {20 / 65535}
    assert len(table.rows) == 8
    assert (len(every_head.maps), every_head.across) == (2, 1)
    assert draw_panel(every_head)[0].count(b"<image") == 3
    svg, png = draw_panel(panel)
    assert svg.count(b"<image") == 3, "two maps and the scale of their colours"
    assert png.startswith(b"\x89PNG")
    assert draw_panel(panel)[0] == svg
    assert isinstance(panel, Panel)
    assert maps.panels(measurements[:1]) == ()


def dropped(mode: str, rate: float, losses: tuple[float, ...], **settings: Any) -> list[Measurement]:
    """Return runs by seed with the loss at the end of a curve that was at 0.5."""
    own = {"mode": mode, "rate": rate, "data": "mnist", "examples": 10, "tested": 10, "steps": 20} | settings
    return [
        record(
            own | {"seed": seed},
            {"curve": [[10, 0.5, 0.5, 0.1], [20, loss, 0.6, 0.1]], "test_loss": loss, "accuracy": 0.6},
        )
        for seed, loss in enumerate(losses)
    ]


def of_dropout(quadratic: tuple[float, ...], others: float = 0.8, none: float = 1.0) -> list[Measurement]:
    measurements = dropped("none", 0.0, (none,) * 3) + dropped("quadratic", 0.1, quadratic)
    return measurements + [d for way in ("standard", "1d") for d in dropped(way, 0.1, (others,) * len(quadratic))]


@pytest.mark.parametrize(
    ("quadratic", "best", "helps"),
    [
        ((0.6, 0.61, 0.59), AGREES, AGREES),
        ((0.9, 0.91, 0.89), DIFFERS, AGREES),
        ((1.2, 1.21, 1.19), DIFFERS, DIFFERS),
        ((0.8, 0.81, 0.78), OPEN, AGREES),
        ((0.7, 1.5, 0.65), OPEN, OPEN),
        ((0.6,), OPEN, OPEN),
    ],
)
def test_rules_of_dropout_go_by_pairs(quadratic: tuple[float, ...], best: str, helps: str) -> None:
    claims = dropout.claims_of(of_dropout(quadratic))
    assert [claim.verdict for claim in claims] == [best, helps]


def test_paired_losses_tell_more_than_their_deviations() -> None:
    """Seeds differ by more than ways do, and each way is better with every seed."""
    none, quadratic = (1.0, 2.0, 3.0), (0.9, 1.89, 2.91)
    measurements = dropped("none", 0.0, none) + dropped("quadratic", 0.1, quadratic)
    assert dropout.claims_of(measurements)[1].verdict == AGREES


def test_the_best_way_needs_all_three() -> None:
    measurements = [d for d in of_dropout((0.6, 0.61, 0.59)) if d.settings["mode"] != "1d"]
    best, helps = dropout.claims_of(measurements)
    assert (best.verdict, helps.verdict) == (OPEN, AGREES)
    assert best.number == dropout.UNFINISHED


def test_dropout_that_has_nothing_to_mend_is_not_judged() -> None:
    claims = dropout.claims_of(of_dropout((0.3, 0.31, 0.29), none=0.5))
    assert [claim.verdict for claim in claims] == [OPEN, OPEN]
    assert all("nothing to improve" in claim.notes[-1] for claim in claims)


def test_dropout_says_who_is_best_and_that_accuracies_hardly_differ() -> None:
    measurements = of_dropout((0.9, 0.91, 0.89))
    for d in measurements:
        d.values["accuracy"] += JITTER[d.settings["seed"]] + (0.01 if d.settings["mode"] == "1d" else 0)
    claim = dropout.claims_of(measurements)[0]
    assert claim.number == "test loss at rate 0.1: quadratic +0.100 from standard, standard error 0.006"
    assert claim.notes == (
        "Accuracies are 60.0 to 61.0 %, with deviations over seeds of up to 1.0: they hardly differ.",
    )


def test_dropout_of_two_budgets_is_not_mixed() -> None:
    """The larger part is shown; curves of unequal length are drawn as far as all go."""
    measurements = of_dropout((0.6, 0.61, 0.59))
    measurements[1].values["curve"] = measurements[1].values["curve"][:1]
    section = dropout.section({"dropout": measurements + dropped("none", 0.0, (9.0,), steps=5)})
    assert "Left out: 1 runs" in section.intro
    (chart,) = section.blocks[0].charts
    assert {one.label: one.x for one in chart.series}["none"] == (10,)
    assert section.blocks[0].tables[0].rows[0][2:4] == (3, 1.0)


def run(name: str, lr: float, seed: int, value: float, **settings: Any) -> Measurement:
    """Return a run of language if it has tokens, else one of the Long Range Arena."""
    own = {"attention": name, "lr": lr, "seed": seed, "steps": 9, "layers": 1, "width": 8, "heads": 1, "batch": 4}
    dev = {"test": {"accuracy": value, "examples": 2000}, "dev_accuracy": value, "val_loss": value}
    return record(own | settings, dev)


def spoken(
    name: str, value: float, *, rates: tuple[float, ...] = (1.0, 2.0, 3.0), best: float = 2.0, seeds: int = 3,
    text: str = "shakespeare", tokens: int = 128,
) -> list[Measurement]:  # fmt: skip
    where: dict[str, Any] = {"text": text, "tokens": tokens}
    tried = [run(name, lr, 0, value + abs(lr - best), **where) for lr in rates]
    return tried + [run(name, best, seed, value + 0.1 * JITTER[seed], **where) for seed in range(1, seeds)]


@pytest.mark.parametrize(
    ("near", "far", "verdict"),
    [(1.01, 1.01, AGREES), (1.5, 1.5, DIFFERS), (1.01, 1.5, PARTLY), (1.5, None, DIFFERS)],
)
def test_language_is_judged_over_all_lengths(near: float, far: float | None, verdict: str) -> None:
    """Generated text, first by name, does not count."""
    measurements = spoken("softmax", 1.0, text="listops") + spoken(PAPER, 0.1, text="listops")
    measurements += spoken("softmax", 1.0) + spoken(PAPER, near)
    measurements += spoken("softmax", 1.0, tokens=512) + ([] if far is None else spoken(PAPER, far, tokens=512))
    (claim,) = language.section({"language": measurements}).claims
    assert claim.verdict == verdict
    assert claim.number.startswith(f"shakespeare, 128 tokens: {near - 1:+.3f} nats")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"seeds": 1}, "One seed decides nothing"),
        ({"rates": (2.0, 3.0)}, "2 learning rates were tried for Fastmax2, 3 for softmax"),
    ],
)
def test_language_that_was_not_tuned_alike_decides_nothing(options: dict[str, Any], said: str) -> None:
    measurements = spoken("softmax", 1.0) + spoken(PAPER, 1.5, **options)
    (claim,) = language.section({"language": measurements}).claims
    assert claim.verdict == OPEN
    assert said in claim.notes[0]


def test_language_names_the_best() -> None:
    values = {"softmax": 1.0, "softmax, gated": 0.8, "fastmax2, gated": 0.9, "fastmax4": 1.1, PAPER: 1.3}
    measurements = [d for name, value in values.items() for d in spoken(name, value)]
    section = language.section({"language": measurements})
    assert section.headline == "language: on shakespeare, 128 tokens, fastmax2, gated is -0.100 nats from softmax"
    assert section.claims[0].number == "shakespeare, 128 tokens: +0.300 nats, standard error 0.000"


def test_longer_trainings_have_a_block_and_curves_of_their_own() -> None:
    short, long = spoken("softmax", 1.0), spoken("softmax", 0.5)
    for d in long:
        d.settings["steps"] = 90
        noted = [[step, 2.0 + d.settings["seed"]] for step in range(1, 91)]
        d.values.update(loss_curve=noted, gradient_norms=noted)
    blocks = language.section({"language": [*short, *long]}).blocks
    assert [block.title for block in blocks] == [
        "shakespeare, 128 tokens, 9 steps",
        "shakespeare, 128 tokens, 90 steps",
    ]
    assert [len(block.charts) for block in blocks] == [1, 3]
    (series,) = blocks[1].charts[1].series
    assert (len(series.x), series.x[:2], series.y[0], series.deviation[0]) == (45, (2.0, 4.0), 3.0, 1.0)


def test_the_largest_norms_of_gradients_are_those_after_the_first_tenth() -> None:
    measurements = spoken("softmax", 1.0) + spoken(PAPER, 1.5)
    for d in measurements:
        d.values["gradient_norms"] = [
            [step, 9.0 if step < 2 else 1.0 + (d.settings["seed"] == 2)] for step in range(20)
        ]
    (block,) = language.section({"language": measurements}).blocks
    assert block.findings[-1].text.endswith("is 2.00 with softmax and 2.00 with Fastmax2 at the paper's scale.")


def test_rates_at_the_edge_are_said() -> None:
    measurements = spoken("softmax", 1.0) + spoken(PAPER, 1.5, best=3.0) + spoken("fastmax4", 1.2, best=1.0)
    section = language.section({"language": measurements})
    assert "has the highest rate that was tried, so its gap is an upper estimate" in section.claims[0].notes[0]
    said = section.blocks[0].findings[1].text
    assert f"The highest rate that was tried is the best for: {PAPER}." in said
    assert "The lowest rate that was tried is the best for: fastmax4." in said
    alone = tuned(spoken("softmax", 1.0, rates=(2.0,)), lambda _: 0.0, lambda _: 0.0)
    assert edges(alone) == ""


def test_of_rates_that_are_equally_good_it_is_the_one_with_more_seeds() -> None:
    twice = [run("softmax", 1.0, 0, 0.5), run("softmax", 2.0, 0, 0.5), run("softmax", 2.0, 1, 0.4)]
    for higher in (True, False):
        found = tuned(twice, lambda d: d.values["dev_accuracy"], lambda d: d.values["dev_accuracy"], higher=higher)
        assert found["softmax"].rate == 2.0


def settings_of(gaps: dict[str, tuple[float, ...]]) -> list[Measurement]:
    """Return runs by seed, in points from softmax at 30 %."""
    values = {"softmax": (0.0,) * 3} | gaps
    return [
        run(name, 1.0, seed, (30 + value) / 100, task="image", length=64)
        for name, of in values.items() for seed, value in enumerate(of)
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("gaps", "said"),
    [
        ((5.0, 5.1, 4.9), "from softmax +5.0 points."),
        ((0.5, 0.51, 0.49), "from softmax +0.5 points (within the noise)."),
        ((-1.0, 9.0, 6.0), "from softmax +4.7 points (within the noise)."),
        ((5.0,), "from softmax +5.0 points (one seed)."),
    ],
)
def test_settings_within_the_noise_are_said_to_be(gaps: tuple[float, ...], said: str) -> None:
    """That over seeds, or that of 2,000 examples: a point and more."""
    measurements = settings_of({"fastmax4": gaps, PAPER: (-4.0, -4.1, -3.9), "softmax, gated": (4.0, 4.1, 3.9)})
    (block,) = lra_settings.section({"lra-settings": measurements}).blocks
    text = block.findings[0].text
    assert text.startswith("on image, of 2 Fastmax variants, the best by dev is fastmax4: ")
    assert said in text
    assert text.endswith("Softmax, gated: +4.0 points. Fastmax2 as in the paper: -4.0 points")


def test_what_orders_a_table_is_in_it() -> None:
    measurements = [run("a", 1.0, 0, 0.2), run("b", 1.0, 0, 0.3), run("b", 2.0, 0, 0.1)]
    runs = tuned(measurements, lambda d: d.values["val_loss"], lambda d: 100 * d.values["dev_accuracy"], higher=True)
    table = compared(runs, "t", "T", "test", decimals=1, chosen_unit="dev")
    assert table.columns[-2] == "dev"
    assert [(row[0], row[1], row[7], row[-2]) for row in table.rows] == [("b", 1.0, 2, 30.0), ("a", 1.0, 1, 20.0)]
    assert len(table.columns) == len(table.rows[0])


def recalled(name: str, width: int, pairs: int, accuracy: float, filler: int = 0, seed: int = 0) -> Measurement:
    settings = {"attention": name, "width": width, "heads": 2, "pairs": pairs, "filler": filler, "seed": seed}
    settings |= {"names": 8, "steps": 4, "memory": [2.0, 12.0]}
    return record(settings, {"accuracy": accuracy, "steps_done": 4, "reach": None})


def test_recall_may_have_answers_far_away_only() -> None:
    section = recall.section({"recall": [recalled("fastmax2", 64, 1, 1.0, filler=512)]})
    assert section.headline == ""
    assert len(section.blocks[0].tables[0].rows) == 1
    assert "All have one seed." in section.intro


def test_recall_says_how_many_seeds_there_are_and_who_falls() -> None:
    measurements = [recalled("softmax", width, 16, 1.0, seed=seed) for width in (32, 64) for seed in (0, 1)]
    measurements += [recalled("performer", 32, 16, 0.75), recalled("performer", 64, 16, 0.07)]
    section = recall.section({"recall": measurements})
    assert "2 of 4 settings have a second seed" in section.intro
    said = section.blocks[0].findings[1].text
    assert said == "performer falls from 75.0 to 7.0 % of 16 pairs with the larger heads"
    assert recall.falls(measurements[:-1]) == ""


def far_away(
    name: str, accuracy: float, seed: int = 0, length: int = 4096, lr: float = 3e-3, **more: int
) -> Measurement:
    settings = {"recipe": name, "pairs": 16, "distractors": 0, "length": length, "lr": lr, "seed": seed, "steps": 6000}
    values = {"accuracy": accuracy, "steps_done": 4000, "length_reached": length, "state": 1000, "parameters": 9}
    values |= {"seconds": 1.0, "by_distance": {"512": [accuracy, 10], "1024": [accuracy / 2, 10]}}
    return record(settings | {"layers": 2, "width": 64} | more, values)


def test_recall_from_afar_names_who_recalls() -> None:
    measurements = [far_away("softmax", 1.0, seed) for seed in (0, 1)]
    measurements += [far_away("fastmax2", 0.995), far_away("window", 0.2), far_away("fastmax2", 0.5, length=512)]
    section = recall_far.section({"recall-far": measurements})
    far, near, every = section.blocks
    assert far.findings[0].text == "16 pairs among 4,096 tokens are recalled by fastmax2 and softmax"
    assert near.findings[0].text == "16 pairs among 512 tokens are recalled by none"
    assert len(every.tables[0].rows) == len(measurements)
    dots, distance, state = far.charts
    assert dots.categories == ("softmax", "fastmax2", "window")
    assert [(one.label, one.x, one.deviation) for one in dots.series] == [
        ("softmax", (100,), (0,)), ("fastmax2", (99.5,), (None,)), ("window", (20,), (None,)),
    ]  # fmt: skip
    assert next((one.label, one.x, one.y) for one in distance.series) == ("softmax", (512, 1024), (100, 50))
    assert [(one.label, one.x, one.y) for one in state.series] == [
        ("softmax", (1000,), (100,)), ("fastmax2", (1000,), (99.5,)), ("window", (1000,), (20,)),
    ]  # fmt: skip
    assert [row[0] for row in far.tables[0].rows] == ["softmax", "fastmax2", "window"]


@pytest.mark.parametrize(
    ("accuracies", "said"),
    [
        (
            {"softmax": 0.5, "fastmax2": 0.6},
            "by none; softmax does not learn it in these steps, so the task decides nothing",
        ),
        ({"softmax": 1.0, "fastmax2": 0.6}, "by softmax, none in constant memory"),
    ],
)
def test_recall_from_afar_says_what_decides_nothing(accuracies: dict[str, float], said: str) -> None:
    section = recall_far.section({"recall-far": [far_away(name, accuracy) for name, accuracy in accuracies.items()]})
    assert section.blocks[0].findings[0].text.endswith(said)


def test_recall_from_afar_takes_the_rate_with_the_most_seeds() -> None:
    runs = [far_away("softmax", 0.99, lr=1e-3), *(far_away("softmax", 0.98, seed) for seed in (0, 1))]
    assert [d.settings["lr"] for d in recall_far.chosen(runs)["softmax"]] == [3e-3, 3e-3]
    assert [d.settings["lr"] for d in recall_far.chosen(runs[:2])["softmax"]] == [1e-3]


def test_rows_of_dots_have_their_names() -> None:
    chart = Chart("c", "C", "x", "", (Series("best", (5, 6), (0, 1), missing=(7,)),), categories=("a", "b"))
    data = chart.data()
    assert data.columns == ("series", "name", "x", "place", "standard deviation", "area")
    assert data.rows == (
        ("best", "a", 5, 0, None, None),
        ("best", "b", 6, 1, None, None),
        ("best", None, 7, None, None, None),
    )
