"""What all jobs are doing, as the message that people's tools ask for."""

from __future__ import annotations

from strata.cluster import Cluster
from strata.cluster.job import Job
from strata.wire import convert
from strata.wire._generated import coordinator_pb2 as pb


def describe(cluster: Cluster, *, now_s: float) -> pb.Status:
    """Return the status of every job."""
    return pb.Status(jobs=[_describe_job(cluster.job(job_id), now_s) for job_id in cluster.jobs()])


def _describe_job(job: Job, now_s: float) -> pb.JobStatus:
    status = pb.JobStatus(job_id=job.job_id, generation=job.membership.generation, waits_for=job.membership.waits_for())
    for member in job.membership.everyone():
        status.workers.add(
            worker_id=member.worker_id,
            rank=member.rank,
            state=str(member.state),
            step=member.step,
            epoch=member.epoch,
            silent_s=max(0.0, now_s - member.heard_s),
            address=member.address,
            gpu_count=member.gpu_count,
            resources=member.resources,
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
    for _, checkpoint in sorted(job.commits.committed.items()):
        convert.fill_checkpoint(status.checkpoints.add(), checkpoint)
    for _, pending in sorted(job.commits.pending.items()):
        status.pending.add(step=pending.step, writing=not pending.is_collecting, missing=pending.missing())
    for step, rejected in sorted(job.commits.rejected.items()):
        status.rejected.add(step=step, reason=rejected.reason)
    return status
