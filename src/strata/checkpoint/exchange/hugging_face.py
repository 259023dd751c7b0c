"""The layout of Hugging Face: safetensors files of bounded size, and an index that says which tensor is in which."""

from __future__ import annotations

import json
import math
import shutil
import uuid
from typing import TYPE_CHECKING

from strata.checkpoint.exchange.safetensors_files import INDEX_SUFFIX
from strata.checkpoint.format.dtypes import DTYPES
from strata.errors import ForeignFormatError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from strata.checkpoint.format.manifest import Manifest
    from strata.checkpoint.keep.archive import Archive

# What transformers takes by default.
SHARD_BYTES = 5_000_000_000


async def write_folder(
    archive: Archive,
    manifest: Manifest,
    target: Path,
    names: Mapping[str, str],
    on_bytes: Callable[[int], None],
    *,
    shard_bytes: int = SHARD_BYTES,
) -> None:
    """Write a folder that from_pretrained reads, all of it or nothing; the folder must not be there."""
    if not names:
        raise ForeignFormatError(str(target), "there is no tensor to write")
    shards = plan_shards(manifest, names, shard_bytes)
    partial = target.with_name(f".{target.name}.{uuid.uuid4().hex[:8]}")
    try:
        partial.mkdir()
        files: dict[str, str] = {}
        for number, shard in enumerate(shards, start=1):
            many = len(shards) > 1
            file = f"model-{number:05}-of-{len(shards):05}.safetensors" if many else "model.safetensors"
            await archive.export(manifest, partial / file, on_bytes, shard)
            files |= dict.fromkeys(shard.values(), file)
        if len(shards) > 1:
            total = sum(_size_of(manifest, name) for name in names)
            index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(files.items()))}
            (partial / f"model{INDEX_SUFFIX}").write_text(json.dumps(index, indent=2) + "\n")
        partial.replace(target)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def plan_shards(manifest: Manifest, names: Mapping[str, str], shard_bytes: int) -> list[dict[str, str]]:
    """Deal tensors to files in their order; none is larger than the limit, unless one tensor is."""
    shards: list[dict[str, str]] = [{}]
    room = shard_bytes
    for name, target in names.items():
        size = _size_of(manifest, name)
        if shards[-1] and size > room:
            shards.append({})
            room = shard_bytes
        shards[-1][name] = target
        room -= size
    return shards


def _size_of(manifest: Manifest, name: str) -> int:
    tensor = manifest.tensors[name]
    return math.prod(tensor.shape) * DTYPES[tensor.dtype].itemsize
