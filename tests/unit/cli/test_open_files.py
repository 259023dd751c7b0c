"""How many files ``strata coordinator`` may have open: one for every connection, as far as the system lets it."""

from __future__ import annotations

import resource
from collections.abc import Iterator

import pytest

from strata.cli.coordinator import _allow_open_files

FEW = 256


@pytest.fixture
def hard() -> Iterator[int]:
    """The limit that nobody can raise, in a process that is allowed few files."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (FEW, hard))
    yield hard
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_limit_that_is_too_low_is_raised_by_what_is_needed(hard: int, caplog: pytest.LogCaptureFixture) -> None:
    if hard < 1_500 and hard != resource.RLIM_INFINITY:
        pytest.skip("this system allows fewer")
    _allow_open_files(500)
    assert resource.getrlimit(resource.RLIMIT_NOFILE) == (1_500, hard)
    assert caplog.text == ""
    _allow_open_files(100)
    assert resource.getrlimit(resource.RLIMIT_NOFILE) == (1_500, hard), "it is never lowered"


def test_more_connections_than_the_system_allows_files_are_a_warning(
    hard: int, caplog: pytest.LogCaptureFixture
) -> None:
    if hard == resource.RLIM_INFINITY:
        pytest.skip("this system has no limit")
    _allow_open_files(hard)
    assert resource.getrlimit(resource.RLIMIT_NOFILE) == (hard, hard)
    assert caplog.messages == [f"{hard} open files are allowed, and {hard} channels may need {hard + 1_000}"]
