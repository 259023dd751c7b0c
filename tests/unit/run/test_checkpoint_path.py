"""A checkpoint path that cannot be used is refused at the start."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from strata.errors import ConfigError, StoragePermissionError
from strata.run.checkpoint_path import _write, check_checkpoint_path
from strata.storage import MemoryStorage


@pytest.mark.parametrize("path", ["s3://bucket/jobs", "memory://"])
def test_a_url_is_left_to_its_store(path: str) -> None:
    check_checkpoint_path(path, source="argument")


@pytest.mark.parametrize("scheme", ["", "file://"])
def test_a_folder_that_can_be_made_is_fine_and_is_not_made(tmp_path: Path, scheme: str) -> None:
    check_checkpoint_path(f"{scheme}{tmp_path}/new/er", source="argument")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ("link", "{there} is a link to nothing"),
        ("file", "{there} is a file"),
        ("read-only", "{there} is on a file system that is read-only"),
        ("denied", "{there} may not be written by this user"),
    ],
)
def test_a_folder_that_cannot_be_written_is_named_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str, reason: str
) -> None:
    there = tmp_path / "there"
    if fault == "link":
        there.symlink_to(tmp_path / "gone")
    elif fault == "file":
        there.touch()
    else:
        there.mkdir()
    if fault == "read-only":
        monkeypatch.setattr(os, "statvfs", lambda _: SimpleNamespace(f_flag=os.ST_RDONLY))
    elif fault == "denied":
        monkeypatch.setattr(os, "access", lambda *_: False)
    with pytest.raises(ConfigError) as caught:
        check_checkpoint_path(there / "checkpoints", source="LOCAL_STORAGE_PATH")
    expected = f"expected a directory that can be written, but {reason.format(there=there)}"
    assert f"checkpoints='{there}/checkpoints' (LOCAL_STORAGE_PATH): {expected}" in str(caught.value)


class KeptStorage(MemoryStorage):
    """Takes what is written, and deletes nothing."""

    async def delete(self, path: str) -> None:
        raise StoragePermissionError(path, problem="access denied", backend="memory", hint="ask")


async def test_a_store_in_which_nothing_may_be_deleted_can_be_used_and_says_what_stays(
    caplog: pytest.LogCaptureFixture,
) -> None:
    storage = KeptStorage()
    await _write(storage, "job/start-1")
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert record.getMessage().endswith("may be written, but nothing may be deleted there, so job/start-1 stays")
    assert bytes(await storage.read("job/start-1")) == b""
