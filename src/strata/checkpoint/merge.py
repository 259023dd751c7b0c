"""Merging: from what every worker says about its part to the one manifest that commits them all. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from strata.checkpoint.manifest import Manifest, StoredSlice, StoredTensor
from strata.checkpoint.tree import Node, Path, show_path, unique_name
from strata.errors import ConflictingPartsError

if TYPE_CHECKING:
    from collections.abc import Sequence


def merge_reports(reports: Sequence[Manifest]) -> Manifest:
    """Make one manifest of all parts, in their order; raise ConflictingPartsError if they are not of one state.

    Dicts are united key by key. A leaf that several parts have must be the same in all of them; a tensor that they
    have in slices must come out whole.
    """
    first = reports[0]
    merging = _Merging(reports)
    for name in ("step", "epoch", "generation", "job_id"):
        if len({getattr(report, name) for report in reports}) > 1:
            raise ConflictingPartsError(first.step, "", f"parts are of different {name}s")
    structure = merging.label(first.structure, 0)
    for part, report in enumerate(reports[1:], start=1):
        structure = merging.unite(structure, merging.label(report.structure, part), ())
    structure = merging.finish(structure, ())
    return replace(
        first,
        created_s=max(report.created_s for report in reports),
        parts=tuple(record for report in reports for record in report.parts),
        tensors=merging.tensors,
        structure=structure,
        metadata=_united([report.metadata for report in reports]),
        cursors=_united([report.cursors for report in reports]),
        parent=max((report.parent for report in reports if report.parent is not None), default=None),
        deltas=max(report.deltas for report in reports),
    )


def _united(mappings: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """All keys of all parts; the lowest part that has a key decides its value."""
    return {key: value for mapping in reversed(mappings) for key, value in mapping.items()}


@dataclass(slots=True)
class _Merging:
    reports: Sequence[Manifest]
    tensors: dict[str, StoredTensor] = field(default_factory=dict)

    def label(self, node: Node, part: int) -> Node:
        """Say of every tensor which part it is of: two parts may call different tensors the same."""
        if not isinstance(node, dict):
            return node
        if "tensor" in node:
            return {"tensor": [(part, node["tensor"])], "as": node["as"]}
        if "dict" in node:
            return {"dict": [[key, self.label(child, part)] for key, child in node["dict"]]}
        return {
            tag: [self.label(child, part) for child in children] if isinstance(children, list) else children
            for tag, children in node.items()
        }

    def unite(self, left: Node, right: Node, path: Path) -> Node:
        """Unite two trees; what both have must agree."""
        if isinstance(left, dict) and isinstance(right, dict) and left.keys() == right.keys():
            if "tensor" in left:
                return {"tensor": left["tensor"] + right["tensor"], "as": left["as"]}
            if "dict" in left:
                return {"dict": self._unite_fields(left["dict"], right["dict"], path)}
            for tag in ("list", "tuple"):
                if tag in left and len(left[tag]) == len(right[tag]):
                    pairs = enumerate(zip(left[tag], right[tag], strict=True))
                    return {tag: [self.unite(a, b, (*path, index)) for index, (a, b) in pairs]}
        if left == right and type(left) is type(right):
            return left
        raise ConflictingPartsError(self.reports[0].step, show_path(path), "two parts have different values of it")

    def _unite_fields(self, left: list[Any], right: list[Any], path: Path) -> list[Any]:
        others = {(type(key), key): node for key, node in right}
        united = []
        for key, node in left:
            other = others.pop((type(key), key), _ABSENT)
            united.append([key, node if other is _ABSENT else self.unite(node, other, (*path, key))])
        return united + [[key, node] for (_, key), node in others.items()]

    def finish(self, node: Node, path: Path) -> Node:
        """Name every tensor once more, and put its slices together."""
        if not isinstance(node, dict):
            return node
        if "tensor" in node:
            name = unique_name(path, self.tensors)
            self.tensors[name] = self._whole(node["tensor"], path)
            return {"tensor": name, "as": node["as"]}
        if "dict" in node:
            return {"dict": [[key, self.finish(child, (*path, key))] for key, child in node["dict"]]}
        return {
            tag: [self.finish(child, (*path, index)) for index, child in enumerate(children)]
            if isinstance(children, list)
            else children
            for tag, children in node.items()
        }

    def _whole(self, sources: list[tuple[int, str]], path: Path) -> StoredTensor:
        step = self.reports[0].step
        pieces = [(part, self.reports[part].tensors[name]) for part, name in sources]
        dtype, shape = pieces[0][1].dtype, pieces[0][1].shape
        if any((tensor.dtype, tensor.shape) != (dtype, shape) for _, tensor in pieces):
            raise ConflictingPartsError(step, show_path(path), "two parts have it with different types or shapes")
        slices: dict[tuple[tuple[int, ...], tuple[int, ...]], StoredSlice] = {}
        for part, tensor in pieces:
            for stored in tensor.slices:
                # What several workers have in common is read from the first of them.
                slices.setdefault((stored.start, stored.shape), replace(stored, part=part))
        covered = sum(math.prod(stored.shape) for stored in slices.values())
        if covered != math.prod(shape):
            problem = f"its slices make up {covered} of {math.prod(shape)} elements"
            raise ConflictingPartsError(step, show_path(path), problem)
        if _overlap(list(slices.values())):
            # As many elements as the tensor has, and some of them twice: then others are missing.
            raise ConflictingPartsError(step, show_path(path), "its slices overlap, so that they leave a hole")
        return StoredTensor(dtype, shape, tuple(slices.values()))


_ABSENT = object()


def _overlap(slices: Sequence[StoredSlice]) -> bool:
    """Whether two slices share an element."""
    if len(slices) < 2 or not slices[0].shape:
        return False
    starts = np.array([stored.start for stored in slices], dtype=np.int64)
    stops = starts + np.array([stored.shape for stored in slices], dtype=np.int64)
    filled = (stops > starts).all(axis=1)
    starts, stops = starts[filled], stops[filled]
    for index in range(len(starts) - 1):
        shared = (starts[index] < stops[index + 1 :]) & (starts[index + 1 :] < stops[index])
        if shared.all(axis=1).any():
            return True
    return False
