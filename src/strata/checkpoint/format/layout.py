"""Which bytes go where: names on storage, and the inside of a part file. Pure.

A part file is a valid safetensors file: eight bytes with the length of a JSON header, the header padded with
spaces so that the data begins at a multiple of 4096, then the tensors without holes, which safetensors forbids. Those
whose size is a multiple of 64 come first, so that all of them are aligned to 64 bytes, as processors and their kernels
want it. The others follow, wide elements first, so that they are aligned to their elements.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from strata.checkpoint.format.dtypes import DTYPES

if TYPE_CHECKING:
    from collections.abc import Mapping

    from strata.checkpoint.format.tree import Leaf

ALIGN_BYTES = 4096
# What vector instructions want of memory. Kernels take another path, and may round otherwise, where it is not so.
VECTOR_BYTES = 64
MANIFEST = "metadata.json"
PIN = "pin.json"
REWINDS = "rewinds"
_STEP = re.compile(r"step_(0|[1-9][0-9]*)/")
_REWOUND = re.compile(r"step_(?:0|[1-9][0-9]*)/rewound-([0-9]{5,})\.json")
_REWIND = re.compile(r"rewinds/([0-9]{5,})\.json")
_LEASE = re.compile(r"step_(0|[1-9][0-9]*)/reader-[0-9a-f]{12}-([0-9]{1,6})\.json")
_REPORT = re.compile(r"part-([0-9]{5,})-of-([0-9]{5,})\.json")


def checkpoints_directory(job_id: str) -> str:
    """Where a job keeps its checkpoints; all names in manifests are relative to it."""
    return f"{job_id}/checkpoints"


def step_directory(step: int) -> str:
    """The directory of one checkpoint."""
    return f"step_{step}"


def manifest_name(step: int) -> str:
    """The commit record of one checkpoint."""
    return f"{step_directory(step)}/{MANIFEST}"


def pin_name(step: int) -> str:
    """What says that a checkpoint is kept whatever retention thinks."""
    return f"{step_directory(step)}/{PIN}"


def lease_name(step: int, token: str, seconds: int) -> str:
    """What says that a process reads a checkpoint: it counts for so many seconds after it was written last."""
    return f"{step_directory(step)}/reader-{token}-{seconds}.json"


def lease_of(name: str) -> tuple[int, int] | None:
    """Which step a read lease protects, and for how many seconds; None if the name is not that of one."""
    found = _LEASE.fullmatch(name)
    return (int(found[1]), int(found[2])) if found else None


def rewound_name(step: int, number: int) -> str:
    """The commit record of a checkpoint that the rewind of this number set aside."""
    return f"{step_directory(step)}/rewound-{number:05}.json"


def rewind_name(number: int) -> str:
    """The record of one rewind of the job."""
    return f"{REWINDS}/{number:05}.json"


def is_rewound(name: str) -> bool:
    """Whether this name is that of a commit record that a rewind set aside."""
    return number_of_rewound(name) is not None


def number_of_rewound(name: str) -> int | None:
    """Which rewind set this commit record aside; None if the name is not that of one."""
    found = _REWOUND.fullmatch(name)
    return int(found[1]) if found else None


def number_of_rewind(name: str) -> int | None:
    """Which rewind this is the record of; None if the name is not that of one."""
    found = _REWIND.fullmatch(name)
    return int(found[1]) if found else None


def part_name(step: int, part: int, parts: int, *, opaque: bool = False, token: str = "", delta: bool = False) -> str:
    """The file of one part. ``token`` makes another name where the plain one is taken by a dead save."""
    stem = "model" if opaque else f"model-{part + 1:05}-of-{parts:05}"
    suffix = "delta" if delta else "bin" if opaque else "safetensors"
    return f"{step_directory(step)}/{stem}{f'.{token}' if token else ''}.{suffix}"


def report_name(step: int, part: int, parts: int, *, token: str = "") -> str:
    """What a worker says about its part until the checkpoint is committed."""
    return f"{step_directory(step)}/part-{part + 1:05}-of-{parts:05}{f'.{token}' if token else ''}.json"


def step_of(name: str) -> int | None:
    """The step whose directory this name is in."""
    found = _STEP.match(name)
    return int(found[1]) if found else None


def step_of_link(name: str) -> int | None:
    """The step that cannot be read because this is a link: its directory, or its commit record."""
    if is_manifest(name):
        return step_of(name)
    return step_of(f"{name}/") if "/" not in name else None


def is_manifest(name: str) -> bool:
    """Whether this name is that of a commit record."""
    step = step_of(name)
    return step is not None and name == manifest_name(step)


def part_of_report(name: str) -> tuple[int, int] | None:
    """Which part, of how many, a report is about; None if the name is not that of a report."""
    found = _REPORT.fullmatch(name.rpartition("/")[2])
    return (int(found[1]) - 1, int(found[2])) if found else None


@dataclass(frozen=True, slots=True)
class Place:
    """Where one tensor's bytes lie in the part file."""

    name: str
    offset: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class PartLayout:
    """A part file before it has values: its head (length and header) and the place of each tensor, in file order."""

    head: bytes
    places: tuple[Place, ...]
    size_bytes: int


class Planner:
    """Lays out one part file after the other; tensors that are as they were last time cost next to nothing."""

    def __init__(self) -> None:
        self._last: tuple[list[object], PartLayout] | None = None

    def plan(self, leaves: Mapping[str, Leaf]) -> PartLayout:
        """Return what :func:`plan_part` does."""
        outline: list[object] = [(name, leaf.tensor.dtype, leaf.tensor.shape) for name, leaf in leaves.items()]
        last = self._last
        if last is None or last[0] != outline:
            last = self._last = outline, plan_part(leaves)
        return last[1]


def _rank(item: tuple[str, Leaf]) -> tuple[bool, int]:
    tensor = item[1].tensor
    return tensor.nbytes % VECTOR_BYTES != 0, -DTYPES[tensor.dtype].itemsize


def plan_part(leaves: Mapping[str, Leaf]) -> PartLayout:
    """Lay out a part file for these tensors; the same tensors always get the same layout."""
    order = sorted(leaves.items(), key=_rank)
    header: dict[str, object] = {"__metadata__": {"format": "pt", "strata": "1"}}
    spans: list[tuple[str, int, int]] = []
    end = 0
    for name, leaf in order:
        dtype, shape, nbytes = DTYPES[leaf.tensor.dtype], list(leaf.tensor.shape), leaf.tensor.nbytes
        if dtype.stored_as is None:
            shape.append(dtype.itemsize)
        header[name] = {"dtype": dtype.stored_as or "U8", "shape": shape, "data_offsets": [end, end + nbytes]}
        spans.append((name, end, nbytes))
        end += nbytes
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    base = -(-(8 + len(text)) // ALIGN_BYTES) * ALIGN_BYTES
    head = (base - 8).to_bytes(8, "little") + text.ljust(base - 8)
    places = tuple(Place(name, base + start, nbytes) for name, start, nbytes in spans)
    return PartLayout(head, places, base + end)
