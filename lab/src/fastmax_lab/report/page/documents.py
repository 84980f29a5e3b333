"""The documents of a folder of results, by experiment, and the statistics that sections take of them."""

import json
from collections.abc import Callable, Hashable, Iterable
from pathlib import Path
from statistics import mean, stdev
from typing import Any, TypeVar

Document = dict[str, Any]
Results = dict[str, list[Document]]
Key = TypeVar("Key", bound=Hashable)
KEYS = ("experiment", "name", "settings", "result", "seconds", "machine")
OF_MACHINE = ("processor", "cores", "torch")
"""What every file has to have; facts that older files lack, such as `simd` and `date`, may be missing."""


def load(folder: Path) -> Results:
    """Of every experiment in the folder; ValueError if there is none, or if a file is not what it should be."""
    found: Results = {}
    for path in sorted(folder.glob("*/*.json")):
        try:
            document = json.loads(path.read_text())
        except json.JSONDecodeError as error:
            raise ValueError(f"{path} is not JSON ({error})") from error
        if missing := _missing(document):
            raise ValueError(f"{path} is no result of `fastmax-lab reproduce`: it has no {', no '.join(missing)}")
        found.setdefault(document["experiment"], []).append(document)
    if not found:
        raise ValueError(f"{folder} has no results: `fastmax-lab reproduce --out {folder}` makes them")
    return found


def _missing(document: Any) -> list[str]:
    """What a file lacks of what the page shows of every one."""
    if not isinstance(document, dict):
        return list(KEYS)
    missing = [key for key in KEYS if key not in document]
    missing += [key for key in ("settings", "result", "machine") if not isinstance(document.get(key, {}), dict)]
    machine = document.get("machine")
    if isinstance(machine, dict):
        missing += [f"machine.{key}" for key in OF_MACHINE if key not in machine]
    return missing


def group(documents: Iterable[Document], key: Callable[[Document], Key]) -> dict[Key, list[Document]]:
    """In the order in which keys first appear."""
    groups: dict[Key, list[Document]] = {}
    for document in documents:
        groups.setdefault(key(document), []).append(document)
    return groups


def spread(values: list[float]) -> tuple[float, float | None]:
    """Mean, and the standard deviation over seeds where there are several."""
    return mean(values), stdev(values) if len(values) > 1 else None


def one(documents: Iterable[Document], name: str) -> Document | None:
    return next((document for document in documents if document["name"] == name), None)
