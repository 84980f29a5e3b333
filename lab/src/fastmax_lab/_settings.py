"""Settings written once: a dataclass field carries its help and its range; checks and command line are made from it."""

import argparse
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, field, fields
from math import isfinite
from operator import ge, gt, le, lt
from types import NoneType
from typing import Any, get_args, get_type_hints

_KEY = "fastmax setting"
_KINDS = {int: ("N", "a whole number"), float: ("X", "a number")}


class SettingError(ValueError):
    """A setting that cannot be; the command line tells it as that of an option."""

    def __init__(self, name: str, refusal: str) -> None:
        super().__init__(f"{name} {refusal}")
        self.name, self.refusal = name, refusal


@dataclass(frozen=True)
class Rule:
    """What a user may give, and what the help says of it."""

    help: str
    at_least: float | None = None
    at_most: float | None = None
    above: float | None = None
    below: float | None = None
    choices: Sequence[str] = ()
    metavar: str | None = None
    problem: Callable[[Any], str | None] | None = None
    """What else may be wrong with a value."""

    def refusal(self, value: Any) -> str | None:
        """What is wrong with a value, or None."""
        if self.problem is not None:
            return self.problem(value)
        if self.choices:
            return None if value in self.choices else f"must be one of {', '.join(self.choices)}, got {value!r}"
        bounds = [(self.at_least, "at least", ge), (self.above, "above", gt)]
        bounds += [(self.at_most, "at most", le), (self.below, "below", lt)]
        limits = [(words, limit, holds) for limit, words, holds in bounds if limit is not None]
        if not limits or (isfinite(value) and all(holds(value, limit) for _, limit, holds in limits)):
            return None
        return f"must be {' and '.join(f'{words} {limit:,}' for words, limit, _ in limits)}, got {value}"


def setting(help: str, *, default: Any = MISSING, **rule: Any) -> Any:
    """A dataclass field that is a setting; the keywords are those of `Rule`."""
    return field(default=default, metadata={_KEY: Rule(help, **rule)})


def rules(kind: type) -> Iterator[tuple[Field[Any], Rule]]:
    """The fields of a dataclass that are settings."""
    return ((f, f.metadata[_KEY]) for f in fields(kind) if _KEY in f.metadata)


def check(config: Any) -> None:
    """SettingError if a setting of the dataclass is out of its range; for `__post_init__`."""
    for f, rule in rules(type(config)):
        value = getattr(config, f.name)
        refusal = None if value is None and f.default is None else rule.refusal(value)
        if refusal is not None:
            raise SettingError(f.name, refusal)


def add_arguments(
    parser: argparse._ActionsContainer,
    kind: type,
    *,
    optional: bool = False,
    many: Mapping[str, Sequence[Any]] | None = None,
) -> None:
    """An option for each setting of a dataclass.

    `optional`: all default to None, which `given` leaves out. `many`: settings that take several values, under their plural,
    with these defaults.
    """
    hints = get_type_hints(kind)
    several = {} if many is None else many
    for f, rule in rules(kind):
        option = f"--{f.name.replace('_', '-')}"
        if hints[f.name] is bool:
            parser.add_argument(option, action="store_true", help=rule.help)
            continue
        value_type, repeated = _value_type(hints[f.name])
        options: dict[str, Any] = {
            "type": Converter(value_type, rule),
            "metavar": rule.metavar or _KINDS.get(value_type, ("NAME", ""))[0],
            "help": rule.help + (f": {', '.join(rule.choices)}" if rule.choices else ""),
            "choices": rule.choices or None,  # checked by then; completion offers them
        }
        default: Any = None if optional or f.default is MISSING else f.default
        if f.name in several:
            option, default, repeated = f"{option}s", list(several[f.name]), True
        else:
            options["required"] = f.default is MISSING and not optional
        options |= {"default": default} | ({"nargs": "+"} if repeated else {})
        if default is not None:
            options["help"] += f" (default: {' '.join(map(str, default)) if repeated else default})"
        parser.add_argument(option, **options)


def given(kind: type, options: argparse.Namespace) -> dict[str, Any]:
    """What was parsed for the settings of a dataclass, as its arguments."""
    values = {f.name: getattr(options, f.name, None) for f, _ in rules(kind)}
    return {name: value for name, value in values.items() if value is not None}


def _value_type(hint: Any) -> tuple[Any, bool]:
    """The type of one value, and whether there may be several: of X, X | None and tuple[X, ...] | None."""
    (kind,) = [part for part in get_args(hint) or (hint,) if part is not NoneType] if _is_union(hint) else (hint,)
    return (get_args(kind)[0], True) if get_args(kind) else (kind, False)


def _is_union(hint: Any) -> bool:
    return NoneType in get_args(hint)


@dataclass(frozen=True)
class Converter:
    """From what a user wrote to a value that the rule allows; for `type` of an argument."""

    kind: Any
    rule: Rule

    def __call__(self, text: str) -> Any:
        try:
            value = self.kind(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"must be {_KINDS[self.kind][1]}, got {text!r}") from None
        refusal = self.rule.refusal(value)
        if refusal is not None:
            raise argparse.ArgumentTypeError(refusal)
        return value
