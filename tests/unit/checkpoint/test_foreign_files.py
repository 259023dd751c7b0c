"""Files of other tools are read without torch where that is possible, and refused with the reason where it is not."""

from __future__ import annotations

import asyncio
import json
import os
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from strata.checkpoint import CheckpointManager
from strata.checkpoint.exchange import libraries, safetensors_files
from strata.checkpoint.exchange.formats import read_state, write_state
from strata.checkpoint.keep.archive import Archive
from strata.errors import ForeignFormatError, MissingExtraError
from strata.storage import MemoryStorage

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(autouse=True)
def _without_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(libraries, "find_spec", lambda name: None)


def write_safetensors(path: Path, data: bytes = bytes(8), **tensors: dict[str, Any]) -> Path:
    """Write a safetensors file whose header says this of its tensors."""
    header = json.dumps(tensors).encode()
    path.write_bytes(len(header).to_bytes(8, "little") + header + data)
    return path


def row(dtype: str = "F32", shape: Any = (2,), offsets: Any = (0, 8)) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


def test_safetensors_are_arrays_without_torch(tmp_path: Path) -> None:
    values = np.array([1.5, -2.0], np.float32)
    state, form = read_state(write_safetensors(tmp_path / "x.safetensors", values.tobytes(), w=row()))
    assert form == "safetensors"
    assert isinstance(state["w"], np.ndarray)
    assert state["w"].tolist() == [1.5, -2.0]


def test_a_type_that_only_torch_has_is_refused_without_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    known = safetensors_files.numpy_dtype
    monkeypatch.setattr(safetensors_files, "numpy_dtype", lambda name: None if name == "bfloat16" else known(name))
    source = write_safetensors(tmp_path / "x.safetensors", w=row("BF16", [4]))
    with pytest.raises(ForeignFormatError, match="tensor 'w' is of type bfloat16, for which torch must be installed"):
        read_state(source)


@pytest.mark.parametrize("name", ["x.pt", "dcp"])
def test_what_needs_torch_says_so(tmp_path: Path, name: str) -> None:
    source = tmp_path / name
    if name == "dcp":
        source.mkdir()
        (source / ".metadata").write_bytes(b"")
    else:
        source.write_bytes(b"PK")
    with pytest.raises(MissingExtraError, match="torch"):
        read_state(source)


@pytest.mark.parametrize(
    ("said", "problem"),
    [
        (row("F3"), "elements of type 'F3', which is not known here"),
        (row(shape=[2.0]), "a shape or an offset is no whole number"),
        (row(shape=[-2]), "a shape or an offset is no whole number"),
        (row(offsets=[-8, 0]), "a shape or an offset is no whole number"),
        (row(offsets=[0, 4]), "a tensor does not fit its place"),
        (row(offsets=[8, 16]), "a tensor does not fit its place"),
    ],
)
def test_a_header_that_is_not_of_its_file_is_refused(tmp_path: Path, said: dict[str, Any], problem: str) -> None:
    source = write_safetensors(tmp_path / "x.safetensors", w=said)
    with pytest.raises(ForeignFormatError, match=f"it is no safetensors file: .*{problem}"):
        read_state(source)


def test_a_tensor_that_two_files_of_a_folder_have_is_refused(tmp_path: Path) -> None:
    for name in ("1.safetensors", "2.safetensors"):
        write_safetensors(tmp_path / name, w=row())
    with pytest.raises(ForeignFormatError, match=r"2\.safetensors: tensor 'w' is in another file of the folder too"):
        read_state(tmp_path)


def test_what_is_not_there_is_named_whatever_format_it_is_said_to_be(tmp_path: Path) -> None:
    for form in ("safetensors", "torch", "dcp", "hf", None):
        with pytest.raises(ForeignFormatError, match="gone: there is no such file or folder"):
            read_state(tmp_path / "gone", form)
        with pytest.raises(ForeignFormatError, match="there is no such file or folder"):
            read_state(tmp_path / "a\0b", form)


def test_a_pipe_is_not_read_whatever_format_it_is_said_to_have(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for form in ("safetensors", "torch", "dcp", "hf", None):
        with pytest.raises(ForeignFormatError, match="it is neither a file nor a folder"):
            read_state(tmp_path / "pipe", form)


@pytest.mark.parametrize("chosen", [None, "dcp"])
def test_a_path_that_cannot_be_looked_at_is_not_called_missing(tmp_path: Path, chosen: Any) -> None:
    with pytest.raises(ForeignFormatError, match=r"xxx cannot be read \(File name too long\)"):
        read_state(tmp_path / ("x" * 300), chosen)


@pytest.mark.parametrize(
    ("form", "under", "problem"),
    [
        ("safetensors", "model", "the checkpoint has no tensors below 'model'"),
        ("hf", "", "there is no tensor to write"),
    ],
)
def test_a_checkpoint_of_bytes_has_no_tensors_to_export(tmp_path: Path, form: Any, under: str, problem: str) -> None:
    storage = MemoryStorage()
    with CheckpointManager(storage=storage) as manager:
        manager.save(b"raw", 1)

    async def export() -> None:
        archive = Archive(storage, "default")
        await write_state(archive, await archive.read(1), tmp_path / "x", form, lambda count: None, under=under)

    with pytest.raises(ForeignFormatError, match=problem):
        asyncio.run(export())
    assert list(tmp_path.iterdir()) == []
