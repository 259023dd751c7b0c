"""JSON that is nested 100,000 deep is a bad row with a name, in every format that holds JSON."""

from __future__ import annotations

import io
import tarfile
from typing import TYPE_CHECKING

import pytest

from strata.data import open_dataset
from strata.errors import CorruptFileError

if TYPE_CHECKING:
    from pathlib import Path

DEEP = "[" * 100_000 + "]" * 100_000


def test_a_row_of_jsonl_that_is_nested_too_deeply_is_named(tmp_path: Path) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"a": 1}\n' * 3 + f'{{"a": {DEEP}}}\n')
    with pytest.raises(CorruptFileError, match=r"rows\.jsonl \(record 3, byte 27\).* nested too deeply"):
        open_dataset(rows, batch_size=1)


def test_a_member_of_a_tar_that_is_nested_too_deeply_is_named(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "samples.tar", "w") as tar:
        for name, content in (("1.json", '{"a": 1}'), ("2.json", DEEP)):
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content.encode()))
    with pytest.raises(CorruptFileError, match=r"samples\.tar.* nested too deeply"):
        list(open_dataset(tmp_path, batch_size=1, format="webdataset"))
