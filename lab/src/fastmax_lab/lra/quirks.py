"""Historical behaviour of the public harnesses, off by default, each by its name."""

from collections.abc import Sequence
from dataclasses import dataclass, fields


@dataclass(frozen=True)
class Quirks:
    """The deviations of the harnesses, and what is done instead."""

    zero_is_padding: bool = False
    """Token 0 is masked wherever it stands, black pixels too; else what lies beyond a sequence's length is."""
    full_length_mean: bool = False
    """Mean pooling divides by the padded length; else by the number of real tokens."""
    text_1000: bool = False
    """Text is cut after 1000 bytes; else after 4000."""
    moving_dev: bool = False
    """Each evaluation scores the next few examples of the dev set; else always the same ones."""
    drop_last: bool = False
    """Leave out examples that do not fill a batch in evaluations; else every example counts."""

    @staticmethod
    def named(names: Sequence[str]) -> "Quirks":
        known = flags()
        unknown = sorted(set(names) - {"all", *known})
        if unknown:
            raise ValueError(f"historical flags are {', '.join(['all', *known])}; got {', '.join(unknown)}")
        if "all" in names:
            names = known
        return Quirks(**{name.replace("-", "_"): True for name in names})


def flags() -> list[str]:
    """Return their names on the command line."""
    return [field.name.replace("_", "-") for field in fields(Quirks)]
