"""Storages speak asyncio, and readers block: one event loop of this process carries what readers ask of storages."""

from __future__ import annotations

import asyncio
import os
import threading
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Coroutine

T = TypeVar("T")

_lock = threading.Lock()
_loops: dict[int, asyncio.AbstractEventLoop] = {}


def wait_for(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine on the background loop and return what it returns; for any thread but the loop's own."""
    return asyncio.run_coroutine_threadsafe(work, _loop()).result()


def _loop() -> asyncio.AbstractEventLoop:
    # By process: a fork copies the dictionary, but not the thread that the loop runs in.
    process = os.getpid()
    with _lock:
        if process not in _loops:
            _loops.clear()
            loop = asyncio.new_event_loop()
            threading.Thread(target=loop.run_forever, name="strata-data", daemon=True).start()
            _loops[process] = loop
        return _loops[process]
