"""Processes that do one piece of work on one batch after the other; batches go there and back in shared memory."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Any

from strata.data.loading.shared_arrays import SharedMemory, Sizes
from strata.data.process_pool import start_pool

Work = Callable[[Any], Any]


class WorkProcesses:
    """Do the work on each value that is submitted; a process that dies is a BrokenProcessPool and no wait for ever."""

    def __init__(self, work: Work, count: int, *, memories: int) -> None:
        """At most ``memories`` values are on their way at once; each has memory for it, and for what is made of it."""
        pairs = [(SharedMemory(), SharedMemory()) for _ in range(memories)]
        self._pairs = pairs
        self._free: SimpleQueue[int] = SimpleQueue()
        for number in range(memories):
            self._free.put(number)
        self._pool = start_pool(count, _prepare_process, work, pairs)

    def submit(self, value: Any) -> ProcessTask:
        """Begin the work on a value; waits while all memory is in use."""
        number = self._free.get()
        given, made = self._pairs[number]
        try:
            future = self._pool.submit(_work_in_process, number, given.put(value))
        except BaseException:
            self._free.put(number)
            raise
        return ProcessTask(future, made, lambda: self._free.put(number))

    def close(self) -> None:
        """Let the processes end, without waiting for them."""
        self._pool.shutdown(wait=False, cancel_futures=True)


class ProcessTask:
    """One value in the making. Its memory is free for another when the result was taken, or will never be."""

    def __init__(self, future: Future[Sizes], made: SharedMemory, free: Callable[[], None]) -> None:
        self._future = future
        self._made = made
        self._free = free

    def result(self) -> Any:
        """Return what was made of the value, or raise what the work raised."""
        try:
            return self._made.take(self._future.result())
        finally:
            self._free()

    def cancel(self) -> None:
        """Leave it undone if it was not begun; its memory is free once no process writes there."""
        self._future.add_done_callback(lambda _: self._free())
        self._future.cancel()


_process_work: Work
_process_pairs: list[tuple[SharedMemory, SharedMemory]]


def _prepare_process(work: Work, pairs: list[tuple[SharedMemory, SharedMemory]]) -> None:
    global _process_work, _process_pairs
    _process_work, _process_pairs = work, pairs


def _work_in_process(number: int, sizes: Sizes) -> Sizes:
    given, made = _process_pairs[number]
    return made.put(_process_work(given.take(sizes)))
