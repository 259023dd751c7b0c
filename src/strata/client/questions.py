"""Single calls for those that are not workers: no channel, no heartbeats, one question and its answer."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import grpc

from strata.client.connection import parse_address
from strata.cluster.commits import Committed
from strata.errors import CoordinatorLostError, StrataError
from strata.sharding import DatasetParams, ShardAssignment
from strata.wire import convert
from strata.wire._generated import coordinator_pb2 as pb
from strata.wire._generated import coordinator_pb2_grpc as stubs
from strata.wire.errors import ERROR_TRAILER, from_error

TIMEOUT_S = 30.0
AUDIT_TIMEOUT_S = 300.0


def configure_job(url: str, job_id: str, *, min_workers: int, max_workers: int | None) -> None:
    """Set how many workers a job needs to run, and may have at the most."""
    request = pb.ConfigureJob(job_id=job_id, min_workers=min_workers, max_workers=max_workers)
    ask(url, lambda stub: stub.ConfigureJob(request, timeout=TIMEOUT_S))


def register_dataset(url: str, job_id: str, params: DatasetParams) -> None:
    """Make a dataset known to the coordinator."""
    request = pb.RegisterDataset(job_id=job_id, **params.to_json())
    ask(url, lambda stub: stub.RegisterDataset(request, timeout=TIMEOUT_S))


def ask_for_shards(url: str, job_id: str, dataset_id: str, *, rank: int, epoch: int) -> list[ShardAssignment]:
    """Return the shards of the worker with this rank."""
    request = pb.GetDataShard(job_id=job_id, dataset_id=dataset_id, rank=rank, epoch=epoch)
    reply = ask(url, lambda stub: stub.GetDataShard(request, timeout=TIMEOUT_S))
    return [
        ShardAssignment(dataset_id, s.shard_id, reply.total_shards, s.start_index, s.end_index, (), epoch)
        for s in reply.shards
    ]


def ask_audit(url: str, job_id: str, dataset_id: str, *, epoch: int) -> pb.DataAudit:
    """Return which samples of an epoch the model has not seen, or more than once."""
    request = pb.AuditData(job_id=job_id, dataset_id=dataset_id, epoch=epoch)
    audit: pb.DataAudit = ask(url, lambda stub: stub.AuditData(request, timeout=AUDIT_TIMEOUT_S))
    return audit


def ask_latest_checkpoint(url: str, job_id: str) -> Committed | None:
    """Return the newest committed checkpoint."""
    request = pb.GetLatestCheckpoint(job_id=job_id)
    reply = ask(url, lambda stub: stub.GetLatestCheckpoint(request, timeout=TIMEOUT_S))
    return convert.read_checkpoint(reply.checkpoint) if reply.HasField("checkpoint") else None


def ask(url: str, call: Callable[[Any], Any]) -> Any:
    """Make one call of the coordinator's service and return its answer, or raise the error that it carries."""
    address = parse_address(url)
    started_s = time.monotonic()
    with grpc.insecure_channel(address) as channel:
        try:
            return call(stubs.CoordinatorStub(channel))
        except grpc.RpcError as error:
            raise _translated(error, address, time.monotonic() - started_s) from error


def _translated(error: Any, address: str, waited_s: float) -> StrataError:
    for name, value in error.trailing_metadata() or ():
        if name == ERROR_TRAILER:
            return from_error(pb.Error.FromString(value))
    if error.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED):
        return CoordinatorLostError(address, waited_s=waited_s)
    return StrataError(f"the coordinator at {address} answered {error.code().name}: {error.details()}")
