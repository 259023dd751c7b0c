"""Merging: from what every worker says about its part to the one manifest that commits them all. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from strata.checkpoint.commit.majority import Block, Replicas, compare_replicas
from strata.checkpoint.format.kinds import SEQUENCES
from strata.checkpoint.format.manifest import Manifest, StoredSlice, StoredTensor
from strata.checkpoint.format.manifest_reader import overlap
from strata.checkpoint.format.tree import Node, Path, show_path, unique_name
from strata.cluster.values import Divergence
from strata.errors import ConflictingPartsError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

NO_REPAIRS: Mapping[int, Manifest] = MappingProxyType({})


def merge_reports(reports: Sequence[Manifest], repairs: Mapping[int, Manifest] = NO_REPAIRS) -> Manifest:
    """Make one manifest of all parts, in their order; raise ConflictingPartsError if they are not of one state.

    Dicts are united key by key. A leaf that several parts have must be the same in all of them; a tensor that they
    have in slices must come out whole. What several parts wrote is taken from the first of them that is in the
    majority. Where their digests differ, the manifest says so, and is suspect if no such part wrote it. ``repairs`` has
    what the holders of parts wrote of blocks that were wrong elsewhere, by their number; it comes after the parts.
    """
    first = reports[0]
    merging = _Merging(reports, repairs)
    for name in ("step", "epoch", "generation", "job_id", "rewinds"):
        if len({getattr(report, name) for report in reports}) > 1:
            raise ConflictingPartsError(first.step, "", f"parts are of different {name.removesuffix('s')}s")
    structure = merging.name_tensors()
    tensors, diverged = merging.put_together()
    return replace(
        first,
        created_s=max(report.created_s for report in reports),
        parts=tuple(record for report in (*reports, *repairs.values()) for record in report.parts),
        tensors=tensors,
        structure=structure,
        metadata=_united([report.metadata for report in reports]),
        cursors=_united([report.cursors for report in reports]),
        parent=max((report.parent for report in reports if report.parent is not None), default=None),
        deltas=max(report.deltas for report in reports),
        copies=(),
        diverged=diverged,
    )


def plan_repair(reports: Sequence[Manifest], part: int) -> list[tuple[str, StoredSlice]]:
    """Return what is to be written again of a state whose replicas differ, and this part holds as the majority does.

    Each is a slice of a tensor, with the name that the tensor has in the report of this part. Every part comes to the
    same conclusion about what is wrong.
    """
    merging = _Merging(reports, NO_REPAIRS)
    merging.name_tensors()
    replicas = compare_replicas(merging.collect_digests())
    found = []
    for name in replicas.differing:
        own = next((source for holder, source in merging.sources[name][1] if holder == part), None)
        if own is not None:
            wrong = [each for each in merging.choose_slices(name, replicas) if not replicas.is_right(name, *each)]
            found += [(own, stored) for _, stored in wrong if replicas.is_right(name, part, stored)]
    return found


def _united(mappings: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """All keys of all parts; the lowest part that has a key decides its value."""
    return {key: value for mapping in reversed(mappings) for key, value in mapping.items()}


@dataclass(slots=True)
class _Merging:
    reports: Sequence[Manifest]
    repairs: Mapping[int, Manifest]
    # By the name of a tensor in the manifest, its path, and the parts that have it with its name in their reports.
    sources: dict[str, tuple[Path, list[tuple[int, str]]]] = field(default_factory=dict)

    def put_together(self) -> tuple[dict[str, StoredTensor], Divergence | None]:
        """Return every tensor with its slices, and how replicas differ, once all tensors are named."""
        replicas = compare_replicas(self.collect_digests())
        tensors: dict[str, StoredTensor] = {}
        is_suspect = False
        for name in self.sources:
            slices = self.choose_slices(name, replicas)
            tensors[name] = self._whole(name, [stored for _, stored in slices])
            is_suspect |= not all(replicas.is_right(name, *each) for each in slices)
        if not replicas.differing:
            return tensors, None
        first = next(name for name in tensors if name in replicas.differing)
        ranks = tuple(sorted(replicas.outside))
        return tensors, Divergence(ranks, first, len(replicas.differing), suspect=is_suspect)

    def name_tensors(self) -> Node:
        """Unite the trees of all parts and name their tensors; return the tree."""
        structure = self.label(self.reports[0].structure, 0)
        for part, report in enumerate(self.reports[1:], start=1):
            structure = self.unite(structure, self.label(report.structure, part), ())
        return self.finish(structure, ())

    def collect_digests(self) -> dict[Block, dict[int, bytes]]:
        """Return what parts say of the blocks that several of them hold."""
        names = {source: name for name, (_, sources) in self.sources.items() for source in sources}
        found: dict[Block, dict[int, bytes]] = {}
        for part, report in enumerate(self.reports):
            for copy in report.copies:
                # A record of a tensor that the part does not have says nothing.
                if (part, copy.name) in names:
                    block = Block(names[part, copy.name], copy.start, copy.shape)
                    found.setdefault(block, {})[part] = copy.digest
        return {block: by_part for block, by_part in found.items() if len(by_part) > 1}

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
        """Name every tensor once more."""
        if not isinstance(node, dict):
            return node
        if "tensor" in node:
            name = unique_name(path, self.sources)
            self.sources[name] = path, node["tensor"]
            return {"tensor": name, "as": node["as"]}
        if "dict" in node:
            return {**node, "dict": [[key, self.finish(child, (*path, key))] for key, child in node["dict"]]}
        return {
            tag: [self.finish(child, (*path, index)) for index, child in enumerate(children)]
            if isinstance(children, list)
            else children
            for tag, children in node.items()
        }

    def choose_slices(self, name: str, replicas: Replicas) -> list[tuple[int, StoredSlice]]:
        """Return the slices of a tensor, each with the part that held it when it was written.

        What several wrote is read from the first of them that is in the majority.
        """
        chosen: dict[tuple[tuple[int, ...], tuple[int, ...]], tuple[int, StoredSlice]] = {}
        for holder, stored in self._find_slices(name):
            known = chosen.setdefault((stored.start, stored.shape), (holder, stored))
            if not replicas.is_right(name, *known) and replicas.is_right(name, holder, stored):
                chosen[stored.start, stored.shape] = holder, stored
        return list(chosen.values())

    def _find_slices(self, name: str) -> Iterator[tuple[int, StoredSlice]]:
        _, sources = self.sources[name]
        for part, source in sources:
            for stored in self.reports[part].tensors[source].slices:
                yield part, replace(stored, part=part)
        own_names = dict(sources)
        for number, (holder, repair) in enumerate(self.repairs.items(), start=len(self.reports)):
            tensor = repair.tensors.get(own_names.get(holder, ""))
            for stored in () if tensor is None else tensor.slices:
                yield holder, replace(stored, part=number)

    def _whole(self, name: str, slices: list[StoredSlice]) -> StoredTensor:
        path, sources = self.sources[name]
        step = self.reports[0].step
        pieces = [self.reports[part].tensors[source] for part, source in sources]
        dtype, shape = pieces[0].dtype, pieces[0].shape
        if any((tensor.dtype, tensor.shape) != (dtype, shape) for tensor in pieces):
            raise ConflictingPartsError(step, show_path(path), "two parts have it with different types or shapes")
        covered = sum(math.prod(stored.shape) for stored in slices)
        if covered != math.prod(shape):
            problem = f"its slices make up {covered} of {math.prod(shape)} elements"
            raise ConflictingPartsError(step, show_path(path), problem)
        if overlap(slices):
            # As many elements as the tensor has, and some of them twice: then others are missing.
            raise ConflictingPartsError(step, show_path(path), "its slices overlap, so that they leave a hole")
        return StoredTensor(dtype, shape, tuple(slices))


_ABSENT = object()
