"""Those who are gone keep nobody out: quotas count the living, and the departed are forgotten in time."""

from __future__ import annotations

from dataclasses import replace

import pytest

from strata.cluster import commands as c
from strata.errors import JobBusyError, QuotaExceededError, UnknownJobError
from tests.unit.cluster.conftest import LIMITS, Bench

SMALL = replace(LIMITS, max_jobs=3, max_idle_jobs=2, max_workers_per_job=3, max_departed_per_job=2)


def leave(bench: Bench, *workers: str, job: str = "default") -> None:
    for worker in workers:
        bench.apply(c.Goodbye(job_id=job, worker_id=worker, incarnation="1"))


def known(bench: Bench) -> list[str]:
    return [member.worker_id for member in bench.job.membership.everyone()]


def test_workers_that_left_do_not_count() -> None:
    bench = Bench(SMALL)
    for number in range(20):
        bench.join(f"w{number}")
        leave(bench, f"w{number}")
        bench.pass_time(2.0)
    bench.join("a", "b", "c")
    with pytest.raises(QuotaExceededError, match="3 workers"):
        bench.join("d")
    assert len(known(bench)) == 5


def test_who_is_gone_is_looked_for_once_a_second() -> None:
    bench = Bench(replace(SMALL, max_departed_per_job=1))
    bench.join("a", "b", "c")
    leave(bench, "a", "b")
    wanted = [
        any(isinstance(demand, c.ForgetWorkers) for demand in bench.cluster.due(bench.now_s + later_s))
        for later_s in (0.0, 0.5, 0.9, 1.0, 1.5, 2.0)
    ]
    assert wanted == [True, False, False, True, False, True]


def test_a_worker_that_is_gone_is_forgotten_after_its_time_and_not_before(bench: Bench) -> None:
    bench.join("a", "b")
    leave(bench, "a")
    bench.pass_time(2.0)
    for _ in range(3):
        bench.beat("b")
        bench.pass_time(LIMITS.lease_s - 1)
    assert known(bench) == ["a", "b"]
    bench.now_s += LIMITS.keep_departed_s
    bench.beat("b")
    bench.pass_time(2.0)
    assert known(bench) == ["b"]
    assert bench.restarted().cluster.snapshot() == bench.cluster.snapshot()


def test_one_that_came_back_is_not_forgotten(bench: Bench) -> None:
    bench.join("a")
    leave(bench, "a")
    bench.pass_time(2.0)
    bench.join("a", incarnation="2")
    bench.apply(c.ForgetWorkers(workers=(("a", "1"), ("a", "2"), ("nobody", "1"))))
    assert known(bench) == ["a"]


def test_finished_jobs_do_not_keep_new_ones_out() -> None:
    bench = Bench(SMALL)
    for number in range(20):
        bench.apply(c.RegisterWorker(job_id=f"j{number}", worker_id="a", incarnation="1"))
        leave(bench, "a", job=f"j{number}")
        bench.pass_time(2.0)
    assert bench.cluster.jobs() == ["j18", "j19"]
    for number in range(3):
        bench.apply(c.RegisterWorker(job_id=f"k{number}", worker_id="a", incarnation="1"))
    with pytest.raises(QuotaExceededError, match="3 jobs"):
        bench.apply(c.RegisterWorker(job_id="k4", worker_id="a", incarnation="1"))


def test_a_job_is_removed_only_when_nobody_works_on_it(bench: Bench) -> None:
    bench.join("a")
    before = bench.cluster.snapshot()
    with pytest.raises(JobBusyError, match=r"has 1 workers \(a\); stop them"):
        bench.apply(c.RemoveJob())
    assert bench.cluster.snapshot() == before
    leave(bench, "a")
    bench.apply(c.RemoveJob())
    assert bench.cluster.jobs() == []
    with pytest.raises(UnknownJobError):
        bench.apply(c.RemoveJob())
