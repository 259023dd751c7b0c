"""Pools of processes that end with the process that started them, however it ends."""

from __future__ import annotations

import multiprocessing
import multiprocessing.connection
import os
import threading
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from typing import Any


def start_pool(count: int, prepare: Callable[..., None], *arguments: Any) -> ProcessPoolExecutor:
    """Return a pool whose processes call ``prepare`` first, and end when this process is gone.

    A plain pool does not notice that: its processes finish what is queued, and then wait for ever.
    """
    # Not fork: a copy of a process with threads may hold locks that nobody will ever release.
    context = multiprocessing.get_context("spawn")
    return ProcessPoolExecutor(count, context, initializer=_prepare_process, initargs=(prepare, arguments))


def _prepare_process(prepare: Callable[..., None], arguments: tuple[Any, ...]) -> None:
    threading.Thread(target=_end_with_parent, name="strata-parent-watch", daemon=True).start()
    prepare(*arguments)


def _end_with_parent() -> None:
    # A pipe that the parent has open, rather than PR_SET_PDEATHSIG: that one means the parent's thread, not the parent.
    parent = multiprocessing.parent_process()
    assert parent is not None
    multiprocessing.connection.wait([parent.sentinel])
    os._exit(1)
