"""Meetings: a worker's barriers from its arrival to their release, and what the last ones came to. Pure.

A release that anyone was told of must reach everyone, also when the coordinator restarts in between and forgets it. So
a worker keeps its last releases of a generation, offers them when it joins again and while it waits, and brings those
that are wanted.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from strata.client.worker.actions import Action, Answer
from strata.client.worker.requests import Requests, Timers, ignore
from strata.cluster import commands as c
from strata.cluster.events import BarrierFailed, BarrierReleased, ReleaseWanted
from strata.cluster.replies import Reply
from strata.cluster.values import Meeting
from strata.errors import BarrierTimeoutError, GenerationChangedError, StrataError

# How often an arrival is said again: its release may have been lost with a connection.
ARRIVE_AGAIN_S = 2.0
# How much longer than the barrier's own timeout a worker waits for the coordinator to end it.
PATIENCE_S = 10.0
# So many releases are kept, and so many bytes of what was exchanged at them, but always the last few: a worker whose
# release got lost is at the meeting before the one that the others are at.
MAX_KEPT = 64
MIN_KEPT = 8
MAX_KEPT_BYTES = 64 << 20

MakeCommand = Callable[..., c.WorkerCommand]


@dataclass(slots=True)
class Arrival:
    """A meeting that this worker waits at, and under which numbers it was asked for."""

    fields: dict[str, object]
    generation: int
    numbers: list[int] = field(default_factory=list)
    request: int = 0
    """The number of the request that said it last."""
    is_noted: bool = False
    """Whether that request was answered; whoever leads next does not know of it."""


class Meetings:
    """The barriers of one worker. ``own`` makes a command of the worker in its present incarnation."""

    def __init__(self, own: MakeCommand, requests: Requests, timers: Timers, actions: list[Action]) -> None:
        self._own = own
        self._requests = requests
        self._timers = timers
        self._actions = actions
        self._waiting: dict[Meeting, Arrival] = {}
        self._generation = 0
        self._rounds: dict[str, int] = {}
        self._released: dict[Meeting, BarrierReleased] = {}
        self._offer = 0

    def meet(
        self,
        name: str,
        *,
        generation: int,
        expected: int | None = None,
        timeout_s: float = c.BARRIER_TIMEOUT_S,
        payload: bytes | None = None,
    ) -> int:
        """Arrive at a barrier; the answer under the number returned is its release, or why there will be none."""
        meeting = Meeting(name, self.next_round(name, generation))
        number = self._requests.next_number()
        arrival = self._waiting.get(meeting)
        if arrival is not None and arrival.generation == generation:
            arrival.numbers.append(number)
            return number
        fields = {"name": name, "round": meeting.round, "expected": expected, "timeout_s": timeout_s}
        arrival = Arrival({**fields, "payload": payload}, generation, [number])
        self._waiting[meeting] = arrival
        self._timers.after(timeout_s + PATIENCE_S, lambda: self._give_up(meeting, arrival))
        self._arrive(meeting, arrival)
        return number

    def next_round(self, name: str, generation: int) -> int:
        """Return how many times this name will have been used in a generation when it is used again."""
        return self._rounds.get(name, 0) + 1 if generation == self._generation else 1

    def cancel(self, number: int) -> None:
        """Forget that someone waits."""
        for meeting, arrival in list(self._waiting.items()):
            if number in arrival.numbers:
                arrival.numbers.remove(number)
                if not arrival.numbers:
                    del self._waiting[meeting]

    def enter_generation(self, generation: int) -> None:
        """Another generation has begun: nobody meets in the one before, and its releases are of no use."""
        if generation == self._generation:
            return
        self._generation = generation
        self._rounds.clear()
        self._released.clear()
        for meeting, arrival in list(self._waiting.items()):
            if arrival.generation != generation:
                self._end(meeting, arrival, GenerationChangedError(meeting.name, generation))

    def take(self, effect: BarrierReleased | BarrierFailed) -> None:
        """Take the end of a meeting; one that this worker does not wait for is ignored."""
        meeting = Meeting(effect.name, effect.round)
        arrival = self._waiting.get(meeting)
        if arrival is None:
            return
        if isinstance(effect, BarrierFailed):
            self._end(meeting, arrival, effect.error)
        elif effect.generation == arrival.generation:
            if effect.generation == self._generation:
                self._rounds[meeting.name] = meeting.round
                self._keep(meeting, effect)
            self._end(meeting, arrival, effect)

    def offer(self) -> None:
        """Say which releases this worker knows of: after it joined again, and whenever it has waited for a while."""
        if self._released:
            meetings, generation = tuple(self._released), self._generation
            # The last one says all, so none waits for an answer beside it.
            self._requests.forget(self._offer)
            self._offer = self._requests.ask(
                lambda: self._own(c.OfferReleases, generation=generation, meetings=meetings), ignore
            )

    def arrive_again(self) -> None:
        """Say where this worker waits, after it joined again.

        An arrival that was not answered is sent again as every request is. One that was answered is in nobody's memory
        after a restart or a takeover, and all would wait until its turn comes.
        """
        for meeting, arrival in list(self._waiting.items()):
            if arrival.is_noted:
                self._arrive(meeting, arrival)

    def bring(self, wanted: ReleaseWanted) -> None:
        """Bring a release that others wait for, if this worker knows it."""
        released = self._released.get(Meeting(wanted.name, wanted.round))
        if released is not None and wanted.generation == self._generation:
            fields = {"generation": wanted.generation, "name": wanted.name, "round": wanted.round}
            content = {"payloads": released.payloads, "waited_s": released.waited_s}
            self._requests.ask(lambda: self._own(c.BringRelease, **fields, **content), ignore)

    def fail_all(self, error: StrataError) -> None:
        """End every wait with an error."""
        for meeting, arrival in list(self._waiting.items()):
            self._end(meeting, arrival, error)

    def _arrive(self, meeting: Meeting, arrival: Arrival) -> None:
        def make() -> c.WorkerCommand:
            return self._own(c.ArriveAtBarrier, generation=arrival.generation, **arrival.fields)

        def on_answer(reply: Reply | StrataError) -> None:
            if self._waiting.get(meeting) is not arrival:
                return
            if isinstance(reply, StrataError):
                self._end(meeting, arrival, reply)
            else:
                arrival.is_noted = True

        number = self._requests.ask(make, on_answer)
        arrival.request, arrival.is_noted = number, False

        def again() -> None:
            if self._waiting.get(meeting) is arrival and arrival.request == number:
                self._requests.forget(number)
                # Whom it waits for may miss the release before this one: a coordinator whose journal refused a write
                # has forgotten all releases, and no connection ends by that.
                self.offer()
                self._arrive(meeting, arrival)

        self._timers.after(ARRIVE_AGAIN_S, again)

    def _give_up(self, meeting: Meeting, arrival: Arrival) -> None:
        """End a wait that the coordinator did not end in time: it is away, or forgot."""
        if self._waiting.get(meeting) is arrival:
            expected = arrival.fields["expected"]
            error = BarrierTimeoutError(meeting.name, 1, expected if isinstance(expected, int) else 0, [])
            error.add_note("the coordinator did not end this barrier in time; is it reachable?")
            self._end(meeting, arrival, error)

    def _end(self, meeting: Meeting, arrival: Arrival, answer: BarrierReleased | StrataError) -> None:
        del self._waiting[meeting]
        self._actions.extend(Answer(number, answer) for number in arrival.numbers)

    def _keep(self, meeting: Meeting, released: BarrierReleased) -> None:
        self._released[meeting] = released
        size_bytes = sum(map(_size_bytes, self._released.values()))
        while len(self._released) > MAX_KEPT or (len(self._released) > MIN_KEPT and size_bytes > MAX_KEPT_BYTES):
            size_bytes -= _size_bytes(self._released.pop(next(iter(self._released))))


def _size_bytes(released: BarrierReleased) -> int:
    return sum(map(len, released.payloads))
