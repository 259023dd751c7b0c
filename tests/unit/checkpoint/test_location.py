"""Checkpoints are where the arguments say, and where these are silent the settings."""

from __future__ import annotations

from pathlib import Path

import pytest

from strata.checkpoint.location import find_storage
from strata.errors import ConfigError


def test_a_path_is_a_directory_a_url_or_a_prefix_in_the_bucket_of_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CHECKPOINT_BUCKET", "weights")
    assert repr(find_storage(None, None)) == f"LocalStorage('{tmp_path / 'checkpoints'}')"
    assert repr(find_storage(tmp_path, None)) == f"LocalStorage('{tmp_path}')"
    assert repr(find_storage("here", "local")) == f"LocalStorage('{tmp_path / 'here'}')"
    assert repr(find_storage("anything", "memory")) == "MemoryStorage(0 objects)"
    assert repr(find_storage("/runs/a/", "s3")) == "S3Storage('s3://weights', prefix='runs/a')"
    assert repr(find_storage("s3://other/b", "s3")) == "S3Storage('s3://other', prefix='b')"


def test_a_prefix_without_a_bucket_is_refused_with_the_setting_that_is_missing() -> None:
    with pytest.raises(ConfigError, match=r"CHECKPOINT_BUCKET .*: expected a bucket name, because backend is 's3'"):
        find_storage("/runs/a", "s3")
