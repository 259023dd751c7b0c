"""Named waits: whoever waits longer than three seconds says for what, for whom, since when and until when."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from strata.run.loop.account import TimeAccount
from strata.tracing.traces import find_trace_id

log = logging.getLogger(__name__)

# A wait is logged at these ages, and then once a minute.
TOLD_AT_S = (3.0, 10.0, 30.0, 60.0)
TOLD_EVERY_S = 60.0


@dataclass(eq=False, slots=True)
class Wait:
    """One wait of one thread."""

    what: str
    whom: Callable[[], str]
    until_s: float | None
    is_on_others: bool
    began_s: float
    thread: int = field(default_factory=threading.get_ident)
    times_told: int = 0
    trace_id: str = field(default_factory=find_trace_id)
    """Of the trace that it is a part of: the thread that tells of it is in none."""

    def next_told_s(self) -> float:
        """Return when it is due to be logged again."""
        told = self.times_told
        if told < len(TOLD_AT_S):
            return self.began_s + TOLD_AT_S[told]
        return self.began_s + TOLD_AT_S[-1] + TOLD_EVERY_S * (told - len(TOLD_AT_S) + 1)


class Waits:
    """The waits of one process. :meth:`tick` logs those that are due; a thread of the run calls it.

    ``began_s`` is when the worker's time began, by default now.
    """

    def __init__(self, *, began_s: float | None = None) -> None:
        self._lock = threading.Lock()
        self._open: list[Wait] = []
        self.account = TimeAccount(time.monotonic() if began_s is None else began_s)
        """Where the time of the training thread goes."""
        self._training_thread = threading.get_ident()

    @contextmanager
    def waiting(
        self,
        what: str,
        *,
        whom: Callable[[], str] = lambda: "",
        timeout_s: float | None = None,
        is_on_others: bool = True,
        part: str = "wait",
    ) -> Iterator[None]:
        """Name a wait while the block runs; ``whom`` is asked for whom, when it is logged.

        ``part`` is what the training thread spends this time on; other threads have no account.
        """
        is_counted = threading.get_ident() == self._training_thread
        began_s = time.monotonic()
        wait = Wait(what, whom, None if timeout_s is None else began_s + timeout_s, is_on_others, began_s)
        with self._lock:
            self._open.append(wait)
        if is_counted:
            self.account.begin(part, wait.began_s)
        try:
            yield
        finally:
            if is_counted:
                self.account.end(time.monotonic())
            with self._lock:
                self._open.remove(wait)
            if wait.times_told:
                log.info("%s: over after %.1f s", what, time.monotonic() - wait.began_s)

    def is_on_others(self, thread: int) -> bool:
        """Whether this thread is in a wait that only other workers can end."""
        with self._lock:
            return any(wait.thread == thread and wait.is_on_others for wait in self._open)

    def tick(self, now_s: float) -> None:
        """Log the waits that are due."""
        with self._lock:
            due = [wait for wait in self._open if now_s >= wait.next_told_s()]
        for wait in due:
            wait.times_told += 1
            log.warning("%s", describe(wait, now_s=now_s, whom=wait.whom()), extra={"strata_trace_id": wait.trace_id})


def describe(wait: Wait, *, now_s: float, whom: str) -> str:
    """Return the sentence that tells of a wait."""
    missing = f" for {whom}" if whom else ""
    end = "" if wait.until_s is None else f", timeout in {max(0.0, wait.until_s - now_s):.0f} s"
    return f"waiting{missing} for {now_s - wait.began_s:.0f} s{end}: {wait.what}"
