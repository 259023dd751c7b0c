"""From bytes to a manifest, or to the reason why they are none. Pure.

What is returned can be restored without a surprise: every slice lies inside its tensor and its part, slices make up
their tensor and do not overlap, names of objects are keys, and nothing is nested deeper than a state may be. Whoever
wrote the bytes, nothing but ManifestProblem is raised.
"""

from __future__ import annotations

import json
import math
import re
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from strata.checkpoint.format import kinds, layout
from strata.checkpoint.format.digest import chunk_count, digest_bytes, digest_part
from strata.checkpoint.format.dtypes import DTYPES
from strata.checkpoint.format.manifest import (
    VERSION,
    CopyRecord,
    Extent,
    Format,
    Manifest,
    PartRecord,
    StoredSlice,
    StoredTensor,
    seal,
)
from strata.checkpoint.format.rewind_record import Rewind
from strata.checkpoint.format.tree import MAX_DEPTH
from strata.cluster.values import Divergence
from strata.errors import DamagedRecordError
from strata.storage.object_keys import check_key

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_FIRST_LINE = re.compile(rb'\{"format":"([a-z-]{1,40})","version":([0-9]{1,9}),"digest":"([0-9a-f]{32})",')
# The year 10000, which no calendar shows.
MAX_TIME_S = 253_402_300_800
_KINDS = ("numpy", "torch", "jax", "scalar", "bytes", *kinds.READ_AS)
# What reading values of a wrong form raises; anything else is a bug of ours.
_WRONG_FORM = (
    ValueError,
    LookupError,
    TypeError,
    AttributeError,
    ArithmeticError,
    RecursionError,
    DamagedRecordError,
)


class ManifestProblem(Exception):  # noqa: N818 - it is turned into an error by who knows the step
    """The bytes are no manifest that can be believed."""


class ManifestVersionProblem(ManifestProblem):
    """The manifest is whole, and of a version that is not known here."""


def decode(data: bytes, kind: Format = "strata-checkpoint") -> Manifest:
    """Return the manifest of these bytes, or raise ManifestProblem."""
    rest = _check_seal(data, kind)
    try:
        body = json.loads(b"{" + rest, parse_constant=_refuse_constant, parse_float=_finite)["manifest"]
        return _read_body(body, whole=kind == "strata-checkpoint")
    except _WRONG_FORM as error:
        # Whole by its digest, and yet not what it says: it was not written by us.
        raise ManifestProblem(f"it is not as a manifest must be ({type(error).__name__}: {error!s:.200})") from error


def _check_seal(data: bytes, kind: Format) -> bytes:
    """Return what follows the first line, if the digest says that all is as it was written."""
    first, newline, rest = data.partition(b"\n")
    found = _FIRST_LINE.fullmatch(first)
    if not newline or found is None:
        raise ManifestProblem("its first line is not that of a manifest")
    name, version, digest = found[1].decode(), int(found[2]), found[3].decode()
    # In version 1 the digest did not cover the first line; every later version keeps the rule of version 2.
    whole = digest_bytes(rest).hex() == digest if version == 1 else seal(name, version, rest) == data
    if not whole:
        raise ManifestProblem("its digest differs, so it was cut or changed")
    if name != kind:
        raise ManifestProblem(f"its format is {name!r}, and not {kind!r}")
    if not 1 <= version <= VERSION:
        raise ManifestVersionProblem(f"version {version}")
    return rest


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON")


def _finite(text: str) -> float:
    """A number that JSON can hold and a float cannot, such as 1e999, would be infinity."""
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text:.40} is beyond what a float holds")
    return number


def _read_body(body: dict[str, Any], *, whole: bool) -> Manifest:
    parts = tuple(_read_part(part) for part in _list(body["parts"]))
    tensors = {name: _read_tensor(tensor, parts) for name, tensor in body["tensors"].items()}
    # A worker's report has its own slices alone.
    if whole and not all(map(_is_whole, tensors.values())):
        raise ValueError("the slices of a tensor do not make it up")
    structure = body["structure"]
    if structure == {"opaque": True}:
        if len(parts) != 1 or tensors:
            raise ValueError("bytes are one part without tensors")
    else:
        _check_structure(structure, tensors)
    parent, created_s = body["parent"], body["created_s"]
    if type(created_s) not in (int, float) or not 0 <= created_s < MAX_TIME_S:
        raise TypeError(f"{created_s!r:.40} is not a time")
    return Manifest(
        job_id=_text(body["job_id"]),
        step=_count(body["step"]),
        epoch=_count(body["epoch"]),
        generation=_count(body["generation"]),
        created_s=float(created_s),
        parent=None if parent is None else _count(parent),
        deltas=_count(body["deltas"]),
        metadata=_read_metadata(body),
        cursors=check_object(body["cursors"]),
        parts=parts,
        tensors=tensors,
        structure=structure,
        copies=tuple(
            CopyRecord(_text(name), _shape(start), _shape(shape), _digest(digest))
            for name, start, shape, digest in _list(body.get("copies", []))
        ),
        diverged=_read_divergence(body.get("diverged")),
        rewinds=tuple(map(Rewind.from_json, _list(body.get("rewinds", [])))),
    )


def _read_metadata(body: dict[str, Any]) -> dict[str, Any]:
    """Return the user's metadata, with NaN and infinity back where null stands for them."""
    metadata = check_object(body["metadata"])
    for path, value in _list(body.get("nonfinite", [])):
        if value not in ("nan", "inf", "-inf"):
            raise ValueError(f"{value!r:.40} is no NaN and no infinity")
        *outer, key = _list(path)
        place: Any = metadata
        for each in outer:
            place = place[each]
        if place[key] is not None:
            raise ValueError("a number that is infinite and another one")
        place[key] = float(value)
    return metadata


def _read_divergence(found: dict[str, Any] | None) -> Divergence | None:
    if found is None:
        return None
    ranks = tuple(map(_count, _list(found["ranks"])))
    suspect = found.get("suspect", False)
    if type(suspect) is not bool:
        raise TypeError(f"suspect is {suspect!r:.40}, which is no boolean")
    return Divergence(ranks, _text(found["tensor"]), _count(found["tensors"]), suspect)


def _read_part(part: dict[str, Any]) -> PartRecord:
    extents = tuple(
        Extent(_path(path), _count(offset), _count(length)) for path, offset, length in _list(part["extents"])
    )
    chunks = tuple(map(_digest, _list(part["chunks"])))
    state_digest = _digest(part["state"]) if "state" in part else None
    record = PartRecord(_count(part["size"]), _digest(part["digest"]), chunks, extents, state_digest)
    if sum(extent.length for extent in extents) != record.size_bytes:
        raise ValueError("extents do not add up to the size of their part")
    if len(chunks) != chunk_count(record.size_bytes) or digest_part(chunks) != record.digest:
        raise ValueError("chunks do not add up to their part")
    return record


def _read_tensor(tensor: dict[str, Any], parts: tuple[PartRecord, ...]) -> StoredTensor:
    dtype, shape = tensor["dtype"], _shape(tensor["shape"])
    itemsize = DTYPES[dtype].itemsize
    # Libraries compute with 64 bits, also where a 0 among the sizes makes the tensor empty.
    if math.prod(size for size in shape if size) * itemsize > kinds.MAX_COUNT:
        raise ValueError("a tensor has a shape that no memory holds")
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


def _is_whole(tensor: StoredTensor) -> bool:
    covered = sum(math.prod(stored.shape) for stored in tensor.slices)
    return covered == math.prod(tensor.shape) and not overlap(tensor.slices)


def overlap(slices: Sequence[StoredSlice]) -> bool:
    """Whether two slices share an element."""
    if len(slices) < 2 or not slices[0].shape:
        return len(slices) > 1
    starts = np.array([stored.start for stored in slices], dtype=np.int64)
    stops = starts + np.array([stored.shape for stored in slices], dtype=np.int64)
    filled = (stops > starts).all(axis=1)
    starts, stops = starts[filled], stops[filled]
    for axis in range(starts.shape[1]):
        # Cut along one dimension, as most are, they lie one behind the other.
        order = np.argsort(starts[:, axis], kind="stable")
        if (starts[order[1:], axis] >= stops[order[:-1], axis]).all():
            return False
    for index in range(len(starts) - 1):
        shared = (starts[index] < stops[index + 1 :]) & (starts[index + 1 :] < stops[index])
        if shared.all(axis=1).any():
            return True
    return False


def _check_structure(root: Any, tensors: dict[str, StoredTensor]) -> None:
    pending = [(root, 0)]
    while pending:
        node, depth = pending.pop()
        if depth > MAX_DEPTH:
            raise ValueError(f"the structure is more than {MAX_DEPTH} levels deep")
        if isinstance(node, dict):
            pending.extend((child, depth + 1) for child in _children(node, tensors))
        elif isinstance(node, list):
            raise TypeError("a bare list in the structure")


def _children(node: dict[str, Any], tensors: dict[str, StoredTensor]) -> Iterator[Any]:
    names = node.keys() - {"as", "maxlen"}
    (tag,) = names if len(names) == 1 else ("",)
    if tag == "tensor":
        _check_leaf(node, tensors)
    elif tag == "dict":
        kinds.make_dict(node.get("as"), {})
        for key, child in _list(node["dict"]):
            if not isinstance(key, str | int) or (isinstance(key, int) and not kinds.is_json_int(key)):
                raise TypeError("a key that is neither string nor integer")
            yield child
    elif tag in kinds.SEQUENCES:
        if node.get("maxlen") is not None:
            _count(node["maxlen"])
        for child in _list(node[tag]):
            if tag == "size":
                _count(child, least=-kinds.MAX_COUNT - 1)
            yield child
    elif tag == "float" and node["float"] in ("nan", "inf", "-inf"):
        return
    elif tag == "int":
        int(_text(node["int"]), 16)
    elif tag == "complex":
        complex(_text(node["complex"]))
    else:
        raise ValueError(f"an unknown node with {sorted(node)!s:.80}")


def _check_leaf(node: dict[str, Any], tensors: dict[str, StoredTensor]) -> None:
    name, kind = node["tensor"], node["as"]
    if name not in tensors or kind not in _KINDS:
        raise ValueError(f"the structure names a tensor that is not there: {name!r:.80}")
    tensor = tensors[name]
    if kind in ("bytes", "bytearray") and (tensor.dtype != "uint8" or len(tensor.shape) != 1):
        raise ValueError("bytes that are not a row of them")
    if kind == "scalar" and tensor.shape:
        raise ValueError("a scalar with a shape")
    if kind == "jax" and "64[" in tensor.dtype:
        raise ValueError(f"JAX has no type {tensor.dtype}")


def check_object(value: Any) -> dict[str, Any]:
    """A JSON object that is nested no deeper than a state may be: whoever prints or copies it goes down recursively."""
    if not isinstance(value, dict):
        raise TypeError(f"{value!r:.40} is not an object")
    pending: list[tuple[Any, int]] = [(value, 0)]
    while pending:
        each, depth = pending.pop()
        if depth > MAX_DEPTH:
            raise ValueError(f"more than {MAX_DEPTH} levels deep")
        below = each.values() if isinstance(each, dict) else each if isinstance(each, list) else ()
        pending.extend((child, depth + 1) for child in below)
    return value


def _path(value: Any) -> str:
    """The name of an object, as a key below the checkpoints' directory."""
    path = check_key(_text(value))
    if layout.step_of(path) is None:
        raise ValueError(f"{path!r:.80} is not in the directory of a step")
    return path


def _count(value: Any, least: int = 0) -> int:
    if type(value) is not int or not least <= value <= kinds.MAX_COUNT:
        raise TypeError(f"{value!r:.40} is not a whole number of {least} or more, and of 64 bits")
    return value


def _shape(value: Any) -> tuple[int, ...]:
    if len(_list(value)) > kinds.MAX_DIMS:
        raise ValueError(f"more than {kinds.MAX_DIMS} dimensions")
    return tuple(map(_count, value))


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
