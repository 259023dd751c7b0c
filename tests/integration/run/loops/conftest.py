"""What tests of loops share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.testbed.coordinator import coordinator_thread


@pytest.fixture
def url() -> Iterator[str]:
    """The address of a coordinator in a thread of this process."""
    with coordinator_thread() as coordinator:
        yield f"127.0.0.1:{coordinator.grpc_port}"
