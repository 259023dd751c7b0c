"""Lookups of shards: who reads what, encoded once for each worker, epoch and generation."""

from __future__ import annotations

import numpy as np

from strata.cluster import Cluster
from strata.errors import UnknownWorkerError
from strata.wire._generated import coordinator_pb2 as pb

MAX_KEPT_BYTES = 32 << 20
_Key = tuple[int, str, str, str, int]


class ShardLookups:
    """Answers GetDataShard from the cluster; what it was asked before costs nothing until the membership changes."""

    def __init__(self) -> None:
        self._cluster: Cluster | None = None
        self._kept: dict[_Key, bytes] = {}
        self._kept_bytes = 0

    def find(self, cluster: Cluster, question: pb.GetDataShard) -> bytes:
        """Return an encoded DataShards: a worker's whole shards of an epoch, in the order in which it reads them."""
        if cluster is not self._cluster:
            # It was replayed after the journal refused, and may count the same generations anew.
            self._cluster, self._kept_bytes = cluster, 0
            self._kept.clear()
        job = cluster.job(question.job_id or "default")
        workers = job.membership.ids()
        if not question.worker_id and not 0 <= question.rank < len(workers):
            raise UnknownWorkerError(f"rank {question.rank}", known=workers)
        worker_id = question.worker_id or workers[question.rank]
        key = job.membership.generation, job.job_id, question.dataset_id, worker_id, question.epoch
        answer = self._kept.get(key)
        if answer is None:
            assignment = job.ledger.assignment(question.dataset_id, workers)
            params = job.ledger.datasets[question.dataset_id]
            order = params.order(epoch=question.epoch)
            shards = assignment.shards_of(worker_id)
            reply = pb.DataShards(total_shards=order.num_shards)
            for shard in shards[np.argsort(order.ranks_of(shards))].tolist():
                start = shard * params.shard_size
                end = min(start + params.shard_size, params.total_samples)
                reply.shards.add(shard_id=shard, start_index=start, end_index=end)
            answer = reply.SerializeToString()
            self._keep(key, answer)
        return answer

    def _keep(self, key: _Key, answer: bytes) -> None:
        if self._kept_bytes + len(answer) > MAX_KEPT_BYTES:
            self._kept.clear()
            self._kept_bytes = 0
        self._kept[key] = answer
        self._kept_bytes += len(answer)
