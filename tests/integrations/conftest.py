"""Fixtures of the tests of the integrations: the registered names, and quiet libraries."""

from collections.abc import Iterator

import pytest
import transformers

from fastmax.integrations.transformers import register


@pytest.fixture(scope="session", autouse=True)
def _registered() -> None:
    """Before the models that the tests of a file share."""
    register()


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    before = transformers.logging.get_verbosity()
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    yield
    transformers.logging.set_verbosity(before)
