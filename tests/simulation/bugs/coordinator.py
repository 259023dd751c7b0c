"""Bugs between the state machine, the journal and the connections."""

from __future__ import annotations

from typing import Any

import pytest

from strata.coordinator.speakers import Speakers
from strata.coordinator.write_queue import WriteQueue
from tests.simulation.bugs.planting import bug, nothing, wrap


@bug
def write_what_was_undone(patch: pytest.MonkeyPatch) -> None:
    def forgetful(self: WriteQueue) -> list[Any]:
        outputs = [output for _, output in (*(self._written or ()), *self._outputs)]
        self._outputs, self._written = [], None
        return outputs

    patch.setattr(WriteQueue, "abort", forgetful)
    wrap(patch, WriteQueue, "begin", lambda begin, self: begin(self)[::-1])


@bug
def lose_what_comes_while_a_batch_is_written(patch: pytest.MonkeyPatch) -> None:
    def forgetful(end: Any, self: WriteQueue) -> list[Any]:
        self._entries = []
        return list(end(self))

    wrap(patch, WriteQueue, "end", forgetful)


@bug
def send_effects_to_the_first_connection(patch: pytest.MonkeyPatch) -> None:
    def sticky(answered: Any, self: Speakers[Any], command: Any, answer: Any, connection: Any) -> None:
        before = dict(self._connections)
        answered(self, command, answer, connection)
        self._connections.update(before)

    wrap(patch, Speakers, "answered", sticky)


@bug
def send_no_effects(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Speakers, "find", nothing)
