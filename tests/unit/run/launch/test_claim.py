"""A job has one launcher of each name: a claim is refused while its holder lives, and taken when it does not."""

from __future__ import annotations

import socket
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from strata.client import unary
from strata.client.unary import get_key, set_key
from strata.cluster.replies import KeyValue
from strata.run.launch.group import claim
from strata.run.launch.group.claim import STALE_S, JobClaim, JobTakenError, LauncherRecord
from tests.testbed.coordinator import coordinator_thread

KEY = "launcher/box"
NOBODY = 1 << 30
"""No process has this number."""


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with coordinator_thread() as coordinator:
        yield f"127.0.0.1:{coordinator.grpc_port}"


@pytest.fixture
def job() -> str:
    """A job that no other test knows."""
    return uuid.uuid4().hex


class Clock:
    """Time that passes only while a claim waits; ``on_sleep`` is what others do meanwhile."""

    def __init__(self, on_sleep: Callable[[], None] = lambda: None) -> None:
        self.now_s = 0.0
        self._on_sleep = on_sleep

    def monotonic(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds
        self._on_sleep()

    strftime = staticmethod(time.strftime)
    localtime = staticmethod(time.localtime)
    time = staticmethod(time.time)


def record(**fields: Any) -> LauncherRecord:
    """Return the record of a launcher on another machine."""
    return LauncherRecord(**{"name": "box", "nproc": 1, "host": "elsewhere", "pid": 1, "started": "1", **fields})


def claim_of_this_process(url: str, job: str) -> JobClaim:
    return JobClaim(url, job, LauncherRecord.of_this_process("box", nproc=1, node_rank=0), nnodes=1)


def holder_of(url: str, job: str) -> LauncherRecord | None:
    return LauncherRecord.from_bytes(get_key(url, job, KEY).value)


def put(url: str, job: str, holder: LauncherRecord) -> None:
    assert set_key(url, job, KEY, holder.to_bytes(), token=get_key(url, job, KEY).token).is_set


def test_a_launcher_that_renews_its_claim_on_another_machine_keeps_the_job(
    url: str, job: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(url, job, record())
    # While the second launcher waits, the first one renews its claim.
    monkeypatch.setattr(claim, "time", Clock(lambda: put(url, job, record(beat=1))))
    with pytest.raises(JobTakenError, match="run already by launcher 'box' on elsewhere, process 1, since") as caught:
        claim_of_this_process(url, job).take(takeover=False)
    assert caught.value.holder == record(beat=1)
    assert holder_of(url, job) == record(beat=1)


def test_a_claim_that_nobody_renews_is_taken(url: str, job: str, monkeypatch: pytest.MonkeyPatch) -> None:
    put(url, job, record())
    clock = Clock()
    monkeypatch.setattr(claim, "time", clock)
    mine = claim_of_this_process(url, job)
    mine.take(takeover=False)
    assert holder_of(url, job) == mine.record
    assert clock.now_s > STALE_S


def test_a_claim_of_a_process_that_ended_on_this_machine_is_taken_at_once(url: str, job: str) -> None:
    gone = record(host=socket.gethostname(), pid=NOBODY)
    assert gone.is_gone()
    assert not gone.runs_here()
    put(url, job, gone)
    mine = claim_of_this_process(url, job)
    mine.take(takeover=False)
    assert holder_of(url, job) == mine.record


def test_of_two_launchers_that_take_a_job_at_once_only_one_has_it(
    url: str, job: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rival = LauncherRecord.of_this_process("box", nproc=1, node_rank=0)
    rival = replace(rival, pid=1, started=claim._start_of(1))

    def set_second(*arguments: Any, **options: Any) -> KeyValue:
        monkeypatch.setattr(claim, "set_key", unary.set_key)
        put(url, job, rival)
        return set_key(*arguments, **options)

    monkeypatch.setattr(claim, "set_key", set_second)
    with pytest.raises(JobTakenError) as caught:
        claim_of_this_process(url, job).take(takeover=False)
    assert caught.value.holder == rival
    assert holder_of(url, job) == rival


def test_a_launcher_that_renews_its_claim_learns_who_took_the_job_over(url: str, job: str) -> None:
    mine = claim_of_this_process(url, job)
    mine.take(takeover=False)
    assert mine.renew() is None
    found = holder_of(url, job)
    assert found is not None
    assert found.beat == 1
    other = JobClaim(url, job, record(), nnodes=1)
    other.take(takeover=True)
    assert mine.renew() == record()
    assert holder_of(url, job) == record(), "it is not taken back"


def test_a_claim_goes_on_after_a_reply_was_lost(url: str, job: str) -> None:
    mine = claim_of_this_process(url, job)
    mine.take(takeover=False)
    put(url, job, replace(mine.record, beat=1))
    assert mine.renew() is None
    assert mine.renew() is None
    found = holder_of(url, job)
    assert found is not None
    assert found.beat == 2


def test_a_claim_is_made_again_at_a_coordinator_that_lost_its_journal(
    url: str, job: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = claim_of_this_process(url, job)
    mine.take(takeover=False)
    assert mine.renew() is None
    with coordinator_thread() as empty:
        other = f"127.0.0.1:{empty.grpc_port}"
        monkeypatch.setattr(mine, "url", other)
        assert mine.renew() is None
        assert mine.renew() is None
        assert holder_of(other, job) == mine.record


def test_a_claim_is_released_although_a_renewal_of_it_was_still_under_way(url: str, job: str) -> None:
    mine = claim_of_this_process(url, job)
    mine.take(takeover=False)
    put(url, job, replace(mine.record, beat=1))
    mine.release()
    assert get_key(url, job, KEY).value == b""


def test_a_claim_that_was_taken_over_is_left_to_its_new_holder(url: str, job: str) -> None:
    mine = claim_of_this_process(url, job)
    mine.take(takeover=False)
    put(url, job, record())
    mine.release()
    assert holder_of(url, job) == record()
