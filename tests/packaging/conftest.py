"""The distributions that `make package` has built, in environments of their own."""

from pathlib import Path

import pytest

from tests.packaging.bare import Bare


@pytest.fixture(scope="session")
def wheel(request: pytest.FixtureRequest) -> Path:
    return Path(request.config.getoption("--wheel")).resolve()


@pytest.fixture(scope="session")
def bare(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Bare:
    """torch, numpy and the wheel."""
    made = Bare(tmp_path_factory.mktemp("bare") / "venv")
    made.install(wheel)
    return made
