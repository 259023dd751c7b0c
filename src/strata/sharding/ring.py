"""A hash ring as one sorted array, looked up for whole arrays of keys at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from strata.sharding.hashing import U64, Domain, hash_text, spread

NodeIndex: TypeAlias = npt.NDArray[np.int32]

VIRTUAL_NODES = 150
# The low bits of a point hold the index of its node: one sort orders both, and equal positions (of two nodes whose
# names hash alike, say) go to the node that comes first by name, in every process.
_INDEX_BITS = 20
_INDEX_MASK = np.uint64((1 << _INDEX_BITS) - 1)
MAX_NODES = 1 << _INDEX_BITS
_END = ~np.uint64(0)
# For fewer keys than this part of all points, a binary search costs less than building a table does.
_FEW_KEYS = 0.05
_COARSE_BITS = 16


class Ring:
    """Which node owns which key: the node of the first point at or after the key, going round.

    Immutable; the nodes must be sorted and distinct. Building one costs a sort of all points.
    """

    def __init__(
        self, nodes: Sequence[str], virtual_nodes: int = VIRTUAL_NODES, *, sorted_points: U64 | None = None
    ) -> None:
        self.nodes = nodes
        self.virtual_nodes = virtual_nodes
        if sorted_points is None:
            sorted_points = np.append(_points_of(nodes, range(len(nodes)), virtual_nodes), _END)
            sorted_points.sort()
        # The last point only ends the circle: what lies behind all others belongs to the first.
        sorted_points[-1] = _END & ~_INDEX_MASK | sorted_points[0] & _INDEX_MASK
        self._points = sorted_points
        self._keys_seen = 0
        self._table: tuple[np.uint64, npt.NDArray[np.int32]] | None = None

    def with_nodes(self, nodes: Sequence[str]) -> Ring:
        """Return exactly what building a ring of ``nodes`` would, at the cost of the difference."""
        old = {node: at for at, node in enumerate(self.nodes)}
        kept = [at for at, node in enumerate(nodes) if node in old]
        added = [at for at, node in enumerate(nodes) if node not in old]
        if len(kept) < len(added):
            return Ring(nodes, self.virtual_nodes)
        # Names are sorted in both rings, so a new index never changes the order of equal positions.
        new_index = np.full(len(old), _END, dtype=np.uint64)
        new_index[[old[nodes[at]] for at in kept]] = kept
        points, index = self._points[:-1], new_index[self._nodes_at(slice(-1))]
        if len(kept) < len(old):
            stays = index != _END
            points, index = points[stays], index[stays]
        points = (points & ~_INDEX_MASK) | index
        inserted = np.append(_points_of([nodes[at] for at in added], added, self.virtual_nodes), _END)
        inserted.sort()
        points = np.insert(points, np.searchsorted(points, inserted), inserted)
        return Ring(nodes, self.virtual_nodes, sorted_points=points)

    def lookup(self, keys: U64) -> NodeIndex:
        """Return the index of the node that owns each key."""
        exact = keys & ~_INDEX_MASK
        self._keys_seen += len(keys)
        if self._keys_seen < len(self._points) * _FEW_KEYS:
            return self._nodes_at(np.searchsorted(self._points, exact))
        if self._table is None:
            self._table = self._build_table()
        shift, first_point = self._table
        at = first_point[(exact >> shift).astype(np.int64)]
        behind = np.flatnonzero(self._points[at] < exact)
        while len(behind):
            at[behind] += 1
            behind = behind[self._points[at[behind]] < exact[behind]]
        return self._nodes_at(at)

    def may_own(self, wanted: npt.NDArray[np.bool_], keys: U64) -> npt.NDArray[np.bool_]:
        """Return False for keys that no wanted node owns; True for all others, and for a few too many.

        It costs one read per key, so it pays to ask before a lookup when few nodes are wanted.
        """
        ends = np.flatnonzero(wanted[self._nodes_at(slice(None))])
        begins = np.where(ends > 0, self._points[ends - 1], np.uint64(0))
        edges = np.zeros((1 << _COARSE_BITS) + 1, dtype=np.int32)
        np.add.at(edges, _leading_bits(begins), 1)
        np.add.at(edges, _leading_bits(self._points[ends]) + 1, -1)
        return (np.cumsum(edges, dtype=np.int32) > 0)[_leading_bits(keys)]

    def _nodes_at(self, where: npt.NDArray[np.integer] | slice) -> NodeIndex:
        return (self._points[where] & _INDEX_MASK).astype(np.int32)

    def _build_table(self) -> tuple[np.uint64, npt.NDArray[np.int32]]:
        """Return a table from the leading bits of a key to the first point that can own it.

        A lookup is then one read of the table and, on average, one step, where a binary search would miss the cache
        a dozen times.
        """
        bits = (len(self._points) - 1).bit_length()
        shift = np.uint64(64 - bits)
        filled = np.bincount((self._points >> shift).astype(np.int64), minlength=1 << bits)
        return shift, (np.cumsum(filled) - filled).astype(np.int32)


def _points_of(nodes: Sequence[str], indices: Sequence[int], virtual_nodes: int) -> U64:
    hashes = np.fromiter((hash_text(node, Domain.NODE) for node in nodes), np.uint64, len(nodes))
    points = spread(hashes[:, None], np.arange(virtual_nodes))
    points &= ~_INDEX_MASK
    points |= np.array(indices, dtype=np.uint64)[:, None]
    return points.ravel()


def _leading_bits(keys: U64) -> npt.NDArray[np.int64]:
    return (keys >> np.uint64(64 - _COARSE_BITS)).astype(np.int64)
