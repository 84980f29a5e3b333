"""Made-up tasks for the tests of training: the five shapes at short lengths, from a seed, learnable by heart.

Run as a module it is the `fastmax-lab lra` command on this data, for tests that need processes.
"""

import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np

from fastmax_lab import __main__, cli
from fastmax_lab.lra import tasks
from fastmax_lab.lra.tasks import Split, Task

LENGTH = 48
TASKS = {
    "listops": Task("listops", LENGTH, 18, 10, pair=False, pads=True),
    "text": Task("text", LENGTH, 257, 2, pair=False, pads=True),
    "retrieval": Task("retrieval", LENGTH, 257, 2, pair=True, pads=True),
    "image": Task("image", LENGTH, 256, 10, pair=False, pads=False),
    "pathfinder": Task("pathfinder", LENGTH, 256, 2, pair=False, pads=False),
}
EXAMPLES = {"train": 64, "val": 23, "test": 21}


def task(name: str, *, length: int | None = None) -> Task:
    shape = TASKS[name]
    return shape if length is None else Task(name, length, shape.vocabulary, shape.classes, shape.pair, shape.pads)


def load(
    name: str,
    split: str,
    data: Path,  # noqa: ARG001
    *,
    length: int | None = None,
    limit: int | None = None,
    seed: int = 0,  # noqa: ARG001
) -> Split:
    shape = task(name, length=length)
    count = EXAMPLES[split] if limit is None else min(limit, EXAMPLES[split])
    rng = np.random.default_rng((list(TASKS).index(name), list(EXAMPLES).index(split)))
    lead = (count, 2) if shape.pair else (count,)
    tokens = rng.integers(1, shape.vocabulary, (*lead, shape.length)).astype(np.uint16)
    lengths = np.full(lead, shape.length)
    if shape.pads:
        lengths = rng.integers(1, shape.length + 1, lead)
        tokens[np.arange(shape.length) >= lengths[..., None]] = 0
    return Split(tokens, lengths, rng.integers(0, shape.classes, count))


def install() -> None:
    for name, stand_in in {"task": task, "load": load, "names": lambda: tuple(TASKS)}.items():
        setattr(tasks, name, stand_in)


def main(arguments: list[str], run: Callable[[list[str]], int] = cli.main) -> int:
    install()
    code = run(["lra", *arguments])
    left = [name for name in _threads() if "gloo" in name]
    assert not left, f"threads that can abort the end of the process: {left}"
    return code


def _threads() -> list[str]:
    """Return the names of the threads of this process, not of Python alone, where the system reports them."""
    return [path.read_text().strip() for path in Path("/proc/self/task").glob("*/comm")]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], __main__.main))
