"""`fastmax-lab data`: list what is there, get what is not, unpack an archive."""

import argparse
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fastmax_lab._progress import waiting
from fastmax_lab._settings import add_arguments, setting
from fastmax_lab.commands.parser import Parser, command, subcommands
from fastmax_lab.commands.paths import existing_file, path_type
from fastmax_lab.commands.shared import DataFolder, Printing, data_folder, print_result
from fastmax_lab.data import archives, download, mnist, shakespeare
from fastmax_lab.data.files import find
from fastmax_lab.data.registry import DataSet
from fastmax_lab.lra import tasks
from fastmax_lab.report.table import table


@dataclass(frozen=True)
class Unpacking:
    max_size: float = setting(
        "refuse archives that unpack to more than so many GB", default=archives.MAX_BYTES / 1e9, above=0, at_most=1e9
    )


def data_sets() -> dict[str, DataSet]:
    """By name: the five tasks of the Long Range Arena, MNIST and Tiny Shakespeare."""
    return {**tasks.data_sets(), **{one.DATA.name: one.DATA for one in (mnist, shakespeare)}}


def add_parser(subparsers: "argparse._SubParsersAction[Parser]") -> None:
    top = command(subparsers, "data", "list, fetch and unpack data sets", examples=["fastmax-lab data get mnist"])
    actions = subcommands(top, "action", ["list", "get", "unpack"])
    listing = command(
        actions,
        "list",
        "say which data sets are there",
        examples=["fastmax-lab data list", "fastmax-lab data list --data ~/data --json"],
    )
    add_arguments(listing, Printing)
    listing.set_defaults(run=_list)
    get = command(
        actions,
        "get",
        "fetch a data set from its canonical source and check it",
        examples=["fastmax-lab data get mnist", "fastmax-lab data get text --data ~/data"],
    )
    get.add_argument("name", choices=list(data_sets()), metavar="NAME", help=", ".join(data_sets()))
    get.set_defaults(run=_get, stopped="stopped; what was fetched is kept, run the same again to go on")
    unpack = command(
        actions,
        "unpack",
        "unpack a tar archive, such as lra_release.gz, into the data folder",
        examples=[
            "fastmax-lab data unpack lra_release.gz",
            "fastmax-lab data unpack lra_release.gz --data ~/data --max-size 40",
        ],
    )
    unpack.add_argument("archive", type=path_type(existing_file), metavar="FILE", help="the archive, compressed or not")
    add_arguments(unpack, Unpacking)
    unpack.set_defaults(run=_unpack, stopped="stopped; nothing was unpacked")
    for action in actions.choices.values():
        add_arguments(action, DataFolder)


def status(data: Path) -> list[dict[str, Any]]:
    """Of every data set: what of it is there, and what to do if it is not."""
    found = []
    for one in data_sets().values():
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
    return _table(data, status(data))


def _table(data: Path, found: list[dict[str, Any]]) -> str:
    rows = [[one["name"], one["what"], ", ".join(one["files"]) or one["advice"]] for one in found]
    return f"Data in {data}\n\n{table(['name', 'what', 'state'], rows)}"


def _list(options: argparse.Namespace) -> None:
    data = data_folder(options)
    print_result(options, status(data), lambda found: _table(data, found))


def _get(options: argparse.Namespace) -> int:
    one, data = data_sets()[options.name], data_folder(options)
    if not one.remotes:
        print(one.hint, file=sys.stdout if one.generated else sys.stderr)
        return 0 if one.generated else 1
    there = [find(data, group) for group in one.patterns]
    if all(there):
        files = ", ".join(str(path) for group in there for path in group.values())
        print(f"{one.name} is there already: {files}")
        return 0
    for remote in one.remotes:
        print(download.fetch(remote, data))
    return 0


def _unpack(options: argparse.Namespace) -> None:
    data = data_folder(options)
    with waiting(f"unpacking {options.archive}"):
        added = archives.unpack(options.archive, data, max_bytes=int(options.max_size * 1e9))
    for path in added:
        print(path)
