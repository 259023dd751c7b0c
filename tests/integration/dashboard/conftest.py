"""One browser for the tests of a module."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.integration.dashboard.browser import chromium

if TYPE_CHECKING:
    from collections.abc import Iterator

    from playwright.sync_api import Browser


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as browser:
        yield browser
