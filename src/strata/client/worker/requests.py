"""Requests: what was asked and not answered, when it is asked again, and when it is given up. Pure.

Every command may be sent twice, so a request is sent again on each new connection, and after an error that says that
the same call may succeed later.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from strata.client.worker.actions import Action, Send
from strata.clock import backoff_s
from strata.cluster.commands import JobCommand
from strata.cluster.replies import Reply
from strata.errors import CoordinatorLostError, OutboxFullError, OutOfOrderError, Recovery, StrataError

# More than this cannot wait for a coordinator that is away: what is asked then fails at once.
MAX_UNANSWERED = 10_000
FIRST_RETRY_S = 0.1
MAX_RETRY_S = 2.0

OnAnswer = Callable[[Reply | StrataError], None]


class Timers:
    """The time of the last input, and what is due later; a timer that is not wanted any more does nothing."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()
        self.now_s = 0.0

    def after(self, delay_s: float, do: Callable[[], None]) -> None:
        """Let something be done after a while."""
        heapq.heappush(self._heap, (self.now_s + delay_s, next(self._numbers), do))

    def run(self) -> None:
        """Do what is due."""
        while self._heap and self._heap[0][0] <= self.now_s:
            heapq.heappop(self._heap)[2]()

    def next_s(self) -> float | None:
        """Return when something is due next."""
        return self._heap[0][0] if self._heap else None


@dataclass(slots=True)
class Request:
    """One question. ``make`` gives the command anew for each sending, so that it is of the present incarnation."""

    number: int
    make: Callable[[], JobCommand]
    on_answer: OnAnswer
    is_paused: bool = False
    retries: int = 0
    problem: StrataError | None = None
    """Why it was refused for now, the last time."""


class Requests:
    """The unanswered requests of one worker, in their order."""

    def __init__(self, address: str, timers: Timers, actions: list[Action], chance: Callable[[], float]) -> None:
        self._address = address
        self._timers = timers
        self._actions = actions
        self._chance = chance
        self._numbers = itertools.count(1)
        self._unanswered: dict[int, Request] = {}
        self._is_open = False

    def ask(
        self,
        make: Callable[[], JobCommand],
        on_answer: OnAnswer,
        *,
        timeout_s: float | None = None,
    ) -> int:
        """Ask something until it is answered.

        After ``timeout_s`` the answer is why it was refused for now, or CoordinatorLostError if nothing came.
        """
        if len(self._unanswered) >= MAX_UNANSWERED:
            raise OutboxFullError(limit=MAX_UNANSWERED)
        number = self.next_number()
        request = self._unanswered[number] = Request(number, make, on_answer)
        if timeout_s is not None:
            self._timers.after(timeout_s, lambda: self._expire(number, timeout_s))
        if self._is_open:
            self._send(request)
        return number

    def next_number(self) -> int:
        """Return a number that no request ever had."""
        return next(self._numbers)

    def forget(self, number: int) -> None:
        """Drop a request that nobody waits for any more."""
        self._unanswered.pop(number, None)

    def open(self) -> None:
        """The worker is in: send everything that was not answered, in its order."""
        self._is_open = True
        for request in list(self._unanswered.values()):
            if not request.is_paused:
                self._send(request)

    def close(self) -> None:
        """There is no connection: hold everything back."""
        self._is_open = False

    def receive(self, number: int, reply: Reply | StrataError) -> None:
        """Take a reply; one that nobody waits for is ignored."""
        request = self._unanswered.get(number)
        if request is None:
            return
        if isinstance(reply, StrataError) and self._may_retry(request, reply):
            request.problem = reply
            self._pause(request)
            return
        del self._unanswered[number]
        request.on_answer(reply)

    def fail_all(self, error: StrataError) -> None:
        """Answer everything with an error."""
        unanswered, self._unanswered = self._unanswered, {}
        for request in unanswered.values():
            request.on_answer(error)

    def _may_retry(self, request: Request, error: StrataError) -> bool:
        if isinstance(error, OutOfOrderError):
            # One before it was refused for a while and is still on its way.
            return any(number < request.number for number in self._unanswered)
        return error.recovery is Recovery.RETRY

    def _pause(self, request: Request) -> None:
        request.is_paused = True
        request.retries += 1
        pause_s = backoff_s(request.retries, first_s=FIRST_RETRY_S, max_s=MAX_RETRY_S, chance=self._chance())
        self._timers.after(pause_s, lambda: self._resume(request))

    def _resume(self, request: Request) -> None:
        request.is_paused = False
        if self._is_open and request.number in self._unanswered:
            self._send(request)

    def _expire(self, number: int, timeout_s: float) -> None:
        request = self._unanswered.pop(number, None)
        if request is not None:
            request.on_answer(request.problem or CoordinatorLostError(self._address, waited_s=timeout_s))

    def _send(self, request: Request) -> None:
        self._actions.append(Send(request.number, request.make()))


def ignore(_: Any) -> None:
    """Take an answer that nobody waits for."""
