"""Tenants, tokens and names: who owns what, and what each caller is shown."""

from __future__ import annotations

from dataclasses import replace

import pytest

from strata.cluster import Cluster, Limits
from strata.cluster import commands as c
from strata.cluster.access import DEFAULT_TENANT, LOCAL, Principal, Role
from strata.cluster.access import administration as t
from strata.cluster.access.names import owns, present, qualify, qualify_name, shown
from strata.cluster.access.quotas import Quotas
from strata.cluster.events import Event, GenerationChanged
from strata.errors import (
    AccessDeniedError,
    InvalidIdError,
    QuotaExceededError,
    TenantBusyError,
    TenantExistsError,
    TokenExistsError,
    UnknownJobError,
    UnknownTenantError,
    UnknownTokenError,
)
from tests.unit.cluster.conftest import LIMITS, Bench

VISION = Principal("w", "vision", Role.WORKER)
ADMIN = Principal("root", DEFAULT_TENANT, Role.ADMIN)
HASH = "ab" * 32


def join(bench: Bench, principal: Principal, job_id: str = "llm", worker_id: str = "w0") -> None:
    bench.apply(qualify(principal, c.RegisterWorker(job_id=job_id, worker_id=worker_id, incarnation="1")))


@pytest.fixture
def shared(bench: Bench) -> Bench:
    bench.apply(t.CreateTenant(tenant="vision"))
    bench.apply(t.CreateTenant(tenant="speech"))
    return bench


def test_the_default_tenant_is_always_there_and_its_jobs_have_plain_names(bench: Bench) -> None:
    assert [tenant.name for tenant in bench.cluster.access.tenants()] == [DEFAULT_TENANT]
    join(bench, LOCAL)
    assert bench.cluster.jobs() == ["llm"]
    with pytest.raises(AccessDeniedError, match="remove the tenant"):
        bench.apply(t.RemoveTenant(tenant=DEFAULT_TENANT))


def test_two_tenants_with_a_job_of_one_name_have_two_jobs(shared: Bench) -> None:
    for principal in (VISION, replace(VISION, tenant="speech"), LOCAL):
        join(shared, principal)
    assert shared.cluster.jobs() == ["llm", "speech/llm", "vision/llm"]
    assert all(shared.cluster.job(name).membership.generation == 1 for name in shared.cluster.jobs())


def test_a_job_of_an_unknown_tenant_is_refused_and_nothing_is_said_of_others(shared: Bench) -> None:
    with pytest.raises(UnknownTenantError) as caught:
        join(shared, replace(VISION, tenant="nobody"))
    assert "vision" not in str(caught.value)


def test_nobody_but_an_administrator_can_name_a_job_of_another_tenant() -> None:
    with pytest.raises(InvalidIdError, match="contains '/'"):
        qualify_name(VISION, "speech/llm")
    with pytest.raises(InvalidIdError, match="contains '/'"):
        qualify_name(replace(VISION, tenant=DEFAULT_TENANT), "speech/llm")
    assert qualify_name(ADMIN, "speech/llm") == "speech/llm"
    for hostile in ("a/b/c", "/b", "a/", "../b", "default/b"):
        with pytest.raises(InvalidIdError):
            qualify_name(replace(ADMIN, tenant="vision"), hostile)


def test_a_token_for_some_jobs_is_for_no_others() -> None:
    some = replace(VISION, jobs="llm-*")
    assert qualify_name(some, "llm-7b") == "vision/llm-7b"
    with pytest.raises(AccessDeniedError, match="use job 'other'"):
        qualify_name(some, "other")
    assert owns(some, "vision/llm-7b")
    assert not owns(some, "vision/other")
    assert not owns(some, "llm-7b")


@pytest.mark.parametrize("role", [Role.VIEWER, Role.WORKER, Role.OPERATOR])
@pytest.mark.parametrize("kind", t.TENANT_COMMANDS, ids=lambda kind: kind.__name__)
def test_only_an_administrator_manages_tenants(role: Role, kind: type[t.TenantCommand]) -> None:
    fields = {"token_id": "k", "sha256": HASH, "token_ids": ()}
    command = kind(**{name: value for name, value in fields.items() if name in kind.__dataclass_fields__})
    with pytest.raises(AccessDeniedError):
        qualify(Principal("x", DEFAULT_TENANT, role), command)
    assert qualify(ADMIN, command) is command


def test_what_goes_out_has_the_callers_own_names(shared: Bench) -> None:
    for principal in (VISION, replace(VISION, tenant="speech")):
        join(shared, principal)
    with pytest.raises(UnknownJobError) as caught:
        shared.apply(qualify(VISION, c.Heartbeat(job_id="other", worker_id="w0", incarnation="1")))
    caught.value.add_note("a note")
    error = present(VISION, caught.value)
    assert (error.job_id, list(error.known)) == ("other", ["llm"])
    assert "vision" not in str(error)
    assert error.__notes__ == ["a note"]
    effect = GenerationChanged(job_id="vision/llm", to=("w0",), generation=1, reason="")
    assert present(VISION, effect).job_id == "llm"
    assert present(ADMIN, effect) is effect
    assert present(VISION, Event(1.0, "vision/llm", None, "k", "r")).job_id == "llm"
    assert (shown(VISION, "vision/llm"), shown(ADMIN, "vision/llm")) == ("llm", "vision/llm")


def test_a_tenant_is_made_once_and_changed_by_setting_it(shared: Bench) -> None:
    shared.apply(t.CreateTenant(tenant="vision"))
    with pytest.raises(TenantExistsError):
        shared.apply(t.CreateTenant(tenant="vision", quotas=Quotas(jobs=1)))
    shared.apply(t.SetTenant(tenant="vision", quotas=Quotas(jobs=1)))
    assert shared.cluster.access.tenant("vision").quotas == Quotas(jobs=1)
    with pytest.raises(UnknownTenantError):
        shared.apply(t.SetTenant(tenant="nobody"))
    with pytest.raises(InvalidIdError):
        shared.apply(t.CreateTenant(tenant="a/b"))


def test_a_tenant_is_removed_with_its_idle_jobs_and_tokens_but_not_while_it_works(shared: Bench) -> None:
    join(shared, VISION)
    shared.apply(t.CreateToken(tenant="vision", token_id="k", sha256=HASH))
    with pytest.raises(TenantBusyError, match="vision/llm"):
        shared.apply(t.RemoveTenant(tenant="vision"))
    shared.apply(qualify(VISION, c.Goodbye(job_id="llm", worker_id="w0", incarnation="1")))
    shared.apply(t.RemoveTenant(tenant="vision"))
    assert shared.cluster.jobs() == []
    assert shared.cluster.access.token("k") is None
    with pytest.raises(UnknownTenantError):
        join(shared, VISION)


def test_a_token_is_kept_as_a_hash_and_revoked_for_good(shared: Bench) -> None:
    make = t.CreateToken(tenant="vision", token_id="k", sha256=HASH, role=Role.VIEWER, name="ci", expires_s=500.0)
    shared.apply(make)
    shared.apply(make)
    record = shared.cluster.access.token("k")
    assert record is not None
    assert (record.tenant, record.role, record.created_s, record.ended_s(100.0)) == ("vision", Role.VIEWER, 100.0, None)
    assert record.ended_s(500.0) == 500.0
    with pytest.raises(TokenExistsError):
        shared.apply(replace(make, tenant="speech"))
    with pytest.raises(UnknownTokenError):
        shared.apply(t.RevokeToken(tenant="speech", token_id="k"))
    shared.now_s = 200.0
    shared.apply(t.RevokeToken(tenant="vision", token_id="k"))
    shared.now_s = 300.0
    shared.apply(t.RevokeToken(tenant="vision", token_id="k"))
    # Made again it stays revoked: a retry of the first command must not bring it back.
    shared.apply(make)
    assert shared.cluster.access.tokens("vision")[0].revoked_s == 200.0
    assert shared.cluster.access.tokens("speech") == []


def test_tokens_that_ended_age_out_and_those_that_count_are_bounded() -> None:
    bench = Bench(replace(LIMITS, max_tokens_per_tenant=2, max_ended_tokens_per_tenant=1, keep_tokens_s=50.0))
    for number in range(2):
        bench.apply(t.CreateToken(token_id=f"k{number}", sha256=HASH))
    with pytest.raises(QuotaExceededError, match="2 tokens in one tenant"):
        bench.apply(t.CreateToken(token_id="k2", sha256=HASH))
    bench.pass_time(1)
    for number in range(2):
        bench.now_s += 1
        bench.apply(t.RevokeToken(token_id=f"k{number}"))
    bench.apply(t.CreateToken(token_id="k2", sha256=HASH))
    bench.pass_time(2)
    assert [record.token_id for record in bench.cluster.access.tokens()] == ["k2", "k1"][::-1]
    bench.pass_time(60)
    assert [record.token_id for record in bench.cluster.access.tokens()] == ["k2"]


def test_a_tenants_idle_jobs_push_out_no_others() -> None:
    bench = Bench(replace(LIMITS, max_idle_jobs=2))
    bench.apply(t.CreateTenant(tenant="vision"))
    bench.apply(c.ConfigureJob(job_id="quiet"))
    for number in range(4):
        bench.apply(c.ConfigureJob(job_id=f"vision/{number}"))
        bench.pass_time(2)
    assert bench.cluster.jobs() == ["quiet", "vision/2", "vision/3"]


def test_tenants_and_tokens_are_in_the_snapshot_and_the_journal_gives_the_same(shared: Bench) -> None:
    shared.apply(t.SetTenant(tenant="vision", quotas=Quotas(workers=5, requests_per_s=2.5)))
    shared.apply(t.CreateToken(tenant="vision", token_id="k", sha256=HASH, expires_s=1e9))
    join(shared, VISION)
    again = shared.restarted()
    assert again.cluster.snapshot() == shared.cluster.snapshot()
    assert again.cluster.access.token("k") == shared.cluster.access.token("k")
    assert list(again.cluster.access.tenant("vision").jobs) == ["vision/llm"]


def test_a_snapshot_from_before_tenants_is_read() -> None:
    bench = Bench()
    bench.join("a")
    old = bench.cluster.snapshot().replace(b'"version":4', b'"version":2')
    old = old.replace(b'"tenants":[["default",{},0,0]],', b"").replace(b'"tokens":[],', b"")
    assert b"tenants" not in old
    again = Cluster(Limits())
    again.restore(old)
    assert again.snapshot() == bench.cluster.snapshot()
    assert again.access.tenant(DEFAULT_TENANT).jobs.keys() == {"default"}
