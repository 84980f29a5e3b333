"""The rules for settings, written beside the type of a dataclass field, and one function that checks them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from math import isfinite
from operator import ge, gt, le, lt
from typing import Any, get_type_hints


class SettingError(ValueError):
    """A setting that cannot be. The command line reports it as that of an option."""

    def __init__(self, name: str, refusal: str) -> None:
        super().__init__(f"{name} {refusal}")
        self.name, self.refusal = name, refusal


@dataclass(frozen=True)
class Range:
    """The numbers that a setting may be."""

    at_least: float | None = None
    above: float | None = None
    at_most: float | None = None
    below: float | None = None

    def refusal(self, value: float) -> str | None:
        """Return why the value is outside of the range, or None."""
        bounds = [(self.at_least, "at least", ge), (self.above, "above", gt)]
        bounds += [(self.at_most, "at most", le), (self.below, "below", lt)]
        limits = [(words, limit, holds) for limit, words, holds in bounds if limit is not None]
        if isfinite(value) and all(holds(value, limit) for _, limit, holds in limits):
            return None
        return f"must be {' and '.join(f'{words} {limit:,}' for words, limit, _ in limits)}, got {value}"


@dataclass(frozen=True)
class OneOf:
    """The words that a setting may be."""

    words: Sequence[str]

    def refusal(self, value: str) -> str | None:
        """Return why the value is none of the words, or None."""
        return None if value in self.words else f"must be one of {', '.join(self.words)}, got {value!r}"


@dataclass(frozen=True)
class Rule:
    """Any other rule: a function that returns why a value is refused, or None."""

    refusal: Callable[[Any], str | None]


def check(config: Any) -> None:
    """Check the settings of a dataclass against the rules in their types; for `__post_init__`.

    A rule of a field holds for each value of a tuple. None is allowed where it is the default.

    Raises:
        SettingError: A value breaks a rule.
    """
    hints = get_type_hints(type(config), include_extras=True)
    for field in fields(config):
        value = getattr(config, field.name)
        if value is None and field.default is None:
            continue
        if value == () and field.default:
            raise SettingError(field.name, "needs at least one value")
        for rule in getattr(hints[field.name], "__metadata__", ()):
            if isinstance(rule, Range | OneOf | Rule):
                for one in value if isinstance(value, tuple) else (value,):
                    refusal = rule.refusal(one)
                    if refusal is not None:
                        raise SettingError(field.name, refusal)
