"""Merging: from what every worker says about its part to the one manifest that commits them all. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from strata.checkpoint.format.kinds import SEQUENCES
from strata.checkpoint.format.manifest import CopyRecord, Manifest, StoredSlice, StoredTensor
from strata.checkpoint.format.manifest_reader import overlap
from strata.checkpoint.format.tree import Node, Path, show_path, unique_name
from strata.cluster.values import Divergence
from strata.errors import ConflictingPartsError

if TYPE_CHECKING:
    from collections.abc import Sequence


def merge_reports(reports: Sequence[Manifest]) -> Manifest:
    """Make one manifest of all parts, in their order; raise ConflictingPartsError if they are not of one state.

    Dicts are united key by key. A leaf that several parts have must be the same in all of them; a tensor that they
    have in slices must come out whole. What several parts have is taken from the one that wrote it; where their
    digests differ, the manifest says so.
    """
    first = reports[0]
    merging = _Merging(reports)
    for name in ("step", "epoch", "generation", "job_id", "rewinds"):
        if len({getattr(report, name) for report in reports}) > 1:
            raise ConflictingPartsError(first.step, "", f"parts are of different {name.removesuffix('s')}s")
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
        copies=(),
        diverged=merging.describe_divergence(),
    )


def _united(mappings: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """All keys of all parts; the lowest part that has a key decides its value."""
    return {key: value for mapping in reversed(mappings) for key, value in mapping.items()}


@dataclass(slots=True)
class _Merging:
    reports: Sequence[Manifest]
    tensors: dict[str, StoredTensor] = field(default_factory=dict)
    copies: list[dict[str, list[CopyRecord]]] = field(default_factory=list)
    # By the path of a tensor, the parts that hold other values of it than most.
    diverged: dict[str, set[int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for report in self.reports:
            found: dict[str, list[CopyRecord]] = {}
            for record in report.copies:
                found.setdefault(record.name, []).append(record)
            self.copies.append(found)

    def describe_divergence(self) -> Divergence | None:
        """Say which parts differ, once all tensors were put together."""
        if not self.diverged:
            return None
        ranks = tuple(sorted(set().union(*self.diverged.values())))
        return Divergence(ranks, next(iter(self.diverged)), len(self.diverged))

    def label(self, node: Node, part: int) -> Node:
        """Say of every tensor which part it is of: two parts may call different tensors the same."""
        if not isinstance(node, dict):
            return node
        if "tensor" in node:
            return {"tensor": [(part, node["tensor"])], "as": node["as"]}
        if "dict" in node:
            return {**node, "dict": [[key, self.label(child, part)] for key, child in node["dict"]]}
        return {
            tag: [self.label(child, part) for child in children] if isinstance(children, list) else children
            for tag, children in node.items()
        }

    def unite(self, left: Node, right: Node, path: Path) -> Node:
        """Unite two trees; what both have must agree."""
        if isinstance(left, dict) and isinstance(right, dict) and left.keys() == right.keys():
            if "tensor" in left:
                return {"tensor": left["tensor"] + right["tensor"], "as": left["as"]}
            if "dict" in left and left.get("as") == right.get("as"):
                return {**left, "dict": self._unite_fields(left["dict"], right["dict"], path)}
            for tag in SEQUENCES:
                same = tag in left and left.get("maxlen") == right.get("maxlen")
                if same and len(left[tag]) == len(right[tag]):
                    pairs = enumerate(zip(left[tag], right[tag], strict=True))
                    return {**left, tag: [self.unite(a, b, (*path, index)) for index, (a, b) in pairs]}
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
            return {**node, "dict": [[key, self.finish(child, (*path, key))] for key, child in node["dict"]]}
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
        self._compare(sources, path)
        covered = sum(math.prod(stored.shape) for stored in slices.values())
        if covered != math.prod(shape):
            problem = f"its slices make up {covered} of {math.prod(shape)} elements"
            raise ConflictingPartsError(step, show_path(path), problem)
        if overlap(list(slices.values())):
            # As many elements as the tensor has, and some of them twice: then others are missing.
            raise ConflictingPartsError(step, show_path(path), "its slices overlap, so that they leave a hole")
        return StoredTensor(dtype, shape, tuple(slices.values()))

    def _compare(self, sources: list[tuple[int, str]], path: Path) -> None:
        """Compare what parts say of blocks that they all hold; most of them are taken to be right."""
        blocks: dict[tuple[tuple[int, ...], tuple[int, ...]], dict[bytes, list[int]]] = {}
        for part, name in sources:
            for record in self.copies[part].get(name, ()):
                blocks.setdefault((record.start, record.shape), {}).setdefault(record.digest, []).append(part)
        for holders in blocks.values():
            if len(holders) > 1:
                usual = max(holders.values(), key=lambda parts: (len(parts), -parts[0]))
                others = {part for parts in holders.values() if parts is not usual for part in parts}
                self.diverged.setdefault(show_path(path), set()).update(others)


_ABSENT = object()
