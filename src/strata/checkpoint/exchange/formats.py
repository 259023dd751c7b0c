"""Which format a path is in, and how a state is read from it or written to it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from strata.checkpoint.exchange import dcp_folders, hugging_face, safetensors_files, torch_files
from strata.checkpoint.format.tree import is_tensor, show_path, walk
from strata.errors import ForeignFormatError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from strata.checkpoint.format.manifest import Manifest
    from strata.checkpoint.keep.archive import Archive

Format = Literal["safetensors", "torch", "dcp", "hf"]
_TORCH_SUFFIXES = (".pt", ".pth", ".bin", ".ckpt")


def find_format(source: Path) -> Format:
    """Tell the format of a file by its name, and of a folder by what is in it."""
    if source.is_dir():
        if (source / dcp_folders.METADATA).is_file():
            return "dcp"
        return "hf" if safetensors_files.find_index(source) is not None else "safetensors"
    if not source.is_file():
        raise ForeignFormatError(str(source), "there is no such file or folder")
    if source.suffix == ".safetensors":
        return "safetensors"
    if source.suffix in _TORCH_SUFFIXES:
        return "torch"
    raise ForeignFormatError(str(source), "its name does not say what it is; choose with --format")


def read_state(source: Path, chosen: Format | None = None) -> tuple[Any, Format]:
    """Return the state that a file or folder holds, and its format."""
    try:
        found = chosen or find_format(source)
        if not source.exists():
            raise ForeignFormatError(str(source), "there is no such file or folder")
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
    named = {node["tensor"]: show_path(path) for path, node in walk(manifest.structure) if is_tensor(node)}
    prefix = f"{under}." if under else ""
    # Two paths may look the same; then their names in the checkpoint tell them apart.
    return {name: name[len(prefix) :] for name, path in named.items() if path.startswith(prefix)}


async def write_state(
    archive: Archive,
    manifest: Manifest,
    target: Path,
    form: Format,
    on_bytes: Callable[[int], None],
    *,
    under: str = "",
    shard_bytes: int = hugging_face.SHARD_BYTES,
) -> int:
    """Write a checkpoint, or what is below a dotted path of it, in another format; return how many tensors it has."""
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
        for key in under.split(".") if under else ():
            if not isinstance(state, dict) or key not in state:
                raise ForeignFormatError(str(target), f"the checkpoint has no dict at {under!r:.80}")
            state = state[key]
        (torch_files.write_torch if form == "torch" else dcp_folders.write_dcp)(state, target)
    return len(names)
