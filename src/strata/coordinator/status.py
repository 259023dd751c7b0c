"""What all jobs are doing and what has happened in them, for people's tools."""

from __future__ import annotations

from dataclasses import dataclass

from strata.cluster import Cluster
from strata.cluster.access import LOCAL, Principal
from strata.cluster.access.names import owns, present, shown
from strata.cluster.access.tenant import Tenant
from strata.cluster.events import Event, EventLog
from strata.cluster.job import Job
from strata.cluster.membership import name_process
from strata.coordinator.sharing.tenant_bounds import TenantBounds
from strata.errors import AccessDeniedError
from strata.wire import codec
from strata.wire._generated import coordinator_pb2 as pb

# The newest; people ask for what is now, and ListCheckpoints has all.
SHOWN_CHECKPOINTS = 20


def describe(cluster: Cluster, principal: Principal, *, now_s: float) -> pb.Status:
    """Return the status of every job that a caller is shown."""
    own = [job_id for job_id in cluster.jobs() if owns(principal, job_id)]
    return pb.Status(jobs=[_describe_job(cluster.job(job_id), shown(principal, job_id), now_s) for job_id in own])


def describe_tenants(cluster: Cluster, principal: Principal, tenant: str, bounds: TenantBounds) -> pb.Tenants:
    """Return the tenants that a caller is shown: its own, or for an administrator the one asked for, or all."""
    reply = pb.Tenants()
    for each in _chosen(cluster, principal, tenant):
        status = reply.tenants.add(tenant=each.name, use={**each.use(), **bounds.use(each.name)})
        codec.fill(status.quotas, each.quotas)
    return reply


def describe_tokens(cluster: Cluster, principal: Principal, tenant: str) -> pb.Tokens:
    """Return the tokens of the tenants that a caller is shown, without the hashes of their secrets."""
    reply = pb.Tokens()
    for each in _chosen(cluster, principal, tenant):
        for token in cluster.access.tokens(each.name):
            reply.tokens.add(
                token_id=token.token_id,
                tenant=token.tenant,
                role=token.role,
                jobs=token.jobs,
                name=token.name,
                created_s=token.created_s,
                expires_s=token.expires_s,
                revoked_s=token.revoked_s,
            )
    return reply


def _chosen(cluster: Cluster, principal: Principal, tenant: str) -> list[Tenant]:
    if principal.sees_all:
        return [cluster.access.tenant(tenant)] if tenant else cluster.access.tenants()
    if tenant not in ("", principal.tenant):
        raise AccessDeniedError(principal.name, f"look at tenant {tenant!r}")
    return [cluster.access.tenant(principal.tenant)]


def _describe_job(job: Job, name: str, now_s: float) -> pb.JobStatus:
    status = pb.JobStatus(job_id=name, generation=job.membership.generation, waits_for=job.membership.waits_for())
    verdict = job.judge()
    status.state, status.reason = verdict.state, verdict.reason
    status.present = len(job.membership.present())
    for member in job.membership.everyone():
        status.workers.add(
            worker_id=member.worker_id,
            rank=member.rank,
            state=str(member.state),
            step=member.step,
            epoch=member.epoch,
            silent_s=max(0.0, now_s - member.last_seen_s),
            address=member.address,
            gpu_count=member.gpu_count,
            resources=member.resources,
            process=name_process(member.incarnation),
        )
    for params in job.ledger.datasets.values():
        status.datasets.add(
            dataset_id=params.dataset_id, total_samples=params.total_samples, total_shards=params.num_shards
        )
    for barrier in job.barriers.open():
        missing = [worker_id for worker_id in job.membership.ids() if worker_id not in barrier.arrivals]
        status.barriers.add(
            name=barrier.name, arrived=len(barrier.arrivals), expected=barrier.expected, missing=missing
        )
    status.total_checkpoints = len(job.commits.committed)
    for step in sorted(job.commits.committed)[-SHOWN_CHECKPOINTS:]:
        checkpoint = job.commits.committed[step]
        # Without its cursors, which grow with the data: ListCheckpoints has them.
        codec.fill(status.checkpoints.add(), checkpoint._replace(cursors=""))
    for _, pending in sorted(job.commits.pending.items()):
        status.pending.add(step=pending.step, writing=not pending.is_collecting, missing=pending.missing())
    for step, rejected in sorted(job.commits.rejected.items()):
        status.rejected.add(step=step, reason=rejected.reason)
    return status


@dataclass(frozen=True)
class FollowedEvents:
    """Where someone is in the events of one job, or of all; also across a replay of the journal, which counts anew."""

    job_id: str
    principal: Principal = LOCAL
    log: EventLog | None = None
    following: int = 0
    last: Event | None = None

    def look(self, cluster: Cluster, *, once: bool) -> tuple[FollowedEvents, list[Event]]:
        """Return where this leads, and what is new; an unknown job is an error for who does not wait for it."""
        is_new_log = self.log is not cluster.events
        following, events = cluster.events.since(0 if is_new_log else self.following)
        if is_new_log and self.last in events:
            events = events[events.index(self.last) + 1 :]
        last = events[-1] if events else self.last
        led_to = FollowedEvents(self.job_id, self.principal, cluster.events, following, last)
        own = [event for event in events if owns(self.principal, event.job_id)]
        found = [present(self.principal, event) for event in own if self.job_id in ("", event.job_id)]
        if once and self.job_id and not found:
            cluster.job(self.job_id)
        return led_to, found
