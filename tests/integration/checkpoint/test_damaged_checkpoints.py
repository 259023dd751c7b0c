"""Whatever is wrong with the newest checkpoint, load() returns an older one or a CheckpointError, and never a mix."""

from __future__ import annotations

import json
import os
import random
import shutil
from collections import OrderedDict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from strata.checkpoint import CheckpointManager
from strata.checkpoint.format.manifest import seal
from strata.errors import CheckpointError, DamagedCheckpointError, StrataError, UnknownFormatError
from strata.storage.local.open_files import OpenFiles
from tests.unit.checkpoint.states import same

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

OLD = Path(__file__).parents[2] / "unit/checkpoint/fixtures/version_1"
ODD_VALUES: list[Any] = [None, True, -1, 0, 1, 2**31, 2**63, 2**70, 10**400, 1.5, 1e300, "", "x", "../x", "/etc/passwd"]
ODD_VALUES += ["\x00", "0" * 32, [], [[]], [0], [2**62, 2**62], {}, {"a": 1}, {"tensor": "x"}, {"list": []}, [None]]


def state_of(step: int) -> dict[str, Any]:
    rng = np.random.default_rng(step)
    return {
        "model": OrderedDict(w=rng.random((3, 4)), b=rng.random(5).astype(np.float32)),
        "items": [step, (0.5, None, "x"), {"deep": [1, 2, {"n": 2**80}]}],
        "raw": bytes([step]),
    }


@pytest.fixture
def root(tmp_path: Path) -> Path:
    with CheckpointManager(tmp_path, keep_count=None) as manager:
        for step in (1, 2):
            manager.save(state_of(step), step, metadata={"loss": 0.5})
    return tmp_path


def directory(root: Path, step: int = 2) -> Path:
    return root / "default/checkpoints" / f"step_{step}"


def load(root: Path) -> Any:
    with CheckpointManager(root) as manager:
        return manager.load()


def flips(data: bytes, chance: random.Random) -> Iterator[bytes]:
    for _ in range(220):
        position = chance.randrange(min(len(data), 100) if chance.random() < 0.4 else len(data))
        yield data[:position] + bytes([data[position] ^ 1 << chance.randrange(8)]) + data[position + 1 :]


def cuts(data: bytes, chance: random.Random) -> Iterator[bytes]:
    for _ in range(80):
        low, high = sorted(chance.randrange(len(data) + 1) for _ in range(2))
        yield chance.choice([data[:low], data[low:], data[:low] + data[high:], data + data[low:high], bytes(low)])


def places(node: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if path:
        yield path
    for key, child in node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ():
        yield from places(child, (*path, key))


def edits(data: bytes, chance: random.Random) -> Iterator[bytes]:
    """Yield manifests that are sealed well and say something else: nobody but an attacker, or a bug, writes these."""
    for _ in range(300):
        body = json.loads(data)["manifest"]
        for _ in range(chance.choice([1, 1, 2])):
            *above, last = chance.choice(list(places(body)))
            place = body
            for key in above:
                place = place[key]
            if chance.random() < 0.3:
                del place[last]
            else:
                place[last] = chance.choice(ODD_VALUES)
        yield seal("strata-checkpoint", 2, f'"manifest":{json.dumps(body)}}}\n'.encode())


@pytest.mark.parametrize("mutate", [flips, cuts])
def test_a_manifest_that_was_changed_in_any_way_is_skipped(
    root: Path, mutate: Callable[[bytes, random.Random], Iterator[bytes]], caplog: pytest.LogCaptureFixture
) -> None:
    target = directory(root) / "metadata.json"
    data = target.read_bytes()
    with CheckpointManager(root) as manager:
        for changed in mutate(data, random.Random(7)):
            target.write_bytes(changed)
            caplog.clear()
            restored = manager.load()
            assert restored.step == (2 if changed == data else 1)
            assert same(restored.data, state_of(restored.step))
            if changed != data:
                assert isinstance(restored.skipped[0], DamagedCheckpointError)
                assert "step 2 is damaged" in caplog.text
                assert "falling back" in caplog.text


def test_a_manifest_that_lies_under_a_good_digest_never_raises_anything_foreign(root: Path) -> None:
    target = directory(root) / "metadata.json"
    data = target.read_bytes()
    refused = 0
    with CheckpointManager(root) as manager:
        for changed in edits(data, random.Random(11)):
            target.write_bytes(changed)
            for act in (manager.load, lambda: manager.load(2), lambda: manager.prune(dry_run=True)):
                try:
                    act()
                except CheckpointError:
                    refused += 1
            assert 1 in {info.step for info in manager.all_checkpoints()}
    assert refused > 100


@pytest.mark.parametrize("mutate", [flips, cuts])
def test_a_part_that_was_changed_in_any_way_is_skipped(
    root: Path, mutate: Callable[[bytes, random.Random], Iterator[bytes]]
) -> None:
    target = directory(root) / "model-00001-of-00001.safetensors"
    data = target.read_bytes()
    with CheckpointManager(root) as manager:
        for changed in mutate(data, random.Random(13)):
            target.write_bytes(changed)
            restored = manager.load()
            assert same(restored.data, state_of(restored.step))
            assert restored.step == 1 or changed.startswith(data)


def _link(path: Path) -> None:
    elsewhere = path.with_name("elsewhere")
    path.rename(elsewhere)
    path.symlink_to(elsewhere)


def _make_directory(path: Path) -> None:
    path.unlink()
    path.mkdir()


def _make_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


@pytest.mark.parametrize("name", ["metadata.json", "model-00001-of-00001.safetensors"])
@pytest.mark.parametrize(
    "harm", [Path.unlink, _link, _make_directory, _make_pipe, lambda path: path.write_bytes(b"[" * 100_000)]
)
def test_what_is_no_file_any_more_is_skipped_and_can_be_deleted(
    root: Path, name: str, harm: Callable[[Path], None]
) -> None:
    harm(directory(root) / name)
    with CheckpointManager(root) as manager:
        assert same(manager.load().data, state_of(1))
        with pytest.raises(CheckpointError):
            manager.load(2)
        manager.save(state_of(3), 3)
        assert manager.list_checkpoints()[-1] == 3
        manifest = directory(root) / "metadata.json"
        if manifest.is_file() and not manifest.is_symlink():
            manager.delete(2)
            assert manager.list_checkpoints() == [1, 3]


def test_a_bad_block_of_the_newest_falls_back(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = OpenFiles._open

    def fail(self: OpenFiles, path: str) -> Any:
        if "step_2" in path:
            raise OSError(5, "Input/output error")
        return plain(self, path)

    monkeypatch.setattr(OpenFiles, "_open", fail)
    restored = load(root)
    assert restored.step == 1
    assert "Input/output error" in str(restored.skipped[0])


def test_want_of_file_descriptors_is_no_damage(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: OpenFiles, path: str) -> Any:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(OpenFiles, "_open", fail)
    with pytest.raises(StrataError, match="file descriptors"):
        load(root)


def test_a_newer_version_is_no_damage_and_says_what_to_do(root: Path) -> None:
    target = directory(root) / "metadata.json"
    target.write_bytes(seal("strata-checkpoint", 3, target.read_bytes().partition(b"\n")[2]))
    with CheckpointManager(root) as manager:
        with pytest.raises(UnknownFormatError, match="update Strata"):
            manager.load()
        assert manager.list_checkpoints() == [1]


def test_retention_goes_on_beside_a_manifest_that_it_cannot_read(root: Path) -> None:
    (directory(root) / "metadata.json").write_bytes(b'{"format":"strata-checkpoint","version":3,"dig')
    with CheckpointManager(root, keep_count=2) as manager:
        for step in (3, 4, 5):
            manager.save(state_of(step), step)
        manager.wait_pending()
        assert manager.list_checkpoints() == [4, 5]
    assert (directory(root) / "metadata.json").exists(), "what cannot be read is left to people"


def test_a_checkpoint_of_version_1_is_restored(tmp_path: Path) -> None:
    shutil.copytree(OLD, tmp_path, dirs_exist_ok=True)
    with CheckpointManager(tmp_path, job_id="old") as manager:
        restored = manager.load()
        assert (restored.step, restored.epoch, restored.metadata) == (7, 2, {"loss": 0.5})
        wanted = {
            "model": {"w": np.arange(6, dtype=np.float32).reshape(2, 3), "b": np.array([1.5])},
            "lr": 0.1,
            "big": 2**70,
            "nan": float("inf"),
            "items": [1, (2, "x")],
            "raw": b"ab",
            3: None,
        }
        assert same(restored.data, wanted)
