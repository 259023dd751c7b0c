"""Waiting for what must come: each wait has an end, and says what did not come."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from tests.testbed.pace import stretch

if TYPE_CHECKING:
    from collections.abc import Callable

WAIT_S = 40.0


def wait_until(
    holds: Callable[[], bool],
    what: str | Callable[[], str] = "what the test waits for",
    *,
    timeout_s: float = WAIT_S,
) -> None:
    """Return as soon as it holds; fail with what was waited for if it does not within the stretched time."""
    deadline_s = time.monotonic() + stretch(timeout_s)
    while not holds():
        if time.monotonic() > deadline_s:
            raise AssertionError(f"never came: {what if isinstance(what, str) else what()}")
        time.sleep(0.02)
