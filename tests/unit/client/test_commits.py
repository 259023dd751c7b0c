"""A worker hears of its commit at once, however announcement and answer cross each other."""

from __future__ import annotations

from typing import Any

import pytest

from strata.checkpoint.coordination import PartAck
from strata.checkpoint.saver import MAX_UNCOMMITTED
from strata.client import commits
from strata.client.commits import Commits
from strata.cluster import commands as c
from strata.cluster.commits import MAX_REMEMBERED, CommitProgress
from strata.cluster.events import CheckpointCommitted

ACK = PartAck(step=7, epoch=0, generation=1, report="step_7/part.json", size_bytes=1, digest="00")


class Connection:
    """A coordinator that answers "collecting" once, and announces the commit before that answer is read."""

    def __init__(self) -> None:
        self.commits = Commits(self)  # type: ignore[arg-type]
        self.questions = 0

    def own(self, kind: type[c.WorkerCommand], **fields: Any) -> c.WorkerCommand:
        return kind(job_id="job", worker_id="a", incarnation="1", **fields)

    async def ask(self, command: c.WorkerCommand) -> CommitProgress | None:
        if isinstance(command, c.AckPart):
            return None
        self.questions += 1
        if self.questions > 1:
            return CommitProgress(phase="committed")
        self.commits.take_effect(CheckpointCommitted(job_id="job", to=("a",), step=7, manifest="step_7/metadata.json"))
        return CommitProgress(phase="collecting", missing=("b",))


async def test_an_announcement_that_overtakes_an_answer_is_not_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commits, "ASK_AGAIN_S", 1_000.0)
    connection = Connection()
    await connection.commits.commit_part(ACK, timeout_s=10, on_wait=lambda _: None)
    assert connection.questions == 2


def test_no_commit_is_forgotten_while_a_worker_may_still_ask_for_it() -> None:
    assert MAX_UNCOMMITTED < MAX_REMEMBERED
