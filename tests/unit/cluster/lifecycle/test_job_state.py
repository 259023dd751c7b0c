"""The state of a job: one word at any moment, decided by what its workers said and which leases ended."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strata.cluster import Cluster
from strata.cluster import commands as c
from strata.cluster.commands import WorkerState
from strata.cluster.events import Cause
from strata.cluster.lifecycle.job_state import INCIDENT_S, OUTCOMES, JobState, Verdict
from strata.cluster.validation import check_fields
from strata.errors import BadCommandError
from tests.unit.cluster.conftest import LIMITS, Bench

ENDED = {state for state in JobState if state.is_ended}
DEPARTURES = sorted(OUTCOMES)


def state_of(bench: Bench) -> JobState:
    return bench.job.judge().state


def leave(bench: Bench, worker: str, cause: Cause, reason: str = "") -> None:
    bench.say(c.Goodbye, worker, cause=cause, reason=reason)


def train(bench: Bench, *workers: str) -> None:
    """Let the workers restore in the present generation, and train."""
    for worker in workers:
        bench.say(c.AskRestorePoint, worker)
        bench.beat(worker, state=WorkerState.TRAINING)


def test_job_waits_until_it_has_the_workers_that_it_needs(bench: Bench) -> None:
    bench.apply(c.ConfigureJob(min_workers=2))
    assert bench.job.judge() == Verdict(JobState.WAITING, "no worker has joined yet")
    bench.join("a")
    assert bench.job.judge() == Verdict(JobState.WAITING, "1 more workers are needed")
    bench.join("b")
    assert state_of(bench) is JobState.RECOVERING
    train(bench, "a", "b")
    assert state_of(bench) is JobState.RUNNING
    bench.beat("b", state=WorkerState.TRAINING, resources={"step_s": 0.1, "stalled_s": 60.0, "limit_s": 90.0})
    assert bench.job.judge() == Verdict(JobState.STALLED, "rank 1 (b) makes no progress in step 1")


@pytest.mark.parametrize(
    ("cause", "state"),
    [
        (Cause.FINISHED, JobState.FINISHED),
        (Cause.PREEMPTED, JobState.PREEMPTED),
        (Cause.STOPPED, JobState.STOPPED),
        (Cause.LEFT, JobState.STOPPED),
        (Cause.CRASHED, JobState.FAILED),
        (Cause.GIVEN_UP, JobState.FAILED),
        (Cause.REGROUPED, JobState.WAITING),
    ],
)
def test_job_ends_as_its_workers_said_when_they_left(bench: Bench, cause: Cause, state: JobState) -> None:
    bench.join("a", "b")
    train(bench, "a", "b")
    leave(bench, "a", cause, "said so")
    assert state_of(bench) not in ENDED
    leave(bench, "b", cause)
    assert bench.job.judge() == Verdict(state, f"a {cause.past}: said so")


def test_goodbye_of_an_older_client_that_gives_no_cause_stops_the_job(bench: Bench) -> None:
    bench.join("a")
    bench.say(c.Goodbye, "a")
    assert state_of(bench) is JobState.STOPPED


def test_job_whose_workers_are_all_lost_without_a_goodbye_has_failed(bench: Bench) -> None:
    bench.join("a", "b")
    train(bench, "a", "b")
    bench.pass_time(LIMITS.lease_s + 1)
    assert bench.job.judge() == Verdict(JobState.FAILED, "a, b failed: silent for 10 s on an open connection")


def test_workers_that_leave_because_another_one_failed_do_not_finish_the_job(bench: Bench) -> None:
    bench.join("a", "b", "c")
    train(bench, "a", "b", "c")
    leave(bench, "a", Cause.CRASHED, "ValueError: no")
    leave(bench, "b", Cause.REGROUPED)
    # A scheduler that ends the other tasks of a failed one.
    leave(bench, "c", Cause.PREEMPTED)
    assert bench.job.judge() == Verdict(JobState.FAILED, "a crashed: ValueError: no")


def test_job_is_preempted_also_if_a_worker_is_killed_that_did_not_stop_in_time(bench: Bench) -> None:
    bench.join("a", "b")
    train(bench, "a", "b")
    leave(bench, "a", Cause.PREEMPTED)
    bench.pass_time(LIMITS.lease_s + 1)
    assert state_of(bench) is JobState.PREEMPTED


def test_job_is_finished_only_if_all_that_were_there_at_the_end_finished(bench: Bench) -> None:
    bench.join("a", "b", "c")
    train(bench, "a", "b", "c")
    leave(bench, "a", Cause.FINISHED)
    leave(bench, "b", Cause.FINISHED)
    # During its export.
    leave(bench, "c", Cause.CRASHED, "OSError: disk full")
    assert bench.job.judge() == Verdict(JobState.FAILED, "c crashed: OSError: disk full")


def test_worker_that_failed_before_the_others_went_on_does_not_count(bench: Bench) -> None:
    bench.join("a", "b")
    train(bench, "a", "b")
    leave(bench, "a", Cause.CRASHED)
    train(bench, "b")
    leave(bench, "b", Cause.FINISHED)
    assert state_of(bench) is JobState.FINISHED


def test_worker_that_failed_long_before_the_others_left_does_not_count(bench: Bench) -> None:
    bench.join("a", "b")
    leave(bench, "a", Cause.CRASHED)
    bench.now_s += INCIDENT_S + 1
    leave(bench, "b", Cause.FINISHED)
    assert state_of(bench) is JobState.FINISHED


def test_state_follows_when_a_worker_joins_again_after_the_end(bench: Bench) -> None:
    bench.join("a")
    leave(bench, "a", Cause.CRASHED)
    assert state_of(bench) is JobState.FAILED
    bench.join("a", incarnation="2")
    assert state_of(bench) is JobState.RECOVERING
    bench.say(c.Goodbye, "a", incarnation="2", cause=Cause.FINISHED)
    assert state_of(bench) is JobState.FINISHED


def test_end_is_remembered_as_long_as_the_job_also_without_its_workers(bench: Bench) -> None:
    bench.join("a")
    leave(bench, "a", Cause.PREEMPTED, "stopped by SIGTERM after step 7, which is saved")
    ended = bench.job.judge()
    bench.pass_time(2.0)
    bench.apply(c.ForgetWorkers(workers=tuple((m.worker_id, m.incarnation) for m in bench.job.membership.departed())))
    restored = Cluster(LIMITS)
    restored.restore(bench.cluster.snapshot())
    assert restored.job("default").judge() == bench.job.judge() == ended


def test_snapshot_from_before_endings_were_recorded_does_not_call_a_job_finished_or_failed(bench: Bench) -> None:
    bench.join("a")
    leave(bench, "a", Cause.FINISHED)
    record = json.loads(bench.cluster.snapshot())
    del record["jobs"][0]["ending"]
    restored = Cluster(LIMITS)
    restored.restore(json.dumps(record).encode())
    assert restored.job("default").judge().state is JobState.STOPPED


@pytest.mark.parametrize("cause", sorted(set(Cause) - set(DEPARTURES)))
def test_goodbye_for_a_cause_that_is_none_of_a_departure_is_refused(cause: Cause) -> None:
    with pytest.raises(BadCommandError, match="cause is "):
        check_fields(c.Goodbye(worker_id="a", incarnation="1", cause=cause))


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["join", "leave", "train", "wait"]), st.sampled_from("abc"), st.sampled_from(DEPARTURES)
        ),
        max_size=25,
    )
)
def test_job_is_in_an_ended_state_only_without_members_and_a_replay_says_the_same(
    deeds: list[tuple[str, str, Cause]],
) -> None:
    bench, replica = Bench(), Cluster(LIMITS)
    bench.apply(c.ConfigureJob(min_workers=1))
    replica.apply(c.ConfigureJob(min_workers=1), bench.now_s)
    incarnations = dict.fromkeys("abc", 0)
    for deed, worker, cause in deeds:
        is_there = worker in bench.job.membership.ids()
        command: c.Command | None = None
        if deed == "join":
            incarnations[worker] += 1
            command = c.RegisterWorker(worker_id=worker, incarnation=f"p.{incarnations[worker]}")
        elif deed == "leave" and is_there:
            command = c.Goodbye(worker_id=worker, incarnation=f"p.{incarnations[worker]}", cause=cause)
        elif deed == "train" and is_there:
            command = c.AskRestorePoint(
                worker_id=worker, incarnation=f"p.{incarnations[worker]}", generation=bench.generation
            )
        else:
            bench.now_s += 20.0
        if command is not None:
            bench.apply(command)
            replica.apply(command, bench.now_s)
        verdict = bench.job.judge()
        assert not (verdict.state.is_ended and bench.job.membership.ids())
        assert replica.snapshot() == bench.cluster.snapshot()
