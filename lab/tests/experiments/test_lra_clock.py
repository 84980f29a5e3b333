"""Equal time: every attention has the same rates, then further seeds at its best, in steps that fit the same minutes."""

from lab.tests.records import record

from fastmax_lab.experiments import lra_clock


def test_rates_are_tuned_with_the_first_seed_and_seeds_follow_at_the_best() -> None:
    tuning = lra_clock.items("cpu", [])
    assert [(item.settings["attention"], item.settings["lr"]) for item in tuning] == [
        (name, lr) for name in lra_clock.STEPS for lr in lra_clock.RATES
    ]
    assert {item.settings["steps"] for item in tuning if item.settings["attention"] == "fastmax1"} == {5000}
    found = [record(item.settings, {"dev_accuracy": 0.3 - abs(item.settings["lr"] - 2e-3)}) for item in tuning[:3]]
    more = [item.settings for item in lra_clock.items("cpu", found)[len(tuning) :]]
    assert [(run["attention"], run["lr"], run["seed"]) for run in more] == [("softmax", 2e-3, 1), ("softmax", 2e-3, 2)]
    assert lra_clock.items("quick", []) == []
