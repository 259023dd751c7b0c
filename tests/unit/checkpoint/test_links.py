"""What stands in the way of a checkpoint on a local disk is named: links, and a root that is none."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from typer.testing import CliRunner

from strata.checkpoint import CheckpointManager
from strata.cli.app import app
from strata.errors import DamagedCheckpointError, StorageError, StoragePermissionError
from strata.storage import LocalStorage
from strata.storage.blocking import is_of_one_object
from strata.storage.local import root as local_root

if TYPE_CHECKING:
    from pathlib import Path


def ckpt(*arguments: object) -> Any:
    return CliRunner().invoke(app, ["ckpt", *map(str, arguments)])


@pytest.fixture
def checkpoints(tmp_path: Path) -> Path:
    with CheckpointManager(tmp_path / "run") as manager:
        for step in (1, 2, 3):
            manager.save({"w": np.full(3, step)}, step)
    return tmp_path / "run/default/checkpoints"


@pytest.mark.parametrize("name", ["step_3", "step_3/metadata.json"])
def test_a_checkpoint_behind_a_link_is_skipped_with_words_and_never_unseen(checkpoints: Path, name: str) -> None:
    """A step that was moved to another disk, with a link in its place, would silently cost the steps since."""
    elsewhere = checkpoints.parents[2] / "elsewhere"
    (checkpoints / name).rename(elsewhere)
    (checkpoints / name).symlink_to(elsewhere)
    (checkpoints / "latest").symlink_to(checkpoints / "step_2")
    where = checkpoints.parents[1]
    with CheckpointManager(where, keep_count=2) as manager:
        restored = manager.load()
        assert restored.step == 2
        assert [type(error) for error in restored.skipped] == [DamagedCheckpointError]
        assert "symbolic link" in str(restored.skipped[0])
        assert manager.list_checkpoints() == [1, 2]
        manager.save({"w": np.zeros(3)}, 4)
        manager.wait_pending()
        assert manager.list_checkpoints() == [2, 4], "retention continues"
    assert "step 3 is damaged" in ckpt("ls", where).output
    assert [each["step"] for each in json.loads(ckpt("ls", where, "--json").output)["unreadable"]] == [3]
    done = ckpt("verify", where)
    assert done.exit_code == 1
    assert f"{name}: it is a symbolic link" in done.output
    assert elsewhere.exists()


def test_a_pin_in_a_folder_below_a_step_pins_nothing(checkpoints: Path) -> None:
    (checkpoints / "step_1/sub").mkdir()
    (checkpoints / "step_1/sub/pin.json").write_text("{}")
    with CheckpointManager(checkpoints.parents[1]) as manager:
        assert {info.step: info.pinned for info in manager.all_checkpoints()} == {1: False, 2: False, 3: False}


def test_a_root_that_is_a_file_is_no_damage_of_a_checkpoint(checkpoints: Path) -> None:
    where = checkpoints.parents[1]
    with CheckpointManager(where) as manager:
        where.rename(where.with_name("moved"))
        where.write_bytes(b"")
        with pytest.raises(StorageError, match="it is a file"):
            manager.load(3)
    done = ckpt("verify", where, 3)
    assert isinstance(done.exception, StorageError)


def test_a_root_that_may_not_be_read_is_no_damage_of_a_checkpoint(
    checkpoints: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    where = checkpoints.parents[1]
    storage = LocalStorage(where)
    plain = local_root.os.open

    def refuse(path: Any, *arguments: Any, **options: Any) -> int:
        if path == where:
            raise PermissionError(13, "Permission denied")
        return plain(path, *arguments, **options)

    monkeypatch.setattr(local_root.os, "open", refuse)
    with pytest.raises(StoragePermissionError, match="rights to the root") as caught:
        asyncio.run(storage.read("default/checkpoints/step_3/metadata.json"))
    assert not is_of_one_object(caught.value)
    with CheckpointManager(storage=storage) as manager, pytest.raises(StoragePermissionError):
        manager.load(3)


def test_a_folder_among_temporary_files_does_not_stop_saves(tmp_path: Path) -> None:
    (tmp_path / ".strata-tmp/lost+found").mkdir(parents=True)
    with CheckpointManager(tmp_path) as manager:
        assert manager.save({"w": np.ones(3)}, 1).step == 1
