"""Bugs in the dispatcher, which worlds of their own run as it is shipped."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from strata.cluster import Cluster
from strata.coordinator.dispatcher import Dispatcher
from strata.coordinator.write_queue import WriteQueue
from tests.simulation.bugs.planting import dispatcher_bug, nothing, wrap


@dispatcher_bug
def answer_before_the_batch_in_flight_is_durable(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(WriteQueue, "is_settled", lambda self, tenant: not self._waiting[tenant])


@dispatcher_bug
def take_a_batch_that_is_begun_for_durable(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Dispatcher, "_may_tell", lambda self, _: not self._queue.has_more)


@dispatcher_bug
def answer_questions_with_what_is_not_durable(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Dispatcher, "look", lambda self, question, tell: tell(self._answer(question)))


@dispatcher_bug
def answer_questions_that_waited_with_what_was_undone(patch: pytest.MonkeyPatch) -> None:
    def stale(self: Dispatcher, question: Any, tell: Any) -> None:
        answer = self._answer(question)
        if self._queue.is_idle:
            tell(answer)
        else:
            self._queue.add(None, lambda _: tell(answer), tenant=None)

    patch.setattr(Dispatcher, "look", stale)


@dispatcher_bug
def take_the_snapshot_after_the_write_that_it_must_precede(patch: pytest.MonkeyPatch) -> None:
    def late(freeze: Callable[[Any], Callable[[], Awaitable[None]]], self: Dispatcher) -> Callable[[], Awaitable[None]]:
        async def write() -> None:
            await freeze(self)()

        self._compaction.began(self.now_s(), took_s=0.0)
        return write

    wrap(patch, Dispatcher, "_freeze", late)


@dispatcher_bug
def start_no_leases_when_the_journal_recovers(patch: pytest.MonkeyPatch) -> None:
    def once(restart: Any, self: Cluster, now_s: float) -> None:
        if self._looked_s is None:
            restart(self, now_s)

    wrap(patch, Cluster, "restart", once)


@dispatcher_bug
def keep_what_was_not_written(patch: pytest.MonkeyPatch) -> None:
    def careless(replay: Any, self: Dispatcher) -> Cluster:
        return getattr(self, "cluster", None) or replay(self)

    wrap(patch, Dispatcher, "_replay", careless)


@dispatcher_bug
def answer_what_was_not_written_as_if_it_were(patch: pytest.MonkeyPatch) -> None:
    def optimistic(abort: Any, self: WriteQueue) -> list[Any]:
        return [lambda _, output=output: output(None) for output in abort(self)]

    wrap(patch, WriteQueue, "abort", optimistic)


@dispatcher_bug
def answer_nobody_whose_write_was_refused(patch: pytest.MonkeyPatch) -> None:
    wrap(patch, WriteQueue, "abort", lambda abort, self: abort(self) and [])


@dispatcher_bug
def refuse_for_ever(patch: pytest.MonkeyPatch) -> None:
    async def never(_: Dispatcher) -> None:
        return None

    patch.setattr(Dispatcher, "_probe", never)


@dispatcher_bug
def send_effects_before_they_are_durable(patch: pytest.MonkeyPatch) -> None:
    def eager(add: Any, self: WriteQueue, entry: Any, output: Any, tenant: Any) -> None:
        output(None)
        add(self, entry, nothing, tenant)

    wrap(patch, WriteQueue, "add", eager)
