"""What the tests of the integrations have: the registered names, and quiet libraries."""

from collections.abc import Iterator

import pytest
import transformers

from fastmax.integrations.transformers import register


@pytest.fixture(autouse=True)
def _registered() -> Iterator[None]:
    register()
    before = transformers.logging.get_verbosity()
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    yield
    transformers.logging.set_verbosity(before)
