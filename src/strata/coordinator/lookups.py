"""Lookups of shards: who reads what, encoded once for each worker, epoch and generation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from weakref import ref

import numpy as np
import numpy.typing as npt

from strata.cluster import Cluster
from strata.cluster import commands as c
from strata.cluster.job import Job
from strata.cluster.ledger.deals import LARGE_SHARDS
from strata.coordinator.dispatcher import Dispatcher
from strata.coordinator.flow import MAX_ANSWER_BYTES
from strata.errors import QuotaExceededError, StrataError, UnknownWorkerError
from strata.sharding import Assignment, DatasetParams
from strata.wire._generated import coordinator_pb2 as pb

MAX_KEPT_BYTES = 32 << 20
# So many shards are encoded at a time: a few megabytes of scratch memory, however many there are.
SLICE_SHARDS = 1 << 14
# The job itself, and not its name: one that is removed and made again counts its generations from 1 again.
_Key = tuple[ref[Job], int, str, str, int]
Tell = Callable[[bytes | StrataError], None]


@dataclass(frozen=True, eq=False)
class Lookup:
    """A worker's whole shards of an epoch, which nobody changes."""

    key: _Key
    assignment: Assignment
    params: DatasetParams
    worker_id: str
    epoch: int

    def encode(self) -> bytes:
        """Return a DataShards with the shards in the order in which the worker reads them."""
        order = self.params.order(epoch=self.epoch)
        shards = self.assignment.shards_of(self.worker_id)
        shards = shards[np.argsort(order.ranks_of(shards))]
        parts = [pb.DataShards(total_shards=order.num_shards).SerializeToString()]
        size_bytes = 0
        for at in range(0, len(shards), SLICE_SHARDS):
            some = shards[at : at + SLICE_SHARDS]
            starts = some * self.params.shard_size
            parts.append(_encode_rows(some, starts, starts + order.lengths_of(some)))
            size_bytes += len(parts[-1])
            if size_bytes > MAX_ANSWER_BYTES:
                what = f"bytes in one answer about {len(shards)} shards, which LeaseShards gives in pieces,"
                raise QuotaExceededError(what, limit=MAX_ANSWER_BYTES)
        return b"".join(parts)


class ShardLookups:
    """Answers GetDataShard from the cluster; what it was asked before costs nothing until the membership changes."""

    def __init__(self) -> None:
        self._cluster: Cluster | None = None
        self._kept: dict[_Key, bytes] = {}
        self._encoding: dict[_Key, list[Tell]] = {}
        self._kept_bytes = 0

    def answer(
        self, dispatcher: Dispatcher, question: pb.GetDataShard, tell: Tell, *, is_wanted: Callable[[], bool]
    ) -> None:
        """Tell an encoded DataShards, or why there is none, when all that it rests on is durable."""

        def ask_again(error: StrataError | None) -> None:
            if error is not None:
                tell(error)
            elif is_wanted():
                self.answer(dispatcher, question, tell, is_wanted=is_wanted)

        if dispatcher.put_off(ask_again):
            return
        if dispatcher.is_settled and (kept := self._find_kept(dispatcher.cluster, question)) is not None:
            tell(kept)
            return
        job_id = question.job_id or "default"
        if dispatcher.heavy.prepare(dispatcher.cluster, job_id, question.dataset_id, None, ask_again):
            return
        if self._is_unassigned(dispatcher.cluster, question):
            dispatcher.dispatch(
                c.AssignShards(job_id=job_id, dataset_id=question.dataset_id),
                lambda reply: ask_again(reply if isinstance(reply, StrataError) else None),
            )
            return

        def encode(found: bytes | Lookup | StrataError) -> None:
            if not isinstance(found, Lookup):
                tell(found)
            elif is_wanted():
                self._encode(dispatcher, found, tell)

        dispatcher.look(lambda cluster: self._find(cluster, question), encode)

    def _is_unassigned(self, cluster: Cluster, question: pb.GetDataShard) -> bool:
        """Whether this is the first question of a generation about a dataset, and one that has an answer."""
        try:
            job, _ = _sender(cluster, question)
            return job.ledger.assignment(question.dataset_id) is None
        except StrataError:
            return False  # :meth:`_find` refuses it with this error

    def _find_kept(self, cluster: Cluster, question: pb.GetDataShard) -> bytes | None:
        """Return an answer that was given before, which is what nearly all questions get."""
        job_id = question.job_id or "default"
        if cluster is not self._cluster or not question.worker_id or job_id not in cluster:
            return None
        return self._kept.get(_key(cluster.job(job_id), question, question.worker_id))

    def _encode(self, dispatcher: Dispatcher, lookup: Lookup, tell: Tell) -> None:
        """Encode a large answer in a thread, once for all who wait for it."""
        if lookup.key in self._encoding:
            self._encoding[lookup.key].append(tell)
            return
        self._encoding[lookup.key] = [tell]

        def keep_and_tell(answer: bytes | StrataError) -> None:
            if isinstance(answer, bytes):
                self._keep(lookup.key, answer)
            for waiting in self._encoding.pop(lookup.key):
                waiting(answer)

        dispatcher.heavy.start(lookup.encode, keep_and_tell)

    def _find(self, cluster: Cluster, question: pb.GetDataShard) -> bytes | Lookup:
        """Return the answer, or for a large dataset what is to be encoded in a thread."""
        if cluster is not self._cluster:
            # It was replayed after the journal refused, and may count the same generations anew.
            self._cluster, self._kept_bytes = cluster, 0
            self._kept.clear()
        job, worker_id = _sender(cluster, question)
        key = _key(job, question, worker_id)
        answer = self._kept.get(key)
        if answer is not None:
            return answer
        assignment = job.ledger.assignment(question.dataset_id)
        assert assignment is not None, "the shards are assigned before they are looked up"
        lookup = Lookup(key, assignment, job.ledger.datasets[question.dataset_id], worker_id, question.epoch)
        if assignment.num_shards >= LARGE_SHARDS:
            return lookup
        answer = lookup.encode()
        self._keep(key, answer)
        return answer

    def _keep(self, key: _Key, answer: bytes) -> None:
        if self._kept_bytes + len(answer) > MAX_KEPT_BYTES:
            self._kept.clear()
            self._kept_bytes = 0
        if len(answer) <= MAX_KEPT_BYTES and key not in self._kept:
            self._kept[key] = answer
            self._kept_bytes += len(answer)


def _sender(cluster: Cluster, question: pb.GetDataShard) -> tuple[Job, str]:
    """Return the job and the present worker that a question is about, or raise."""
    job = cluster.job(question.job_id or "default")
    workers = job.membership.ids()
    if not question.worker_id:
        if not 0 <= question.rank < len(workers):
            raise UnknownWorkerError(f"rank {question.rank}", known=workers)
        return job, workers[question.rank]
    if job.membership.is_new(question.worker_id):
        raise UnknownWorkerError(question.worker_id, known=workers)
    return job, question.worker_id


def _key(job: Job, question: pb.GetDataShard, worker_id: str) -> _Key:
    return ref(job), job.membership.generation, question.dataset_id, worker_id, question.epoch


def _encode_rows(*columns: npt.NDArray[np.int64]) -> bytes:
    """Return repeated DataShard messages, field 2 of DataShards, with one row of numbers each, as protobuf writes them.

    Ten million Python objects would take ten seconds.
    """
    numbers = np.stack(columns, axis=1).astype(np.uint64)
    rows, fields = numbers.shape
    shifts = np.arange(10, dtype=np.uint64) * np.uint64(7)
    groups = numbers[:, :, None] >> shifts  # what is left of each number before each of its bytes
    lengths = np.maximum((groups != 0).sum(axis=2), 1)
    # A row: the tag and the length of the message, then the tag and up to ten bytes of each field.
    cells = np.zeros((rows, 2 + fields * 11), dtype=np.uint8)
    used = np.zeros(cells.shape, dtype=np.bool_)
    cells[:, 0] = 0x12
    cells[:, 1] = lengths.sum(axis=1) + fields
    used[:, :2] = True
    for field in range(fields):
        begin = 2 + field * 11
        cells[:, begin] = (field + 1) << 3
        used[:, begin] = True
        place = np.arange(10)
        more = (place + 1 < lengths[:, field, None]).astype(np.uint8) << np.uint8(7)
        cells[:, begin + 1 : begin + 11] = (groups[:, field] & np.uint64(0x7F)).astype(np.uint8) | more
        used[:, begin + 1 : begin + 11] = place < lengths[:, field, None]
    return cells[used].tobytes()
