"""What a job's workers report becomes one time line, whose parts add up to its wall time."""

from __future__ import annotations

import math
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from strata.cluster.values import PARTS, SaveNote, WorkerAccount
from strata.coordinator.telemetry.job_history import JobHistory, RecentSteps
from strata.coordinator.telemetry.rank_times import COLUMN_S, COLUMNS, MAX_RANKS, RankTimes
from strata.coordinator.telemetry.reckoning import (
    find_stragglers,
    mtbf_s,
    reckon_job,
    reckon_recent,
)


class FakeWorker:
    """A worker that spends time as it is told, and reports it."""

    def __init__(self, name: str, history: JobHistory, *, began_s: float, rank: int = 0, generation: int = 1) -> None:
        self.name, self.history, self.rank, self.generation = name, history, rank, generation
        self.began_s = self.now_s = began_s
        self.parts = dict.fromkeys(PARTS, 0.0)
        self.steps = self.repeated = self.step = 0
        self.incarnation = f"{name}-{began_s}"
        self.samples = 0

    def spend(self, **seconds: float) -> None:
        for part, each in seconds.items():
            self.parts[part] += each
            self.now_s += each

    def report(self, *, delay_s: float = 0.0, saves: tuple[SaveNote, ...] = (), **metrics: float) -> Any:
        elapsed_s = self.now_s - self.began_s
        counts = self.steps, self.repeated, self.samples, self.generation, self.rank
        account = WorkerAccount._make((elapsed_s, *self.parts.values(), *counts, saves))
        at_s = self.now_s + delay_s
        return self.history.hear(self.name, self.incarnation, account, step=self.step, metrics=metrics, at_s=at_s)


REPORTS = st.lists(
    st.tuples(
        st.integers(0, 3),
        st.lists(st.floats(0, 30), min_size=len(PARTS), max_size=len(PARTS)),
        st.floats(0, 2.5),
        st.integers(0, 3),
        st.booleans(),
    ),
    min_size=1,
    max_size=60,
)


@given(reports=REPORTS)
def test_the_parts_add_up_to_the_wall_time_whatever_is_reported(
    reports: list[tuple[int, list[float], float, int, bool]],
) -> None:
    history = JobHistory("job")
    workers = [FakeWorker(f"w{number}", history, began_s=1_000.0 + number, rank=number) for number in range(4)]
    for number, parts, delay_s, steps, restarts in reports:
        worker = workers[number]
        if restarts:
            generation = max(each.generation for each in workers) + 1
            worker = FakeWorker(worker.name, history, began_s=worker.now_s + 3.0, rank=number, generation=generation)
            workers[number] = worker
        worker.spend(**dict(zip(PARTS, parts, strict=True)))
        worker.steps += steps
        worker.step += steps
        worker.report(delay_s=delay_s)
    for reckoned in (reckon_job(history), reckon_recent(history)):
        assert all(seconds >= 0 for seconds in reckoned.parts.values())
        assert math.isclose(math.fsum(reckoned.parts.values()), reckoned.wall_s, rel_tol=1e-9, abs_tol=1e-6)
        assert reckoned.goodput is None or 0 <= reckoned.goodput <= 1 + 1e-9


def test_goodput_is_the_share_that_became_kept_steps() -> None:
    history = JobHistory("job")
    worker = FakeWorker("w", history, began_s=100.0)
    worker.spend(restore=10.0)
    worker.report()
    for _ in range(9):
        worker.spend(compute=8.0, data=2.0)
        worker.steps += 10
        worker.step += 10
        worker.report(loss=1.5)
    reckoned = reckon_job(history)
    assert round(reckoned.wall_s, 6) == 100.0
    assert round(reckoned.goodput or 0, 6) == 0.72
    assert {part: round(s) for part, s in reckoned.parts.items() if round(s)} == {
        "compute": 72,
        "data": 18,
        "restore": 10,
    }
    assert (history.kept_steps, history.lost_steps) == (90, 0)


def test_time_without_any_worker_is_down() -> None:
    history = JobHistory("job")
    first = FakeWorker("w", history, began_s=0.0)
    first.spend(compute=10.0)
    first.report()
    second = FakeWorker("w", history, began_s=40.0, generation=2)
    second.spend(compute=10.0)
    second.report()
    reckoned = reckon_job(history)
    assert (round(reckoned.wall_s), round(reckoned.parts["down"]), round(reckoned.parts["compute"])) == (50, 30, 20)


def test_steps_that_a_new_process_does_again_are_lost_though_it_does_not_know() -> None:
    history = JobHistory("job")
    first = FakeWorker("w", history, began_s=0.0)
    first.spend(compute=10.0)
    first.steps = first.step = 10
    first.report()
    history.rewind(5, generation=2)
    second = FakeWorker("w", history, began_s=10.0, generation=2)
    second.spend(compute=10.0)
    second.steps, second.step = 10, 15
    second.report()
    reckoned = reckon_job(history)
    assert (round(reckoned.parts["compute"], 6), round(reckoned.parts["repeated"], 6)) == (15.0, 5.0)
    assert (history.kept_steps, history.lost_steps) == (15, 5)


def test_workers_that_are_at_the_same_step_do_not_repeat_each_other() -> None:
    history = JobHistory("job")
    for rank in range(3):
        worker = FakeWorker(f"w{rank}", history, began_s=0.0, rank=rank)
        worker.spend(compute=10.0)
        worker.steps = worker.step = 10
        worker.report()
    reckoned = reckon_job(history)
    assert (round(reckoned.parts["compute"], 6), round(reckoned.parts["repeated"], 6)) == (10.0, 0.0)
    assert history.kept_steps == 10


def test_a_heartbeat_that_says_nothing_new_changes_nothing() -> None:
    history = JobHistory("job")
    worker = FakeWorker("w", history, began_s=0.0)
    worker.spend(compute=10.0)
    assert worker.report() is not None
    before = reckon_job(history)
    assert worker.report(delay_s=2.0) is None
    assert reckon_job(history) == before


def test_an_account_that_cannot_be_is_left_out() -> None:
    history = JobHistory("job")
    for bad in (math.nan, math.inf, -1.0, 1e300):
        account = WorkerAccount(bad, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 1, 0, 0, 1, 0)
        assert history.hear("w", "1", account, step=1, metrics={}, at_s=10.0) is None
    backwards = WorkerAccount(1.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, -5, 0, 0, 1, 0)
    assert history.hear("w", "1", backwards, step=1, metrics={}, at_s=10.0) is None
    assert history.began_s is None


def test_metrics_of_the_loop_are_averaged_and_what_is_not_finite_is_left_out() -> None:
    history = JobHistory("job")
    for rank, loss in enumerate((1.0, 3.0, math.nan)):
        worker = FakeWorker(f"w{rank}", history, began_s=0.0, rank=rank)
        worker.spend(compute=1.0)
        worker.report(loss=loss, step_s=0.1)
    (bucket,) = history.tiers
    assert bucket.metrics == {"loss": [4.0, 2]}


def slow_job(*, slow: dict[str, float], steps: int = 20) -> JobHistory:
    history = JobHistory("job")
    for rank in range(8):
        worker = FakeWorker(f"w{rank}", history, began_s=0.0, rank=rank)
        for _ in range(4):
            each = {"compute": 1.0, "data": 0.1, "save": 0.1}
            own = {**each, **slow} if rank == 3 else each
            worker.spend(**{part: seconds * steps / 4 for part, seconds in own.items()})
            worker.steps += steps // 4
            worker.step += steps // 4
            worker.report()
    return history


def names() -> list[str]:
    return [f"w{rank}" for rank in range(8)]


def test_a_rank_that_is_slower_than_the_others_is_named_with_its_cause() -> None:
    for part in ("data", "compute", "save"):
        (found,) = find_stragglers(slow_job(slow={part: 2.0}).workers, names())
        assert (found.worker_id, found.rank, found.cause, found.steps) == ("w3", 3, part, 20)
        assert round(found.median_s, 6) == 1.2
        assert found.ratio > 1.5


def test_nobody_straggles_who_is_slow_for_a_few_steps_or_by_little() -> None:
    assert find_stragglers(slow_job(slow={"compute": 2.0}, steps=8).workers, names()) == []
    assert find_stragglers(slow_job(slow={"compute": 1.1}).workers, names()) == []
    assert find_stragglers(slow_job(slow={"compute": 5.0}).workers, ["w3"]) == []
    assert find_stragglers({}, ["w3", "w4"]) == []


def test_a_rank_that_is_within_the_noise_does_not_straggle_however_fast_the_others_are() -> None:
    history = JobHistory("job")
    for rank, own_s in enumerate((0.001, 0.001, 0.001, 0.0028)):
        worker = FakeWorker(f"w{rank}", history, began_s=0.0, rank=rank)
        worker.spend(compute=own_s * 100)
        worker.steps = worker.step = 100
        worker.report()
    assert find_stragglers(history.workers, names()) == []


def test_a_rank_straggles_since_it_became_slow() -> None:
    history = JobHistory("job")
    for rank in range(4):
        worker = FakeWorker(f"w{rank}", history, began_s=0.0, rank=rank)
        for number in range(6):
            worker.spend(compute=10.0 if rank < 3 or number < 2 else 50.0)
            worker.steps += 10
            worker.step += 10
            worker.report()
    (found,) = find_stragglers(history.workers, names())
    assert (found.worker_id, found.steps, found.step_s) == ("w3", 40, 5.0)


def test_a_heat_map_leaves_out_ranks_beyond_its_bound_and_reports_older_than_its_first_column() -> None:
    times = RankTimes()
    times.note(0, "w0", RecentSteps(5_000.0, 9, 1, 0.0, 1.0, 0.0), generation=1)
    times.note(MAX_RANKS, "far", RecentSteps(5_000.0, 9, 1, 0.0, 1.0, 0.0), generation=1)
    times.note(-1, "none", RecentSteps(5_000.0, 9, 1, 0.0, 1.0, 0.0), generation=1)
    times.note(0, "w0", RecentSteps(5_000.0 - COLUMNS * COLUMN_S, 1, 1, 0.0, 7.0, 0.0), generation=1)
    at_s, table = times.table()
    assert (at_s, table.tolist()) == ([5_005.0], [[1.0]])


def test_the_slowest_rank_of_each_while_is_kept() -> None:
    history = slow_job(slow={"compute": 3.0})
    shared = next(each for each in history.ranks.slowest() if each.at_s == 15.0)
    assert (shared.rank, shared.worker_id) == (3, "w3")
    assert (round(shared.step_s, 3), round(shared.median_s, 3)) == (3.2, 1.2)
    times, table = history.ranks.table()
    assert table.shape == (8, len(times))


def test_mean_time_between_failures_is_the_wall_time_by_their_number() -> None:
    history = JobHistory("job")
    assert mtbf_s(history) is None
    worker = FakeWorker("w", history, began_s=0.0)
    worker.spend(compute=100.0)
    worker.report()
    for at_s in (10.0, 60.0):
        history.note_change("channel_lost", is_failure=True, at_s=at_s, label="w failed")
    history.note_change("joined", is_failure=False, at_s=70.0, label="w joined")
    assert mtbf_s(history) == 50.0
    assert history.causes == {"channel_lost": 2, "joined": 1}


def test_a_save_that_is_told_twice_counts_once() -> None:
    history = JobHistory("job")
    worker = FakeWorker("w", history, began_s=0.0)
    save = SaveNote(5, 0.1, 0.2, 0.3, 0.4, 1_000, is_failed=False, is_diverged=False)
    for _ in range(3):
        worker.spend(compute=1.0)
        worker.report(saves=(save,))
    assert history.checkpoints[5].full_bytes == 1_000
    assert history.checkpoints[5].phases == (0.1, 0.2, 0.3, 0.4)


def test_checkpoints_and_marks_are_bounded() -> None:
    history = JobHistory("job")
    for step in range(2_000):
        history.note_commit(step, at_s=float(step))
    assert len(history.checkpoints) == len(history.marks) == 500
    assert min(history.checkpoints) == 1_500


def test_steps_are_counted_once_however_many_workers_do_them() -> None:
    history = JobHistory("job")
    for generation, (count, begin) in enumerate(((4, 0), (3, 100), (5, 200)), start=1):
        history.rewind(begin, generation=generation)
        for rank in range(count):
            worker = FakeWorker(f"w{rank}", history, began_s=float(begin), rank=rank, generation=generation)
            worker.spend(compute=100.0)
            worker.steps, worker.step = 100, begin + 100
            worker.report()
    reckoned = reckon_job(history)
    assert (history.kept_steps, history.lost_steps) == (300, 0)
    assert round(history.tiers.total().steps) == 300
    assert round(reckoned.parts["compute"], 6) == 300.0


def test_going_back_twice_before_anything_is_done_loses_nothing_more() -> None:
    history = JobHistory("job")
    history.rewind(100, generation=1)  # the job went on from there when it was first heard of
    worker = FakeWorker("w", history, began_s=0.0)
    worker.spend(compute=10.0)
    worker.steps, worker.step = 10, 110
    worker.report()
    for generation in (2, 3, 4):
        history.rewind(105, generation=generation)
    worker.spend(compute=1.0)
    worker.steps = 11
    worker.report()  # of the old generation, and late
    assert (history.step, history.kept_steps, history.lost_steps) == (105, 5, 5)


def test_a_process_that_is_replaced_before_its_lease_ends_has_failed_too() -> None:
    history = JobHistory("job")
    history.join("w", "100-aa.1", at_s=1.0)
    history.join("w", "100-aa.1", at_s=2.0)  # the same one, after its connection was lost
    history.join("w", "100-aa.2", at_s=3.0)  # the same process in its next life
    assert history.failures == 0
    history.join("w", "200-bb.1", at_s=4.0)
    assert (history.failures, dict(history.causes), history.last_failure_s) == (1, {"restarted": 1}, 4.0)
    history.leave(["w", "unknown"])
    history.join("w", "300-cc.1", at_s=5.0)
    assert history.failures == 1


def test_a_process_that_joins_again_in_its_next_life_is_not_counted_again() -> None:
    history = JobHistory("job")
    history.join("w", "100-aa.1", at_s=0.0)
    worker = FakeWorker("w", history, began_s=0.0)
    worker.incarnation = "100-aa.1"
    worker.spend(compute=100.0)
    worker.steps = worker.step = worker.samples = 100
    worker.report()
    history.leave(["w"])  # it was silent for longer than its lease
    history.join("w", "100-aa.2", at_s=100.0)
    history.rewind(90, generation=2)
    worker.incarnation, worker.generation = "100-aa.2", 2
    worker.spend(repeated=10.0, compute=10.0)
    worker.steps, worker.repeated, worker.step, worker.samples = 120, 10, 110, 120
    heard = worker.report()
    assert heard.after.steps - heard.before.steps == 20
    reckoned = reckon_job(history)
    assert (round(reckoned.parts["compute"], 6), round(reckoned.parts["repeated"], 6)) == (110.0, 10.0)
    assert round(history.tiers.total().samples) == 120
    assert history.workers["w"].incarnation == "100-aa.2"


def test_a_step_that_a_failure_cuts_off_is_lost_time_and_not_time_without_a_worker() -> None:
    history = JobHistory("job")
    history.join("w", "100-aa.1", at_s=0.0)
    worker = FakeWorker("w", history, began_s=0.0)
    worker.incarnation = "100-aa.1"
    worker.spend(compute=10.0)
    worker.steps = worker.step = 10
    worker.report()
    worker.report(delay_s=50.0)  # it hangs, and is alive
    history.fail(["w"])
    reckoned = reckon_job(history)
    assert (round(reckoned.wall_s), round(reckoned.parts["repeated"]), round(reckoned.parts["down"])) == (60, 50, 0)
    second = FakeWorker("w", history, began_s=65.0, generation=2)
    second.incarnation = "200-bb.1"
    second.spend(compute=10.0)
    second.report()
    reckoned = reckon_job(history)
    assert (round(reckoned.wall_s), round(reckoned.parts["repeated"]), round(reckoned.parts["down"])) == (75, 50, 5)


def test_a_start_that_a_failure_cuts_off_is_not_a_lost_step() -> None:
    history = JobHistory("job")
    history.join("w", "100-aa.1", at_s=0.0)
    worker = FakeWorker("w", history, began_s=0.0)
    worker.incarnation = "100-aa.1"
    worker.spend(other=10.0)
    worker.report()
    worker.report(delay_s=50.0)
    history.join("w", "200-bb.1", at_s=62.0)  # replaced before anyone missed it
    reckoned = reckon_job(history)
    assert (round(reckoned.wall_s), round(reckoned.parts["other"]), round(reckoned.parts["repeated"])) == (60, 60, 0)


def test_a_worker_that_leaves_on_purpose_lost_no_step() -> None:
    history = JobHistory("job")
    history.join("w", "100-aa.1", at_s=0.0)
    worker = FakeWorker("w", history, began_s=0.0)
    worker.incarnation = "100-aa.1"
    worker.spend(compute=10.0)
    worker.steps = worker.step = 10
    worker.report()
    worker.report(delay_s=5.0)
    history.leave(["w"])
    assert reckon_job(history).parts["repeated"] == 0.0


def test_the_step_is_known_in_every_interval_that_a_report_covers() -> None:
    history = JobHistory("job")
    worker = FakeWorker("w", history, began_s=0.0)
    for _ in range(4):
        worker.spend(compute=5.0)
        worker.steps, worker.step = worker.steps + 10, worker.step + 10
        worker.report()
    assert [bucket.step for bucket in history.tiers][:10] == [4, 8, 12, 16, 20, 24, 28, 32, 36, 40]


def test_a_long_step_is_done_when_it_ends() -> None:
    history = JobHistory("job")
    worker = FakeWorker("w", history, began_s=0.0)
    for _ in range(2):
        worker.spend(compute=8.0)
        worker.steps, worker.step = worker.steps + 1, worker.step + 1
        worker.report()
    assert [bucket.step for bucket in history.tiers][:8] == [0, 0, 0, 1, 1, 1, 1, 2]
