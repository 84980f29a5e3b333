"""A miniature of everything, measured once for all tests of the report."""

from pathlib import Path

import pytest
from lab.tests.experiments import miniature

from fastmax_lab.report.page import build
from fastmax_lab.report.page.parts import Section
from fastmax_lab.report.page.results import load


@pytest.fixture(scope="session")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    with pytest.MonkeyPatch.context() as patch:
        return miniature.measured(tmp_path_factory.mktemp("reproduced"), patch)


@pytest.fixture(scope="session")
def sections(results: Path) -> list[Section]:
    return build.sections(load(results))
