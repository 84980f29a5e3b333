"""Made-up measurements for tests."""

from typing import Any

from fastmax_lab.measurements import Measurement

MACHINE = {"processor": "P", "cores": 2, "torch": "2"}


def record(settings: dict[str, Any], values: dict[str, Any], name: str = "n", experiment: str = "lra") -> Measurement:
    """Return a measurement with these settings and values."""
    return Measurement(experiment, name, settings, values, MACHINE, "c", 1.0)
