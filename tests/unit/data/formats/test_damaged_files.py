"""Damage at a known place of a file is named with that place, when the file is indexed or when it is read."""

from __future__ import annotations

import io
import re
import struct
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from strata.data.files import random_access
from strata.data.files.random_access import LocalFile
from strata.data.formats.npy import parse_array, parse_header
from strata.data.formats.parquet import Parquet
from strata.data.formats.text import lines
from strata.data.rows.row_sequence import DatasetRows, open_rows
from strata.errors import CorruptFileError

if TYPE_CHECKING:
    from collections.abc import Callable

ROWS = 777


def open_at(folder: Path, **options: Any) -> DatasetRows:
    return open_rows(folder, cache=folder / "_cache", **options)


def arrow_file() -> bytes:
    return _arrow(pa.ipc.new_file)


def arrow_stream() -> bytes:
    return _arrow(pa.ipc.new_stream)


def _arrow(write: Any) -> bytes:
    sink = io.BytesIO()
    table = pa.table({"column": range(ROWS)})
    with write(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue()


def put(data: bytes, at: int, new: bytes) -> bytes:
    assert 0 <= at <= len(data) - len(new)
    return data[:at] + new + data[at + len(new) :]


def counts(data: bytes) -> tuple[int, int]:
    """Return where a batch says how many rows it has, and where how many its one array has."""
    number = struct.pack("<q", ROWS)
    first = data.index(number)
    return first, data.index(number, first + 1)


# The schema is the first message, with a mark and its length before it. In a file eight bytes stand before that.
SCHEMA_BYTES = 8 + struct.unpack_from("<i", arrow_file(), 12)[0]
BATCH = 8 + SCHEMA_BYTES


def footer_place(data: bytes) -> int:
    """Return where the footer says where the batch begins, how long its header is, and how long its body."""
    (header_bytes,) = struct.unpack_from("<i", data, BATCH + 4)
    return data.rindex(struct.pack("<qi", BATCH, 8 + header_bytes))


@pytest.mark.parametrize(
    ("damage", "part", "problem"),
    [
        (lambda data: put(data, len(data) - 10, b"\xff\xff\xff\x7f"), "footer", "its footer would begin before it"),
        (lambda data: put(data, len(data) - 10, b"\x02\0\0\0"), "footer", "its footer cannot be read"),
        (
            lambda data: put(data, footer_place(data), struct.pack("<q", len(data))),
            "record batch 0",
            "its footer names a place outside of the data",
        ),
        (
            lambda data: put(data, footer_place(data), struct.pack("<qi4xq", 8, SCHEMA_BYTES, 0)),
            "record batch 0",
            "its footer names what is no record batch",
        ),
        (
            lambda data: put(data, BATCH + 8, b"\xff" * 8),
            "record batch 0",
            "its message has no readable header",
        ),
        (lambda data: put(data, counts(data)[0], struct.pack("<q", -3)), "record batch 0", "it would have -3 rows"),
        (lambda data: data.replace(b"column", b"\xff" * 6), "footer", "'utf-8' codec can't decode byte 0xff"),
    ],
)
def test_a_damaged_arrow_file_is_named_when_it_is_indexed(
    tmp_path: Path, damage: Callable[[bytes], bytes], part: str, problem: str
) -> None:
    (tmp_path / "a.arrow").write_bytes(damage(arrow_file()))
    with pytest.raises(CorruptFileError, match=rf"a\.arrow \({part}, byte \d+\).*{problem}"):
        open_at(tmp_path)


@pytest.mark.parametrize(
    ("damage", "place", "problem"),
    [
        (lambda data: data[SCHEMA_BYTES:], "byte 0", "it does not begin with a schema"),
        (lambda data: data[-8:], "byte 0", "it does not begin with a schema"),
        (lambda data: data[:-4], r"message 2, byte \d+", "it ends inside a message"),
        (lambda data: put(data, len(data) - 4, b"\xff\xff\xff\xff"), "message 2", "it ends inside a message"),
        (lambda data: data[:-200], "message 1", "it ends inside a message"),
        (lambda data: put(data, SCHEMA_BYTES, b"\0"), f"message 1, byte {SCHEMA_BYTES}", "no message begins here"),
        (lambda data: put(data, counts(data)[0], struct.pack("<q", -3)), "message 1", "it ends inside a message"),
        (lambda data: data.replace(b"column", b"\xff" * 6), "schema, byte 0", "'utf-8' codec can't decode"),
    ],
)
def test_a_damaged_arrow_stream_is_named_when_it_is_indexed(
    tmp_path: Path, damage: Callable[[bytes], bytes], place: str, problem: str
) -> None:
    (tmp_path / "a.arrows").write_bytes(damage(arrow_stream()))
    with pytest.raises(CorruptFileError, match=rf"a\.arrows \({place}.*{problem}"):
        open_at(tmp_path)


@pytest.mark.parametrize(("ending", "make"), [("arrow", arrow_file), ("arrows", arrow_stream)])
def test_a_batch_that_does_not_say_what_it_misses_may_miss_values(
    tmp_path: Path, ending: str, make: Callable[[], bytes]
) -> None:
    (tmp_path / f"a.{ending}").write_bytes(data := make())
    assert not open_at(tmp_path).schema.field("column").nullable
    # Before the first array stands how many there are.
    (tmp_path / f"a.{ending}").write_bytes(put(data, counts(data)[1] - 4, bytes(4)))
    rows = open_at(tmp_path)
    assert rows.schema.field("column").nullable
    with pytest.raises(CorruptFileError, match=rf"a\.{ending} \(record batch 0, byte"):
        rows.read(0, 1)


def parquet(change: Callable[[bytes], bytes]) -> bytes:
    """Return a file of 500 rows in groups of 100 with a changed footer."""
    sink = io.BytesIO()
    pq.write_table(pa.table({"x": list(range(500))}), sink, row_group_size=100)
    data = sink.getvalue()
    begin = len(data) - 8 - int.from_bytes(data[-8:-4], "little")
    footer = change(data[begin:-8])
    return data[:begin] + footer + struct.pack("<I", len(footer)) + b"PAR1"


@pytest.mark.parametrize(
    ("change", "part", "problem"),
    [
        # Field 3, the number of all rows: 501 in place of 500.
        (
            lambda footer: footer.replace(b"\x16\xe8\x07", b"\x16\xea\x07", 1),
            "footer",
            "its row groups have 500 rows, but its footer says 501",
        ),
        # One more field, a map, of which Parquet has none.
        (lambda footer: footer[:-1] + b"\xfb\0\0", "schema", "its footer has a field of the unknown kind 11"),
    ],
)
def test_a_damaged_footer_of_parquet_is_named(
    tmp_path: Path, change: Callable[[bytes], bytes], part: str, problem: str
) -> None:
    (tmp_path / "a.parquet").write_bytes(parquet(change))
    with pytest.raises(CorruptFileError, match=rf"a\.parquet \({part}\).*{problem}"):
        open_at(tmp_path)


def test_a_row_group_that_lies_outside_of_its_file_is_named_when_it_is_read(tmp_path: Path) -> None:
    # The place of the first page is 4, written as 8.
    data = parquet(lambda footer: footer.replace(b"\x26\x08", b"\x26\xfe\xff\x7f", 1))
    (tmp_path / "a.parquet").write_bytes(data)
    rows = open_at(tmp_path)
    assert rows.read(100, 500)["x"].tolist() == list(range(100, 500))
    with pytest.raises(CorruptFileError, match=r"a\.parquet \(row group 0, byte 1048575\)"):
        rows.read(0, 1)


def test_a_column_whose_statistics_contradict_its_schema_does_not_end_the_process(tmp_path: Path) -> None:
    # The column that may miss values must not any more; Arrow cannot raise what it finds when it looks at that column.
    change = parquet(lambda footer: footer.replace(b"\x25\x02\x18\x01x", b"\x25\x00\x18\x01x"))
    assert change != parquet(lambda footer: footer)
    (tmp_path / "a.parquet").write_bytes(change)
    rows = open_at(tmp_path)
    with pytest.raises(CorruptFileError, match=r"a\.parquet \(row group 2, byte \d+\).*histogram size mismatch"):
        rows.read(200, 300)


class FailingOnce(io.BytesIO):
    """A file on a disk that fails once, when a test says so."""

    is_failing = False

    def read(self, size: int | None = -1) -> bytes:
        if self.is_failing:
            self.is_failing = False
            raise OSError("the disk is away")
        return super().read(size)


def test_row_groups_that_fail_only_together_are_named_together(tmp_path: Path) -> None:
    (tmp_path / "a.parquet").write_bytes(parquet(lambda footer: footer))
    disk = FailingOnce((tmp_path / "a.parquet").read_bytes())

    class File(LocalFile):
        def native(self) -> pa.NativeFile:
            return pa.PythonFile(disk, mode="r")

    file = File(str(tmp_path / "a.parquet"))
    meta, schema = Parquet().scan(file)
    reader = Parquet().open(file, meta, schema)
    disk.is_failing = True
    with pytest.raises(CorruptFileError, match=r"a\.parquet \(row groups 1 to 2\).*the disk is away"):
        reader.read(100, 300, ["x"])
    assert reader.read(100, 300, ["x"])["x"].tolist() == list(range(100, 300))


def test_a_parquet_file_without_columns_has_no_rows(tmp_path: Path) -> None:
    pq.write_table(pa.table({"x": [1, 2]}).select([]), tmp_path / "a.parquet")
    pq.write_table(pa.table({"x": [3, 4]}), tmp_path / "b.parquet")
    assert open_at(tmp_path).read(0, 2)["x"].tolist() == [3, 4]


def npy(array: Any, *, rows: int | None = None) -> bytes:
    """Return the array as a file, whose header may claim another number of rows."""
    sink = io.BytesIO()
    np.save(sink, array)
    data = sink.getvalue()
    return data if rows is None else data.replace(b"(%d," % len(array), b"(%d," % rows)


def header(descr: str, shape: str = "(3,)") -> bytes:
    text = f"{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}, }}\n".encode("latin-1")
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text


@pytest.mark.parametrize("descr", ["<x9", "i4,,", "(2,", "1)i4", "<M8[xx]", "é"])
def test_a_type_of_numpy_that_is_none_is_a_value_error(descr: str) -> None:
    with pytest.raises(ValueError, match=r"its type .* cannot be read"):
        parse_header(header(descr))


@pytest.mark.parametrize("descr", ["<i4' 'shape': (", "<i4', 'shape"])
def test_a_header_of_numpy_that_is_no_header_is_a_value_error(descr: str) -> None:
    with pytest.raises(ValueError, match="its header cannot be read: "):
        parse_header(header(descr))


@pytest.mark.parametrize("shape", ["(-3,)", "(3, -2)"])
def test_a_shape_with_a_size_below_zero_is_named(tmp_path: Path, shape: str) -> None:
    (tmp_path / "a.npy").write_bytes(header("<i4", shape) + bytes(100))
    with pytest.raises(CorruptFileError, match=rf"a\.npy .*its shape {re.escape(shape)} has a size below zero"):
        open_at(tmp_path)


def test_an_array_that_ends_inside_its_data_is_a_value_error() -> None:
    data = npy(np.arange(10))
    assert parse_array(data).tolist() == list(range(10))
    with pytest.raises(ValueError, match="it ends inside its data"):
        parse_array(data[:-1])


def test_arrays_of_an_archive_must_have_as_many_rows(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=np.zeros(3), y=np.zeros(4))
    with pytest.raises(CorruptFileError, match=r"different numbers of rows: \{'x': 3, 'y': 4\}"):
        open_at(tmp_path)


def test_an_array_without_a_dimension_has_no_rows(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.float64(3))
    with pytest.raises(CorruptFileError, match="its array has no dimension, so it has no rows"):
        open_at(tmp_path)


@pytest.mark.parametrize(
    ("content", "damage", "problem"),
    [
        # More than what is read of it for its header, so that the damage is not found then.
        (npy(np.arange(50_000)), b"?", r"x\.npy: "),
        (npy(np.arange(50_000), rows=60_000), b"", r"x\.npy ends inside its data"),
    ],
)
def test_a_damaged_member_of_an_archive_is_named_when_it_is_read(
    tmp_path: Path, content: bytes, damage: bytes, problem: str
) -> None:
    path = tmp_path / "a.npz"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("x.npy", content)
        end = archive.infolist()[0].compress_size
    data = path.read_bytes()
    path.write_bytes(put(data, end - 100, damage))
    rows = open_at(tmp_path)
    with pytest.raises(CorruptFileError, match=rf"a\.npz \(byte 0\).*{problem}"):
        rows.read(0, 1)


def test_a_member_that_cannot_be_inflated_is_named_when_it_is_indexed(tmp_path: Path) -> None:
    np.savez_compressed(tmp_path / "a.npz", x=np.arange(3))
    data = (tmp_path / "a.npz").read_bytes()
    begin = data.index(b"x.npy") + 5 + int.from_bytes(data[28:30], "little")
    # A block of a kind that deflate does not have.
    (tmp_path / "a.npz").write_bytes(put(data, begin, b"\xff"))
    with pytest.raises(CorruptFileError, match=r"a\.npz \(byte 0\).*x\.npy: .*invalid block type"):
        open_at(tmp_path)


def test_a_member_that_lies_outside_of_its_archive_is_named(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=np.arange(3))
    data = (tmp_path / "a.npz").read_bytes()
    directory = data.rindex(b"PK\x01\x02")
    (tmp_path / "a.npz").write_bytes(put(data, directory + 42, struct.pack("<I", len(data))))
    with pytest.raises(CorruptFileError, match=r"x\.npy lies outside of it"):
        open_at(tmp_path)


@pytest.mark.parametrize(
    ("name", "before", "after"),
    [("a.csv", "a,b\n1,2\n3,4\n", "a,b\n1,22222\n"), ("a.jsonl", '{"a": 1}\n{"a": 2}\n', '{"a": 1111111111}\n')],
)
def test_lines_that_changed_unnoticed_since_the_index_are_named(
    tmp_path: Path, name: str, before: str, after: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / name
    path.write_text(before)
    rows = open_at(tmp_path)
    path.write_text(after)
    monkeypatch.setattr(random_access, "version_of", lambda _: rows.index.files[0].version)
    problem = r"\(record 0, byte \d\).*2 records were here when it was indexed, and 1 are now"
    with pytest.raises(CorruptFileError, match=problem):
        rows.read(0, 2)


@pytest.mark.parametrize("ending", ["csv", "jsonl"])
def test_what_has_no_lines_is_not_read_into_memory_to_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ending: str
) -> None:
    monkeypatch.setattr(lines, "MAX_LINE_BYTES", 100)
    (tmp_path / f"a.{ending}").write_bytes(b"x" * 101)
    with pytest.raises(CorruptFileError, match=r"\(byte 0\).*101 bytes follow without the end of a line"):
        open_at(tmp_path)
