"""`fastmax-lab data`: list the data sets, get one, unpack an archive."""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from tyro.conf import Positional

from fastmax_lab._progress import waiting
from fastmax_lab._settings import Range
from fastmax_lab.commands.paths import EXISTING_FILE
from fastmax_lab.commands.shared import Command, Data, Printing, choice
from fastmax_lab.data import archives, download, mnist, shakespeare, wikitext
from fastmax_lab.data.files import find
from fastmax_lab.data.registry import DataSet
from fastmax_lab.lra import tasks
from fastmax_lab.report.table import table

DATA_SETS: dict[str, DataSet] = {
    **tasks.data_sets(),
    **{one.DATA.name: one.DATA for one in (mnist, shakespeare, wikitext)},
}
"""The five tasks of the Long Range Arena, MNIST, Tiny Shakespeare and WikiText-2, by name."""


@dataclass(frozen=True, kw_only=True)
class List(Data, Printing, Command):
    """Show which data sets are there."""

    def run(self) -> None:
        folder = self.data_folder
        self.show(status(folder), lambda found: _table(folder, found))


@dataclass(frozen=True, kw_only=True)
class Get(Data, Command):
    """Fetch a data set from its canonical source and check it.

    Example: fastmax-lab data get mnist
    """

    stopped = "stopped; what was fetched is kept, run the same again to go on"

    name: Annotated[str, choice(tuple(DATA_SETS)), Positional]
    """The data set."""

    def run(self) -> int:
        one, folder = DATA_SETS[self.name], self.data_folder
        if not one.remotes:
            print(one.hint, file=sys.stdout if one.generated else sys.stderr)
            return 0 if one.generated else 1
        there = [find(folder, group) for group in one.patterns]
        if all(there):
            files = ", ".join(str(path) for group in there for path in group.values())
            print(f"{one.name} is there already: {files}")
            return 0
        for remote in one.remotes:
            print(download.fetch(remote, folder))
        return 0


@dataclass(frozen=True, kw_only=True)
class Unpack(Data, Command):
    """Unpack a tar archive, such as lra_release.gz, into the data folder.

    Example: fastmax-lab data unpack lra_release.gz --max-size 40
    """

    stopped = "stopped; nothing was unpacked"

    archive: Annotated[Positional[Path], EXISTING_FILE]
    """The archive, compressed or not."""
    max_size: Annotated[float, Range(above=0, at_most=1e9)] = archives.MAX_BYTES / 1e9
    """Refuse archives that unpack to more GB than this."""

    def run(self) -> None:
        with waiting(f"unpacking {self.archive}"):
            added = archives.unpack(self.archive, self.data_folder, max_bytes=int(self.max_size * 1e9))
        for path in added:
            print(path)


def status(data: Path) -> list[dict[str, Any]]:
    """Return for each data set the files that are there, or what to do to get them."""
    found = []
    for one in DATA_SETS.values():
        groups = [find(data, group) for group in one.patterns]
        there = all(groups)
        if there or one.generated:
            advice = "" if there else "generated on first use"
        elif one.remotes:
            advice = (
                f"absent: fastmax-lab data get {one.name} ({sum(remote.size for remote in one.remotes) / 1e6:,.1f} MB)"
            )
        else:
            advice = f"absent: fastmax-lab data get {one.name} says where it is"
        files = [str(path.relative_to(data)) for group in groups for path in group.values()] if there else []
        found.append({"name": one.name, "what": one.what, "there": there, "files": files, "advice": advice})
    return found


def overview(data: Path) -> str:
    """Return the table of `status`."""
    return _table(data, status(data))


def _table(data: Path, found: list[dict[str, Any]]) -> str:
    rows = [[one["name"], one["what"], ", ".join(one["files"]) or one["advice"]] for one in found]
    return f"Data in {data}\n\n{table(['name', 'what', 'state'], rows)}"
