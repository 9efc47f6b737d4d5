"""What tests of training share."""

from collections.abc import Iterator

import pytest

from tests.support.forked_ranks import Farm, farm


@pytest.fixture(scope="session")
def ranks() -> Iterator[Farm]:
    """Processes that have imported everything, for all tests that start ranks."""
    with farm() as started:
        yield started
