"""Bugs in the worker's half of the protocol."""

from __future__ import annotations

from typing import Any

import pytest

from strata.client.worker import commits as client_commits
from strata.client.worker import heartbeats as client_heartbeats
from strata.client.worker import leader_search
from strata.client.worker import meetings as client_meetings
from strata.client.worker import requests as client_requests
from strata.client.worker.commits import PartCommits
from strata.client.worker.meetings import Meetings
from strata.client.worker.protocol import WorkerProtocol
from strata.client.worker.requests import Requests
from strata.cluster.commits import CommitProgress
from strata.cluster.events import CheckpointAborted, CheckpointCommitted
from strata.errors import Recovery, StaleGenerationError, StrataError
from tests.simulation.bugs.planting import bug, nothing, wrap

# The worker's half.


@bug
def stop_beating_after_a_refused_write(patch: pytest.MonkeyPatch) -> None:
    def fragile(take: Any, self: WorkerProtocol, reply: Any) -> None:
        take(self, reply)
        if isinstance(reply, StrataError) and reply.recovery is Recovery.RETRY:
            self.heartbeats.stop()

    wrap(patch, WorkerProtocol, "_take_news", fragile)


@bug
def stay_on_a_dead_connection(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(client_heartbeats, "DEAD_AFTER_LEASES", 1e6)


@bug
def ask_nothing_again_on_a_new_connection(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Requests, "open", lambda self: setattr(self, "_is_open", True))


@bug
def ask_nothing_again_after_a_refusal(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Requests, "_resume", nothing)


@bug
def pass_on_what_may_be_asked_again(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Requests, "_may_retry", lambda *_: False)


@bug
def come_back_in_the_same_life(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(WorkerProtocol, "_next_life", nothing)


@bug
def come_back_after_hours(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(leader_search, "MAX_PAUSE_S", 1e9)
    patch.setattr(leader_search, "FIRST_PAUSE_S", 1e5)


@bug
def keep_the_generation_of_the_first_registration(patch: pytest.MonkeyPatch) -> None:
    def sticky(take: Any, self: WorkerProtocol, reply: Any) -> None:
        before = self.generation
        take(self, reply)
        self.generation = before or self.generation

    wrap(patch, WorkerProtocol, "_take_registration", sticky)
    patch.setattr(WorkerProtocol, "_take_news", nothing)
    patch.setattr(WorkerProtocol, "_take_generation", nothing)


@bug
def offer_no_release(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Meetings, "offer", nothing)


@bug
def arrive_only_once(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(client_meetings, "ARRIVE_AGAIN_S", 1e9)
    patch.setattr(Meetings, "arrive_again", nothing)


@bug
def count_no_rounds(patch: pytest.MonkeyPatch) -> None:
    class Zero(dict[str, int]):
        def get(self, *_: Any) -> int:
            return 0

    def build(init: Any, self: Meetings, *args: Any) -> None:
        init(self, *args)
        self._rounds = Zero()

    wrap(patch, Meetings, "__init__", build)


@bug
def number_reports_through_generations(patch: pytest.MonkeyPatch) -> None:
    def running(report: Any, self: WorkerProtocol, now_s: float, *, generation: int, **fields: Any) -> Any:
        self._commits.progress = generation, self._commits.progress[1]
        return report(self, now_s, generation=generation, **fields)

    wrap(patch, WorkerProtocol, "report", running)


@bug
def report_parts_as_they_come(patch: pytest.MonkeyPatch) -> None:
    def hasty(self: PartCommits) -> None:
        for number, part in list(self._parts.items()):
            if part.phase is client_commits.Phase.QUEUED:
                part.phase = client_commits.Phase.REPORTING
                self._report(number, part)

    patch.setattr(PartCommits, "_report_next", hasty)


@bug
def take_collecting_for_committed(patch: pytest.MonkeyPatch) -> None:
    def hopeful(take: Any, self: PartCommits, number: int, part: Any, reply: Any) -> None:
        take(self, number, part, CommitProgress(phase="committed") if isinstance(reply, CommitProgress) else reply)

    wrap(patch, PartCommits, "_take_progress", hopeful)


@bug
def never_ask_what_became_of_a_part(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(client_commits, "ASK_AGAIN_S", 1e9)


@bug
def go_on_as_a_member_after_a_refusal(patch: pytest.MonkeyPatch) -> None:
    def check(self: WorkerProtocol, generation: int) -> StrataError | None:
        stale = StaleGenerationError(self.worker.worker_id, sent=generation, current=self.generation)
        return None if generation == self.generation else stale

    patch.setattr(WorkerProtocol, "check", check)


@bug
def write_manifests_and_confirm_none(patch: pytest.MonkeyPatch) -> None:
    def silent(self: PartCommits, step: int, record: Any) -> None:
        self._writing.pop(step)

    patch.setattr(PartCommits, "manifest_written", silent)


@bug
def write_manifests_of_checkpoints_that_were_aborted(patch: pytest.MonkeyPatch) -> None:
    def keeping(take: Any, self: PartCommits, effect: Any) -> None:
        wanted = dict(self._wanted)
        take(self, effect)
        if isinstance(effect, CheckpointAborted | CheckpointCommitted):
            self._wanted = wanted

    wrap(patch, PartCommits, "take", keeping)


@bug
def repair_again_when_asked_again(patch: pytest.MonkeyPatch) -> None:
    def forgetful(take: Any, self: PartCommits, effect: Any) -> None:
        self._repaired.clear()
        take(self, effect)

    wrap(patch, PartCommits, "take", forgetful)


@bug
def retry_so_slowly_that_it_never_happens(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(client_requests, "FIRST_RETRY_S", 1e9)
    patch.setattr(client_requests, "MAX_RETRY_S", 1e9)
