"""A worker's protocol with a clock, for tests: what it sends, and what it is told."""

from __future__ import annotations

from typing import Any

from strata.client.worker import actions as a
from strata.client.worker.protocol import WorkerProtocol
from strata.cluster import commands as c
from strata.cluster import events as e
from strata.cluster.replies import HeartbeatReply, Registered, Reply
from strata.cluster.values import Span
from strata.errors import (
    JournalUnavailableError,
    StrataError,
)

LEASE_S = 8.0
REFUSED = JournalUnavailableError("journal", "the disk is full")


class Worker:
    """A protocol with a clock, and everything that it wanted so far."""

    def __init__(self, *, joins: bool = True, addresses: tuple[str, ...] = ("host:1",)) -> None:
        self.now_s = 100.0
        registration = c.RegisterWorker(worker_id="a", incarnation="1-p.1")
        self.protocol = WorkerProtocol(registration, addresses=addresses, chance=lambda: 1.0)
        self.actions: list[a.Action] = []
        self.take(self.protocol.start(self.now_s))
        if joins:
            self.join()

    def take(self, actions: list[a.Action]) -> list[a.Action]:
        self.actions += actions
        return actions

    def join(self, generation: int = 1, **fields: Any) -> None:
        """Let the coordinator take the worker in, on a new connection."""
        sent = self.take(self.protocol.connected(self.now_s))
        registered = Registered(
            **{"rank": 0, "world_size": 1, "generation": generation, "waits_for": 0, "lease_s": LEASE_S, **fields}
        )
        self.reply(sent[-1].number, registered)

    def reply(self, number: int, reply: Reply | StrataError) -> list[a.Action]:
        return self.take(self.protocol.receive(number, reply, self.now_s))

    def effect(self, effect: e.Effect) -> list[a.Action]:
        return self.take(self.protocol.receive_effect(effect, self.now_s))

    def pass_time(self, seconds: float) -> list[a.Action]:
        """Let time pass, ticking when the protocol wants it."""
        end_s, done = self.now_s + seconds, []
        while (at_s := self.protocol.next_tick_s()) is not None and at_s <= end_s:
            self.now_s = max(self.now_s, at_s)
            done += self.take(self.protocol.tick(self.now_s))
        self.now_s = end_s
        return done

    def answer_heartbeats(self) -> None:
        """Let the coordinator answer every heartbeat until now."""
        for beat in self.sent(c.Heartbeat):
            self.reply(beat.number, HeartbeatReply(rank=0, world_size=1, generation=1, waits_for=0))

    def sent(self, kind: type[c.JobCommand]) -> list[a.Send]:
        return [action for action in self.actions if isinstance(action, a.Send) and isinstance(action.command, kind)]

    def answer(self, number: int) -> Any:
        """Return what was answered under a number."""
        (found,) = (each.reply for each in self.actions if isinstance(each, a.Answer) and each.number == number)
        return found

    def is_answered(self, number: int) -> bool:
        return any(isinstance(each, a.Answer) and each.number == number for each in self.actions)

    def ask(self, command: c.JobCommand, **fields: Any) -> int:
        number, actions = self.protocol.ask(command, self.now_s, **fields)
        self.take(actions)
        return number

    def meet(self, name: str, **fields: Any) -> int:
        number, actions = self.protocol.meet(name, self.now_s, **fields)
        self.take(actions)
        return number


def released(name: str, generation: int = 1, round: int = 1) -> e.BarrierReleased:  # noqa: A002 - the field's name
    return e.BarrierReleased(
        job_id="default", to=("a",), name=name, round=round, generation=generation, payloads=(b"x",), waited_s=0.0
    )


def report(worker: Worker, generation: int = 1) -> int:
    spans = (Span(0, 0, 1),)
    number, actions = worker.protocol.report(
        worker.now_s, generation=generation, dataset_id="d", epoch=0, step=1, spans=spans
    )
    worker.take(actions)
    return number
