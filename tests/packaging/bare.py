"""A virtual environment with torch and numpy, and nothing else but what it is told: a newcomer's machine, in a second.

What it has is linked from the environment that runs the tests, with the records of what is installed, so that pip in it finds
all that it needs and fetches nothing: a copy of torch would be gigabytes.
"""

import os
import re
import subprocess
import sys
import venv
from collections.abc import Iterator
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path


class Bare:
    """`python` and `command` are what a user would have on the path."""

    def __init__(self, folder: Path, packages: tuple[str, ...] = ()) -> None:
        venv.create(folder)
        self.binaries = folder / "bin"
        self.python, self.command = self.binaries / "python", self.binaries / "fastmax"
        site = folder / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"
        for one in closure({"torch", "numpy", *packages}):
            _link(one, site)

    def install(self, wheel: Path) -> None:
        """As a user does, but for the index: what it needs is there."""
        pip = [sys.executable, "-m", "pip", "--python", str(self.python)]
        self.run([*pip, "install", "--no-index", str(wheel)], self.binaries)

    def run(self, command: list[str | Path], folder: Path) -> str:
        """In a folder, with nothing of the tests' own environment on the path; returns what it printed."""
        ours = ("PYTHONPATH", "PIP_CONSTRAINT")
        kept = {name: value for name, value in os.environ.items() if name not in ours}
        environment = kept | {"PATH": f"{self.binaries}{os.pathsep}{os.environ['PATH']}"}
        done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{command} in {folder}:\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
        return done.stdout


def closure(names: set[str]) -> Iterator[Distribution]:
    """The distributions of these names that are installed, and what they need."""
    todo, seen = sorted(names), set(names)
    while todo:
        try:
            one = distribution(todo.pop())
        except PackageNotFoundError:  # for another system or Python
            continue
        yield one
        for need in one.requires or []:
            name = re.split(r"[^A-Za-z0-9_.-]", need)[0]
            if "extra ==" not in need and name not in seen:
                seen.add(name)
                todo.append(name)


def _link(one: Distribution, site: Path) -> None:
    for part in {file.parts[0] for file in one.files or [] if file.parts[0] not in ("..", "__pycache__")}:
        target = Path(str(one.locate_file(part)))
        if target.exists() and not (site / part).exists():
            (site / part).symlink_to(target)
