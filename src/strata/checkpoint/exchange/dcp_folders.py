"""Folders of torch.distributed.checkpoint (DCP) as a state, and back.

DCP keeps its metadata as a pickle, which torch itself loads without a check. Here it goes through the unpickler of
torch's weights_only with the classes that DCP's metadata is made of and no others. That one knows an older form of the
format, so what the newer form says in other words is said in those first.
"""

from __future__ import annotations

import io
import pathlib
import pickletools
import shutil
import struct
import uuid
import warnings
from typing import TYPE_CHECKING, Any

from strata.checkpoint.exchange.libraries import explain, need_torch
from strata.checkpoint.exchange.torch_files import find_changed, to_torch, unpickling_errors
from strata.errors import ForeignFormatError

if TYPE_CHECKING:
    from pathlib import Path

METADATA = ".metadata"


def read_dcp(source: Path) -> Any:
    """Return the state of a DCP folder, whatever the number of ranks that wrote it."""
    torch = need_torch("DCP folders")
    from torch.distributed.checkpoint import FileSystemReader
    from torch.distributed.checkpoint._nested_dict import set_element
    from torch.distributed.checkpoint.api import CheckpointException
    from torch.distributed.checkpoint.default_planner import _EmptyStateDictLoadPlanner
    from torch.distributed.checkpoint.planner import ReadItem
    from torch.distributed.checkpoint.state_dict_loader import _load_state_dict

    metadata = _read_metadata(torch, source / METADATA)

    class Reader(FileSystemReader):  # type: ignore[misc]  # torch is untyped to mypy
        def read_metadata(self, *arguments: Any, **options: Any) -> Any:
            return metadata

    class Planner(_EmptyStateDictLoadPlanner):  # type: ignore[misc]  # torch is untyped to mypy
        def load_bytes(self, read_item: ReadItem, value: io.BytesIO) -> None:
            loaded = torch.load(value, weights_only=True)
            set_element(self.original_state_dict, self.mappings[read_item.dest_index.fqn], loaded)

    state: dict[str, Any] = {}
    refusals: tuple[type[Exception], ...] = (
        CheckpointException,
        RuntimeError,
        ValueError,
        OSError,
        KeyError,
        *unpickling_errors(),
    )
    try:
        _load_state_dict(state, storage_reader=Reader(source), planner=Planner(), no_dist=True)
    except refusals as error:
        problem = f"torch does not load it ({explain(error)})"
        raise ForeignFormatError(str(source), problem) from error
    _check_sums(source, metadata)
    return state


def _check_sums(source: Path, metadata: Any) -> None:
    """Every item is a file of torch.save inside of another, with its checksums."""
    for index, place in metadata.storage_data.items():
        path = source / place.relative_path
        with path.open("rb") as file:
            file.seek(place.offset)
            changed = find_changed(io.BytesIO(file.read(place.length)))
        if changed is not None:
            problem = f"{index.fqn!r:.80} was changed after it was written ({changed})"
            raise ForeignFormatError(str(path), problem)


def write_dcp(state: Any, target: Path) -> None:
    """Write a state as DCP does from one process, all of it or nothing; the folder must not be there."""
    torch = need_torch("DCP folders")
    from torch.distributed import checkpoint
    from torch.distributed.checkpoint.api import CheckpointException

    if not isinstance(state, dict):
        raise ForeignFormatError(str(target), "DCP keeps dicts, and this checkpoint holds something else")
    partial = target.with_name(f".{target.name}.{uuid.uuid4().hex[:8]}")
    try:
        with warnings.catch_warnings():
            # It is told to save in a single process, and says that it assumes so.
            warnings.filterwarnings("ignore", message="torch.distributed is disabled")
            checkpoint.save(to_torch(torch, state), checkpoint_id=partial, no_dist=True)
        partial.replace(target)
    except (CheckpointException, RuntimeError, OSError) as error:
        # Two paths that DCP calls the same, say, or a full disk.
        raise ForeignFormatError(str(target), f"DCP does not write it ({explain(error)})") from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _read_metadata(torch: Any, path: Path) -> Any:
    from torch._weights_only_unpickler import Unpickler
    from torch.distributed.checkpoint import filesystem, metadata

    names = ("Metadata", "MetadataIndex", "TensorStorageMetadata", "BytesStorageMetadata", "ChunkStorageMetadata")
    allowed = [getattr(metadata, name) for name in (*names, "TensorProperties", "StorageMeta", "_MEM_FORMAT_ENCODING")]
    allowed += [filesystem._StorageInfo, torch.serialization._get_layout, torch.Size]
    allowed += [pathlib.PosixPath, pathlib.PurePosixPath, pathlib.WindowsPath]
    refusals: tuple[type[Exception], ...] = (
        ValueError,
        LookupError,
        TypeError,
        AttributeError,
        OSError,
        struct.error,
        *unpickling_errors(),
    )
    try:
        older = io.BytesIO(_in_older_words(path.read_bytes()))
        with torch.serialization.safe_globals(allowed):
            found = Unpickler(older, encoding="utf-8").load()
    except refusals as error:
        problem = f"it is no DCP metadata that can be read safely ({explain(error)})"
        raise ForeignFormatError(str(path), problem) from error
    if not isinstance(found, metadata.Metadata):
        raise ForeignFormatError(str(path), "it is no DCP metadata")
    if getattr(found, "storage_meta", None) is None:
        found.storage_meta = metadata.StorageMeta()
    return found


def _in_older_words(data: bytes) -> bytes:
    """Say a pickle of version 4 in the opcodes of version 2; nothing is executed, and strings are all that is kept."""
    ops = [*pickletools.genops(data)]
    ends = [*(position or 0 for _, _, position in ops[1:]), len(data)]
    out: list[tuple[bytes, str | None]] = [(b"\x80\x02", None)]
    memo: dict[int, str | None] = {}
    for (op, given, position), end in zip(ops, ends, strict=True):
        argument: Any = given
        match op.name:
            case "PROTO" | "FRAME":
                continue
            case "SHORT_BINUNICODE" | "BINUNICODE" | "BINUNICODE8":
                out.append(_text(argument))
            case "MEMOIZE" | "BINPUT" | "LONG_BINPUT":
                index = len(memo) if op.name == "MEMOIZE" else argument
                memo[index] = out[-1][1]
                if memo[index] is None:
                    out.append((b"r" + struct.pack("<I", index), None))
            case "BINGET" | "LONG_BINGET":
                known = memo[argument]
                out.append((b"j" + struct.pack("<I", argument), None) if known is None else _text(known))
            case "STACK_GLOBAL":
                (_, name), (_, module) = out.pop(), out.pop()
                if name is None or module is None or "\n" in name + module:
                    raise ValueError("a class without a name")
                out.append((f"c{module}\n{name}\n".encode(), None))
            case _:
                out.append((data[position:end], None))
    return b"".join(each for each, _ in out)


def _text(value: str) -> tuple[bytes, str]:
    encoded = value.encode("utf-8", "surrogatepass")
    return b"X" + struct.pack("<I", len(encoded)) + encoded, value
