"""The runs of the attention maps: rates tuned with the first seed for the attentions that claims are judged by."""

from dataclasses import asdict, replace

from lab.tests.records import record

from fastmax_lab.experiments import maps
from fastmax_lab.report.page.sections.maps import at_best_rates

OURS = maps.TUNED[1]


def test_rates_are_tuned_with_the_first_seed() -> None:
    first = maps.runs("cpu")
    tried = sorted(run.lr for run in first if (run.attention, maps.data_of(run)) == (OURS, "mnist"))
    assert tried == [5e-4, 1e-3, 2e-3, 4e-3]
    assert {run.seed for run in first if run.attention in maps.TUNED} == {0}
    assert {run.seed for run in first if run.attention not in maps.TUNED} == {0, 1, 2}

    measured = [record(asdict(run), {"test_loss": abs(run.lr - 2e-3)}) for run in first if maps.data_of(run) == "mnist"]
    later = [run for run in maps.runs("cpu", measured) if run.attention == OURS and run.seed]
    assert [(maps.data_of(run), run.seed, run.lr) for run in later] == [("mnist", 1, 2e-3), ("mnist", 2, 2e-3)]


def test_names_of_the_usual_rate_have_none() -> None:
    names = [item.name for item in maps.items("cpu", [])]
    assert len(set(names)) == len(names)
    assert {"mnist-softmax-seed0", "mnist-softmax-lr0.002-seed0", "shakespeare-fastmax2-gated-seed2"} <= set(names)


def test_the_report_has_the_best_rate_of_each() -> None:
    run = next(run for run in maps.runs("cpu") if run.attention == OURS)
    losses = {(1e-3, 0): 0.3, (2e-3, 0): 0.2, (1e-3, 1): 0.1, (2e-3, 1): 0.4}
    found = [record(asdict(replace(run, lr=lr, seed=seed)), {"test_loss": loss}) for (lr, seed), loss in losses.items()]
    assert [d.values["test_loss"] for d in at_best_rates(found)] == [0.2, 0.4]
