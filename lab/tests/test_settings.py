"""Settings: options, defaults, help and refusals come from the dataclass fields, and from nowhere else."""

import argparse
from dataclasses import dataclass, fields

import pytest

from fastmax_lab import cli
from fastmax_lab._settings import add_arguments, check, given, rules, setting
from fastmax_lab.lra.config import ModelPreset, Pace, TrainPreset
from fastmax_lab.lra.run import RunConfig


@dataclass(frozen=True)
class Made:
    needed: str = setting("is needed", choices=("a", "b"))
    count: int = setting("how many", default=3, at_least=1, below=10)
    share: float | None = setting("how much", default=None, above=0, at_most=1)
    sizes: tuple[int, ...] | None = setting("which", default=None, at_least=2)
    loud: bool = setting("aloud", default=False)
    inner: int = 7

    def __post_init__(self) -> None:
        check(self)


def parse(*arguments: str, **options: object) -> argparse.Namespace:
    parser = argparse.ArgumentParser(exit_on_error=False)
    add_arguments(parser, Made, **options)
    return parser.parse_args(arguments)


def test_options_are_the_fields() -> None:
    options = parse("--needed", "a", "--sizes", "2", "5", "--loud")
    assert vars(options) == {"needed": "a", "count": 3, "share": None, "sizes": [2, 5], "loud": True}
    assert given(Made, options) == {"needed": "a", "count": 3, "sizes": [2, 5], "loud": True}
    assert given(Made, parse(optional=True)) == {"loud": False}
    many = parse("--counts", "1", "2", many={"count": (4,), "needed": ("a", "b")})
    assert (many.counts, many.neededs) == ([1, 2], ["a", "b"])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--needed", "c"], "argument --needed: must be one of a, b, got 'c'"),
        (["--needed", "a", "--count", "0"], "argument --count: must be at least 1 and below 10, got 0"),
        (["--needed", "a", "--count", "1.5"], "argument --count: must be a whole number, got '1.5'"),
        (["--needed", "a", "--share", "nan"], "argument --share: must be above 0 and at most 1, got nan"),
        (["--needed", "a", "--share", "x"], "argument --share: must be a number, got 'x'"),
        (["--needed", "a", "--sizes", "3", "1"], "argument --sizes: must be at least 2, got 1"),
    ],
)
def test_refusals_name_the_argument_and_its_range(arguments: list[str], message: str) -> None:
    with pytest.raises(argparse.ArgumentError) as caught:
        parse(*arguments)
    assert str(caught.value) == message


def test_a_dataclass_refuses_the_same() -> None:
    assert Made("a").share is None
    with pytest.raises(ValueError, match="count must be at least 1 and below 10, got 10"):
        Made("a", count=10)
    with pytest.raises(ValueError, match="needed must be one of a, b, got None"):
        Made(None)


def test_every_setting_of_a_run_is_an_option(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main(["lra", "train", "--help"])
    printed = capsys.readouterr().out
    settings = [f for kind in (RunConfig, TrainPreset, ModelPreset, Pace) for f, _ in rules(kind)]
    assert len(settings) >= 18
    for f in settings:
        assert f"--{f.name.replace('_', '-')} " in printed
    structure = {f.name for f in fields(RunConfig)} - {f.name for f, _ in rules(RunConfig)}
    assert structure == {"model", "train", "quirks"}
