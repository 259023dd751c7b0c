"""Which format a path is in, and how a state is read from it or written to it."""

from __future__ import annotations

import stat
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from strata.checkpoint.exchange import dcp_folders, hugging_face, safetensors_files, torch_files
from strata.checkpoint.format.dtypes import DTYPES
from strata.checkpoint.format.kinds import SEQUENCES
from strata.checkpoint.format.random_state import without_random_state
from strata.checkpoint.format.tree import is_tensor, show_path, unique_name, walk
from strata.errors import ForeignFormatError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from strata.checkpoint.format.dtypes import DType
    from strata.checkpoint.format.manifest import Manifest
    from strata.checkpoint.format.tree import Node
    from strata.checkpoint.keep.archive import Archive

Format = Literal["safetensors", "torch", "dcp", "hf"]
_TORCH_SUFFIXES = (".pt", ".pth", ".bin", ".ckpt")


@dataclass(frozen=True, slots=True)
class Written:
    """What an export wrote. ``unnamed`` are tensors whose element type the format has no name for, with that type."""

    tensors: int
    unnamed: Sequence[str] = ()


def find_format(source: Path) -> Format:
    """Tell the format of a file by its name, and of a folder by what is in it."""
    if source.is_dir():
        if (source / dcp_folders.METADATA).is_file():
            return "dcp"
        return "hf" if safetensors_files.find_index(source) is not None else "safetensors"
    if source.suffix == ".safetensors":
        return "safetensors"
    if source.suffix in _TORCH_SUFFIXES:
        return "torch"
    raise ForeignFormatError(str(source), "its name does not say what it is; choose with --format")


def _check_readable(source: Path) -> None:
    """Raise for what is not there, and for a pipe or a device, which would be waited for."""
    # Not with Path.exists(): since Python 3.14 a path that may not be looked at is none for it.
    try:
        mode = source.stat().st_mode
    except (FileNotFoundError, NotADirectoryError, ValueError):  # the last for a null character
        raise ForeignFormatError(str(source), "there is no such file or folder") from None
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        raise ForeignFormatError(str(source), "it is neither a file nor a folder")


def read_state(source: Path, chosen: Format | None = None) -> tuple[Any, Format]:
    """Return the state that a file or folder holds, and its format."""
    try:
        _check_readable(source)
        found = chosen or find_format(source)
        if found == "dcp":
            return dcp_folders.read_dcp(source), found
        return (torch_files.read_torch(source) if found == "torch" else safetensors_files.read_files(source)), found
    except OSError as error:
        # Not ours to read, say, or a folder with the name of a file.
        problem = f"{error.filename or source} cannot be read ({error.strerror or error})"
        raise ForeignFormatError(str(source), problem) from error


def name_tensors(manifest: Manifest, under: str) -> dict[str, str]:
    """Every tensor below a dotted path, and its name from there on."""
    if manifest.is_opaque:
        return {}
    structure = without_random_state(manifest.structure)
    named = {node["tensor"]: show_path(path) for path, node in walk(structure) if is_tensor(node)}
    prefix = f"{under}." if under else ""
    # Two paths may look the same; then their names in the checkpoint tell them apart.
    found: dict[str, str] = {}
    taken: set[str] = set()
    for name in (name for name, path in named.items() if path.startswith(prefix)):
        # From there on it may be a name that safetensors keeps for itself.
        found[name] = unique_name((name[len(prefix) :],), taken) if under else name
        taken.add(found[name])
    return found


def _find_below(structure: Node, state: Any, under: str) -> Any:
    """What a state has at a dotted path, or a dict of what is below it; None if nothing is. Keys may have dots."""
    if not isinstance(structure, dict):
        return None
    children = structure.get("dict") or next((enumerate(structure[tag]) for tag in SEQUENCES if tag in structure), ())
    below = {}
    for key, node in children:
        if str(key) == under:
            return state[key]
        if under.startswith(f"{key}."):
            found = _find_below(node, state[key], under[len(str(key)) + 1 :])
            if found is not None:
                return found
        if isinstance(key, str) and key.startswith(f"{under}."):
            below[key[len(under) + 1 :]] = state[key]
    return below or None


async def write_state(
    archive: Archive,
    manifest: Manifest,
    target: Path,
    form: Format,
    on_bytes: Callable[[int], None],
    *,
    under: str = "",
    shard_bytes: int = hugging_face.SHARD_BYTES,
) -> Written:
    """Write a checkpoint, or what is below a dotted path of it, in another format."""
    names = name_tensors(manifest, under)
    if under and not names:
        raise ForeignFormatError(str(target), f"the checkpoint has no tensors below {under!r:.80}")
    if form in ("safetensors", "hf"):
        try:
            if form == "hf":
                await hugging_face.write_folder(archive, manifest, target, names, on_bytes, shard_bytes=shard_bytes)
            else:
                await archive.export(manifest, target, on_bytes, names if under else None)
        except OSError as error:
            # Reading a storage has errors of its own.
            raise ForeignFormatError(str(target), f"it cannot be written ({error.strerror or error})") from error
    else:
        state = await archive.restore(manifest, on_bytes)
        if under:
            state = _find_below(manifest.structure, state, under)
        (torch_files.write_torch if form == "torch" else dcp_folders.write_dcp)(state, target)
        return Written(len(names))
    types = {name: DTYPES[manifest.tensors[name].dtype] for name in names}
    return Written(len(names), [f"{name} ({each.name})" for name, each in types.items() if _is_unnamed(each)])


def _is_unnamed(dtype: DType) -> bool:
    return dtype.stored_as is None or dtype.name.startswith(("datetime64", "timedelta64"))
