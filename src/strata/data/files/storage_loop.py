"""Storages speak asyncio, and readers block: one event loop of this process carries what readers ask of storages."""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING, Any, TypeVar

from strata.background import BackgroundLoop

if TYPE_CHECKING:
    from collections.abc import Coroutine

T = TypeVar("T")

_lock = threading.Lock()
_loops: dict[int, BackgroundLoop] = {}


def wait_for(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine on the background loop and return what it returns; for any thread but the loop's own."""
    return _loop().submit(work).result()


def _loop() -> BackgroundLoop:
    # By process: a fork copies the dictionary, but not the thread that the loop runs in.
    process = os.getpid()
    with _lock:
        if process not in _loops:
            _loops.clear()
            _loops[process] = BackgroundLoop("strata-data", owner="what reads data")
        return _loops[process]
