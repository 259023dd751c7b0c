"""Who is in a job, in which rank and generation, and when someone counts as dead."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strata.cluster import Limits
from strata.cluster import commands as c
from strata.cluster import events as e
from strata.cluster.cluster import MAX_PAUSE_S
from strata.cluster.commands import WorkerState
from strata.cluster.events import Cause
from strata.cluster.membership import GONE, TRANSITIONS, deal_ranks, new_incarnation, split_incarnation, started_at
from strata.cluster.values import PARTS, BootTime, Incarnation, WorkerAccount
from strata.errors import (
    DuplicateWorkerError,
    IllegalTransitionError,
    InvalidIdError,
    JobFullError,
    JobWaitingError,
    QuotaExceededError,
    StaleGenerationError,
    StaleIncarnationError,
    UnknownDatasetError,
    UnknownJobError,
    UnknownWorkerError,
    WorkerActiveError,
)
from tests.unit.cluster.conftest import Bench


def test_workers_get_dense_ranks_and_every_join_is_a_generation(bench: Bench) -> None:
    reply = bench.join("a", "b", "c")
    assert (reply.rank, reply.world_size, reply.generation) == (2, 3, 3)
    assert bench.ranks() == {"a": 0, "b": 1, "c": 2}


def test_registering_again_in_the_same_incarnation_changes_nothing(bench: Bench) -> None:
    first = bench.join("a", "b")
    before = bench.cluster.snapshot()
    assert bench.join("b") == first
    assert bench.cluster.snapshot() == before


def test_a_worker_that_comes_back_after_a_crash_has_its_rank_in_a_new_generation(bench: Bench) -> None:
    bench.join("a", "b", "c")
    reply = bench.join("b", incarnation="2")
    assert (reply.rank, reply.generation) == (1, 4)
    with pytest.raises(StaleIncarnationError, match="worker 'b', incarnation 1, was replaced"):
        bench.beat("b")


def test_a_rank_that_becomes_free_is_filled_by_the_last_and_the_others_stay(bench: Bench) -> None:
    bench.join("a", "b", "c", "d")
    bench.say(c.Goodbye, "b")
    assert bench.ranks() == {"a": 0, "c": 2, "d": 1}


def test_preferred_ranks_are_kept_once_they_exist(bench: Bench) -> None:
    for worker, rank in (("a", 2), ("b", 0), ("c", 1)):
        bench.join(worker, preferred_rank=rank)
    assert bench.ranks() == {"a": 2, "b": 0, "c": 1}


@given(st.dictionaries(st.text(max_size=3), st.integers(0, 12), max_size=10))
def test_ranks_are_always_dense_and_a_unique_wish_that_exists_is_granted(wishes: dict[str, int]) -> None:
    ranks = deal_ranks(wishes)
    assert sorted(ranks.values()) == list(range(len(wishes)))
    for worker, wish in wishes.items():
        if wish < len(wishes) and list(wishes.values()).count(wish) == 1:
            assert ranks[worker] == wish


def test_silence_fails_a_worker_when_its_lease_ends_and_one_generation_takes_all(bench: Bench) -> None:
    bench.join("a", "b", "c")
    assert bench.pass_time(9.9) == []
    bench.beat("a")
    effects = bench.pass_time(0.2)
    changed = next(effect for effect in effects if isinstance(effect, e.GenerationChanged))
    assert (changed.generation, changed.to) == (4, ("a",))
    assert changed.reason == "b, c failed: silent for 10 s on an open connection"
    assert changed.cause is Cause.HUNG


def test_a_closed_channel_leaves_a_short_grace_to_come_back(bench: Bench) -> None:
    bench.join("a", "b")
    bench.say(c.ChannelLost, "a")
    bench.say(c.ChannelLost, "b")
    bench.pass_time(1.9)
    bench.beat("a")
    bench.pass_time(0.2)
    assert bench.ranks() == {"a": 0}


def test_the_old_channel_of_a_worker_that_is_back_says_nothing_of_the_new_one(bench: Bench) -> None:
    bench.join("a")
    bench.join("a", incarnation="2")
    bench.say(c.ChannelLost, "a", incarnation="1")
    assert bench.pass_time(5.0) == []


def test_a_restart_of_the_coordinator_fails_no_healthy_worker(bench: Bench) -> None:
    bench.join("a", "b")
    bench.now_s += 1_000
    again = bench.restarted()
    assert again.pass_time(9.9) == []
    again.beat("a")
    again.pass_time(0.2)
    assert again.ranks() == {"a": 0}


def test_who_was_declared_dead_must_register_again(bench: Bench) -> None:
    bench.join("a", "b")
    bench.pass_time(11)
    with pytest.raises(StaleIncarnationError, match="is failed; register again"):
        bench.beat("a")
    assert bench.join("a", incarnation="2").rank == 0


def test_failing_or_leaving_twice_is_one_generation(bench: Bench) -> None:
    bench.join("a", "b")
    bench.say(c.Goodbye, "a")
    generation = bench.generation
    bench.say(c.Goodbye, "a")
    bench.apply(c.FailWorkers(workers=(("a", "1"), ("b", "other")), reason="lease ended"))
    assert bench.generation == generation


@pytest.mark.parametrize("current", list(WorkerState))
@pytest.mark.parametrize("wanted", list(WorkerState))
def test_only_the_transitions_of_the_table_are_accepted(
    bench: Bench, current: WorkerState, wanted: WorkerState
) -> None:
    bench.join("a")
    bench.job.membership.present()[0].state = current
    if current in GONE:
        with pytest.raises(StaleIncarnationError):
            bench.beat("a", state=wanted)
    elif wanted in TRANSITIONS[current]:
        bench.beat("a", state=wanted)
        assert bench.job.membership.present()[0].state is wanted
    else:
        with pytest.raises(IllegalTransitionError, match=f"is {current} and cannot become {wanted}"):
            bench.beat("a", state=wanted)


def test_below_the_minimum_the_job_waits_and_says_for_how_many(bench: Bench) -> None:
    bench.apply(c.ConfigureJob(min_workers=3))
    assert bench.join("a").waits_for == 2
    with pytest.raises(JobWaitingError, match="job 'default' waits for 2 more of the 3 workers that it needs"):
        bench.say(c.AskRestorePoint, "a")
    assert bench.join("b", "c").waits_for == 0
    assert bench.beat("a").waits_for == 0
    bench.say(c.AskRestorePoint, "a")


def test_above_the_maximum_nobody_joins_but_a_member_may_come_back(bench: Bench) -> None:
    bench.apply(c.ConfigureJob(max_workers=2))
    bench.join("a", "b")
    with pytest.raises(JobFullError, match="worker 'c' cannot join job 'default', which has its maximum of 2 workers"):
        bench.join("c")
    assert bench.join("a", incarnation="2").rank == 0
    with pytest.raises(ValueError, match="use 1 <= min <= max"):
        bench.apply(c.ConfigureJob(min_workers=3, max_workers=2))


def test_limits_hold_for_jobs_and_workers() -> None:
    small = Bench(Limits(max_jobs=1, max_workers_per_job=2))
    small.join("a", "b")
    with pytest.raises(QuotaExceededError, match="no more than 2 workers in one job"):
        small.join("c")
    with pytest.raises(QuotaExceededError, match="no more than 1 jobs"):
        small.apply(c.ConfigureJob(job_id="other"))
    with pytest.raises(ValueError, match="lease_s is 0"):
        Limits(lease_s=0)
    with pytest.raises(ValueError, match="longer than lease_s"):
        Limits(lease_s=1, grace_s=2)


def test_strangers_and_unknown_jobs_are_refused(bench: Bench) -> None:
    with pytest.raises(UnknownJobError, match="there is no job 'default'"):
        bench.beat("a")
    bench.join("a")
    with pytest.raises(UnknownWorkerError, match="worker 'z' is not registered; there are a"):
        bench.beat("z")
    with pytest.raises(InvalidIdError):
        bench.apply(c.ConfigureJob(job_id="../x"))
    assert bench.cluster.jobs() == ["default"]


def test_what_is_fenced_is_refused_in_another_generation(bench: Bench) -> None:
    bench.join("a", "b")
    with pytest.raises(
        StaleGenerationError,
        match="sent a command of generation 1, but the job is in generation 2; restore, and continue",
    ):
        bench.say(c.ArriveAtBarrier, "a", generation=1, name="x")


def test_every_change_is_an_event_with_its_reason(bench: Bench) -> None:
    bench.join("a", "b")
    bench.say(c.Goodbye, "a", reason="preempted")
    following, events = bench.cluster.events.since(0)
    assert [event.reason for event in events] == ["1: a joined", "2: b joined", "3: a left: preempted"]
    assert following == len(events), "the number to ask for next counts the events"
    assert bench.cluster.events.since(following) == (following, [])
    assert bench.cluster.events.since(following - 1) == (following, events[-1:])


def test_a_worker_that_cannot_speak_keeps_its_lease_while_its_keep_alive_process_speaks(bench: Bench) -> None:
    bench.join("a")
    for _ in range(5):
        assert bench.pass_time(8.0) == []
        bench.say(c.KeepAlive, "a")
    bench.pass_time(10.1)
    assert bench.ranks() == {}


def test_a_keep_alive_without_the_channel_is_worth_the_grace_and_no_more(bench: Bench) -> None:
    bench.join("a")
    bench.say(c.ChannelLost, "a")
    bench.pass_time(1.0)
    bench.say(c.KeepAlive, "a")
    bench.pass_time(1.9)
    assert bench.ranks() == {"a": 0}
    bench.pass_time(0.2)
    assert bench.ranks() == {}
    with pytest.raises(StaleIncarnationError):
        bench.say(c.KeepAlive, "a")


def test_a_keep_alive_never_shortens_a_lease_and_a_heartbeat_ends_the_grace(bench: Bench) -> None:
    bench.join("a")
    bench.say(c.ChannelLost, "a")
    bench.beat("a")
    bench.say(c.KeepAlive, "a")
    bench.pass_time(9.0)
    assert bench.ranks() == {"a": 0}


def test_a_heartbeat_says_at_once_how_many_workers_a_new_minimum_misses(bench: Bench) -> None:
    bench.join("a")
    assert bench.beat("a").waits_for == 0
    bench.apply(c.ConfigureJob(min_workers=3))
    assert bench.beat("a").waits_for == 2


def test_a_pause_of_the_coordinator_gives_nobody_more_than_a_whole_lease(bench: Bench) -> None:
    bench.join("a")
    bench.cluster.due(bench.now_s)
    bench.now_s += 60.0
    bench.beat("a")
    bench.cluster.due(bench.now_s)
    bench.pass_time(10.5)
    assert bench.ranks() == {}


def test_a_lost_channel_never_makes_a_lease_longer(bench: Bench) -> None:
    bench.join("a")
    bench.pass_time(9.5)
    bench.say(c.ChannelLost, "a")
    bench.pass_time(1.0)
    assert bench.ranks() == {}


def test_a_worker_whose_channel_is_back_is_not_taken_for_one_without(bench: Bench) -> None:
    bench.join("a")
    bench.say(c.ChannelLost, "a")
    bench.beat("a")
    bench.pass_time(5.0)
    bench.say(c.KeepAlive, "a")
    bench.pass_time(9.0)
    assert bench.ranks() == {"a": 0}, "a whole lease, and not the grace"
    (changed,) = (effect for effect in bench.pass_time(2.0) if isinstance(effect, e.GenerationChanged))
    assert changed.cause is Cause.HUNG


def test_a_worker_that_came_back_since_is_not_forgotten(bench: Bench) -> None:
    """The command names the incarnation that was gone for long."""
    for incarnation in ("1", "2"):
        bench.join("a", incarnation=incarnation)
        bench.say(c.Goodbye, "a", incarnation)
    bench.apply(c.ForgetWorkers(workers=(Incarnation("a", "1"),)))
    assert [member.worker_id for member in bench.job.membership.everyone()] == ["a"]
    bench.apply(c.ForgetWorkers(workers=(Incarnation("a", "2"),)))
    assert bench.job.membership.everyone() == []


def test_a_process_that_was_replaced_never_comes_back(bench: Bench) -> None:
    """It was cut off, its replacement joined, and now its connection works again."""
    bench.join("a", incarnation="old.1")
    bench.join("a", incarnation="new.1")
    before = bench.cluster.snapshot()
    for again in (bench, bench.restarted()):
        for life in (1, 2):
            with pytest.raises(DuplicateWorkerError):
                again.join("a", incarnation=f"old.{life}")
        assert again.cluster.snapshot() == before


@pytest.mark.parametrize(
    ("incarnation", "process", "life"),
    [("1-p.2", "1-p", 2), ("p.q.13", "p.q", 13), ("7", "7", 0), ("1-p", "1-p", 0), ("p.x", "p.x", 0), (".3", ".3", 0)],
)
def test_an_incarnation_without_the_number_of_a_life_is_a_process(incarnation: str, process: str, life: int) -> None:
    assert split_incarnation(incarnation) == (process, life)


def test_a_process_that_was_declared_dead_joins_again_in_its_next_life_only(bench: Bench) -> None:
    bench.join("a", incarnation="p.1")
    bench.pass_time(10.5)
    with pytest.raises(StaleIncarnationError):
        bench.join("a", incarnation="p.1")
    bench.join("a", incarnation="p.2")
    with pytest.raises(StaleIncarnationError):
        bench.join("a", incarnation="p.1")
    assert bench.ranks() == {"a": 0}


def test_a_coordinator_that_was_stopped_for_longer_than_the_lease_fails_nobody_whose_heartbeats_wait(
    bench: Bench,
) -> None:
    bench.join("a", "b")
    bench.pass_time(9.0)
    bench.now_s += 20.0
    assert bench.cluster.due(bench.now_s) == []
    bench.beat("a")
    assert bench.pass_time(1.5) == []
    assert [type(effect) for effect in bench.pass_time(2.0)] == [e.GenerationChanged]
    assert bench.ranks() == {"a": 0}


def test_nothing_is_demanded_right_after_a_pause_also_if_it_was_due_before(bench: Bench) -> None:
    """What workers sent is still unread, and an earlier demand may not have been carried out."""
    bench.join("a", "b")
    bench.say(c.ArriveAtBarrier, "a", name="epoch", timeout_s=1.0)
    overdue = [c.ExpireBarrier(job_id="default", name="epoch", round=1)]
    demanded = []
    for pause_s in (0.9, 0.9, MAX_PAUSE_S + 0.1, 0.5):
        bench.now_s += pause_s
        demanded.append(bench.cluster.due(bench.now_s))
    assert demanded == [[], overdue, [], overdue]


def test_a_doubt_about_the_leader_puts_everything_off_once(bench: Bench) -> None:
    bench.join("a", "b")
    bench.cluster.due(bench.now_s)
    bench.say(c.ArriveAtBarrier, "a", name="epoch", timeout_s=5.0)
    bench.now_s += 60.0
    bench.cluster.resume(bench.now_s, leases_anew=False)
    assert bench.pass_time(4.5) == []
    assert [type(effect) for effect in bench.pass_time(1.5)] == [e.BarrierFailed]


def test_a_process_that_was_delayed_waits_until_the_one_that_was_started_after_it_is_gone(bench: Bench) -> None:
    """It never registered before its replacement did, which was started on the same machine."""
    bench.join("a", incarnation="m:2000-new.1")
    with pytest.raises(WorkerActiveError):
        bench.join("a", incarnation="m:1000-old.1")
    bench.pass_time(10.5)
    bench.join("a", incarnation="m:1000-old.1")
    bench.join("a", incarnation="m:2000-new.2")
    with pytest.raises(DuplicateWorkerError):
        bench.join("a", incarnation="m:1000-old.2")


def test_a_process_that_was_delayed_is_older_than_what_replaced_the_one_after_it(bench: Bench) -> None:
    bench.join("a", incarnation="m:2000-second.1")
    bench.join("a", incarnation="other:500-third.1")
    with pytest.raises(WorkerActiveError):
        bench.join("a", incarnation="m:1000-first.1")
    bench.join("a", incarnation="m:3000-fourth.1")


def test_a_process_that_was_delayed_is_not_refused_when_the_one_after_it_has_left(bench: Bench) -> None:
    """A machine that goes on from an image of itself counts from an earlier moment."""
    bench.join("a", incarnation="m:2000-new.1")
    bench.say(c.Goodbye, "a", "m:2000-new.1")
    bench.join("a", incarnation="m:1000-old.1")
    bench.join("a", incarnation="m:2000-new.2")


OTHER_CLOCKS = ["1000-then.1", "other:1000-then.1", "then.1", "m:then.1", "m:1000.1", "-.1", ":-.1"]


@pytest.mark.parametrize("known", ["present", "silent", "gone"])
@pytest.mark.parametrize("second", OTHER_CLOCKS)
@pytest.mark.parametrize("first", ["2000-now.1", "m:2000-now.1"])
def test_a_clock_that_was_set_back_or_is_of_another_machine_keeps_nobody_out(
    bench: Bench, first: str, second: str, known: str
) -> None:
    bench.join("a", incarnation=first)
    if known == "silent":
        bench.pass_time(10.5)
    elif known == "gone":
        bench.say(c.Goodbye, "a", first)
    bench.join("a", incarnation=second)
    process = split_incarnation(first)[0]
    for again in (bench, bench.restarted()):
        assert again.join("a", incarnation=second).world_size == 1
        for life in (1, 2):
            with pytest.raises(DuplicateWorkerError):
                again.join("a", incarnation=f"{process}.{life}")


@given(clocks=st.lists(st.integers(0, 5), min_size=2, max_size=12), machines=st.integers(1, 3))
def test_whatever_the_clocks_say_each_process_takes_over_and_those_before_it_do_not_come_back(
    clocks: list[int], machines: int
) -> None:
    """Processes that say when they were started by a wall clock, which goes back and forth."""
    bench = Bench()
    started: list[str] = []
    for number, clock_ms in enumerate(clocks):
        started.append(f"{clock_ms}-{number % machines}-{number}")
        bench.join("a", incarnation=f"{started[-1]}.1")
        for before in started[:-1]:
            with pytest.raises(DuplicateWorkerError):
                bench.join("a", incarnation=f"{before}.2")
        assert bench.ranks() == {"a": 0}
    assert bench.restarted().join("a", incarnation=f"{started[-1]}.1").generation == len(clocks)


def test_the_first_incarnation_of_a_process_says_when_it_was_started_if_its_machine_does() -> None:
    started = BootTime("c3d3e5fe", 12_340)
    assert new_incarnation(started, "p-7") == "c3d3e5fe:12340-p-7.1"
    assert started_at("c3d3e5fe:12340-p-7") == started
    assert new_incarnation(None, "p7") == "p7.1"
    assert started_at("p7") is None
    assert started_at("1700000000000-p7") is None, "a wall clock says nothing"


@pytest.mark.parametrize("rules", [0, 1])
def test_what_was_decided_by_wall_clocks_is_replayed_so(bench: Bench, rules: int) -> None:
    """An older process that took a name had not replaced the newer one, which came back."""
    for incarnation in ("2000-new.1", "1000-old.1", "2000-new.2", "3000-newest.1"):
        bench.cluster.apply(c.RegisterWorker(worker_id="a", incarnation=incarnation), bench.now_s, rules=rules)
        failed = c.FailWorkers(workers=(Incarnation("a", incarnation),), reason="silent")
        bench.cluster.apply(failed, bench.now_s, rules=rules)
    assert bench.job.membership.everyone()[0].replaced == ("1000-old", "2000-new")


def test_whatever_a_worker_sends_renews_its_lease(bench: Bench) -> None:
    bench.join("a", "b")
    for _ in range(4):
        bench.pass_time(4.0)
        with pytest.raises(UnknownDatasetError):
            bench.say(c.LeaseShards, "a", dataset_id="none", epoch=0)
        if "b" in bench.ranks():
            bench.beat("b")
    assert bench.ranks() == {"a": 0, "b": 1}


def test_the_parts_of_an_account_are_its_fields_of_these_names() -> None:
    account = WorkerAccount._make((*map(float, range(8)), *range(8, 13), ()))
    assert account.parts == tuple(getattr(account, f"{part}_s") for part in PARTS)
