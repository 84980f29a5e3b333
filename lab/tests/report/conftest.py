"""A miniature of everything, measured once for all tests of the report."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from lab.tests.experiments import miniature

from fastmax_lab.report.page import build
from fastmax_lab.report.page.parts import Section
from fastmax_lab.report.page.results import load
from fastmax_lab.report.page.sections import lra


@pytest.fixture(scope="session")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    with pytest.MonkeyPatch.context() as patch:
        return miniature.measured(tmp_path_factory.mktemp("reproduced"), patch)


@pytest.fixture(scope="session", autouse=True)
def _all_have_learned() -> Iterator[None]:
    """Draw the trainings of a miniature as if they had left chance level, for which they are too short."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lra, "learned", list)
        yield


@pytest.fixture(scope="session")
def sections(results: Path) -> list[Section]:
    return build.sections(load(results))
