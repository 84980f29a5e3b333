"""The small Table 1: rates are tuned, then whole trainings follow at the best rate, seed by seed."""

from lab.tests.records import record

from fastmax_lab.baselines import SEVEN
from fastmax_lab.experiments import lra_small
from fastmax_lab.measurements import Measurement


def tuned(name: str, lr: float, accuracy: float, steps: int = lra_small.TUNING.steps or 0) -> Measurement:
    settings = {"attention": name, "lr": lr, "steps": steps, "task": "image", "seed": 0}
    return record(settings, {"dev_accuracy": accuracy})


def test_every_attention_is_tuned_alike() -> None:
    items = lra_small.items("cpu", [])
    assert {(item.settings["attention"], item.settings["lr"]) for item in items} == {
        (name, lr) for name in lra_small.ATTENTIONS for lr in lra_small.RATES
    }
    assert {item.settings["steps"] for item in items} == {lra_small.TUNING.steps}
    assert {changes.get("attention", name) for name, changes in lra_small.ATTENTIONS.items()} == set(SEVEN)


def test_whole_trainings_follow_at_the_best_rate() -> None:
    complete = [tuned("softmax", lr, accuracy) for lr, accuracy in zip(lra_small.RATES, (0.2, 0.3, 0.25), strict=True)]
    unfinished = [tuned("fastmax2", 1e-3, 0.9), tuned("softmax", 4e-3, 0.9, steps=5)]
    items = lra_small.items("cpu", complete + unfinished)
    whole = [item.settings for item in items if item.settings["steps"] == lra_small.WHOLE.steps]
    assert [(run["attention"], run["lr"], run["seed"]) for run in whole] == [
        ("softmax", 2e-3, seed) for seed in lra_small.SEEDS
    ]
