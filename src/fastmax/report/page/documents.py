"""The documents of a folder of results, by experiment, and the statistics that sections take of them."""

import json
from collections.abc import Callable, Hashable, Iterable
from pathlib import Path
from statistics import mean, stdev
from typing import Any, TypeVar

Document = dict[str, Any]
Results = dict[str, list[Document]]
Key = TypeVar("Key", bound=Hashable)


def load(folder: Path) -> Results:
    """Of every experiment in the folder; ValueError if there is none, or if a file is not what it should be."""
    found: Results = {}
    for path in sorted(folder.glob("*/*.json")):
        try:
            document = json.loads(path.read_text())
        except json.JSONDecodeError as error:
            raise ValueError(f"{path} is not JSON ({error})") from error
        if not isinstance(document, dict) or not {"experiment", "settings", "result", "machine"} <= document.keys():
            raise ValueError(
                f"{path} is no result of `fastmax reproduce`: experiment, settings, result or machine is missing"
            )
        found.setdefault(document["experiment"], []).append(document)
    if not found:
        raise ValueError(f"{folder} has no results: `fastmax reproduce --out {folder}` makes them")
    return found


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
