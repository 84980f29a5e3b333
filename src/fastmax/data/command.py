"""The command `fastmax data`: list what is there, get what is not, unpack an archive."""

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from fastmax.data import archives, download
from fastmax.data.files import default_folder, find
from fastmax.data.registry import DataSet, data_sets
from fastmax.report.table import table

if TYPE_CHECKING:
    Subparsers = argparse._SubParsersAction[argparse.ArgumentParser]


def add_parser(subparsers: "Subparsers") -> None:
    top = subparsers.add_parser("data", help="list, fetch and unpack data sets")
    actions = top.add_subparsers(dest="action", required=True, metavar="ACTION")
    actions.add_parser("list", help="say which data sets are there")
    get = actions.add_parser("get", help="fetch a data set from its canonical source and check it")
    get.add_argument("name", choices=list(data_sets()), metavar="NAME", help=", ".join(data_sets()))
    unpack = actions.add_parser("unpack", help="unpack a tar archive, such as lra_release.gz, into the data folder")
    unpack.add_argument("archive", type=Path, metavar="FILE")
    for action in actions.choices.values():
        action.add_argument("--data", type=Path, metavar="DIR", default=default_folder(), help="default: %(default)s")


def run(options: argparse.Namespace) -> int:
    """Returns the exit code: 1 if the data could not be had, with the reason on standard error."""
    try:
        if options.action == "list":
            print(overview(options.data))
        elif options.action == "get":
            return _get(data_sets()[options.name], options.data)
        else:
            for path in archives.unpack(options.archive, options.data):
                print(path)
    except (OSError, ValueError) as error:
        print(f"fastmax data: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("fastmax data: stopped; what was fetched is kept, run the same again to go on", file=sys.stderr)
        return 130
    return 0


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


def _get(one: DataSet, data: Path) -> int:
    if not one.remotes:
        print(one.hint, file=sys.stdout if one.generated else sys.stderr)
        return 0 if one.generated else 1
    for remote in one.remotes:
        print(download.fetch(remote, data))
    return 0
