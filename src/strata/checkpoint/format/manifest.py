"""The manifest: the commit record of a checkpoint, as values and as bytes. Pure.

The bytes are one JSON document in two lines. The first has a fixed form and names format, version and the xxh3-128
of every byte, so that a torn or changed manifest is never believed, and so that a manifest of a newer version is told
from a damaged one. The same form carries a worker's report about its part before the commit.
:mod:`strata.checkpoint.format.manifest_reader` has the way back.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from strata.checkpoint.format.digest import digest_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator

    from strata.checkpoint.format.rewind_record import Rewind
    from strata.checkpoint.format.tree import Node
    from strata.cluster.values import Divergence

Format = Literal["strata-checkpoint", "strata-part"]
VERSION = 2


@dataclass(frozen=True, slots=True)
class Extent:
    """A run of a part's bytes and the object that holds it; ``path`` is relative to the checkpoints' directory."""

    path: str
    offset: int
    length: int


@dataclass(frozen=True, slots=True)
class PartRecord:
    """One part: its size and digests, and where its bytes are. A full part is one extent: its own file."""

    size_bytes: int
    digest: bytes
    chunks: tuple[bytes, ...]
    extents: tuple[Extent, ...]
    state_digest: bytes | None = None
    """The digest without the random state, where the part has one: this changes also where nothing is trained."""

    @property
    def path(self) -> str:
        """The file to name in messages."""
        return self.extents[-1].path if self.extents else "(empty part)"


@dataclass(frozen=True, slots=True)
class StoredSlice:
    """A block of a tensor: in which part, from which byte of it, and which block of the whole tensor it is."""

    part: int
    offset: int
    start: tuple[int, ...]
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """A whole tensor: its slices cover it exactly."""

    dtype: str
    shape: tuple[int, ...]
    slices: tuple[StoredSlice, ...]


@dataclass(frozen=True, slots=True)
class CopyRecord:
    """The digest of a block that a worker holds and others may hold too; ``name`` is the tensor's in its report."""

    name: str
    start: tuple[int, ...]
    shape: tuple[int, ...]
    digest: bytes


@dataclass(frozen=True, slots=True)
class Manifest:
    """All that there is to know about a checkpoint besides the tensors' values."""

    job_id: str
    step: int
    epoch: int
    created_s: float
    parts: tuple[PartRecord, ...]
    tensors: dict[str, StoredTensor]
    structure: Node
    generation: int = 0
    parent: int | None = None
    deltas: int = 0
    cursors: dict[str, Any] = field(default_factory=dict)
    metadata: dict[str, Any] = field(default_factory=dict)
    # Only in reports: what the commit compares.
    copies: tuple[CopyRecord, ...] = ()
    diverged: Divergence | None = None
    rewinds: tuple[Rewind, ...] = ()

    @property
    def is_opaque(self) -> bool:
        """Whether the state was bytes, which nothing here looks into."""
        return isinstance(self.structure, dict) and "opaque" in self.structure

    @property
    def is_suspect(self) -> bool:
        """Whether it has values that the majority of the ranks did not hold."""
        return self.diverged is not None and self.diverged.suspect

    @property
    def size_bytes(self) -> int:
        """The size of the whole state, whoever holds its bytes."""
        return sum(part.size_bytes for part in self.parts)

    def objects(self) -> set[str]:
        """Every object that a restore reads."""
        return {extent.path for part in self.parts for extent in part.extents}


def encode(manifest: Manifest, kind: Format = "strata-checkpoint") -> bytes:
    """Return the bytes to store; raise TypeError if the user's metadata is not JSON."""
    body = {
        "job_id": manifest.job_id,
        "step": manifest.step,
        "epoch": manifest.epoch,
        "generation": manifest.generation,
        "created_s": manifest.created_s,
        "parent": manifest.parent,
        "deltas": manifest.deltas,
        "metadata": _without_nonfinite(manifest.metadata),
        "cursors": manifest.cursors,
        "parts": [
            {
                "size": part.size_bytes,
                "digest": part.digest.hex(),
                "chunks": [chunk.hex() for chunk in part.chunks],
                "extents": [[extent.path, extent.offset, extent.length] for extent in part.extents],
                **({} if part.state_digest is None else {"state": part.state_digest.hex()}),
            }
            for part in manifest.parts
        ],
        "tensors": {
            name: {
                "dtype": tensor.dtype,
                "shape": tensor.shape,
                "slices": [[each.part, each.offset, each.start, each.shape] for each in tensor.slices],
            }
            for name, tensor in manifest.tensors.items()
        },
        "structure": manifest.structure,
        **_encode_rest(manifest),
    }
    text = json.dumps(body, separators=(",", ":"), allow_nan=False)
    rest = f'"manifest":{text}}}\n'.encode()
    return seal(kind, VERSION, rest)


def seal(kind: str, version: int, rest: bytes) -> bytes:
    """Put the first line before the rest: with a digest of both, which counts itself as zeros."""
    digest = digest_bytes(_first_line(kind, version, "0" * 32) + rest).hex()
    return _first_line(kind, version, digest) + rest


def _first_line(kind: str, version: int, digest: str) -> bytes:
    return f'{{"format":"{kind}","version":{version},"digest":"{digest}",\n'.encode()


def _encode_rest(manifest: Manifest) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if nonfinite := list(find_nonfinite(manifest.metadata)):
        found["nonfinite"] = nonfinite
    if manifest.copies:
        found["copies"] = [[each.name, each.start, each.shape, each.digest.hex()] for each in manifest.copies]
    if (diverged := manifest.diverged) is not None:
        found["diverged"] = {"ranks": diverged.ranks, "tensor": diverged.tensor, "tensors": diverged.tensors}
        if diverged.suspect:
            found["diverged"]["suspect"] = True
    if manifest.rewinds:
        found["rewinds"] = [each.to_json() for each in manifest.rewinds]
    return found


def find_nonfinite(node: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[tuple[str | int, ...], str]]:
    """Yield where metadata holds NaN and infinity, which JSON lacks, and which of them it is."""
    if isinstance(node, float) and not math.isfinite(node):
        yield path, str(node)
    elif isinstance(node, dict | list):
        for key, child in node.items() if isinstance(node, dict) else enumerate(node):
            yield from find_nonfinite(child, (*path, key))


def _without_nonfinite(node: Any) -> Any:
    """Return a copy of metadata with null for NaN and infinity: so does whoever knows of none read it."""
    if isinstance(node, dict):
        return {key: _without_nonfinite(child) for key, child in node.items()}
    if isinstance(node, list):
        return [_without_nonfinite(child) for child in node]
    return None if isinstance(node, float) and not math.isfinite(node) else node
