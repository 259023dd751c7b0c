"""What the tests of a worker's half of the protocol share."""

from __future__ import annotations

import pytest

from tests.unit.client.protocol_worker import Worker


@pytest.fixture
def worker() -> Worker:
    return Worker()
