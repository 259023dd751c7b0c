"""Code that blocks, in virtual time: each call runs in a thread of its own, and only one of all threads runs at a time.

The journal in etcd waits for answers as every blocking code does. So that the simulator drives the very code that is
shipped, its waits give control back to the world, and the world lets it go on when the answer comes.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

Later = Callable[[float, Callable[[], None]], None]

_current = threading.local()


class EndedError(BaseException):
    """The process in which the code ran is dead: nothing of it may go on, whatever it catches."""


class VirtualThread:
    """One call. ``done`` is called with what it returned, or with the exception that it raised."""

    def __init__(self, run: Callable[[], Any], done: Callable[[Any], None], later: Later) -> None:
        self._run = run
        self.later = later
        """What lets time pass in the process that it belongs to."""
        self._done = done
        self._may_run = threading.Semaphore(0)
        self._is_parked = threading.Semaphore(0)
        self._value: Any = None
        self._result: Any = None
        self.is_over = False
        self._thread = threading.Thread(target=self._main, daemon=True)

    def start(self) -> None:
        """Run until the first wait, or the end."""
        self._thread.start()
        self._let_run()

    def resume(self, value: Any) -> None:
        """Go on with what was waited for; an exception is raised there."""
        if not self.is_over:
            self._value = value
            self._let_run()

    def end(self) -> None:
        """End it where it waits, and tell nobody."""
        self._done = lambda _: None
        if self._thread.ident is None:
            self.is_over = True  # it was to start later
        else:
            self.resume(EndedError())

    def park(self) -> Any:
        """Wait, from within: return what it is resumed with."""
        self._is_parked.release()
        self._may_run.acquire()
        if isinstance(self._value, BaseException):
            raise self._value
        return self._value

    def _let_run(self) -> None:
        self._may_run.release()
        self._is_parked.acquire()
        if self.is_over:
            self._thread.join()
            self._done(self._result)

    def _main(self) -> None:
        self._may_run.acquire()
        _current.thread = self
        try:
            self._result = self._run()
        except (Exception, EndedError) as error:  # noqa: BLE001 - passed on, as by a future
            self._result = error
        self.is_over = True
        self._is_parked.release()


def current() -> VirtualThread:
    """Return the virtual thread that runs now."""
    thread: VirtualThread = _current.thread
    return thread


def wait(begin: Callable[[Callable[[Any], None]], None]) -> Any:
    """Block the calling virtual thread: ``begin`` is given what resumes it, once."""
    thread = current()
    is_resumed: list[bool] = []

    def resume(value: Any) -> None:
        if not is_resumed:
            is_resumed.append(True)
            thread.resume(value)

    begin(resume)
    return thread.park()


def sleep(seconds: float) -> None:
    """Let virtual time pass for the calling virtual thread."""
    later = current().later
    wait(lambda resume: later(seconds, lambda: resume(None)))
