"""Bugs by which one tenant would see, change or be told what is another one's."""

from __future__ import annotations

from typing import Any

import pytest

from strata.cluster import Cluster
from strata.cluster.access import names
from strata.cluster.access.access_registry import Access
from strata.cluster.access.tenant import Tenant
from strata.coordinator.speakers import Speakers
from strata.coordinator.write_queue import WriteQueue
from strata.errors import UnknownJobError
from tests.simulation.bugs.planting import bug, nothing, wrap


@bug
def take_a_job_by_its_plain_name(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(names, "qualify_name", lambda principal, job_id: job_id)


@bug
def find_a_worker_by_its_name_alone(patch: pytest.MonkeyPatch) -> None:
    def careless(self: Speakers[Any], job_id: str, worker_id: str) -> Any:
        found = [link for (_, name), (_, link) in self._connections.items() if name == worker_id]
        return found[0] if found else None

    patch.setattr(Speakers, "find", careless)


@bug
def let_anyone_manage_tenants(patch: pytest.MonkeyPatch) -> None:
    qualify = names.qualify
    patch.setattr(
        names,
        "qualify",
        lambda principal, command: command if hasattr(command, "tenant") else qualify(principal, command),
    )


@bug
def show_the_full_names(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(names, "present", lambda principal, value: value)


@bug
def list_the_jobs_of_everyone(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Cluster, "_unknown", lambda self, job_id: UnknownJobError(job_id, known=self._jobs))
    patch.setattr(names, "owns", lambda principal, name: True)
    patch.setattr(names, "shown", lambda principal, name: name)


@bug
def forget_tokens_in_a_restart(patch: pytest.MonkeyPatch) -> None:
    wrap(patch, Access, "restore", lambda restore, self, record: restore(self, {**record, "tokens": []}))


@bug
def keep_no_quota(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Tenant, "check", nothing)


@bug
def remove_a_tenant_that_works(patch: pytest.MonkeyPatch) -> None:
    def hasty(remove: Any, self: Access, command: Any, now_s: float) -> list[str]:
        tenant = self.tenant(command.tenant)
        jobs, tenant.jobs = tenant.jobs, {}
        remove(self, command, now_s)
        return list(jobs)

    wrap(patch, Access, "remove_tenant", hasty)


@bug
def answer_before_the_tenants_own_entries_are_written(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(WriteQueue, "is_settled", lambda self, tenant: True)
