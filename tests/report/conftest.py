"""A miniature of everything, measured once for all tests of the report."""

from pathlib import Path

import pytest

from fastmax.report.page import build, documents
from fastmax.report.page.parts import Section
from tests.reproduce import miniature


@pytest.fixture(scope="session")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    with pytest.MonkeyPatch.context() as patch:
        return miniature.measured(tmp_path_factory.mktemp("reproduced"), patch)


@pytest.fixture(scope="session")
def sections(results: Path) -> list[Section]:
    return build.sections(documents.load(results))
