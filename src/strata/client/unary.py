"""Unary calls for tools that are not workers: no channel, no heartbeats, one request and its reply."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import grpc

from strata.client.dial import Dial
from strata.client.leader_finder import LeaderFinder
from strata.cluster.commands import Goodbye
from strata.cluster.replies import KeyValue
from strata.cluster.values import CommitRecord
from strata.errors import CoordinatorLostError, NotLeaderError, StrataError, UnknownJobError
from strata.sharding import DatasetParams, ShardAssignment
from strata.wire import codec
from strata.wire._generated import coordinator_pb2 as pb
from strata.wire._generated import coordinator_pb2_grpc as stubs
from strata.wire.errors import ERROR_TRAILER, from_error

TIMEOUT_S = 30.0
AUDIT_TIMEOUT_S = 300.0
MAX_ANSWER_BYTES = 64 << 20


def configure_job(url: str, job_id: str, *, min_workers: int, max_workers: int | None) -> None:
    """Set how many workers a job needs to run, and may have at the most."""
    request = pb.ConfigureJob(job_id=job_id, min_workers=min_workers, max_workers=max_workers)
    ask(url, lambda stub: stub.ConfigureJob(request, timeout=TIMEOUT_S))


def say_goodbye(url: str, goodbye: Goodbye) -> None:
    """Say for a worker whose process has ended that it leaves; one that has left already is left alone."""
    request = pb.Goodbye()
    codec.fill(request, goodbye)
    ask(url, lambda stub: stub.DeregisterWorker(request, timeout=TIMEOUT_S))


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


def ask_latest_checkpoint(url: str, job_id: str) -> CommitRecord | None:
    """Return the newest committed checkpoint."""
    request = pb.GetLatestCheckpoint(job_id=job_id)
    reply = ask(url, lambda stub: stub.GetLatestCheckpoint(request, timeout=TIMEOUT_S))
    return codec.read(CommitRecord, reply.checkpoint) if reply.HasField("checkpoint") else None


def get_key(url: str, job_id: str, key: str) -> KeyValue:
    """Return what a key holds, and the token with which to change it; token 0 says that there is none."""
    request = pb.GetKey(job_id=job_id, key=key)
    try:
        reply = ask(url, lambda stub: stub.GetKey(request, timeout=TIMEOUT_S))
    except UnknownJobError:
        return KeyValue()
    return _read_key(reply)


def set_key(url: str, job_id: str, key: str, value: bytes, *, token: int, writer: str | None = None) -> KeyValue:
    """Set a key if its token is still the one given, and return what it holds now; ``is_set`` says who won.

    To repeat a call whose reply was lost, give it the same ``writer``.
    """
    request = pb.SetKey(job_id=job_id, key=key, value=value, token=token, writer=writer or uuid.uuid4().hex)
    return _read_key(ask(url, lambda stub: stub.SetKey(request, timeout=TIMEOUT_S)))


def _read_key(reply: pb.KeyValue) -> KeyValue:
    found = codec.read(KeyValue, reply)
    assert isinstance(found, KeyValue)
    return found


def ask(url: str, call: Callable[[Any], Any]) -> Any:
    """Make one call of the leader's service and return its answer, or raise the error that it carries.

    Among several coordinators it may be sent to more than one of them, which is harmless: it is the same command.
    """
    finder = LeaderFinder(url)
    while True:
        try:
            with connect(finder.dial, *finder.find()) as stub:
                return call(stub)
        except (NotLeaderError, CoordinatorLostError) as error:
            finder.leave(error)


@contextmanager
def connect(dial: Dial, address: str, name: str, options: Sequence[tuple[str, Any]] = ()) -> Iterator[Any]:
    """Give the stub of the service at an address; the error that a call carries is raised."""
    started_s = time.monotonic()
    # Ten thousand workers do not fit into gRPC's own limit of 4 MiB.
    options = [*options, ("grpc.max_receive_message_length", MAX_ANSWER_BYTES)]
    with dial.open_grpc(address, name=name, options=options) as channel:
        try:
            yield stubs.CoordinatorStub(channel)
        except grpc.RpcError as error:
            raise _translated(error, dial, address, name, time.monotonic() - started_s) from error


@contextmanager
def connect_leader(url: str, *, options: Sequence[tuple[str, Any]] = ()) -> Iterator[Any]:
    """Give the stub of the leader's service, for calls that cannot be repeated elsewhere, such as a stream."""
    finder = LeaderFinder(url)
    finder.describe_leader()
    with connect(finder.dial, *finder.find(), options) as stub:
        yield stub


def _translated(error: Any, dial: Dial, address: str, name: str, waited_s: float) -> StrataError:
    """Return the error that a failed call carries."""
    for key, value in error.trailing_metadata() or ():
        if key == ERROR_TRAILER:
            return from_error(pb.Error.FromString(value))
    if error.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED):
        is_silent = error.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        if not is_silent and (problem := dial.find_tls_problem(address, name=name)):
            return problem
        return CoordinatorLostError(address, waited_s=waited_s)
    return StrataError(f"the coordinator at {address} answered {error.code().name}: {error.details()}")
