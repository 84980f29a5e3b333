"""The small Table 1: tuning runs first, then whole trainings at the best rate, seed by seed."""

from typing import Any

from fastmax_lab.experiments import lra_small


def document(name: str, lr: float, accuracy: float, steps: int = lra_small.TUNING.steps or 0) -> dict[str, Any]:
    settings = {"attention": name, "lr": lr, "steps": steps, "task": "image", "seed": 0}
    return {"settings": settings, "result": {"dev_accuracy": accuracy}}


def test_every_attention_is_tuned_alike() -> None:
    items = lra_small.items("cpu", [])
    assert {(item.settings["attention"], item.settings["lr"]) for item in items} == {
        (name, lr) for name in lra_small.ATTENTIONS for lr in lra_small.RATES
    }
    assert {item.settings["steps"] for item in items} == {lra_small.TUNING.steps}


def test_whole_trainings_follow_at_the_best_rate() -> None:
    tuned = [document("softmax", lr, accuracy) for lr, accuracy in zip(lra_small.RATES, (0.2, 0.3, 0.25), strict=True)]
    unfinished = [document("fastmax2", 1e-3, 0.9), document("softmax", 4e-3, 0.9, steps=5)]
    whole = lra_small.items("cpu", tuned + unfinished)[len(lra_small.ATTENTIONS) * len(lra_small.RATES) :]
    assert [(item.settings["attention"], item.settings["lr"], item.settings["seed"]) for item in whole] == [
        ("softmax", 2e-3, seed) for seed in lra_small.SEEDS
    ]
    assert {item.settings["steps"] for item in whole} == {lra_small.WHOLE.steps}
