"""The first API's consistent hash: a ring of named nodes that is changed one node at a time."""

from __future__ import annotations

import bisect

import numpy as np
import numpy.typing as npt

from strata.errors import NoWorkersError, UnknownWorkerError
from strata.sharding.hashing import Domain, hash_text, spread
from strata.sharding.ring import MAX_NODES, VIRTUAL_NODES, Ring


class ConsistentHash:
    """A key belongs to the same node in every process; a node that comes or goes moves only its own keys.

    Loads differ by tens of percent, as on every ring: use :func:`strata.sharding.assign` where balance matters.
    Adding a node that is there, and removing one that is not, change nothing.
    """

    def __init__(self, virtual_nodes: int = VIRTUAL_NODES) -> None:
        if virtual_nodes < 1:
            raise ValueError(f"virtual_nodes is {virtual_nodes}; use 1 or more")
        self._virtual_nodes = virtual_nodes
        self._nodes: list[str] = []
        self._ring: Ring | None = None

    @property
    def nodes(self) -> list[str]:
        """The names of the nodes, sorted."""
        return list(self._nodes)

    def add_node(self, node: str) -> None:
        """Let ``node`` take the keys that fall to it."""
        at = bisect.bisect_left(self._nodes, node)
        if self._nodes[at : at + 1] == [node]:
            return
        if len(self._nodes) == MAX_NODES:
            raise ValueError(f"a ring holds at most {MAX_NODES} nodes")
        self._nodes.insert(at, node)
        self._ring = None

    def remove_node(self, node: str) -> None:
        """Let the others take the keys of ``node``."""
        if node in self._nodes:
            self._nodes.remove(node)
            self._ring = None

    def get_node(self, key: str) -> str:
        """Return the node that ``key`` belongs to."""
        hashed = np.array([hash_text(key, Domain.KEY)], dtype=np.uint64)
        return self._nodes[int(self._built(f"key {key!r}").lookup(hashed)[0])]

    def get_node_for_shard(self, dataset_id: str, shard_id: int) -> str:
        """Return the node that the shard belongs to."""
        ring = self._built(f"shard {shard_id} of dataset {dataset_id!r}")
        return self._nodes[int(ring.lookup(shard_keys(dataset_id, np.array([shard_id])))[0])]

    def get_shards_for_node(self, node: str, dataset_id: str, total_shards: int) -> npt.NDArray[np.int64]:
        """Return the shards below ``total_shards`` that belong to ``node``, ascending."""
        at = bisect.bisect_left(self._nodes, node)
        if self._nodes[at : at + 1] != [node]:
            raise UnknownWorkerError(node, known=self._nodes)
        ring = self._built(f"dataset {dataset_id!r}")
        return np.flatnonzero(ring.lookup(shard_keys(dataset_id, np.arange(total_shards))) == at)

    def _built(self, wanted_for: str) -> Ring:
        if not self._nodes:
            raise NoWorkersError(wanted_for)
        if self._ring is None:
            self._ring = Ring(self._nodes, self._virtual_nodes)
        return self._ring


def shard_keys(dataset_id: str, shard_ids: npt.NDArray[np.integer]) -> npt.NDArray[np.uint64]:
    """Return where on the ring the shards of a dataset lie."""
    return spread(hash_text(dataset_id, Domain.DATASET), shard_ids)
