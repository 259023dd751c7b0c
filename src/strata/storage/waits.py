"""Log what waits for a store: after three seconds without progress, one line per store, and one when it goes on.

Clients of stores retry by themselves, so without these lines a store that does not answer looks like a program
that hangs. Every request to a store runs inside a :class:`Request`; a thread looks at those under way.
"""

from __future__ import annotations

import logging
import os
import threading
from contextlib import contextmanager, suppress
from contextvars import ContextVar, Token
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Self, TypeAlias

from strata.clock import Clock, SystemClock
from strata.errors import StorageError, StorageUnavailableError

if TYPE_CHECKING:
    from collections.abc import Iterator

log = logging.getLogger(__name__)

Action: TypeAlias = Literal["read", "write", "list", "delete", "look up"]

# A request without progress for so long is logged.
LOG_AFTER_S = 3.0
# The line is repeated when the wait is twice as long, and at least this often.
MAX_REPEAT_S = 60.0
CHECK_EVERY_S = 0.5

# The request that this task or thread makes: code far below notes its progress without being handed it.
_current: ContextVar[Request | None] = ContextVar("strata_storage_request", default=None)


class Request:
    """A context in which something is asked of a store; it counts as waiting while nothing moves.

    ``store`` is what lines are grouped by, such as ``s3://bucket at 10.0.0.5:9000``.
    """

    __slots__ = ("_idle", "_token", "_waits", "action", "moved_s", "path", "problem", "store")

    def __init__(self, store: str, action: Action, path: str, *, waits: Waits | None = None) -> None:
        self.store = store
        self.action = action
        self.path = path
        self.problem = ""
        self.moved_s = 0.0
        self._waits = waits or _process_waits
        # One entry for each thread that waits for something else; lists grow and shrink atomically.
        self._idle: list[None] = []
        self._token: Token[Request | None] | None = None

    def __enter__(self) -> Self:
        self.moved_s = self._waits.clock.monotonic_s()
        self._token = _current.set(self)
        self._waits.add(self)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        assert self._token is not None
        _current.reset(self._token)
        # A refusal is an answer too.
        failed = isinstance(error, StorageUnavailableError) or not isinstance(error, StorageError | None)
        self._waits.remove(self, answered=not failed)

    @property
    def is_idle(self) -> bool:
        """Whether it waits for this process at the moment, and not for the store."""
        return bool(self._idle)

    def move(self) -> None:
        """Note that the store did something: a piece came or was taken."""
        self.moved_s = self._waits.clock.monotonic_s()
        self.problem = ""
        self._waits.note_answer(self.store)

    @contextmanager
    def idle(self) -> Iterator[None]:
        """Wrap what waits for this process: it is not the store's time."""
        self._idle.append(None)
        try:
            yield
        finally:
            self.moved_s = self._waits.clock.monotonic_s()
            self._idle.pop()


def current_request() -> Request | None:
    """Return the request that the calling task or thread makes, to note its progress from a thread that it starts."""
    return _current.get()


def note_progress() -> None:
    """Note that the store did something for the request of the calling task or thread."""
    if (request := _current.get()) is not None:
        request.move()


def note_problem(problem: str) -> None:
    """Note why the last attempt of the calling task's request failed; the next line about the wait says it."""
    if (request := _current.get()) is not None:
        request.problem = problem


@dataclass(slots=True)
class _Stall:
    """A store of which some request has waited long enough to be logged."""

    since_s: float
    next_line_s: float
    has_answered: bool = False


class Waits:
    """The requests under way, and which lines about them are due. No thread and no log: see :class:`Watch`."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self._under_way: set[Request] = set()
        self._stalls: dict[str, _Stall] = {}

    def add(self, request: Request) -> None:
        """Count a request as under way."""
        self._under_way.add(request)

    def remove(self, request: Request, *, answered: bool) -> None:
        """Forget a request that ended."""
        self._under_way.discard(request)
        if answered:
            self.note_answer(request.store)

    def note_answer(self, store: str) -> None:
        """Note that the store answered something, so a wait for it that ends did not end by giving up."""
        if (stall := self._stalls.get(store)) is not None:
            stall.has_answered = True

    def is_empty(self) -> bool:
        """Whether nothing is under way and nothing is left to say."""
        return not self._under_way and not self._stalls

    def check(self) -> list[str]:
        """Return the lines that are due now."""
        now_s = self.clock.monotonic_s()
        stalled: dict[str, list[Request]] = {}
        for request in self._under_way.copy():
            # In this order: when a request stops being idle, it has just moved.
            if not request.is_idle and now_s - request.moved_s >= LOG_AFTER_S:
                stalled.setdefault(request.store, []).append(request)
        lines = []
        for store, requests in sorted(stalled.items()):
            requests.sort(key=lambda request: (request.moved_s, request.path))
            stall = self._stalls.setdefault(store, _Stall(requests[0].moved_s, now_s))
            if now_s >= stall.next_line_s:
                waited_s = now_s - stall.since_s
                stall.next_line_s = now_s + min(waited_s, MAX_REPEAT_S)
                # Answers to others, of before this line, do not end the wait.
                stall.has_answered = False
                lines.append(_describe(store, requests, now_s))
        for store in sorted(self._stalls.keys() - stalled.keys()):
            stall = self._stalls.pop(store)
            waited_s = now_s - stall.since_s
            ending = "goes on" if stall.has_answered else "no answer, and nothing waits for one any more,"
            lines.append(f"{store}: {ending} after {waited_s:.0f} s")
        return lines


class Watch(Waits):
    """Waits of this process, with a thread that logs the lines; it sleeps while nothing is under way."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(clock)
        self._forgets_at_fork = False
        self._reset()

    def _reset(self) -> None:
        self._under_way = set()
        self._stalls = {}
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._is_asleep = True

    def add(self, request: Request) -> None:
        """Count a request as under way, and wake the thread if it sleeps."""
        super().add(request)
        # Looked at after the request was added; the thread looks the other way round, so none is overlooked.
        if self._is_asleep:
            self._is_asleep = False
            self._start()
            self._wake.set()

    def _start(self) -> None:
        with self._lock:
            if self._thread is not None:
                return
            thread = threading.Thread(target=self._run, name="strata-storage-waits", daemon=True)
            # A pending save may be finished after the interpreter has begun to end, when no thread can be started.
            with suppress(RuntimeError):
                thread.start()
            self._thread = thread
            if not self._forgets_at_fork:
                # A forked child has neither the thread nor the requests.
                os.register_at_fork(after_in_child=self._reset)
                self._forgets_at_fork = True

    def _run(self) -> None:
        pause = threading.Event()
        while True:
            self._wake.wait()
            self._wake.clear()
            while not self.is_empty():
                pause.wait(CHECK_EVERY_S)
                for line in self.check():
                    log.warning("%s", line)
            self._is_asleep = True
            if not self.is_empty():
                self._wake.set()


_process_waits = Watch(SystemClock())


def _describe(store: str, requests: list[Request], now_s: float) -> str:
    oldest = requests[0]
    what = f"{oldest.action} {oldest.path}".rstrip()
    others = f" and {len(requests) - 1} more" if len(requests) > 1 else ""
    problem = next((f"; {request.problem}" for request in requests if request.problem), "")
    return f"{store}: waiting for {now_s - oldest.moved_s:.0f} s to {what}{others}{problem}"
