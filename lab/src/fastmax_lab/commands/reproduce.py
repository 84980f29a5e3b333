"""`fastmax-lab reproduce` measures what the paper shows, `fastmax-lab report` draws it."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from tyro.conf import Positional

from fastmax_lab._progress import waiting
from fastmax_lab.commands.paths import EXISTING_FOLDER, NEW_FOLDER
from fastmax_lab.commands.shared import Command, Data, Threads, choice

BUDGETS = ("quick", "cpu", "full")
EXPERIMENTS = (
    "exactness", "scaling", "maps", "dropout", "language", "order-one", "recall", "recall-far", "recipes-language",
    "lra-speed", "lra-layers", "lra-pace", "lra", "lra-clock", "lra-settings", "lra-small",
)  # fmt: skip
"""The names in `fastmax_lab.experiments`, which imports torch; --help does not."""


@dataclass(frozen=True, kw_only=True)
class Reproduce(Threads, Data, Command):
    """Measure what the paper shows, and go on where it was stopped.

    Example: fastmax-lab reproduce --budget cpu --only scaling maps --out out/cpu
    """

    stopped = "stopped; run it again to go on"

    budget: Annotated[str, choice(BUDGETS)] = "quick"
    """Minutes without data, hours with real data, or the steps of the public harnesses, for GPUs."""
    only: tuple[Annotated[str, choice(EXPERIMENTS)], ...] = EXPERIMENTS
    """The experiments to run."""
    out: Annotated[Path | None, NEW_FOLDER] = None
    """Folder of the results, instead of out/BUDGET."""

    def run(self) -> int:
        out = Path("out") / self.budget if self.out is None else self.out
        self.limit_threads()
        with waiting("loading"):
            from fastmax_lab.experiments import registry, runner
        chosen = [one for name, one in registry.EXPERIMENTS.items() if name in self.only]
        outcome = runner.run(chosen, self.budget, data=self.data_folder, out=out, command=self.line)
        print(f"{outcome.measured} measured, {len(outcome.left_out)} left out; the results are in {out}")
        return 1 if outcome.left_out else 0

    @property
    def line(self) -> str:
        """Return the command line without folders, which are no part of a result."""
        parts = ["fastmax-lab reproduce", f"--budget {self.budget}"]
        if self.only != EXPERIMENTS:
            parts.append(f"--only {' '.join(self.only)}")
        if self.threads is not None:
            parts.append(f"--threads {self.threads}")
        if self.data is not None:
            parts.append("--data DIR")
        return " ".join(parts)


@dataclass(frozen=True, kw_only=True)
class DrawReport(Command):
    """Draw a page of the results of reproduce. Measures nothing.

    Example: fastmax-lab report out/quick --out page
    """

    folder: Annotated[Positional[Path], EXISTING_FOLDER]
    """Folder of the results."""
    out: Annotated[Path | None, NEW_FOLDER] = None
    """Folder to write to, instead of FOLDER/report."""

    def run(self) -> None:
        with waiting("drawing"):
            from fastmax_lab.report.page.build import build

            report = build(self.folder, self.folder / "report" if self.out is None else self.out)
        for line in report.headlines:
            print(line)
        print(f"The report: {report.page}")
