"""Every format gives back what was written: any range of rows is that slice of the whole, whatever the blocks."""

from __future__ import annotations

import csv
import gzip
import io
import json
import tarfile
from itertools import chain, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from strata.data.formats.text import lines
from strata.data.rows.row_sequence import DatasetRows, open_rows
from strata.errors import CorruptFileError, SchemaMismatchError, StrataError
from tests.testbed.data.tfrecords import tfrecords

if TYPE_CHECKING:
    from collections.abc import Sequence

    from strata.data.rows.columns import Columns

# Each example works in the same folder, over the files of the one before.
examples = settings(
    max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow], deadline=None
)

TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0\r"), max_size=12)
ROW = st.fixed_dictionaries(
    {
        "number": st.integers(-(2**63), 2**63 - 1),
        "score": st.floats(allow_nan=False, allow_infinity=False),
        "text": TEXT,
        "raw": st.binary(max_size=9),
        "words": st.lists(TEXT, max_size=3),
        "pair": st.lists(st.integers(0, 255), min_size=2, max_size=2),
    }
)
# Several files of a few rows each.
FILES = st.lists(st.lists(ROW, min_size=1, max_size=12), min_size=1, max_size=3)
SCHEMA = pa.schema(
    {
        "number": pa.int64(),
        "score": pa.float64(),
        "text": pa.string(),
        "raw": pa.binary(),
        "words": pa.list_(pa.string()),
        "pair": pa.list_(pa.uint8(), 2),
    }
)
PLAIN = ("number", "score", "text")


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines, "BLOCK_BYTES", 64)


def clear(folder: Path) -> Path:
    for each in folder.glob("*"):
        if each.is_file():
            each.unlink()
    return folder


def as_rows(columns: Columns) -> list[dict[str, Any]]:
    lists = {name: columns[name].tolist() for name in columns.names}
    return [dict(zip(lists, values, strict=True)) for values in zip(*lists.values(), strict=True)]


def open_at(folder: Path, **arguments: Any) -> DatasetRows:
    return open_rows(folder, cache=folder / "_cache", **arguments)


def check_ranges(rows: DatasetRows, expected: Sequence[dict[str, Any]], data: st.DataObject) -> None:
    assert rows.num_rows == len(expected)
    assert as_rows(rows.read(0, rows.num_rows)) == list(expected)
    for _ in range(4):
        start = data.draw(st.integers(0, rows.num_rows), label="start")
        stop = data.draw(st.integers(start, rows.num_rows), label="stop")
        assert as_rows(rows.read(start, stop)) == list(expected[start:stop])
    name = rows.names[-1]
    assert rows.read(0, rows.num_rows, [name])[name].tolist() == [row[name] for row in expected]


@examples
@given(files=FILES, data=st.data())
def test_parquet(tmp_path: Path, files: list[list[dict[str, Any]]], data: st.DataObject) -> None:
    folder = clear(tmp_path)
    for number, rows in enumerate(files):
        table = pa.Table.from_pylist(rows, SCHEMA)
        pq.write_table(table, folder / f"{number}.parquet", row_group_size=data.draw(st.integers(1, 5)))
    check_ranges(open_at(folder), list(chain(*files)), data)


@examples
@given(files=FILES, data=st.data(), compression=st.sampled_from([None, "zstd", "lz4"]), is_stream=st.booleans())
def test_arrow(
    tmp_path: Path, files: list[list[dict[str, Any]]], data: st.DataObject, compression: str | None, is_stream: bool
) -> None:
    folder = clear(tmp_path)
    options = pa.ipc.IpcWriteOptions(compression=compression)
    for number, rows in enumerate(files):
        table = pa.Table.from_pylist(rows, SCHEMA)
        # A dictionary of its own in each file, and in a stream also from batch to batch.
        table = table.set_column(2, "text", table["text"].dictionary_encode())
        write = pa.ipc.new_stream if is_stream else pa.ipc.new_file
        with (folder / f"{number}.arrow").open("wb") as sink, write(sink, table.schema, options=options) as writer:
            writer.write_table(table, max_chunksize=data.draw(st.integers(1, 5)))
    check_ranges(open_at(folder), list(chain(*files)), data)


@examples
@given(files=FILES, data=st.data(), is_ascii=st.booleans(), last=st.sampled_from(["", "\n", "\n\n"]))
def test_json_lines(
    tmp_path: Path, files: list[list[dict[str, Any]]], data: st.DataObject, is_ascii: bool, last: str
) -> None:
    folder = clear(tmp_path)
    plain = [[{name: row[name] for name in (*PLAIN, "words")} for row in rows] for rows in files]
    for number, rows in enumerate(plain):
        text = "\n".join(json.dumps(row, ensure_ascii=is_ascii) for row in rows) + last
        (folder / f"{number}.jsonl").write_text(text)
    # Where all lists are empty, there is nothing to tell their type.
    opened = open_at(folder, options={"types": {"score": "double"}})
    check_ranges(opened, list(chain(*plain)), data)


@examples
@given(files=FILES, data=st.data(), delimiter=st.sampled_from([",", ";", "\t"]))
def test_csv(tmp_path: Path, files: list[list[dict[str, Any]]], data: st.DataObject, delimiter: str) -> None:
    folder = clear(tmp_path)
    plain = [[{name: row[name] for name in PLAIN} for row in rows] for rows in files]
    for number, rows in enumerate(plain):
        text = io.StringIO(newline="")
        writer = csv.DictWriter(text, PLAIN, delimiter=delimiter)
        writer.writeheader()
        writer.writerows(rows)
        (folder / f"{number}.csv").write_text(text.getvalue(), newline="")
    types = {"score": "double", "text": "string"}
    check_ranges(open_at(folder, options={"delimiter": delimiter, "types": types}), list(chain(*plain)), data)


@examples
@given(
    shape=st.lists(st.integers(1, 3), max_size=2),
    counts=st.lists(st.integers(1, 9), min_size=1, max_size=3),
    dtype=st.sampled_from(["<i4", ">f8", "u1", "c8", "?", "S3", "<M8[ns]"]),
    order=st.sampled_from("CF"),
    data=st.data(),
)
def test_npy(tmp_path: Path, shape: list[int], counts: list[int], dtype: str, order: Any, data: st.DataObject) -> None:
    folder = clear(tmp_path)
    whole = np.random.default_rng(0).integers(0, 99, (sum(counts), *shape)).astype(np.int32).astype(dtype)
    for number, part in enumerate(np.split(whole, np.cumsum(counts)[:-1])):
        np.save(folder / f"{number}.npy", np.asarray(part, order=order))
    check_ranges(open_at(folder), [{"data": value} for value in whole.tolist()], data)


@examples
@given(counts=st.lists(st.integers(1, 9), min_size=1, max_size=3), is_packed=st.booleans(), data=st.data())
def test_npz(tmp_path: Path, counts: list[int], is_packed: bool, data: st.DataObject) -> None:
    folder = clear(tmp_path)
    total = sum(counts)
    arrays = {"x": np.arange(total, dtype=np.float32), "y": np.arange(2 * total).reshape(total, 2)}
    save = np.savez_compressed if is_packed else np.savez
    edges = np.cumsum([0, *counts])
    for number, (start, stop) in enumerate(pairwise(edges)):
        save(folder / f"{number}.npz", **{name: array[start:stop] for name, array in arrays.items()})
    expected = [{"x": float(row), "y": [2 * row, 2 * row + 1]} for row in range(total)]
    check_ranges(open_at(folder), expected, data)


def test_a_structured_array_gives_a_column_per_field(tmp_path: Path) -> None:
    array = np.array([(1, (2.0, 3.0)), (4, (5.0, 6.0))], dtype=[("id", "<u2"), ("at", "<f4", 2)])
    np.save(tmp_path / "a.npy", array)
    assert as_rows(open_at(tmp_path).read(0, 2)) == [{"id": 1, "at": [2.0, 3.0]}, {"id": 4, "at": [5.0, 6.0]}]


@examples
@given(
    counts=st.lists(st.integers(0, 40), min_size=1, max_size=3),
    length=st.integers(1, 7),
    extra=st.integers(0, 2),
    header=st.sampled_from([0, 16]),
    dtype=st.sampled_from(["uint16", "int32"]),
    data=st.data(),
)
def test_tokens(
    tmp_path: Path, counts: list[int], length: int, extra: int, header: int, dtype: str, data: st.DataObject
) -> None:
    folder = clear(tmp_path)
    expected = []
    for number, count in enumerate(counts):
        tokens = np.arange(count, dtype=dtype) + 100 * number
        (folder / f"{number}.{dtype}.bin").write_bytes(bytes(header) + tokens.tobytes())
        starts = range(0, count - length - extra + 1, length)
        expected += [{"tokens": tokens[start : start + length + extra].tolist()} for start in starts]
    options = {"sequence_length": length, "extra_tokens": extra, "header_bytes": header}
    check_ranges(open_at(folder, options=options), expected, data)


def test_types_of_text_hold_all_rows_of_all_files(tmp_path: Path) -> None:
    many = "".join(f"{number},2020-01-01,\n" for number in range(50))
    (tmp_path / "a.csv").write_text(f"x,when,empty\n{many}0.5,2020-01-01,\n")
    (tmp_path / "b.csv").write_text("x,when,empty\n7,soon,late\n")
    rows = open_at(tmp_path)
    assert rows.schema.types == [pa.float64(), pa.string(), pa.string()]
    assert as_rows(rows.read(50, 52)) == [
        {"x": 0.5, "when": "2020-01-01", "empty": ""},
        {"x": 7.0, "when": "soon", "empty": "late"},
    ]


def test_json_keys_may_be_missing_and_strings_stay_strings(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"a": 1, "t": "2020-01-01T00:00:00"}\n' * 30 + '{"a": 1.5, "b": {"c": [1]}}\n')
    (tmp_path / "b.jsonl").write_text('{"b": {"d": "x"}}\n')
    rows = open_at(tmp_path)
    assert rows.read(29, 32).to_numpy()["t"].tolist() == ["2020-01-01T00:00:00", None, None]
    assert rows.read(30, 32)["b"].to_pylist() == [{"c": [1], "d": None}, {"c": None, "d": "x"}]
    assert rows.read(30, 31)["a"].tolist() == [1.5]


def test_a_column_whose_types_do_not_fit_names_both_files(tmp_path: Path) -> None:
    pq.write_table(pa.table({"x": [1]}), tmp_path / "a.parquet")
    pq.write_table(pa.table({"x": ["one"]}), tmp_path / "b.parquet")
    with pytest.raises(SchemaMismatchError, match=r"a\.parquet and .*b\.parquet.*'x' is int64 .* and string"):
        open_at(tmp_path)
    pq.write_table(pa.table({"y": [1]}), tmp_path / "b.parquet")
    with pytest.raises(SchemaMismatchError, match="column 'x' is only in the first"):
        open_at(tmp_path)


GOOD = {
    "parquet": lambda path: pq.write_table(pa.table({"x": list(range(500))}), path, row_group_size=100),
    "feather": lambda path: write_arrow(path),
    "csv": lambda path: path.write_text("x,y\n" + "1,2\n" * 100),
    "jsonl": lambda path: path.write_text('{"x": 1, "y": "abc"}\n' * 100),
    "npy": lambda path: np.save(path, np.arange(500)),
    "npz": lambda path: np.savez_compressed(path, x=np.arange(500)),
    "uint32.bin": lambda path: path.write_bytes(bytes(4 * 2048)),
}


def write_arrow(path: Path) -> None:
    table = pa.table({"x": list(range(500))})
    with path.open("wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table, max_chunksize=100)


@pytest.mark.parametrize("ending", GOOD)
def test_a_truncated_file_names_itself_and_never_gives_wrong_rows(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"a.{ending}"
    GOOD[ending](path)
    good = as_rows(open_at(tmp_path).read(0, open_at(tmp_path).num_rows))
    content = path.read_bytes()
    refused = 0
    for size in {0, 1, 7, 100, len(content) // 2 + 1, len(content) - 3, len(content) - 1}:
        path.write_bytes(content[:size])
        try:
            rows = open_at(tmp_path)
            found = as_rows(rows.read(0, rows.num_rows))
        except CorruptFileError as error:
            assert str(path) in str(error)
            assert error.hint
            refused += 1
        else:
            # Records without a header end at any whole one, and nothing can tell.
            assert ending in ("csv", "jsonl", "uint32.bin")
            assert found[:-1] == good[: max(0, len(found) - 1)]
    assert refused


@pytest.mark.parametrize("ending", [ending for ending in GOOD if ending != "uint32.bin"])
def test_a_foreign_file_names_itself(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"a.{ending}"
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(range(256)) * 7 + b"\n\xff\xfe\0")
    with pytest.raises(CorruptFileError, match=f"a.{ending}"):
        open_at(tmp_path)


def test_a_damaged_row_group_is_named_and_the_others_are_read(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    table = pa.table({"x": np.random.default_rng(0).integers(0, 99, 5000)})
    pq.write_table(table, path, row_group_size=1000, write_page_checksum=True, use_dictionary=False)
    content = bytearray(path.read_bytes())
    offset = pq.read_metadata(path).row_group(3).column(0).data_page_offset
    content[offset + 500] ^= 0xFF
    path.write_bytes(content)
    rows = open_at(tmp_path, options={"verify": True})
    with pytest.raises(CorruptFileError, match=f"row group 3, byte {offset}"):
        rows.read(0, 5000)
    with pytest.raises(CorruptFileError, match="row group 3"):
        rows.read(3500, 3501)
    assert rows.read(0, 3000)["x"].tolist() == table["x"].to_pylist()[:3000]
    assert rows.read(4000, 5000)["x"].tolist() == table["x"].to_pylist()[4000:]


def test_a_bad_line_is_named_by_record_and_byte(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"x": 1}\n' * 40 + '{"x": \n' + '{"x": 1}\n' * 5)
    with pytest.raises(CorruptFileError, match=r"record 40, byte 360"):
        open_at(tmp_path)
    (tmp_path / "a.jsonl").unlink()
    (tmp_path / "b.csv").write_text("x,y\n" + "1,2\n" * 40 + "1,2,3\n")
    with pytest.raises(CorruptFileError, match=r"record 40, .*Expected 2 columns, got 3"):
        open_at(tmp_path)


@pytest.mark.parametrize(
    ("name", "options", "problem"),
    [
        ("a.uint16.bin", {"sequence_lenght": 3}, "has no option 'sequence_lenght'; it has dtype, sequence_length"),
        ("a.uint16.bin", {"sequence_length": 0}, "must be 1 or more"),
        ("a.bin", {"dtype": "float64"}, "is no type of tokens"),
        ("a.csv", {"delimiter": ",,"}, "must be one character"),
        ("a.csv", {"types": {"x": "numbers"}}, "use one such as string"),
        ("a.bin", {}, "does not say how wide a token is"),
    ],
)
def test_wrong_options_say_what_is_right(tmp_path: Path, name: str, options: dict[str, Any], problem: str) -> None:
    (tmp_path / name).write_bytes(b"x,y\n1,2\n")
    with pytest.raises((ValueError, StrataError), match=problem):
        open_at(tmp_path, options=options)


def test_headers_are_read_by_many_threads_at_once(tmp_path: Path) -> None:
    # Python 3.11's own parser fails now and then in such a crowd.
    for number in range(500):
        np.save(tmp_path / f"{number:03}.npy", np.full(3, number))
    for _ in range(3):
        assert open_at(tmp_path).num_rows == 1500


def test_pickles_are_never_loaded(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.array([{"a": 1}], dtype=object), allow_pickle=True)
    with pytest.raises(CorruptFileError, match="pickles and are never loaded"):
        open_at(tmp_path)


def test_bytes_that_are_no_text_are_named(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(b'{"x": "fine"}\n' * 30 + b'{"x": "\xff"}\n')
    with pytest.raises(CorruptFileError, match="record 30, byte 420"):
        open_at(tmp_path)


def good_bytes(ending: str) -> bytes:
    """A good file of each kind."""
    if ending == "tfrecord":
        return tfrecords({"x": [number], "y": [0.5, 1.5], "z": [b"abc"]} for number in range(50))
    if ending == "jsonl.gz":
        return gzip.compress(b'{"x": 1, "y": "abc"}\n' * 100)
    stream = io.BytesIO()
    if ending == "tar":
        with tarfile.open(fileobj=stream, mode="w") as archive:
            for name, content in (("0.txt", b"abc"), ("0.cls", b"7"), ("1.txt", b"def"), ("1.json", b'{"a": [1]}')):
                member = tarfile.TarInfo(name)
                member.size = len(content)
                archive.addfile(member, io.BytesIO(content))
        return stream.getvalue()
    table = pa.table({"x": pa.array(["a", "b", "c"] * 50).dictionary_encode(), "y": [[1, 2], [], None] * 50})
    with pa.ipc.new_stream(stream, table.schema) as writer:
        writer.write_table(table, max_chunksize=40)
    return stream.getvalue()


def damaged(data: st.DataObject, content: bytes) -> bytes:
    """Flip, cut or insert a few bytes, mostly where headers and footers are."""
    changed = bytearray(content)
    for _ in range(data.draw(st.integers(1, 3))):
        place = data.draw(st.integers(0, 300) | st.integers(-300, -1) | st.integers(0, 2**20)) % max(1, len(changed))
        match data.draw(st.sampled_from(["set", "set", "set", "cut", "insert"])):
            case "set" if changed:
                changed[place] = data.draw(st.integers(0, 255))
            case "cut":
                del changed[place:]
            case _:
                changed[place:place] = data.draw(st.binary(min_size=1, max_size=9))
    return bytes(changed)


@pytest.mark.parametrize("ending", [*GOOD, "dictionary.arrows", "tfrecord", "tar", "jsonl.gz"])
@examples
@given(data=st.data())
def test_whatever_happens_to_a_file_only_typed_errors_come_out(
    tmp_path: Path, ending: str, data: st.DataObject
) -> None:
    path = clear(tmp_path) / f"a.{ending}"
    if ending in GOOD:
        GOOD[ending](path)
        good = path.read_bytes()
    else:
        good = good_bytes(ending)
    path.write_bytes(damaged(data, good))
    try:
        rows = open_at(tmp_path)
        columns = rows.read(0, min(rows.num_rows, 10_000))
    except (CorruptFileError, SchemaMismatchError):
        return
    # What was read can be used: nothing in it points outside of it.
    columns.take(np.arange(columns.num_rows)[::-1].copy()).to_numpy()
