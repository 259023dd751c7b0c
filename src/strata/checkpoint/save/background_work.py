"""BackgroundWork: the event loop of a manager, and what is pending on it."""

from __future__ import annotations

import os
import threading
from concurrent.futures import Future
from concurrent.futures import wait as wait_for
from typing import TYPE_CHECKING, Any, TypeVar

from strata.background import BackgroundLoop
from strata.errors import ManagerClosedError

if TYPE_CHECKING:
    from collections.abc import Coroutine

T = TypeVar("T")


class BackgroundWork:
    """Runs coroutines on one event loop in the background; from any thread."""

    def __init__(self) -> None:
        self._loop = BackgroundLoop(
            "strata-checkpoint", owner="a CheckpointManager", make_closed_error=ManagerClosedError
        )
        self._lock = threading.Lock()
        self._pending: set[Future[Any]] = set()
        self.is_closed = False
        self._pid = os.getpid()

    @property
    def is_own(self) -> bool:
        """Whether this process runs it: a forked child has none of the threads, and waits for nothing."""
        return self._pid == os.getpid()

    def submit(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Run a coroutine; the future belongs to whoever asked."""
        if self.is_closed:
            work.close()
            raise ManagerClosedError
        return self._loop.submit(work)

    def track(self, work: Coroutine[Any, Any, None]) -> None:
        """Run a coroutine, and count it as pending until it ends."""
        future = self.submit(work)
        with self._lock:
            self._pending.add(future)
        future.add_done_callback(self._forget)

    def promise(self) -> Future[None]:
        """Count work as pending that is given to :meth:`serve` later; set the future's result when that has ended."""
        if self.is_closed:
            raise ManagerClosedError
        future: Future[None] = Future()
        with self._lock:
            self._pending.add(future)
        future.add_done_callback(self._forget)
        return future

    def serve(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Run what others wait for, and count it as pending; also while this closes, but not after."""
        with self._lock:
            if self.is_closed and not self._pending:
                work.close()
                raise ManagerClosedError
            future = self._loop.submit(work)
            self._pending.add(future)
        future.add_done_callback(self._forget)
        return future

    def has_pending(self) -> bool:
        """Whether anything that is counted has not ended."""
        return bool(self._pending)

    def wait(self, timeout_s: float | None) -> bool:
        """Wait for what is pending now; return whether all of it ended in time."""
        with self._lock:
            pending = set(self._pending)
        return not wait_for(pending, timeout_s)[1]

    def refuse_more(self) -> None:
        """Take no more work, but what others wait for while something is pending."""
        self.is_closed = True

    def close(self) -> None:
        """Stop the event loop; what still runs is cancelled."""
        self._loop.close()

    def _forget(self, future: Future[Any]) -> None:
        with self._lock:
            self._pending.discard(future)
