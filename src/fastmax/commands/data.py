"""`fastmax data`: list what is there, get what is not, unpack an archive."""

import argparse
import sys
from dataclasses import dataclass
from pathlib import Path

from fastmax._settings import add_arguments, setting
from fastmax.commands.parser import Parser, subcommands
from fastmax.commands.shared import DataFolder, data_folder
from fastmax.data import archives, download, mnist, shakespeare
from fastmax.data.files import find
from fastmax.data.registry import DataSet
from fastmax.lra import tasks
from fastmax.report.table import table
from fastmax.report.terminal import show


@dataclass(frozen=True)
class Unpacking:
    max_size: float = setting(
        "refuse archives that unpack to more than so many GB", default=archives.MAX_BYTES / 1e9, above=0
    )


def data_sets() -> dict[str, DataSet]:
    """By name: the five tasks of the Long Range Arena, MNIST and Tiny Shakespeare."""
    return {**tasks.data_sets(), **{one.DATA.name: one.DATA for one in (mnist, shakespeare)}}


def add_parser(subparsers: "argparse._SubParsersAction[Parser]") -> None:
    top = subparsers.add_parser("data", help="list, fetch and unpack data sets")
    actions = subcommands(top, "action", ["list", "get", "unpack"])
    listing = actions.add_parser("list", help="say which data sets are there")
    listing.set_defaults(run=lambda options: show(overview(data_folder(options))))
    get = actions.add_parser("get", help="fetch a data set from its canonical source and check it")
    get.add_argument("name", choices=list(data_sets()), metavar="NAME", help=", ".join(data_sets()))
    get.set_defaults(run=_get, stopped="stopped; what was fetched is kept, run the same again to go on")
    unpack = actions.add_parser("unpack", help="unpack a tar archive, such as lra_release.gz, into the data folder")
    unpack.add_argument("archive", type=Path, metavar="FILE")
    add_arguments(unpack, Unpacking)
    unpack.set_defaults(run=_unpack, stopped="stopped; nothing was unpacked")
    for action in actions.choices.values():
        add_arguments(action, DataFolder)


def overview(data: Path) -> str:
    rows = []
    for one in data_sets().values():
        found = [find(data, group) for group in one.patterns]
        if all(found):
            state = ", ".join(str(path.relative_to(data)) for names in found for path in names.values())
        elif one.generated:
            state = "generated on first use"
        elif one.remotes:
            size = sum(remote.size for remote in one.remotes) / 1e6
            state = f"absent: fastmax data get {one.name} ({size:,.1f} MB)"
        else:
            state = f"absent: fastmax data get {one.name} says where it is"
        rows.append([one.name, one.what, state])
    return f"Data in {data}\n\n{table(['name', 'what', 'state'], rows)}"


def _get(options: argparse.Namespace) -> int:
    one = data_sets()[options.name]
    if not one.remotes:
        print(one.hint, file=sys.stdout if one.generated else sys.stderr)
        return 0 if one.generated else 1
    for remote in one.remotes:
        print(download.fetch(remote, data_folder(options)))
    return 0


def _unpack(options: argparse.Namespace) -> None:
    for path in archives.unpack(options.archive, data_folder(options), max_bytes=int(options.max_size * 1e9)):
        print(path)
