"""Quotas: what a tenant may have, what is refused above it, and that no other tenant feels it."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strata.cluster import Limits
from strata.cluster import commands as c
from strata.cluster.access import Principal, Role
from strata.cluster.access import administration as t
from strata.cluster.access.names import qualify
from strata.cluster.access.quotas import Quotas
from strata.cluster.access.token_bucket import BURST_S, TokenBucket
from strata.cluster.values import PartReport
from strata.errors import QuotaExceededError
from tests.unit.cluster.conftest import Bench

VISION = Principal("w", "vision", Role.WORKER)
OTHER = Principal("w", "default", Role.WORKER)


class Shared(Bench):
    """A cluster with a tenant that has quotas, and another one."""

    def __init__(self, **quotas: Any) -> None:
        super().__init__()
        self.apply(t.CreateTenant(tenant="vision", quotas=Quotas(**quotas)))

    def do(self, principal: Principal, kind: type[c.JobCommand], **fields: Any) -> Any:
        return self.apply(qualify(principal, kind(**fields)))

    def enter(self, principal: Principal, job_id: str, worker_id: str) -> None:
        self.do(principal, c.RegisterWorker, job_id=job_id, worker_id=worker_id, incarnation="1")


def test_the_refusal_says_the_quota_the_limit_the_use_and_who_can_raise_it() -> None:
    bench = Shared(workers=2)
    bench.enter(VISION, "a", "w0")
    bench.enter(VISION, "b", "w0")
    with pytest.raises(QuotaExceededError) as caught:
        bench.enter(VISION, "b", "w1")
    error = caught.value
    assert (error.what, error.limit, error.use, error.tenant) == ("workers", 2, 2, "vision")
    assert "an administrator ('strata tenant set vision --workers N')" in str(error)
    # The same worker again, and workers of others, are none too many.
    bench.enter(VISION, "b", "w0")
    bench.enter(OTHER, "b", "w1")


def test_jobs_count_while_they_have_workers() -> None:
    bench = Shared(jobs=1)
    bench.enter(VISION, "a", "w0")
    bench.do(VISION, c.ConfigureJob, job_id="idle")
    with pytest.raises(QuotaExceededError, match="1 jobs and has 1"):
        bench.enter(VISION, "b", "w0")
    assert "vision/b" not in bench.cluster
    bench.do(VISION, c.Goodbye, job_id="a", worker_id="w0", incarnation="1")
    bench.enter(VISION, "b", "w0")


def test_datasets_keys_and_barriers_are_counted_over_all_jobs_of_the_tenant() -> None:
    bench = Shared(datasets=1, keys=1, barriers=1)
    data = {"dataset_id": "d", "total_samples": 10, "shard_size": 5}
    bench.do(VISION, c.RegisterDataset, job_id="a", **data)
    bench.do(VISION, c.RegisterDataset, job_id="a", **data)
    with pytest.raises(QuotaExceededError, match="1 datasets"):
        bench.do(VISION, c.RegisterDataset, job_id="b", **data)
    bench.do(OTHER, c.RegisterDataset, job_id="b", **data)
    bench.do(VISION, c.SetKey, job_id="a", key="k", value=b"1", token=0, writer="x")
    bench.do(VISION, c.SetKey, job_id="a", key="k", value=b"2", token=1, writer="y")
    with pytest.raises(QuotaExceededError, match="1 keys"):
        bench.do(VISION, c.SetKey, job_id="b", key="k", value=b"1", token=0, writer="x")
    for worker in ("w0", "w1"):
        bench.enter(VISION, "a", worker)
    arrival = {"job_id": "a", "incarnation": "1", "generation": 2}
    bench.do(VISION, c.ArriveAtBarrier, worker_id="w0", name="x", **arrival)
    with pytest.raises(QuotaExceededError, match="1 barriers"):
        bench.do(VISION, c.ArriveAtBarrier, worker_id="w1", name="y", **arrival)
    _, effects = bench.do(VISION, c.ArriveAtBarrier, worker_id="w1", name="x", **arrival)
    assert effects


def save(bench: Shared, step: int, size_bytes: int) -> None:
    sender = {"job_id": "a", "worker_id": "w0", "incarnation": "1", "generation": 1, "step": step, "epoch": 0}
    bench.do(VISION, c.ReportPart, **sender, report=PartReport(f"p{step}", size_bytes, ""))
    bench.do(VISION, c.ConfirmCommit, **sender, manifest=f"m{step}", cursors="[]")


def test_a_save_above_the_hard_quota_is_refused_and_training_goes_on() -> None:
    bench = Shared(checkpoint_soft_bytes=50, checkpoint_bytes=100)
    bench.enter(VISION, "a", "w0")
    save(bench, 1, 40)
    assert "quota warning" not in [event.kind for event in bench.cluster.events.since(0)[1]]
    save(bench, 2, 40)
    (warning,) = (event for event in bench.cluster.events.since(0)[1] if event.kind == "quota warning")
    assert "80 bytes of checkpoints, above the soft quota of 50; above 100 saves are refused" in warning.reason
    with pytest.raises(QuotaExceededError, match="checkpoint bytes and has 80"):
        save(bench, 3, 40)
    bench.do(VISION, c.Heartbeat, job_id="a", worker_id="w0", incarnation="1", step=3)
    again = bench.restarted()
    assert again.cluster.access.tenant("vision").use() == bench.cluster.access.tenant("vision").use()
    # Room is made by deleting a checkpoint, or by an administrator.
    bench.do(VISION, c.ForgetCheckpoints, job_id="a", steps=(1,))
    save(bench, 3, 40)
    bench.apply(t.SetTenant(tenant="vision", quotas=Quotas(checkpoint_bytes=1_000)))
    save(bench, 4, 400)


def test_requests_are_counted_while_a_tenant_has_a_rate() -> None:
    assert not Bench().cluster.access.has_rates
    assert not Shared(jobs=1).cluster.access.has_rates
    bench = Shared(requests_per_s=5)
    assert bench.cluster.access.has_rates
    assert bench.restarted().cluster.access.has_rates
    bench.apply(t.SetTenant(tenant="vision"))
    assert not bench.cluster.access.has_rates
    bench.apply(t.SetTenant(tenant="vision", quotas=Quotas(requests_per_s=1)))
    assert bench.cluster.access.has_rates


def test_a_quota_that_is_lowered_takes_nothing_away() -> None:
    bench = Shared()
    for worker in ("w0", "w1"):
        bench.enter(VISION, "a", worker)
    bench.apply(t.SetTenant(tenant="vision", quotas=Quotas(workers=1)))
    assert len(bench.cluster.job("vision/a").membership.present()) == 2
    assert bench.restarted().cluster.snapshot() == bench.cluster.snapshot()


@pytest.mark.parametrize("wrong", [{"jobs": 0}, {"workers": -1}, {"requests_per_s": float("nan")}])
def test_a_quota_is_a_number_above_nothing(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="use a number above 0"):
        Quotas(**wrong)
    with pytest.raises(ValueError, match="use at most that"):
        Quotas(checkpoint_soft_bytes=2, checkpoint_bytes=1)


@given(st.lists(st.floats(0, 5), max_size=50), st.floats(0.5, 100))
def test_a_bucket_never_gives_more_than_its_rate_and_one_burst(pauses_s: list[float], rate: float) -> None:
    bucket, now_s, taken = TokenBucket(rate, now_s=0.0), 0.0, 0
    for pause_s in pauses_s:
        now_s += pause_s + bucket.take(now_s)
        taken += 1
    assert taken <= max(1.0, rate * BURST_S) + now_s * rate + 1e-6 * (taken + 1) + 1


def test_a_bucket_says_how_long_to_wait_and_forgets_no_debt() -> None:
    bucket = TokenBucket(2.0, now_s=0.0)
    assert [bucket.take(0.0) for _ in range(6)] == [0.0, 0.0, 0.0, 0.0, 0.5, 1.0]
    assert bucket.take(1.0) == 0.5
    # A clock that goes back gives nothing.
    assert bucket.take(0.0) == 1.0


def test_limits_of_the_coordinator_hold_for_every_tenant(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(Limits(max_tenants=1, max_datasets_per_job=1))
    bench.apply(t.CreateTenant(tenant="vision"))
    with pytest.raises(QuotaExceededError, match="tenants") as caught:
        bench.apply(t.CreateTenant(tenant="speech"))
    assert caught.value.limit == 1
    bench.apply(t.CreateTenant(tenant="vision"))
    data = {"total_samples": 10, "shard_size": 5}
    bench.apply(c.RegisterDataset(dataset_id="d", **data))
    with pytest.raises(QuotaExceededError, match="datasets in one job"):
        bench.apply(c.RegisterDataset(dataset_id="e", **data))
    monkeypatch.setattr("strata.cluster.ledger.ledger.MAX_SHARDS_PER_DATASET", 2)
    before = bench.cluster.snapshot()
    with pytest.raises(QuotaExceededError, match="shards in one dataset"):
        bench.apply(c.RegisterDataset(job_id="other", dataset_id="d", total_samples=11, shard_size=5))
    assert bench.cluster.snapshot() == before
