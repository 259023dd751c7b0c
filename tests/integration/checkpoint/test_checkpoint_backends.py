"""The same promises on local disk, in memory and on S3; and what other tools make of a part file."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from strata.checkpoint import CheckpointManager
from strata.errors import CheckpointExistsError, DamagedCheckpointError
from strata.storage import LocalStorage, MemoryStorage, S3Storage

if TYPE_CHECKING:
    from collections.abc import Iterator

    from strata.storage import Storage
    from tests.testbed.servers import S3Server


@pytest.fixture(params=["local", "memory", pytest.param("s3", marks=pytest.mark.part("s3"))])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Storage:
    match request.param:
        case "local":
            return LocalStorage(tmp_path)
        case "memory":
            return MemoryStorage()
        case _:
            server: S3Server = request.getfixturevalue("s3_server")
            return S3Storage(
                server.bucket,
                "us-east-1",
                server.endpoint,
                prefix=tmp_path.name,
                access_key_id=server.access_key,
                secret_access_key=server.secret_key,
            )


@pytest.fixture
def manager(storage: Storage) -> Iterator[CheckpointManager]:
    with CheckpointManager(storage=storage, keep_count=2) as manager:
        yield manager


def state_of(step: int) -> dict[str, Any]:
    # Larger than a multipart part of S3 and than a run of the reader, and ending inside a chunk.
    return {"big": np.arange(5_000_001, dtype=np.int64) + step, "small": np.float32(step), "n": [step, None]}


def test_save_load_list_and_retention(manager: CheckpointManager) -> None:
    for step in (1, 2, 3):
        manager.save(state_of(step), step)
    manager.wait_pending(30)
    assert manager.list_checkpoints() == [2, 3]
    restored = manager.load()
    assert restored.step == 3
    assert np.array_equal(restored.data["big"], state_of(3)["big"])
    assert restored.data["small"] == np.float32(3)
    assert restored.data["n"] == [3, None]
    with pytest.raises(CheckpointExistsError):
        manager.save(state_of(4), 3)
    target = {"big": np.zeros(5_000_001, np.int64)}
    assert manager.load(2, target).data["big"] is target["big"]
    assert np.array_equal(target["big"], state_of(2)["big"])


async def test_damage_on_the_store_is_found(manager: CheckpointManager, storage: Storage) -> None:
    await manager.save_async(state_of(1), 1)
    await manager.save_async(state_of(2), 2)
    path = "default/checkpoints/step_2/model-00001-of-00001.safetensors"
    data = bytearray(await storage.read(path))
    data[len(data) // 2] ^= 1
    await storage.write(path, data)
    with pytest.raises(DamagedCheckpointError, match="tensor big"):
        await manager.load_async(2)
    assert (await manager.load_async()).step == 1
    await storage.write(path, data[:-100])
    with pytest.raises(DamagedCheckpointError):
        await manager.load_async(2)
    await storage.delete(path)
    with pytest.raises(DamagedCheckpointError, match="the file is missing"):
        await manager.load_async(2)


@pytest.mark.part("s3")
def test_backend_s3_takes_a_prefix_in_the_bucket_of_the_environment(
    s3_server: S3Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("CHECKPOINT_BUCKET", s3_server.bucket)
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3_server.endpoint)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", s3_server.access_key)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", s3_server.secret_key)
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    with CheckpointManager(f"/checkpoints/{tmp_path.name}", backend="s3") as manager:
        manager.save(b"model", 1)
    with CheckpointManager(f"s3://{s3_server.bucket}/checkpoints/{tmp_path.name}") as manager:
        assert manager.load().data == b"model"


@pytest.mark.part("torch")
def test_a_part_file_opens_in_safetensors_and_torch(tmp_path: Path) -> None:
    import torch
    from safetensors import safe_open
    from safetensors.torch import load_file

    state = {
        "weight": torch.randn(3, 4),
        "bf16": torch.randn(5).bfloat16(),
        "f8": torch.randn(4).to(torch.float8_e4m3fn),
        "empty": torch.empty(0, 3),
        "scalar": torch.tensor(3.5),
        "t": torch.arange(6).reshape(2, 3).t(),
        "c": torch.tensor([1 + 2j]),
        "d": torch.tensor([1 + 2j], dtype=torch.complex128),
        "имя/.日本": torch.ones(2, dtype=torch.bool),
    }
    with CheckpointManager(tmp_path) as manager:
        manager.save(state, 1000)
        restored = manager.load().data
    path = tmp_path / "default/checkpoints/step_1000/model-00001-of-00001.safetensors"
    loaded = load_file(path)
    assert set(loaded) == set(state)
    for name, tensor in state.items():
        assert restored[name].dtype == tensor.dtype
        assert torch.equal(
            restored[name].contiguous().view(-1).view(torch.uint8), tensor.contiguous().view(-1).view(torch.uint8)
        )
        if name != "d":  # safetensors has no complex128: it is there as bytes
            assert loaded[name].dtype == tensor.dtype
            assert loaded[name].shape == tensor.shape
    with safe_open(path, "pt") as file:
        assert file.metadata() == {"format": "pt", "strata": "1"}
    (length,) = struct.unpack("<Q", path.read_bytes()[:8])
    assert (8 + length) % 4096 == 0


def test_a_reader_in_another_language_needs_only_json_and_offsets(tmp_path: Path) -> None:
    """What docs/checkpoints.md says, done by hand."""
    weights = np.arange(12, dtype=np.float32).reshape(3, 4)
    with CheckpointManager(tmp_path) as manager:
        manager.save({"model": {"w": weights}, "lr": 0.5}, 1)
    root = tmp_path / "default/checkpoints"
    manifest = json.loads((root / "step_1/metadata.json").read_text())["manifest"]
    assert manifest["structure"] == {
        "dict": [["model", {"dict": [["w", {"tensor": "model.w", "as": "numpy"}]]}], ["lr", 0.5]]
    }
    tensor = manifest["tensors"]["model.w"]
    ((part, offset, start, shape),) = tensor["slices"]
    image = b"".join(
        (root / path).read_bytes()[at : at + length] for path, at, length in manifest["parts"][part]["extents"]
    )
    assert (tensor["dtype"], start, shape) == ("float32", [0, 0], [3, 4])
    assert np.array_equal(np.frombuffer(image, "<f4", count=12, offset=offset).reshape(shape), weights)
