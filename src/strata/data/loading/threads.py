"""A few threads that can be let go at any moment, even while Python collects garbage."""

from __future__ import annotations

import atexit
import threading
import time
import weakref
from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Any, TypeVar

T = TypeVar("T")

_Task = tuple[Future[Any], Callable[..., Any], tuple[Any, ...]]
# How long the end of the program waits for threads that are in the middle of a read.
_EXIT_WAIT_S = 5.0

_open: weakref.WeakSet[Threads] = weakref.WeakSet()


class Threads:
    """Run what is submitted, in that order, on a few threads.

    Closing takes no lock and waits for nothing. An iteration that was abandoned is closed by the garbage collector, at
    any point of any thread; a pool of ``concurrent.futures`` can meet its own lock there and stand still for ever.
    """

    def __init__(self, count: int, *, name: str) -> None:
        self._count = count
        self._tasks: SimpleQueue[_Task | None] = SimpleQueue()
        # A list and not an Event, whose lock this very thread may hold when garbage is collected.
        self._closed: list[bool] = []
        # They do not keep a program from ending; _leave_none_behind gives them the time to end cleanly.
        self._threads = [
            threading.Thread(target=_work, args=(self._tasks, self._closed), name=f"{name}-{number}", daemon=True)
            for number in range(count)
        ]
        for thread in self._threads:
            thread.start()
        _open.add(self)
        # Once, however often it is called with the same function.
        atexit.unregister(_leave_none_behind)
        atexit.register(_leave_none_behind)

    def submit(self, function: Callable[..., T], *args: Any) -> Future[T]:
        """Run the function on the next free thread; what was not begun when this is closed is cancelled."""
        future: Future[T] = Future()
        self._tasks.put((future, function, args))
        return future

    def close(self) -> None:
        """Let the threads end, each after what it is doing now."""
        self._closed.append(True)
        for _ in range(self._count):
            self._tasks.put(None)

    def join(self, timeout_s: float) -> None:
        """Wait until the threads have ended."""
        deadline_s = time.monotonic() + timeout_s
        for thread in self._threads:
            thread.join(max(0.0, deadline_s - time.monotonic()))


def _work(tasks: SimpleQueue[_Task | None], closed: list[bool]) -> None:
    # A function and not a method: a thread that held its pool would keep it from being collected.
    while (task := tasks.get()) is not None:
        future, function, args = task
        if closed:
            future.cancel()
        if future.set_running_or_notify_cancel():
            try:
                future.set_result(function(*args))
            except BaseException as error:  # noqa: BLE001 - it is raised where the result is asked for
                future.set_exception(error)
        # What was read is not kept while this thread waits.
        del task, future, function, args


def _leave_none_behind() -> None:
    threads = list(_open)
    for each in threads:
        each.close()
    for each in threads:
        each.join(_EXIT_WAIT_S)
