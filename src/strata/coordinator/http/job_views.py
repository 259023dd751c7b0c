"""From what is known of a job to answers about its workers, datasets, checkpoints and barriers. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from pydantic_core import to_json

from strata.cluster.ledger.epoch_ledger import FoundSamples
from strata.cluster.lifecycle.stalls import is_stalled
from strata.cluster.values import PARTS, Divergence
from strata.coordinator.http import answers as a
from strata.coordinator.http.known import Encoded, Known
from strata.coordinator.http.snapshot import MAX_EPOCHS, BarrierCopy, DatasetCopy, JobCopy, WorkerCopy
from strata.coordinator.telemetry.job_history import CheckpointTrack, JobHistory, WorkerTrack
from strata.coordinator.telemetry.reckoning import Straggler
from strata.errors import CheckpointNotFoundError, UnknownDatasetError, UnknownWorkerError

T = TypeVar("T")
MAX_NAMED = 100
MAX_RELEASED = 50
MAX_RANGES = 1_000


class EpochNotKeptError(LookupError):
    """The copy that answers are made from holds only the newest epochs of a dataset."""

    def __init__(self, epoch: int, oldest: int) -> None:
        known = f"the API knows the newest {MAX_EPOCHS}, from epoch {oldest} on"
        super().__init__(f"epoch {epoch} is older: {known}; `strata data audit --epoch {epoch}` audits every one")


def page(items: Sequence[T], *, offset: int, limit: int) -> a.Page[T]:
    """Return a part of a list."""
    return a.Page(items=list(items[offset : offset + limit]), total=len(items), offset=offset, limit=limit)


def finite(value: float | None) -> float | None:
    """Return a number that JSON can carry."""
    return value if value is not None and math.isfinite(value) else None


# Workers


def encode_workers(known: Known, job: JobCopy) -> bytes:
    """Return all workers of a job, as a JSON list."""
    return _encode_workers(known, job, job.workers)


def page_workers(
    known: Known, job_id: str | None, *, state: str | None, search: str | None, offset: int, limit: int
) -> Encoded:
    """Return the workers that match, those present first."""
    job = known.job(job_id)
    text = (search or "").lower()
    found = [
        worker
        for worker in job.workers
        if (state is None or worker.state == state)
        and (not text or text in worker.worker_id.lower() or text in worker.address.lower())
    ]
    # Only those on the page are described.
    items = _encode_workers(known, job, found[offset : offset + limit])
    return Encoded(b'{"items":%b,"total":%d,"offset":%d,"limit":%d}' % (items, len(found), offset, limit))


def find_worker(known: Known, job_id: str | None, worker_id: str) -> Encoded:
    """Return one worker, or raise UnknownWorkerError."""
    job = known.job(job_id)
    found = [worker for worker in job.workers if worker.worker_id == worker_id]
    if not found:
        raise UnknownWorkerError(worker_id, known=[worker.worker_id for worker in job.workers])
    return Encoded(_encode_workers(known, job, found)[1:-1])


def describe_straggler(found: Straggler) -> a.Straggling:
    """Return a straggler as an answer."""
    return a.Straggling(
        worker_id=found.worker_id,
        rank=found.rank,
        steps=found.steps,
        step_s=found.step_s,
        median_s=found.median_s,
        ratio=found.ratio,
        cause=found.cause,
    )


def _encode_workers(known: Known, job: JobCopy, workers: Sequence[WorkerCopy]) -> bytes:
    history, rows = known.history.find(job.key), known.rows.of(job.key)
    furthest = max((worker.step for worker in job.workers if worker.is_present), default=0)
    slow = {each.worker_id: describe_straggler(each) for each in known.stragglers(job)}
    encoded: list[bytes] = []
    for worker in workers:
        track = history.workers.get(worker.worker_id)
        basis = worker, None if track is None else track.account, slow.get(worker.worker_id)
        before, row = rows.get(worker.worker_id, (None, b""))
        if basis != before:
            row = to_json(_describe_worker(worker, track, basis[2]))[:-1]
            rows[worker.worker_id] = basis, row
        # The only number that changes with the others'.
        encoded.append(b'%b,"lag":%d}' % (row, furthest - worker.step) if worker.is_present else row + b',"lag":null}')
    return b"[%b]" % b",".join(encoded)


def _describe_worker(worker: WorkerCopy, track: WorkerTrack | None, straggles: a.Straggling | None) -> dict[str, Any]:
    """Return the fields of ``answers.Worker`` but for its lag, without checks: there may be ten thousand."""
    said = worker.resources
    if track is not None and track.incarnation != worker.incarnation:
        track = None
    recent = track.recent[-1] if track is not None and track.recent else None
    return {
        "worker_id": worker.worker_id,
        "incarnation": worker.incarnation,
        "rank": worker.rank if worker.is_present else None,
        "state": worker.state,
        "is_present": worker.is_present,
        "step": worker.step,
        "epoch": worker.epoch,
        "host": worker.address,
        "gpu_count": worker.gpu_count,
        "memory_bytes": worker.memory_bytes,
        "last_seen_s": worker.last_seen_s or None,
        "lease_until_s": worker.lease_until_s if worker.is_present else None,
        "is_connected": worker.is_present and worker.is_connected,
        "step_s": finite(said.get("step_s")),
        "samples_per_s": finite(said.get("samples_per_s")),
        "metrics": {name: finite(value) for name, value in said.items()},
        "parts": None if track is None else dict(zip(PARTS, track.account.parts, strict=True)),
        "own_step_s": None if recent is None else recent.own_s,
        "straggles": straggles,
        "stall": _describe_stall(said) if worker.is_present and is_stalled(said) else None,
    }


def _describe_stall(said: Mapping[str, float]) -> a.Stall:
    return a.Stall(
        stalled_s=finite(said.get("stalled_s")) or 0.0,
        limit_s=finite(said.get("limit_s")) or 0.0,
        waits_on_others=bool(said.get("waiting", 0.0)),
        in_collective=bool(said.get("in_collective", 0.0)),
        paused=bool(said.get("paused", 0.0)),
    )


# Datasets


def make_datasets(known: Known, job: JobCopy) -> list[a.Dataset]:
    """Return all datasets of a job."""
    return [_describe_dataset(known, job, place) for place in range(len(job.datasets))]


def page_datasets(known: Known, job_id: str | None, *, offset: int, limit: int) -> a.Page[a.Dataset]:
    """Return datasets by the order of their registration."""
    job = known.job(job_id)
    items = [
        _describe_dataset(known, job, place) for place in range(len(job.datasets)) if offset <= place < offset + limit
    ]
    return a.Page(items=items, total=len(job.datasets), offset=offset, limit=limit)


def find_dataset(known: Known, job_id: str | None, dataset_id: str, epoch: int | None) -> a.DatasetDetail:
    """Return one dataset with the audit of an epoch, by default the newest; or raise UnknownDatasetError."""
    job = known.job(job_id)
    names = [dataset.params.dataset_id for dataset in job.datasets]
    if dataset_id not in names:
        raise UnknownDatasetError(dataset_id, known=names)
    place = names.index(dataset_id)
    return a.DatasetDetail(dataset=_describe_dataset(known, job, place), audit=_audit(job.datasets[place], epoch))


def _describe_dataset(known: Known, job: JobCopy, place: int) -> a.Dataset:
    dataset = job.datasets[place]
    params, assignment = dataset.params, dataset.assignment
    counts = {} if assignment is None else assignment.counts()
    return a.Dataset(
        dataset_id=params.dataset_id,
        total_samples=params.total_samples,
        total_shards=params.num_shards,
        shard_size=params.shard_size,
        shuffle=params.shuffle,
        seed=params.seed,
        order=str(params.data_order),
        skipped_samples=dataset.skipped.count,
        epochs=[
            a.EpochProgress(
                epoch=view.order.epoch, seen_samples=view.total()[0].count, total_samples=params.total_samples
            )
            for view in dataset.epochs
        ],
        shards=[
            a.ShardCount(worker_id=worker.worker_id, shards=counts[worker.worker_id])
            for worker in job.present
            if worker.worker_id in counts
        ],
        moved_shards=known.moves.count(job, place),
    )


def _audit(dataset: DatasetCopy, epoch: int | None) -> a.Audit:
    views = {view.order.epoch: view for view in dataset.epochs}
    if epoch is not None and len(views) >= MAX_EPOCHS and epoch < min(views):
        raise EpochNotKeptError(epoch, min(views))
    wanted = max(views, default=0) if epoch is None else epoch
    if wanted not in views:
        # Nothing was seen of it yet.
        missing = [(0, dataset.params.total_samples)]
        empty = a.SampleSet(samples=0, ranges=[])
        return a.Audit(
            epoch=wanted,
            exactly_once=False,
            total_samples=dataset.params.total_samples,
            missing=a.SampleSet(samples=dataset.params.total_samples, ranges=missing),
            repeated=empty,
            skipped=_samples(FoundSamples(dataset.skipped.count, dataset.skipped)),
        )
    audit = views[wanted].audit(dataset.skipped)
    return a.Audit(
        epoch=wanted,
        exactly_once=audit.is_exactly_once,
        total_samples=audit.total_samples,
        missing=_samples(audit.missing),
        repeated=_samples(audit.repeated),
        skipped=_samples(audit.skipped),
    )


def _samples(found: FoundSamples) -> a.SampleSet:
    ranges = [(int(start), int(stop)) for start, stop in found.named.first(MAX_RANGES)]
    return a.SampleSet(samples=found.count, ranges=ranges)


# Checkpoints


def make_checkpoints(known: Known, job: JobCopy) -> list[a.Checkpoint]:
    """Return all checkpoints that are known, the newest step first."""
    history = known.history.find(job.key)
    found: dict[int, a.Checkpoint] = {}
    for step, track in history.checkpoints.items():
        if track.aborted is not None:
            found[step] = _describe_checkpoint(track, a.CheckpointState.ABORTED, reason=track.aborted)
    for step, reason in job.rejected:
        found[step] = _describe_checkpoint(_track(history, step), a.CheckpointState.REJECTED, reason=reason)
    for record in job.committed:
        track = _track(history, record.step)
        found[record.step] = _describe_checkpoint(
            track,
            a.CheckpointState.COMMITTED,
            epoch=record.epoch,
            manifest=record.manifest,
            # The commit compared what several parts hold alike.
            diverged=None if track.parts is None or track.parts < 2 else False,
            divergence=record.diverged,
        )
    for pending in job.pending:
        state = a.CheckpointState.COLLECTING if pending.is_collecting else a.CheckpointState.WRITING
        track = CheckpointTrack(
            pending.step,
            began_s=pending.began_s,
            size_bytes=pending.size_bytes,
            parts=pending.expected - len(pending.missing),
        )
        found[pending.step] = _describe_checkpoint(
            track, state, epoch=pending.epoch, expected=pending.expected, missing=pending.missing
        )
    return [found[step] for step in sorted(found, reverse=True)]


def page_checkpoints(
    known: Known, job_id: str | None, *, state: a.CheckpointState | None, offset: int, limit: int
) -> a.Page[a.Checkpoint]:
    """Return the checkpoints in a state, or all, the newest first."""
    every = make_checkpoints(known, known.job(job_id))
    return page([each for each in every if state is None or each.state is state], offset=offset, limit=limit)


def find_checkpoint(known: Known, job_id: str | None, step: int) -> a.Checkpoint:
    """Return one checkpoint, or raise CheckpointNotFoundError."""
    job = known.job(job_id)
    for checkpoint in make_checkpoints(known, job):
        if checkpoint.step == step:
            return checkpoint
    raise CheckpointNotFoundError(step, path=job.job_id, known=[record.step for record in job.committed])


def _track(history: JobHistory, step: int) -> CheckpointTrack:
    return history.checkpoints.get(step) or CheckpointTrack(step)


def _describe_checkpoint(
    track: CheckpointTrack,
    state: a.CheckpointState,
    *,
    epoch: int = 0,
    manifest: str = "",
    reason: str = "",
    expected: int | None = None,
    missing: Sequence[str] = (),
    diverged: bool | None = None,
    divergence: Divergence | None = None,
) -> a.Checkpoint:
    took_s = None if track.began_s is None or track.committed_s is None else track.committed_s - track.began_s
    phases = track.phases
    if phases is not None:
        took_s = max(sum(phases[1:]), 1e-9)
    return a.Checkpoint(
        step=track.step,
        epoch=epoch,
        state=state,
        reason=reason,
        manifest=manifest,
        began_s=track.began_s,
        committed_s=track.committed_s,
        parts=track.parts,
        expected_parts=expected if expected is not None else track.parts,
        missing=list(missing[:MAX_NAMED]),
        size_bytes=track.size_bytes,
        full_bytes=track.full_bytes if track.parts and track.told >= track.parts else None,
        bytes_per_s=track.size_bytes / took_s if track.size_bytes and took_s else None,
        phases=None
        if phases is None
        else a.SavePhases(blocked=phases[0], stage=phases[1], write=phases[2], commit=phases[3]),
        diverged=True if divergence is not None or track.is_diverged else diverged,
        divergence="" if divergence is None else str(divergence),
    )


# Barriers


def make_barriers(known: Known, job_id: str | None) -> a.Barriers:
    """Return the barriers of a job."""
    return describe_barriers(known, known.job(job_id))


def describe_barriers(known: Known, job: JobCopy) -> a.Barriers:
    """Return the open barriers with who is missing, and how long the last ones took."""
    waits = sorted(release.waited_s for release in job.releases)
    return a.Barriers(
        open=[_describe_barrier(barrier, job) for barrier in job.barriers],
        released=[
            a.ReleasedBarrier(
                name=release.name,
                workers=len(release.arrivals),
                waited_s=release.waited_s,
                last_worker=release.arrivals[-1],
                released_s=release.at_s,
            )
            for release in job.releases[-MAX_RELEASED:]
        ],
        # The copy holds the last ones.
        released_total=max(len(job.releases), known.history.find(job.key).releases),
        wait_p50_s=_quantile(waits, 0.5),
        wait_p99_s=_quantile(waits, 0.99),
    )


def _describe_barrier(barrier: BarrierCopy, job: JobCopy) -> a.Barrier:
    arrived = frozenset(barrier.arrived)
    missing = [worker for worker in job.present if worker.worker_id not in arrived]
    return a.Barrier(
        name=barrier.name,
        round=barrier.round,
        arrived=len(arrived),
        expected=barrier.expected,
        began_s=barrier.began_s,
        deadline_s=barrier.deadline_s,
        missing=[
            a.MissingAtBarrier(
                worker_id=worker.worker_id,
                rank=worker.rank,
                state=worker.state,
                step=worker.step,
                last_seen_s=worker.last_seen_s or None,
            )
            for worker in missing[:MAX_NAMED]
        ],
        missing_total=len(missing),
    )


def _quantile(ordered: Sequence[float], share: float) -> float | None:
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else None
