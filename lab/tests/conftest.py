"""Fixtures of the lab's tests."""

from collections.abc import Iterator

import pytest

from tests.distributed.pool import Pool


@pytest.fixture(scope="module")
def pool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pool]:
    """Yield ranks that serve the tests of a module."""
    with Pool(tmp_path_factory.mktemp("pool")) as found:
        yield found
