"""TFRecord and WebDataset: records and archives give back what was written, and every cut and flipped bit is found."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Callable
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from strata.data.files import random_access
from strata.data.formats.records import tfrecord
from strata.data.formats.tars import webdataset
from strata.data.rows.row_sequence import DatasetRows, open_rows
from strata.errors import CorruptFileError, SchemaMismatchError
from tests.testbed.data.tfrecords import example, record, sequence_example, tfrecords

examples = settings(
    max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow], deadline=None
)
FLOATS = st.floats(width=32, allow_nan=False)
ROW = st.fixed_dictionaries(
    {
        "label": st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=1),
        "image": st.lists(st.binary(max_size=9), min_size=1, max_size=1),
        "box": st.lists(FLOATS, min_size=4, max_size=4),
        "many": st.lists(st.integers(0, 9), max_size=3),
        "names": st.lists(st.binary(max_size=3), max_size=3),
    }
)


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tfrecord, "BLOCK_BYTES", 100)
    monkeypatch.setattr(webdataset, "BLOCK_BYTES", 3000)


def open_at(folder: Path, **options: Any) -> DatasetRows:
    return open_rows(folder, cache=folder / "_cache", options=options)


def clear(folder: Path) -> Path:
    for each in folder.glob("*.*"):
        each.unlink()
    return folder


def check_ranges(rows: DatasetRows, expected: dict[str, list[Any]], data: st.DataObject) -> None:
    for _ in range(5):
        start = data.draw(st.integers(0, rows.num_rows))
        stop = data.draw(st.integers(start, rows.num_rows))
        found = rows.read(start, stop)
        for name in rows.names:
            assert found[name].tolist() == expected[name][start:stop], name


@examples
@given(
    files=st.lists(st.lists(ROW, min_size=1, max_size=9), min_size=1, max_size=3), packed=st.booleans(), data=st.data()
)
def test_tfrecord(tmp_path: Path, files: list[list[dict[str, Any]]], packed: bool, data: st.DataObject) -> None:
    folder = clear(tmp_path)
    for number, rows in enumerate(files):
        (folder / f"{number}.tfrecord").write_bytes(tfrecords(rows, packed=packed))
    whole = list(chain(*files))
    opened = open_at(folder)
    assert opened.num_rows == len(whole)
    names = ("label", "image", "box", "many", "names")
    expected: dict[str, list[Any]] = {name: [row[name] for row in whole] for name in names}
    for name, values in list(expected.items()):
        if name not in opened.names:
            assert not any(values)
            continue
        kind = opened.schema.field(name).type
        if not pa.types.is_nested(kind):
            has_mask = f"{name}.is_null" in opened.names
            expected[name] = [value[0] if value else 0 if has_mask else None for value in values]
            expected[f"{name}.is_null"] = [not value for value in values]
    check_ranges(opened, expected, data)


def test_features_have_the_type_that_holds_all_files(tmp_path: Path) -> None:
    (tmp_path / "a.tfrecord").write_bytes(tfrecords([{"x": [1], "y": [0.5, 1.5], "z": [1.0, 2.0]}] * 3))
    (tmp_path / "b.tfrecord").write_bytes(tfrecords([{"x": [1, 2], "y": [2.5, 3.5]}]))
    rows = open_at(tmp_path)
    assert rows.schema.types == [pa.list_(pa.int64()), pa.list_(pa.float32(), 2), pa.list_(pa.float32())]
    found = rows.read(2, 4)
    assert found["x"].to_pylist() == [[1], [1, 2]]
    assert found["y"].tolist() == [[0.5, 1.5], [2.5, 3.5]]
    assert found["z"].to_pylist() == [[1.0, 2.0], []]
    (tmp_path / "b.tfrecord").write_bytes(tfrecords([{"x": [b"one"]}]))
    with pytest.raises(SchemaMismatchError, match="feature 'x' is int64 in the first and binary in the second"):
        open_at(tmp_path)


def test_raw_records_are_bytes(tmp_path: Path) -> None:
    (tmp_path / "a.tfrecord").write_bytes(b"".join(record(b"%d" % number) for number in range(50)))
    assert open_at(tmp_path, raw=True).read(20, 22)["record"].to_pylist() == [b"20", b"21"]
    (tmp_path / "a.tfrecord").write_bytes(record(b"\xff\xff\xff"))
    with pytest.raises(CorruptFileError, match=r"record 0, byte 0.*raw=true"):
        open_at(tmp_path)


@pytest.mark.parametrize(("position", "part"), [(0, "length"), (9, "length"), (12, "data"), (-1, "data")])
def test_a_checksum_of_a_tfrecord_that_is_wrong_is_named(tmp_path: Path, position: int, part: str) -> None:
    content = bytearray(record(b"text"))
    content[position] ^= 1
    (tmp_path / "a.tfrecord").write_bytes(record(b"good") + content)
    with pytest.raises(CorruptFileError, match=f"record 1, byte 20.*the checksum of the record's {part} is wrong"):
        open_at(tmp_path, raw=True)


@given(position=st.integers(0, 10_000), bit=st.integers(0, 7))
@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_flipped_bit_in_a_tfrecord_is_found_where_it_is(tmp_path: Path, position: int, bit: int) -> None:
    one = record(example({"x": [1, 2, 3], "y": [b"abc"]}))
    content = bytearray(one * 20)
    position %= len(content)
    content[position] ^= 1 << bit
    path = tmp_path / "a.tfrecord"
    path.write_bytes(content)
    with pytest.raises(CorruptFileError) as caught:
        open_at(tmp_path)
    assert caught.value.part == f"record {position // len(one)}"
    assert caught.value.offset == position // len(one) * len(one)


def archive(rows: list[dict[str, bytes]], *, style: int, prefix: str = "") -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w", format=style) as tar:
        for number, row in enumerate(rows):
            folder = tarfile.TarInfo(f"{prefix}dir")
            folder.type = tarfile.DIRTYPE
            tar.addfile(folder)
            for ending, data in row.items():
                member = tarfile.TarInfo(f"{prefix}dir/{number:04}.{ending}")
                member.size = len(data)
                tar.addfile(member, io.BytesIO(data))
    return stream.getvalue()


def npy(array: Any) -> bytes:
    stream = io.BytesIO()
    np.save(stream, array)
    return stream.getvalue()


SAMPLE = st.fixed_dictionaries(
    {"jpg": st.binary(max_size=700), "cls": st.integers(0, 999), "txt": st.text(max_size=9), "json": st.integers(0, 9)}
)


@examples
@given(
    files=st.lists(st.lists(SAMPLE, min_size=1, max_size=9), min_size=1, max_size=2),
    style=st.sampled_from([tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT]),
    is_long=st.booleans(),
    data=st.data(),
)
def test_webdataset(
    tmp_path: Path, files: list[list[dict[str, Any]]], style: int, is_long: bool, data: st.DataObject
) -> None:
    folder = clear(tmp_path)
    prefix = "a" * 90 + "/" + "b" * 50 + "/" if is_long else ""
    expected: dict[str, list[Any]] = {name: [] for name in ("__key__", "jpg", "cls", "txt", "json", "npy")}
    for number, rows in enumerate(files):
        encoded = []
        for position, row in enumerate(rows):
            meta = {"n": row["json"], "s": "2020-01-01", "deep": [[row["json"]]]}
            text = json.dumps(meta, indent=row["json"] % 3 or None)
            array = np.full((2, 3), row["json"], dtype=">f4" if position % 2 else "<f4")
            encoded.append(
                {
                    "jpg": row["jpg"],
                    "CLS": b"%d\n" % row["cls"],
                    "txt": row["txt"].encode(),
                    "json": text.encode(),
                    "npy": npy(array),
                }
            )
            values = (f"{prefix}dir/{position:04}", row["jpg"], row["cls"], row["txt"], meta, array.tolist())
            for name, value in zip(expected, values, strict=True):
                expected[name].append(value)
        (folder / f"{number}.tar").write_bytes(archive(encoded, style=style, prefix=prefix))
    rows = open_at(folder)
    assert rows.num_rows == len(expected["jpg"])
    check_ranges(rows, expected, data)
    raw = open_at(folder, decode=False)
    assert int(raw.read(0, 1)["cls"][0].as_py()) == expected["cls"][0]


def test_samples_may_lack_members_and_arrays_may_differ(tmp_path: Path) -> None:
    first = [{"txt": b"a", "cls": b"1", "npy": npy(np.zeros(2))}, {"txt": b"b"}]
    row = {"txt": b"c"}
    second = [{"cls": b"3", "npy": npy(np.zeros((3, 3)))}]
    (tmp_path / "a.tar").write_bytes(archive(first, style=tarfile.GNU_FORMAT))
    # Two archives one after the other, as `cat` makes them.
    (tmp_path / "b.tar").write_bytes(
        archive(second, style=tarfile.GNU_FORMAT) + archive([row], style=tarfile.PAX_FORMAT, prefix="x/")
    )
    found = open_at(tmp_path).read(0, 4)
    assert found["txt"].to_pylist() == ["a", "b", None, "c"]
    assert found["cls"].tolist() == [1, 0, 3, 0]
    assert found["cls.is_null"].tolist() == [False, True, False, True]
    assert found["npy"].to_pylist() == [npy(np.zeros(2)), None, npy(np.zeros((3, 3))), None]


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        ({"cls": b"cat"}, r"sample 2, .*member dir/0002\.cls .*invalid literal"),
        ({"txt": b"\xff\xfe"}, "can't decode"),
        ({"json": b'{"a": '}, r"sample 2,.*0002\.json"),
        ({"json": b"1}\n{"}, r"sample 2,.*0002\.json"),
    ],
)
def test_a_member_that_cannot_be_decoded_is_named(tmp_path: Path, row: dict[str, bytes], problem: str) -> None:
    good = {"cls": b"1", "txt": b"x", "json": b"{}"}
    (tmp_path / "a.tar").write_bytes(archive([good, good, good | row], style=tarfile.GNU_FORMAT))
    with pytest.raises(CorruptFileError, match=problem):
        open_at(tmp_path).read(0, 3)


@pytest.mark.parametrize("ending", ["tar", "tfrecord"])
def test_a_truncated_or_foreign_file_names_itself_and_the_place(tmp_path: Path, ending: str) -> None:
    row = {"txt": b"x" * 600, "cls": b"1"}
    whole = {
        "tar": archive([row] * 5, style=tarfile.USTAR_FORMAT),
        "tfrecord": tfrecords([{"x": [1]}] * 5),
    }[ending]
    path = tmp_path / f"a.{ending}"
    # The padding of a tar file may go; nothing is lost with it.
    needed = len(whole.rstrip(b"\0")) if ending == "tar" else len(whole)
    for size in (1, 11, 13, 511, 513, 700, needed // 2 + 1, needed - 1):
        path.write_bytes(whole[: size % needed])
        with pytest.raises(CorruptFileError, match=f"a.{ending}"):
            open_at(tmp_path)
    path.write_bytes(b"\x89PNG" + bytes(range(256)) * 7)
    with pytest.raises(CorruptFileError, match=f"a.{ending}"):
        open_at(tmp_path)


def plain_tar(*files: tuple[str, bytes], end: bytes = bytes(1024)) -> bytes:
    """Return an archive of these members, each a header and its data, and nothing more."""
    made = b""
    for name, data in files:
        member = tarfile.TarInfo(name)
        member.size = len(data)
        made += member.tobuf(tarfile.USTAR_FORMAT) + padded(data)
    return made + end


def padded(data: bytes) -> bytes:
    return data + bytes(-len(data) % 512)


def extended(*lines: tuple[str, str]) -> bytes:
    """Return a header with these values for the member that follows."""
    content = b""
    for key, value in lines:
        rest = f" {key}={value}\n".encode()
        length = len(rest) + 2
        content += b"%d" % (length if length < 100 else length + 1) + rest
    return extended_bytes(content)


def extended_bytes(content: bytes) -> bytes:
    header = tarfile.TarInfo("extended")
    header.type, header.size = b"x", len(content)
    return header.tobuf(tarfile.USTAR_FORMAT) + padded(content)


def with_size(name: str, field: bytes) -> bytes:
    """Return a header whose field for the size is these bytes."""
    header = bytearray(tarfile.TarInfo(name).tobuf(tarfile.USTAR_FORMAT))
    header[124:136] = field
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    return bytes(header)


def test_sizes_beyond_the_octal_digits_of_a_header_are_read(tmp_path: Path) -> None:
    binary = with_size("0.txt", b"\x80" + (5).to_bytes(11, "big")) + padded(b"hello")
    longer = extended(("size", "5")) + with_size("1.txt", b"%011o\0" % 0) + padded(b"world")
    (tmp_path / "a.tar").write_bytes(binary + longer + bytes(1024))
    assert open_at(tmp_path).read(0, 2)["txt"].to_pylist() == ["hello", "world"]


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (extended_bytes(b"no length\n"), "an extended header cannot be read"),
        (extended_bytes(b"3 a\n"), "an extended header cannot be read"),
        (extended(("size", "many")), "the size of a member is 'many'"),
        (extended(("size", "-512")), "the size of a member is '-512'"),
        (extended(("size", "9" * 60)), f"the size of a member is '{'9' * 20}'"),
        (with_size("0.txt", b"-00000001000"), "the size of a member is below zero"),
        (with_size("0.txt", b"99999999999\0"), "no header of a member begins here"),
        (tarfile.TarInfo("0.txt").tobuf().replace(b"0.txt", b"1.txt"), "the checksum of a member's header is wrong"),
        (plain_tar(("0.txt", b"a"), ("0.TXT", b"b"), end=b""), "it has two members 0.TXT"),
        (extended(("GNU.sparse.map", "x,y"), ("GNU.sparse.size", "9")), "the holes of a sparse member cannot be read"),
    ],
)
def test_a_header_that_makes_no_sense_is_named(tmp_path: Path, content: bytes, problem: str) -> None:
    before = plain_tar(("good.txt", b"x"), end=b"")
    (tmp_path / "a.tar").write_bytes(before + content + plain_tar(("last.txt", b"data")))
    with pytest.raises(CorruptFileError, match=f": {problem}") as caught:
        open_at(tmp_path)
    assert caught.value.offset is not None
    assert len(before) <= caught.value.offset <= len(before + content)


def test_a_member_that_goes_on_behind_the_end_of_the_archive_is_named(tmp_path: Path) -> None:
    before = plain_tar(("0.txt", b"x"), end=b"")
    (tmp_path / "a.tar").write_bytes(before + with_size("1.txt", b"%011o\0" % 9999) + bytes(1024))
    with pytest.raises(CorruptFileError, match=rf"\(byte {len(before)}\).*it ends inside a member"):
        open_at(tmp_path)


def test_stretches_of_an_archive_without_samples_are_passed_over(tmp_path: Path) -> None:
    # A stretch is as long as a block here, so the first is all of members without an ending.
    notes = [(f"note{number}", b"?" * 900) for number in range(4)]
    (tmp_path / "a.tar").write_bytes(plain_tar(*notes, ("0.txt", b"a" * 3000), ("1.txt", b"b")))
    rows = open_at(tmp_path)
    assert rows.num_rows == 2
    assert rows.read(1, 2)["txt"].to_pylist() == ["b"]
    (tmp_path / "a.tar").write_bytes(plain_tar(*notes))
    assert open_at(tmp_path).num_rows == 0


@pytest.fixture
def replace_unnoticed(monkeypatch: pytest.MonkeyPatch) -> Callable[[Path, bytes], None]:
    """Write other bytes into a file whose size, times and inode stay the same, as on bad disks."""

    def replace(path: Path, data: bytes) -> None:
        status = path.stat()
        assert len(data) == status.st_size
        path.write_bytes(data)
        version = random_access.version_of(status)
        monkeypatch.setattr(random_access, "version_of", lambda _: version)

    return replace


@pytest.mark.parametrize(
    ("name", "before", "after", "problem"),
    [
        (
            "a.tar",
            plain_tar(("0.txt", b"a"), ("1.txt", b"b")),
            plain_tar(("0.txt", b"a"), ("0.cls", b"1")),
            "2 samples were here when it was indexed, and 1 are now",
        ),
        (
            "a.tar",
            plain_tar(("0.npy", npy(np.zeros(2, np.int32)))),
            plain_tar(("0.npy", npy(np.zeros(1, np.int64)))),
            r"member 0\.npy cannot be decoded: its array is not int32\[2\] any more",
        ),
        (
            "a.tfrecord",
            record(b"1234") + record(b"5678"),
            record(b"1" * 24),
            "2 records were here when it was indexed, and 1 are now",
        ),
    ],
)
def test_rows_that_changed_unnoticed_since_the_index_are_named(
    tmp_path: Path,
    name: str,
    before: bytes,
    after: bytes,
    problem: str,
    replace_unnoticed: Callable[[Path, bytes], None],
) -> None:
    (tmp_path / name).write_bytes(before)
    rows = open_at(tmp_path, **({"raw": True} if name == "a.tfrecord" else {}))
    replace_unnoticed(tmp_path / name, after)
    with pytest.raises(CorruptFileError, match=problem):
        rows.read(0, rows.num_rows)


@pytest.mark.parametrize(
    ("before", "after", "problem"),
    [
        (
            ({"x": [1]}, {}),
            ({"x": [2, 3]}, {}),
            "feature 'x' had one value in every record when it was indexed, and ha",
        ),
        (({"x": [1, 2]}, {}), ({"x": [1]}, {}), "feature 'x' had 2 values in every record when indexed"),
        (
            ({"x": [1]}, {}),
            ({"x": [b"a"]}, {}),
            "a feature is bytes_list and not int64_list, as it was when it was ind",
        ),
        (({}, {"x": [[1]]}), ({"x": [1]}, {}), "'x' was a feature list when it was indexed, and is a feature"),
    ],
)
def test_features_that_changed_unnoticed_since_the_index_are_named(
    tmp_path: Path,
    before: tuple[Any, Any],
    after: tuple[Any, Any],
    problem: str,
    replace_unnoticed: Callable[[Path, bytes], None],
) -> None:
    path = tmp_path / "a.tfrecord"
    path.write_bytes(of_100_bytes(*before))
    rows = open_at(tmp_path)
    replace_unnoticed(path, of_100_bytes(*after))
    with pytest.raises(CorruptFileError, match=f"record 0, byte 0.*{problem}"):
        rows.read(0, 1, ["x"])


def of_100_bytes(context: dict[str, list[Any]], steps: dict[str, list[list[Any]]]) -> bytes:
    """Return a record of this length, with one more feature that takes up the rest."""
    missing = 100 - len(record(sequence_example(context | {"pad": [b""]}, steps)))
    return record(sequence_example(context | {"pad": [b"x" * missing]}, steps))


@pytest.mark.parametrize(
    ("payloads", "problem"),
    [
        (
            [example({"x": [1]}), example({"x": [b"a"]})],
            "feature 'x' is int64_list in one record and bytes_list in ano",
        ),
        (
            [example({"x": [1]}), sequence_example({}, {"x": [[1]]})],
            "feature 'x' is int64_list .* and steps of int64_l",
        ),
        ([example({}), sequence_example({}, {"x": [[1], [b"a"]]})], "'x' has steps of bytes_list and int64_list"),
        ([example({}), sequence_example({"x": [1]}, {"x": [[1]]})], "'x' is both a feature of the context and a fea"),
    ],
)
def test_a_feature_of_two_kinds_is_named_by_its_record(tmp_path: Path, payloads: list[bytes], problem: str) -> None:
    (tmp_path / "a.tfrecord").write_bytes(b"".join(map(record, payloads)))
    with pytest.raises(CorruptFileError, match=f"record 1, byte {len(record(payloads[0]))}.*{problem}"):
        open_at(tmp_path)


def test_features_and_steps_without_a_value_take_the_type_of_other_records(tmp_path: Path) -> None:
    empty = sequence_example({"x": []}, {"steps": [[], []]})
    full = sequence_example({"x": [7]}, {"steps": [[1, 2], []]})
    (tmp_path / "a.tfrecord").write_bytes(record(empty) + record(full))
    found = open_at(tmp_path).read(0, 2)
    assert found["x.is_null"].tolist() == [True, False]
    assert found["x"].tolist() == [0, 7]
    assert found["steps"].to_pylist() == [[[], []], [[1, 2], []]]


@pytest.mark.parametrize(
    ("first", "second", "values"),
    [
        ({"json": b"1"}, {"json": b"-2"}, [1, -2]),
        ({"json": b"1"}, {"json": b"18446744073709551615"}, [1, 2**64 - 1]),
        ({"json": b"-1"}, {"json": b"18446744073709551615"}, ["-1", "18446744073709551615"]),
        ({"json": b"1"}, {"json": b"0.5"}, [1.0, 0.5]),
        ({"json": b'{"a": 1}'}, {"json": b'{"b": "x"}'}, [{"a": 1, "b": None}, {"a": None, "b": "x"}]),
        ({"npy": npy(np.zeros(2))}, {"npy": npy(np.ones(3))}, [npy(np.zeros(2)), npy(np.ones(3))]),
        ({"npy": npy(np.zeros(2))}, {"npy": b"no array"}, [npy(np.zeros(2)), b"no array"]),
        ({"npy": b"no array"}, {"npy": npy(np.zeros(2))}, [b"no array", npy(np.zeros(2))]),
    ],
)
@pytest.mark.parametrize("is_one_file", [True, False])
def test_members_of_two_types_get_one_that_holds_both(
    tmp_path: Path, first: dict[str, bytes], second: dict[str, bytes], values: list[Any], is_one_file: bool
) -> None:
    write_both(tmp_path, first, second, is_one_file=is_one_file)
    assert open_at(tmp_path).read(0, 2)[next(iter(first))].tolist() == values


def write_both(folder: Path, first: dict[str, bytes], second: dict[str, bytes], *, is_one_file: bool) -> None:
    """Write two samples as two files, or as two blocks of one."""
    if is_one_file:
        rows = [first | {"bin": bytes(4000)}, second]
        (folder / "a.tar").write_bytes(archive(rows, style=tarfile.USTAR_FORMAT))
    else:
        (folder / "a.tar").write_bytes(archive([first], style=tarfile.USTAR_FORMAT))
        (folder / "b.tar").write_bytes(archive([second], style=tarfile.USTAR_FORMAT))


@pytest.mark.parametrize("is_one_file", [True, False])
def test_members_that_no_type_holds_are_named_and_can_be_read_as_bytes(tmp_path: Path, is_one_file: bool) -> None:
    write_both(tmp_path, {"json": b"1"}, {"json": b'"x"'}, is_one_file=is_one_file)
    problem = r"\.json is int64 in one place and string in another; read it as bytes with the option decode=false"
    with pytest.raises(CorruptFileError if is_one_file else SchemaMismatchError, match=problem) as caught:
        open_at(tmp_path)
    assert not is_one_file or "samples 1 to 1" in str(caught.value)
    assert open_at(tmp_path, decode=False).read(0, 2)["json"].to_pylist() == [b"1", b'"x"']
