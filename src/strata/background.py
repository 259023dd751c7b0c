"""An event loop in a thread of its own, beside whatever the training process runs.

What is pending in one when the interpreter ends can be waited for, for a bounded time.
"""

from __future__ import annotations

import asyncio
import atexit
import logging
import os
import sys
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterable
    from concurrent.futures import Future

T = TypeVar("T")
log = logging.getLogger(__name__)

# Python 3.12.0 to 3.12.2 start no thread once a program has ended (CPython issue 113964), and every save needs some.
STARTS_THREADS_AT_EXIT = not (3, 12, 0) <= tuple(sys.version_info[:3]) <= (3, 12, 2)
EXIT_WAIT_S = 120.0
THREADS = 16


class BackgroundLoop:
    """An event loop in a daemon thread, started with the first work. It does not survive a fork, and says so.

    ``owner`` is what the error tells to make anew, such as "a Client". ``make_closed_error`` makes the error of all
    work that closing ends, or that comes after it.
    """

    def __init__(self, name: str, *, owner: str, make_closed_error: Callable[[], Exception] | None = None) -> None:
        self._name = name
        self._owner = owner
        self._make_closed_error = make_closed_error or self._describe_closed
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._closed = False
        self._pid = os.getpid()

    def submit(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Run a coroutine there; the future belongs to whoever asked."""
        with self._lock:
            try:
                loop = self._started()
            except BaseException:
                work.close()
                raise
            # Before anyone else can stop the loop: what is submitted begins, and so its future ends.
            return asyncio.run_coroutine_threadsafe(self._run_until_closed(work), loop)

    def call_soon(self, callback: Callable[..., object], *arguments: object) -> None:
        """Call something there; nothing waits for it."""
        with self._lock:
            self._started().call_soon_threadsafe(callback, *arguments)

    def close(self) -> None:
        """Stop the loop for good; work that is still under way is cancelled, and fails with the error for that."""
        with self._lock:
            self._closed = True
            loop, thread, self._loop, self._thread = self._loop, self._thread, None, None
        if loop is None or thread is None or self._pid != os.getpid():
            return
        loop.call_soon_threadsafe(loop.stop)
        thread.join()

    def stop(self) -> None:
        """Stop the loop for good, without waiting for it; for an owner that is being collected."""
        with self._lock:
            self._closed = True
            loop, self._loop, self._thread = self._loop, None, None
        if loop is not None and self._pid == os.getpid():
            loop.call_soon_threadsafe(loop.stop)

    async def _run_until_closed(self, work: Coroutine[Any, Any, T]) -> T:
        task = asyncio.current_task()
        assert task is not None
        # The caller may have gone away, and asyncio prints errors of tasks that nothing has read.
        task.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
        try:
            return await work
        except asyncio.CancelledError:
            if self._closed:
                raise self._make_closed_error() from None
            raise

    def _describe_closed(self) -> Exception:
        return RuntimeError(f"{self._owner} that was closed does nothing more; make a new one")

    def _started(self) -> asyncio.AbstractEventLoop:
        """Return the loop, which nobody can stop while the lock is held."""
        if self._pid != os.getpid():
            raise RuntimeError(f"{self._owner} does not survive a fork; make one in the new process")
        if self._closed:
            raise self._make_closed_error()
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            self._thread = threading.Thread(target=_run, args=(self._loop, self._name), name=self._name, daemon=True)
            self._thread.start()
        return self._loop


def _run(loop: asyncio.AbstractEventLoop, name: str) -> None:
    asyncio.set_event_loop(loop)
    # On a small machine the default would be fewer threads than a restore has reads and digests under way.
    executor = ThreadPoolExecutor(THREADS, thread_name_prefix=name)
    loop.set_default_executor(executor)
    try:
        loop.run_forever()
        # One turn in which what was submitted last begins: a task that never ran could not say why it ended.
        loop.run_until_complete(asyncio.sleep(0))
        pending = asyncio.all_tasks(loop)
        cancel_each(pending)
        loop.run_until_complete(asyncio.gather(*pending, return_exceptions=True))
        # It takes some turns of the loop, in which connections that were aborted are closed.
        try:
            loop.run_until_complete(loop.shutdown_default_executor())
        except RuntimeError:  # it waits in a thread of its own, which cannot always be had at exit
            executor.shutdown()
    finally:
        loop.close()


def cancel_each(tasks: Iterable[asyncio.Task[Any]]) -> None:
    """Cancel tasks, but for those that were: one that is cancelled again while it cleans up leaves that undone."""
    for task in tasks:
        if not task.cancelling():
            task.cancel()


_at_exit: weakref.WeakSet[Any] = weakref.WeakSet()
_registered = False


def close_at_exit(owner: Any) -> None:
    """Call ``owner.close(timeout_s)`` when the interpreter ends, unless it is gone by then."""
    global _registered
    _at_exit.add(owner)
    if _registered:
        return
    _registered = True
    # Plain atexit comes too late: by then the interpreter refuses new work to every thread pool, and a pending
    # save could not be finished. This is where concurrent.futures itself registers.
    register: Callable[[Callable[[], None]], object] = getattr(threading, "_register_atexit", atexit.register)
    register(_close_all)
    # A forked child has none of the threads: what it would wait for never ends there.
    os.register_at_fork(after_in_child=_at_exit.clear)


def _close_all() -> None:
    for owner in list(_at_exit):
        try:
            owner.close(timeout_s=EXIT_WAIT_S)
        except Exception:
            # The interpreter ends; all that is left to do is to say so and to go on with the others.
            log.exception("pending saves could not be finished at exit")
