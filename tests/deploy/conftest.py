"""One container engine with both images for all tests of a process; the long tests only for `make test-deploy`."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from tests.testbed.containers.engine import Engine, container_engine
from tests.testbed.containers.stack import Stack, stack_of
from tests.testbed.parts import require_root

if TYPE_CHECKING:
    from collections.abc import Iterator

collect_ignore = [] if os.environ.get("STRATA_TEST_DEPLOY") else ["long"]


@pytest.fixture(scope="session")
def engine() -> Iterator[Engine]:
    """An engine with strata-coordinator:local and strata-worker:local, built from this clone."""
    require_root()
    with container_engine() as engine:
        engine.import_base()
        engine.build("strata-coordinator:local", "Dockerfile")
        engine.build("strata-worker:local", "Dockerfile.worker")
        yield engine


@pytest.fixture
def stack(engine: Engine) -> Iterator[Stack]:
    with stack_of(engine) as stack:
        yield stack
