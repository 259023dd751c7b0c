"""The manifest: the commit record of a checkpoint, as values and as bytes. Pure.

The bytes are one JSON document in two lines. The first has a fixed form and names format, version and the xxh3-128
of the second, so that a torn or changed manifest is never believed, and so that the version is known before
anything else is. The same form carries a worker's report about its part before the commit.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from strata.checkpoint.digest import chunk_count, digest_bytes, digest_part
from strata.checkpoint.dtypes import DTYPES

if TYPE_CHECKING:
    from collections.abc import Iterator

    from strata.checkpoint.tree import Node

Format = Literal["strata-checkpoint", "strata-part"]
VERSION = 1


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

    @property
    def is_opaque(self) -> bool:
        """Whether the state was bytes, which nothing here looks into."""
        return isinstance(self.structure, dict) and "opaque" in self.structure

    @property
    def size_bytes(self) -> int:
        """The size of the whole state, whoever holds its bytes."""
        return sum(part.size_bytes for part in self.parts)

    def objects(self) -> set[str]:
        """Every object that a restore reads."""
        return {extent.path for part in self.parts for extent in part.extents}


class ManifestProblem(Exception):  # noqa: N818 - it is turned into an error by who knows the step
    """The bytes are no manifest that can be believed."""


class ManifestVersionProblem(ManifestProblem):
    """The manifest is of a format or version that is not known here."""


def encode(manifest: Manifest, kind: Format = "strata-checkpoint") -> bytes:
    """Return the bytes to store; raise ValueError if the user's metadata is not JSON."""
    body = {
        "job_id": manifest.job_id,
        "step": manifest.step,
        "epoch": manifest.epoch,
        "generation": manifest.generation,
        "created_s": manifest.created_s,
        "parent": manifest.parent,
        "deltas": manifest.deltas,
        "metadata": manifest.metadata,
        "cursors": manifest.cursors,
        "parts": [
            {
                "size": part.size_bytes,
                "digest": part.digest.hex(),
                "chunks": [chunk.hex() for chunk in part.chunks],
                "extents": [[extent.path, extent.offset, extent.length] for extent in part.extents],
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
    }
    text = json.dumps(body, separators=(",", ":"), allow_nan=False)
    rest = f'"manifest":{text}}}\n'.encode()
    first = f'{{"format":"{kind}","version":{VERSION},"digest":"{digest_bytes(rest).hex()}",\n'
    return first.encode() + rest


def decode(data: bytes, kind: Format = "strata-checkpoint") -> Manifest:
    """Return the manifest of these bytes, or raise ManifestProblem."""
    first, newline, rest = data.partition(b"\n")
    try:
        envelope = json.loads(first.removesuffix(b",") + b"}") if newline else None
    except ValueError:
        envelope = None
    if not isinstance(envelope, dict):
        raise ManifestProblem("its first line is not that of a manifest")
    if envelope.get("format") != kind or envelope.get("version") != VERSION:
        raise ManifestVersionProblem(f"format {envelope.get('format')!r}, version {envelope.get('version')!r}")
    if envelope.get("digest") != digest_bytes(rest).hex():
        raise ManifestProblem("its digest differs, so it was cut or changed")
    try:
        body = json.loads(b"{" + rest)["manifest"]
        return _read_body(body)
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        # Whole by its digest, and yet not what it says: it was not written by us.
        raise ManifestProblem(f"it is not as a manifest must be ({type(error).__name__}: {error})") from error


def _read_body(body: dict[str, Any]) -> Manifest:
    parts = tuple(_read_part(part) for part in _list(body["parts"]))
    tensors = {name: _read_tensor(tensor, parts) for name, tensor in body["tensors"].items()}
    _check_structure(body["structure"], tensors)
    parent = body["parent"]
    return Manifest(
        job_id=_text(body["job_id"]),
        step=_count(body["step"]),
        epoch=_count(body["epoch"]),
        generation=_count(body["generation"]),
        created_s=float(body["created_s"]),
        parent=None if parent is None else _count(parent),
        deltas=_count(body["deltas"]),
        metadata=dict(body["metadata"]),
        cursors=dict(body["cursors"]),
        parts=parts,
        tensors=tensors,
        structure=body["structure"],
    )


def _read_part(part: dict[str, Any]) -> PartRecord:
    extents = tuple(
        Extent(_text(path), _count(offset), _count(length)) for path, offset, length in _list(part["extents"])
    )
    chunks = tuple(map(_digest, _list(part["chunks"])))
    record = PartRecord(_count(part["size"]), _digest(part["digest"]), chunks, extents)
    if sum(extent.length for extent in extents) != record.size_bytes:
        raise ValueError("extents do not add up to the size of their part")
    if len(chunks) != chunk_count(record.size_bytes) or digest_part(chunks) != record.digest:
        raise ValueError("chunks do not add up to their part")
    return record


def _read_tensor(tensor: dict[str, Any], parts: tuple[PartRecord, ...]) -> StoredTensor:
    dtype, shape = tensor["dtype"], _shape(tensor["shape"])
    itemsize = DTYPES[dtype].itemsize
    slices = []
    for part, offset, start, piece in _list(tensor["slices"]):
        stored = StoredSlice(_count(part), _count(offset), _shape(start), _shape(piece))
        inside = len(stored.start) == len(stored.shape) == len(shape) and all(
            low + length <= size for low, length, size in zip(stored.start, stored.shape, shape, strict=True)
        )
        if not inside or stored.offset + math.prod(stored.shape) * itemsize > parts[stored.part].size_bytes:
            raise ValueError("a slice lies outside its tensor or its part")
        slices.append(stored)
    return StoredTensor(dtype, shape, tuple(slices))


def _check_structure(root: Any, tensors: dict[str, StoredTensor]) -> None:
    if isinstance(root, dict) and "opaque" in root:
        return
    pending = [root]
    while pending:
        node = pending.pop()
        if isinstance(node, dict):
            pending.extend(_children(node, tensors))
        elif isinstance(node, list):
            raise TypeError("a bare list in the structure")


def _children(node: dict[str, Any], tensors: dict[str, StoredTensor]) -> Iterator[Any]:
    if node.keys() == {"tensor", "as"}:
        if node["tensor"] not in tensors or node["as"] not in ("numpy", "torch", "jax", "scalar", "bytes"):
            raise ValueError(f"the structure names a tensor that is not there: {node['tensor']!r}")
    elif node.keys() == {"dict"}:
        for key, child in _list(node["dict"]):
            if not isinstance(key, str | int):
                raise TypeError("a key that is neither string nor integer")
            yield child
    elif node.keys() in ({"list"}, {"tuple"}):
        (items,) = node.values()
        yield from _list(items)
    elif node.keys() != {"float"} or node["float"] not in ("nan", "inf", "-inf"):
        raise ValueError(f"an unknown node with {sorted(node)}")


def _count(value: Any) -> int:
    if type(value) is not int or value < 0:
        raise TypeError(f"{value!r} is not a whole number of 0 or more")
    return value


def _shape(value: Any) -> tuple[int, ...]:
    return tuple(map(_count, _list(value)))


def _list(value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise TypeError(f"{value!r:.40} is not a list")
    return value


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r:.40} is not a string")
    return value


def _digest(value: Any) -> bytes:
    digest = bytes.fromhex(value)
    if len(digest) != 16:
        raise ValueError(f"{value!r:.40} is not a digest")
    return digest
