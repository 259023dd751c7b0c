"""Files that other programs write: each is read as that program reads it."""

from __future__ import annotations

import io
import subprocess
import sys
import tarfile
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from strata.data import open_dataset
from strata.data.formats.records import example
from strata.data.rows.row_sequence import open_rows
from strata.errors import CorruptFileError, DataError
from tests.testbed.data.tfrecords import record

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("compression", ["uncompressed", "zstd", "lz4"])
def test_files_of_polars_are_read_as_polars_reads_them(tmp_path: Path, compression: str) -> None:
    import polars

    frame = polars.DataFrame(
        {
            "n": [1, None, 2**60 + 5] * 50,
            "s": ["a", None, "c"] * 50,
            "c": polars.Series(["x", "y", "x"] * 50).cast(polars.Categorical),
            "l": [[1, 2], [], None] * 50,
            "texts": [["a", None], [], None] * 50,
            "kinds": polars.Series([["x"], [], None] * 50, dtype=polars.List(polars.Categorical)),
            "pairs": polars.Series([["a", "b"], None, ["c", "d"]] * 50, dtype=polars.Array(polars.String, 2)),
            "record": [{"a": "x", "b": ["q"]}, None, {"a": None, "b": None}] * 50,
        }
    )
    frame.write_ipc(tmp_path / "a.arrow", compression=compression, record_batch_size=40)
    rows = open_rows(tmp_path, nulls="arrow", cache=tmp_path / "cache")
    assert rows.read(0, 150)["n"].to_pylist() == frame["n"].to_list()
    for name in ("s", "c", "l", "texts", "kinds", "pairs", "record"):
        assert rows.read(30, 120)[name].to_pylist() == frame[name].to_list()[30:120]
    (batch,) = open_dataset(tmp_path, batch_size=150, shuffle=False, cache=tmp_path / "cache")
    assert [row if row is None else row.tolist() for row in batch["texts"]] == frame["texts"].to_list()
    assert rows.block_rows is not None


def test_arrays_of_hugging_face_datasets_are_arrays(tmp_path: Path) -> None:
    import datasets

    datasets.disable_progress_bars()
    x = np.arange(60, dtype=np.float32).reshape(10, 2, 3)
    features = datasets.Features({"x": datasets.Array2D((2, 3), "float32"), "y": datasets.Value("int64")})
    made = datasets.Dataset.from_dict({"x": x, "y": [None, *range(9)]}, features=features)
    made.save_to_disk(tmp_path / "arrow")
    made.to_parquet(tmp_path / "parquet" / "a.parquet")
    for folder in ("arrow", "parquet"):
        found = open_rows(tmp_path / folder, cache=tmp_path / "cache").read(2, 8).to_numpy()
        assert found["x"].dtype == np.float32
        assert np.array_equal(found["x"], x[2:8])
        assert found["y"].tolist() == list(range(1, 7))


def test_steps_of_a_sequence_example_are_lists(tmp_path: Path) -> None:
    payloads = []
    for row in range(3):
        made = example._Example()
        made.features.feature["id"].int64_list.value.append(row)
        for step in range(row):
            feature = made.feature_lists.feature_list["steps"].feature.add()
            feature.int64_list.value.extend([row, step])
        made.feature_lists.feature_list["words"].feature.add().bytes_list.value.append(b"w")
        payloads.append(made.SerializeToString())
    (tmp_path / "a.tfrecord").write_bytes(b"".join(map(record, payloads)))
    rows = open_rows(tmp_path, cache=tmp_path / "cache")
    assert rows.names == ("id", "steps", "words")
    found = rows.read(0, 3)
    assert found["id"].tolist() == [0, 1, 2]
    assert found["steps"].to_pylist() == [None, [[1, 0]], [[2, 0], [2, 1]]]
    assert found["words"].to_pylist() == [[[b"w"]]] * 3


def test_links_in_a_tar_are_passed_over(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "a.tar", "w") as archive:
        for row in range(3):
            info = tarfile.TarInfo(f"{row}.txt")
            info.size = 5
            archive.addfile(info, io.BytesIO(b"text%d" % row))
            for kind, name in ((tarfile.LNKTYPE, "hard"), (tarfile.SYMTYPE, "soft"), (tarfile.DIRTYPE, "folder")):
                link = tarfile.TarInfo(f"{name}{row}.txt")
                link.type, link.linkname = kind, f"{row}.txt"
                # Some writers give a hard link the size of what it leads to.
                link.size = 1000 if kind == tarfile.LNKTYPE else 0
                archive.addfile(link)
    rows = open_rows(tmp_path, cache=tmp_path / "cache")
    assert rows.read(0, rows.num_rows)["txt"].to_pylist() == ["text0", "text1", "text2"]


@pytest.mark.parametrize(
    "options", ["--format=gnu", *(f"--format=posix --sparse-version={v}" for v in ("0.0", "0.1", "1.0"))]
)
def test_holes_of_sparse_files_in_a_tar_are_zeros(tmp_path: Path, options: str) -> None:
    folder = tmp_path / "files"
    folder.mkdir()
    with (folder / "0.bin").open("wb") as file:
        # More pieces than the list of holes in a header has places.
        for place in range(40):
            file.seek(place << 16)
            file.write(b"x" * (place + 1))
        file.truncate(3 << 20)
    (folder / "0.txt").write_text("zero")
    (folder / "1.txt").write_text("one")
    command = ["tar", "--sparse", *options.split(), "-cf", str(tmp_path / "a.tar"), "-C", str(folder)]
    subprocess.run([*command, "0.bin", "0.txt", "1.txt"], check=True)
    assert (tmp_path / "a.tar").stat().st_size < 1 << 20
    (batch,) = open_dataset(tmp_path / "a.tar", batch_size=2, shuffle=False, cache=tmp_path / "cache")
    assert batch["bin"].tolist() == [(folder / "0.bin").read_bytes(), None]
    assert batch["txt"].tolist() == ["zero", "one"]


@pytest.mark.parametrize(
    ("texts", "values"),
    [
        (['{"id": 9223372036854775809}', '{"id": 2}'], ['{"id": 9223372036854775809}', '{"id": 2}']),
        (["9223372036854775809", "2"], [9223372036854775809, 2]),
        (["-9223372036854775809", "5", "null"], ["-9223372036854775809", "5", None]),
        (['\ufeff{"a":\r\n1}', '{"a": 2}'], [{"a": 1}, {"a": 2}]),
    ],
)
@pytest.mark.parametrize("filler", [0, 2 << 20])
def test_numbers_of_json_in_a_tar_are_never_rounded(
    tmp_path: Path, texts: list[str], values: list[object], filler: int
) -> None:
    # With the filler, each sample is a block of its own.
    with tarfile.open(tmp_path / "a.tar", "w") as tar:
        for number, text in enumerate(texts):
            for ending, data in (("json", text.encode()), ("bin", bytes(filler))):
                member = tarfile.TarInfo(f"{number}.{ending}")
                member.size = len(data)
                tar.addfile(member, io.BytesIO(data))
    (batch,) = open_dataset(tmp_path, batch_size=len(texts), columns=["json"], shuffle=False, cache=tmp_path / "cache")
    assert list(batch["json"]) == values


def test_a_member_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    cases = {
        "json": ([b'{"a": 1}', b'{"a": "x"}'], "member 1.json cannot be decoded: .* changed from number to string"),
        "cls": ([b"1", b"9223372036854775808"], "member 1.cls cannot be decoded: .* does not fit into int64"),
    }
    for ending, (contents, problem) in cases.items():
        with tarfile.open(tmp_path / f"{ending}.tar", "w") as tar:
            for number, data in enumerate(contents):
                member = tarfile.TarInfo(f"{number}.{ending}")
                member.size = len(data)
                tar.addfile(member, io.BytesIO(data))
        with pytest.raises(CorruptFileError, match=f"sample 1, .*{problem}"):
            list(open_dataset(tmp_path / f"{ending}.tar", batch_size=2, cache=tmp_path / "cache"))


def test_a_tar_with_many_members_a_sample_is_one_batch(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "a.tar", "w") as archive:
        for row in range(8):
            for ending in ("img.a", "img.b", "cls", "json", "txt"):
                content = {"cls": b"%d" % row, "json": b'{"n": %d}' % row}.get(ending, f"{ending}{row}".encode())
                info = tarfile.TarInfo(f"{row:03}.{ending}")
                info.size = len(content)
                archive.addfile(info, io.BytesIO(content))
    (batch,) = open_dataset(tmp_path, batch_size=8, shuffle=False, cache=tmp_path / "cache")
    assert batch["cls"].tolist() == list(range(8))
    assert batch["img.b"].tolist() == [b"img.b%d" % row for row in range(8)]
    assert batch["txt"].tolist() == [f"txt{row}" for row in range(8)]
    assert batch["json"].tolist() == [{"n": row} for row in range(8)]


def test_text_that_was_cut_off_is_noticed_where_it_can_be(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text('a,b\n1,"x"\n2,"y and')
    with pytest.raises(CorruptFileError, match="ends inside a quoted value, so it was cut off"):
        open_rows(tmp_path, cache=tmp_path / "cache")
    (tmp_path / "a.csv").write_text("a,b\n1,x\n2")
    with pytest.raises(CorruptFileError, match="Expected 2 columns, got 1"):
        open_rows(tmp_path, cache=tmp_path / "cache")
    (tmp_path / "a.csv").unlink()
    (tmp_path / "a.jsonl").write_text('{"a": 1}\n{"a": 2, "b')
    with pytest.raises(CorruptFileError, match="ends inside this record, so it was cut off"):
        open_rows(tmp_path, cache=tmp_path / "cache")


def test_quotes_of_csv_may_be_plain_characters(tmp_path: Path) -> None:
    texts = ['5" disk', '"', 'say "hi', "plain"] * 50_000
    (tmp_path / "a.tsv").write_text('n\t"text\n' + "".join(f"{n}\t{text}\n" for n, text in enumerate(texts)))
    rows = open_rows(tmp_path, options={"quotes": False}, cache=tmp_path / "cache")
    assert rows.names == ("n", '"text')
    assert rows.read(0, rows.num_rows)['"text'].to_pylist() == texts


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_csv_may_end_its_lines_as_it_likes_and_begin_with_empty_ones(tmp_path: Path, end: str) -> None:
    lines = ["", "", "n,text", *(f'{n},"{"x" * 20}{end}{n}"' for n in range(40_000)), ""]
    (tmp_path / "a.csv").write_bytes(end.join(lines).encode())
    rows = open_rows(tmp_path, cache=tmp_path / "cache")
    assert rows.num_rows == 40_000
    found = rows.read(39_000, 40_000)
    assert found["n"].tolist() == list(range(39_000, 40_000))
    assert found["text"].to_pylist()[-1] == f"{'x' * 20}{end}39999"


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"delimiter": "\n"}, "delimiter='\\\\n' must be one character of ASCII"),
        ({"delimiter": 5}, "delimiter=5 must be one character of ASCII"),
        ({"encoding": 5}, "encoding is 5"),
        ({"types": "a"}, "types is 'a'; use a dict"),
        ({"types": {"a": 5}}, "column 'a' cannot have the type 5"),
        ({"types": {"b": "string"}}, "types has the column 'b', which .*a.csv has not; its columns are a"),
    ],
)
def test_wrong_options_of_csv_are_named(tmp_path: Path, options: dict[str, object], problem: str) -> None:
    (tmp_path / "a.csv").write_text("a\n1\n")
    with pytest.raises((TypeError, ValueError), match=problem):
        open_rows(tmp_path, options=options, cache=tmp_path / "cache")


# Since Python 3.14 such a record can be looked into, and what is wrong with it is said.
TOO_DEEP = "changed from string to array" if sys.version_info >= (3, 14) else "nested too deeply"


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ('{"a": "\\ud800"}', "surrogate pair in string is invalid.*half of a surrogate pair is no text"),
        ('{"a": "x", "a": "y"}', "specified twice; write each key of an object once"),
        ('{"a": 1e400}', "Number too big"),
        ('{"a": 5}', r"changed from string to number; .* types=\{'a': 'string'\}"),
        ('{"a": ' + "[" * 20_000 + "]" * 20_000 + "}", TOO_DEEP),
    ],
)
def test_a_record_of_json_lines_that_cannot_be_read_is_named(tmp_path: Path, line: str, problem: str) -> None:
    (tmp_path / "a.jsonl").write_text('{"a": "x", "b": 1}\n\n{"a": "y", "b": 2}\n' + line + '\n{"a": "z"}\n')
    with pytest.raises(CorruptFileError, match=rf"a.jsonl \(record 2.*{problem}"):
        open_rows(tmp_path, cache=tmp_path / "cache")
    if "surrogate" in problem:
        # Lines are read in another way where a column is asked for as text.
        with pytest.raises(CorruptFileError, match=rf"a.jsonl \(record 2.*{problem}"):
            open_rows(tmp_path, options={"types": {"b": "string"}}, cache=tmp_path / "cache")


def test_json_need_not_keep_to_its_lines(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"a":\r18446744073709551615} {"a": 2}\n{\n "a": 3\n}\n')
    assert open_rows(tmp_path, cache=tmp_path / "cache").read(0, 3)["a"].tolist() == [2**64 - 1, 2, 3]
    text = open_rows(tmp_path, options={"types": {"a": "string"}}, cache=tmp_path / "cache").read(0, 3)["a"]
    assert text.to_pylist() == ["18446744073709551615", "2", "3"]


def test_arrays_that_arrow_has_no_type_for_are_read_or_named(tmp_path: Path) -> None:
    np.save(tmp_path / "long.npy", np.arange(3, dtype=np.longdouble))
    (batch,) = open_dataset(tmp_path / "long.npy", batch_size=3, shuffle=False, cache=tmp_path / "cache")
    assert batch["data"].dtype == np.longdouble
    assert batch["data"].tolist() == [0, 1, 2]
    np.save(tmp_path / "deep.npy", np.zeros(2, [("p", [("x", "i4")]), ("q", "i4")]))
    with pytest.raises(CorruptFileError, match="its field 'p' has fields inside"):
        open_rows(tmp_path / "deep.npy", cache=tmp_path / "cache")


@pytest.mark.parametrize("ending", ["arrow", "parquet"])
def test_a_file_with_two_columns_of_one_name_is_named(tmp_path: Path, ending: str) -> None:
    _write(tmp_path / f"a.{ending}", pa.table([[1], [2]], names=["x", "x"]))
    with pytest.raises(CorruptFileError, match=rf"a\.{ending} is .* it has two columns 'x'"):
        open_rows(tmp_path, cache=tmp_path / "cache")


def test_encodings_of_arrow_are_decoded(tmp_path: Path) -> None:

    column = pa.array([1, 1, None, 2] * 10)
    table = pa.table({"ree": pa.compute.run_end_encode(column), "view": pa.array(["a", None] * 20, pa.string_view())})
    with pa.ipc.new_file(tmp_path / "a.arrow", table.schema) as writer:
        writer.write_table(table)
    rows = open_rows(tmp_path, nulls="arrow", cache=tmp_path / "cache")
    assert rows.read(0, 40)["ree"].to_pylist() == column.to_pylist()
    assert rows.read(0, 40)["view"].to_pylist() == ["a", None] * 20


@pytest.mark.parametrize("ending", ["arrow", "parquet"])
def test_types_that_arrow_defines_by_name_are_read(tmp_path: Path, ending: str) -> None:
    stored = pa.array([[1, 2, 3, 4, 5, 6], None, [7, 8, None, 10, 11, 12]], pa.list_(pa.int32(), 6))
    turned = pa.fixed_shape_tensor(pa.int32(), (2, 3), permutation=(1, 0))
    table = pa.table(
        {
            "whole": pa.FixedShapeTensorArray.from_numpy_ndarray(np.arange(12).reshape(3, 2, 2)),
            "turned": pa.FixedShapeTensorArray.from_storage(turned, stored),
            "uuid": pa.array([b"0" * 16, b"1" * 16, b"2" * 16], pa.uuid()),
            "json": pa.ExtensionArray.from_storage(pa.json_(), pa.array(['{"a":1}', None, "2"])),
            "views": pa.array([[1], None, [2, 3]], pa.list_view(pa.int32())),
            "blobs": pa.array([b"a", None, b"\xff"], pa.binary_view()),
        }
    )
    _write(tmp_path / f"a.{ending}", table)
    (batch,) = open_dataset(tmp_path, batch_size=3, shuffle=False, cache=tmp_path / "cache")
    assert batch["whole"].tolist() == np.arange(12).reshape(3, 2, 2).tolist()
    assert batch["turned"][0].tolist() == [[1, 4], [2, 5], [3, 6]]
    assert batch["turned"][2].tolist() == [[7, 10], [8, 11], [0, 12]]
    assert batch["turned.is_null"].any(axis=(1, 2)).tolist() == [False, True, True]
    assert [row.tobytes() for row in batch["uuid"]] == [b"0" * 16, b"1" * 16, b"2" * 16]
    assert batch["json"].tolist() == ['{"a":1}', None, "2"]
    assert [row if row is None else row.tolist() for row in batch["views"]] == [[1], None, [2, 3]]
    assert batch["blobs"].tolist() == [b"a", None, b"\xff"]


def test_a_time_of_day_that_python_cannot_hold_is_named(tmp_path: Path) -> None:
    _write(tmp_path / "a.parquet", pa.table({"t": pa.array([1000, 2001], pa.time64("ns")), "n": [1, 2]}))
    with pytest.raises(DataError, match=r"a\.parquet, row 1: column 't' has nanoseconds here"):
        list(open_dataset(tmp_path, batch_size=2, cache=tmp_path / "cache"))
    (batch,) = open_dataset(tmp_path, batch_size=2, columns=["n"], shuffle=False, cache=tmp_path / "cache")
    assert batch["n"].tolist() == [1, 2]


def _write(path: Path, table: pa.Table) -> None:
    if path.suffix == ".parquet":
        return pq.write_table(table, path)
    with pa.ipc.new_file(path, table.schema) as writer:
        writer.write_table(table)
    return None


def test_records_longer_than_what_is_parsed_at_once_are_whole(tmp_path: Path) -> None:
    texts = ["x" * size for size in (10, 3 << 18, 5, 1 << 18, 1)] * 4
    (tmp_path / "a.csv").write_text("n,t\n" + "".join(f'{n},"{text}\n"\n' for n, text in enumerate(texts)))
    rows = open_rows(tmp_path, cache=tmp_path / "cache")
    assert rows.read(0, len(texts))["t"].to_pylist() == [f"{text}\n" for text in texts]
    (tmp_path / "a.csv").unlink()
    texts = [text * 3 for text in texts]
    (tmp_path / "a.jsonl").write_text("".join(f'{{"t": "{text}"}}\n' for text in texts))
    rows = open_rows(tmp_path, cache=tmp_path / "cache")
    assert rows.read(0, len(texts))["t"].to_pylist() == texts
