"""A pytest plugin: which lane a test runs in.

| lane | its tests | command |
|---|---|---|
| quick | everything without one of the markers below, and single tests with ``@pytest.mark.quick`` | ``make test`` |
| full | those that need a real part, and those with ``@pytest.mark.full`` | ``make test-full`` |
| slow | those with ``@pytest.mark.slow`` | ``make test-slow`` |

A test says that it needs a part with ``@pytest.mark.part("etcd")``, or by taking a fixture that starts one. A test
that says neither fails on a machine without the part.
"""

from __future__ import annotations

import pytest

from tests.testbed.parts import require_part

# The fixtures that start a server, mount a disk or make a network, and what they do it with.
PARTS_OF_FIXTURES = {
    "s3_server": ["s3"],
    "weak_s3_server": ["s3-weak"],
    "azure_server": ["azure"],
    "gcs_server": ["gcs"],
    "etcd_server": ["etcd"],
    "engine": ["containers", "dashboard"],
    "small_disk": ["faults"],
    "elsewhere": ["faults"],
}


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what needs a part as full, before pytest selects tests by their markers."""
    for item in items:
        for fixture in getattr(item, "fixturenames", ()):
            for part in PARTS_OF_FIXTURES.get(fixture, ()):
                item.add_marker(pytest.mark.part(part))
        if item.get_closest_marker("part"):
            item.add_marker(pytest.mark.full)


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip a test whose part is missing, and in CI fail it."""
    for marker in item.iter_markers("part"):
        require_part(*marker.args)
