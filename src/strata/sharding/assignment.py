"""An assignment of a dataset's shards to workers, as arrays, and the function that makes one."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import xxhash

from strata.errors import DamagedRecordError, NoWorkersError, UnknownWorkerError
from strata.sharding.placement import NOBODY, Ints, Owners, place
from strata.sharding.ring import MAX_NODES, Ring

MAX_SHARDS = 2**31 - 1
MAX_WEIGHT = 2**20
_MAGIC = b"strata-assignment-1\n"
_DIGEST_BYTES = 16


class Assignment:
    """Who owns which shard of a dataset; immutable.

    Two assignments are equal when they give each shard to the same worker; ``digest`` lets two processes compare
    theirs without sending them.
    """

    def __init__(
        self,
        dataset_id: str,
        workers: tuple[str, ...],
        owners: Owners,
        weights: Ints,
        ring: Ring | None = None,
    ) -> None:
        self.dataset_id = dataset_id
        self.workers = workers
        self._index = {worker: index for index, worker in enumerate(workers)}
        self._owners = owners
        self._weights = weights
        self._owners.flags.writeable = False
        self._ring = ring
        self._by_worker: tuple[Ints, Ints] | None = None

    @property
    def num_shards(self) -> int:
        """How many shards the dataset has."""
        return len(self._owners)

    @property
    def weights(self) -> dict[str, int]:
        """The weight of each worker."""
        return dict(zip(self.workers, self._weights.tolist(), strict=True))

    def owner(self, shard_id: int) -> str:
        """Return the worker that owns the shard."""
        if not 0 <= shard_id < self.num_shards:
            raise IndexError(
                f"shard {shard_id} of dataset {self.dataset_id!r}, which has shards 0 to {self.num_shards - 1}"
            )
        return self.workers[int(self._owners[shard_id])]

    def shards_of(self, worker: str) -> npt.NDArray[np.int64]:
        """Return the shards that ``worker`` owns, ascending; the first call sorts, the others are a slice."""
        if worker not in self._index:
            raise UnknownWorkerError(worker, known=self.workers)
        if self._by_worker is None:
            order = np.argsort(self._narrow(), kind="stable")
            order.flags.writeable = False
            self._by_worker = order, np.append(0, np.cumsum(self._counts()))
        order, starts = self._by_worker
        at = self._index[worker]
        return order[starts[at] : starts[at + 1]]

    def counts(self) -> dict[str, int]:
        """Return how many shards each worker owns."""
        return dict(zip(self.workers, self._counts().tolist(), strict=True))

    def moved_from(self, previous: Assignment) -> npt.NDArray[np.int64]:
        """Return the shards that another worker owned in ``previous``, ascending."""
        if previous.num_shards != self.num_shards:
            raise ValueError(f"assignments of {previous.num_shards} and {self.num_shards} shards cannot be compared")
        return np.flatnonzero(previous.owners_among(self.workers) != self._owners)

    def owners_among(self, workers: tuple[str, ...]) -> Owners:
        """Return the owner of each shard as an index into ``workers``, or NOBODY where it is not among them."""
        index = {worker: at for at, worker in enumerate(workers)}
        translation = np.array([index.get(worker, NOBODY) for worker in self.workers], dtype=np.int32)
        return translation[self._owners]

    def ring_of(self, workers: tuple[str, ...]) -> Ring:
        """Return the ring of ``workers``, made from this assignment's own ring where it has one."""
        return self._ring.with_nodes(workers) if self._ring else Ring(workers)

    def digest(self) -> str:
        """Return 32 hexadecimal digits that are equal for equal assignments, in every process."""
        return self.to_bytes()[-_DIGEST_BYTES:].hex()

    def to_bytes(self) -> bytes:
        """Return the assignment in one, two or four bytes per shard, with a digest at the end."""
        owners = self._narrow()
        header: dict[str, Any] = {
            "dataset_id": self.dataset_id,
            "workers": self.workers,
            "weights": self._weights.tolist(),
            "num_shards": self.num_shards,
            "owner_bytes": owners.dtype.itemsize,
        }
        # One line of JSON, so that the owners begin after the second line break.
        body = _MAGIC + json.dumps(header, separators=(",", ":")).encode() + b"\n"
        body += owners.astype(owners.dtype.newbyteorder("<"), copy=False).tobytes()
        return body + xxhash.xxh3_128_digest(body)

    @classmethod
    def from_bytes(cls, data: bytes) -> Assignment:
        """Return the assignment that :meth:`to_bytes` wrote, or raise DamagedRecordError."""
        body, digest = data[:-_DIGEST_BYTES], data[-_DIGEST_BYTES:]
        if not body.startswith(_MAGIC):
            raise DamagedRecordError("assignment", f"it does not begin with {_MAGIC!r}")
        if xxhash.xxh3_128_digest(body) != digest:
            raise DamagedRecordError("assignment", "its digest differs from its content")
        header_end = body.index(b"\n", len(_MAGIC))
        header = json.loads(body[len(_MAGIC) : header_end])
        owners = np.frombuffer(body, dtype=f"<u{header['owner_bytes']}", offset=header_end + 1)
        return cls(
            header["dataset_id"],
            tuple(header["workers"]),
            owners.astype(np.int32),
            np.array(header["weights"], dtype=np.int64),
        )

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Assignment):
            return NotImplemented
        return self.to_bytes() == other.to_bytes()

    def __hash__(self) -> int:
        return hash(self.digest())

    def __repr__(self) -> str:
        return f"Assignment({self.dataset_id!r}, {self.num_shards} shards, {len(self.workers)} workers)"

    def _counts(self) -> Ints:
        return np.bincount(self._owners, minlength=len(self.workers))

    def _narrow(self) -> npt.NDArray[np.unsignedinteger[Any]]:
        """The owners in as few bytes as they need, which also lets NumPy sort them by radix."""
        count = len(self.workers)
        return self._owners.astype(np.uint8 if count <= 1 << 8 else np.uint16 if count <= 1 << 16 else np.uint32)


def assign(
    dataset_id: str,
    num_shards: int,
    workers: Iterable[str],
    previous: Assignment | None = None,
    *,
    weights: Mapping[str, int] | None = None,
) -> Assignment:
    """Give every shard to a worker: balanced to within one shard, moving no shard that need not move.

    A pure function: the order of ``workers`` does not matter, and every process gets the same answer. Without
    ``previous``, the hash ring gives each shard a place and balance corrects it. With it, a lost worker's shards and
    no others move, and a new worker takes exactly its share, first the shards that the ring says are its own. With
    ``weights`` (say, the number of GPUs; 1 where not given), shares are proportional to within one shard.
    """
    if not 1 <= num_shards <= MAX_SHARDS:
        raise ValueError(f"dataset {dataset_id!r} has {num_shards} shards; use 1 to {MAX_SHARDS}")
    if previous is not None and (previous.dataset_id, previous.num_shards) != (dataset_id, num_shards):
        raise ValueError(
            f"previous is of dataset {previous.dataset_id!r} with {previous.num_shards} shards, not of {dataset_id!r} "
            f"with {num_shards}; assign without it, which places every shard anew"
        )
    names = _checked_workers(dataset_id, workers)
    weight_of = _checked_weights(weights or {}, names)
    ring = Ring(names) if previous is None else previous.ring_of(names)
    owners = np.full(num_shards, NOBODY, dtype=np.int32) if previous is None else previous.owners_among(names)
    place(dataset_id, np.arange(num_shards, dtype=np.int32), owners, ring, weight_of)
    return Assignment(dataset_id, names, owners, weight_of, ring)


def assign_some(
    dataset_id: str,
    shard_ids: npt.NDArray[np.integer],
    workers: Iterable[str],
    previous: Assignment | None = None,
    *,
    weights: Mapping[str, int] | None = None,
) -> Owners:
    """Give each of ``shard_ids`` to a worker, as :func:`assign` would if the dataset had no other shards.

    Returns the owner of each as an index into the sorted workers.
    """
    names = _checked_workers(dataset_id, workers)
    ring = Ring(names) if previous is None else previous.ring_of(names)
    owners: Owners = np.full(len(shard_ids), NOBODY, dtype=np.int32)
    if previous is not None:
        owners[:] = previous.owners_among(names)[shard_ids]
    place(dataset_id, shard_ids, owners, ring, _checked_weights(weights or {}, names))
    return owners


def _checked_workers(dataset_id: str, workers: Iterable[str]) -> tuple[str, ...]:
    names = tuple(sorted(workers))
    if not names:
        raise NoWorkersError(f"dataset {dataset_id!r}")
    if len(names) > MAX_NODES:
        raise ValueError(f"{len(names)} workers; at most {MAX_NODES} can be placed")
    for first, second in itertools.pairwise(names):
        if first == second:
            raise ValueError(f"worker {first!r} is given twice; give each worker once")
    return names


def _checked_weights(weights: Mapping[str, int], workers: tuple[str, ...]) -> Ints:
    for worker, weight in weights.items():
        if not 1 <= weight <= MAX_WEIGHT:
            raise ValueError(f"worker {worker!r} has weight {weight!r}; use a whole number from 1 to {MAX_WEIGHT}")
    if unknown := sorted(weights.keys() - set(workers)):
        raise UnknownWorkerError(unknown[0], known=workers)
    return np.array([weights.get(worker, 1) for worker in workers], dtype=np.int64)
