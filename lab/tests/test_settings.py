"""Settings: the rules of a dataclass are in the types of its fields, and `check` holds them."""

from dataclasses import dataclass, fields
from typing import Annotated, Any

import pytest

from fastmax_lab import baselines
from fastmax_lab._settings import OneOf, Range, Rule, SettingError, check
from fastmax_lab.commands.lra import RunSettings
from fastmax_lab.commands.reproduce import BUDGETS
from fastmax_lab.experiments import items
from fastmax_lab.lra.config import ModelPreset, TrainPreset
from fastmax_lab.lra.run import RunConfig


@dataclass(frozen=True)
class Made:
    needed: Annotated[str, OneOf(("a", "b"))]
    count: Annotated[int, Range(at_least=1, below=10)] = 3
    share: Annotated[float | None, Range(above=0, at_most=1)] = None
    sizes: Annotated[tuple[int, ...], Range(at_least=2)] = (2,)
    even: Annotated[int, Rule(lambda value: "must be even" if value % 2 else None)] = 0
    free: int = 7

    def __post_init__(self) -> None:
        check(self)


@pytest.mark.parametrize(
    ("name", "value", "refusal"),
    [
        ("needed", "c", "must be one of a, b, got 'c'"),
        ("needed", None, "must be one of a, b, got None"),
        ("count", 0, "must be at least 1 and below 10, got 0"),
        ("count", 10, "must be at least 1 and below 10, got 10"),
        ("share", float("nan"), "must be above 0 and at most 1, got nan"),
        ("share", 0.0, "must be above 0 and at most 1, got 0.0"),
        ("sizes", (3, 1), "must be at least 2, got 1"),
        ("sizes", (), "needs at least one value"),
        ("even", 3, "must be even"),
    ],
)
def test_a_value_that_breaks_a_rule_is_refused(name: str, value: Any, refusal: str) -> None:
    with pytest.raises(SettingError) as caught:
        Made(**{"needed": "a", name: value})
    assert (caught.value.name, caught.value.refusal, str(caught.value)) == (name, refusal, f"{name} {refusal}")


def test_other_values_are_taken() -> None:
    assert Made("a").share is None
    assert Made("b", count=9, share=1.0, sizes=(2, 5), even=-2, free=-1).sizes == (2, 5)


def test_the_options_of_a_run_are_settings_of_it() -> None:
    settings = {f.name for kind in (RunConfig, TrainPreset, ModelPreset) for f in fields(kind)}
    assert {f.name for f in fields(RunSettings)} - settings == {"historical"}
    unset = RunSettings().configure("listops", "softmax", 0)
    assert unset == RunSettings(preset="skyformer").configure("listops", "softmax", 0)
    assert RunSettings(steps=7, dropout=0.25, scale="paper").configure("listops", "softmax", 0).train.steps == 7


def test_names_that_the_command_line_repeats_are_those_of_the_library() -> None:
    """Copies, so that --help does not import torch."""
    from fastmax.dropout import MODES
    from fastmax.nn.gate import KINDS

    assert BUDGETS == items.BUDGETS
    assert baselines.DROPOUT_MODES == MODES
    assert set(baselines.DECAYS) == {"none", *KINDS}
