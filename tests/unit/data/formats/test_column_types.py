"""One type per column, whatever is missing: each kind of value as the format's own library reads it."""

from __future__ import annotations

import datetime
import io
import json
import tarfile
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.dataset
import pyarrow.feather
import pyarrow.parquet as pq
import pytest

from strata.data import open_dataset
from strata.data.formats import tensors
from strata.data.formats.registry import make_format
from strata.data.prepare.rewrite import Plan, prepare
from strata.data.rows.columns import Columns
from strata.data.rows.in_memory import TableRows
from strata.data.rows.row_sequence import open_rows
from strata.errors import CorruptFileError, DataError, SchemaMismatchError, UnknownDataFormatError

if TYPE_CHECKING:
    from pathlib import Path

DAY = datetime.datetime(2024, 2, 29, 12, 30, tzinfo=datetime.UTC)
KINDS: dict[str, tuple[pa.DataType, list[Any]]] = {
    "int8": (pa.int8(), [-128, 127, 5]),
    "int64": (pa.int64(), [2**60 + 5, -(2**63), 2**63 - 1]),
    "uint64": (pa.uint64(), [2**64 - 1, 0, 2**53 + 1]),
    "bool": (pa.bool_(), [True, False, True]),
    "float16": (pa.float16(), [np.float16(0.5), np.float16(1), np.float16(2)]),
    "float32": (pa.float32(), [0.5, -1.0, 3.25]),
    "float64": (pa.float64(), [1e300, -0.1, 2.0]),
    "string": (pa.string(), ["a", "", "ü"]),
    "large_string": (pa.large_string(), ["a", "", "ü"]),
    "binary": (pa.binary(), [b"\xff", b"", b"x"]),
    "fixed_binary": (pa.binary(2), [b"ab", b"cd", b"\0\0"]),
    "decimal": (pa.decimal128(38, 2), [Decimal("123456789012345678901234567890.25"), Decimal("0.10"), Decimal(-1)]),
    "date": (pa.date32(), [DAY.date(), datetime.date(1960, 1, 1), datetime.date(2100, 1, 1)]),
    "timestamp": (pa.timestamp("us"), [DAY.replace(tzinfo=None)] * 3),
    "zoned": (pa.timestamp("us", "Europe/Berlin"), [DAY, DAY, DAY + datetime.timedelta(hours=1)]),
    "duration": (pa.duration("ms"), [datetime.timedelta(seconds=1)] * 3),
    "time": (pa.time64("us"), [datetime.time(1, 2, 3)] * 3),
    "dictionary": (pa.dictionary(pa.int32(), pa.string()), ["a", "b", "a"]),
    "list": (pa.list_(pa.int64()), [[2**60 + 5], [], [1, 2]]),
    "pair": (pa.list_(pa.int64(), 2), [[2**60 + 5, 1], [2, 3], [4, 5]]),
    "struct": (pa.struct({"a": pa.int64()}), [{"a": 2**60 + 5}, {"a": None}, {"a": 1}]),
}
ROWS = 240


def column_of(kind: str, missing: str) -> pa.Array:
    """Return rows of which none, some in one place only, or all are missing."""
    arrow, values = KINDS[kind]
    rows = [values[row % 3] for row in range(ROWS)]
    if missing == "some":
        rows[100:103] = [None] * 3
    elif missing == "all":
        rows = [None] * ROWS
    if pa.types.is_dictionary(arrow):
        return pa.array(rows, arrow.value_type).dictionary_encode()
    return pa.array(rows, arrow)


def write(path: Path, name: str, table: pa.Table) -> None:
    if name == "parquet":
        pq.write_table(table, path / "a.parquet", row_group_size=50)
    elif name == "feather":
        pa.feather.write_feather(table, path / "a.feather", chunksize=50, compression="zstd")
    else:
        with pa.ipc.new_stream(path / "a.arrows", table.schema) as writer:
            writer.write_table(table, max_chunksize=50)


def values_of(batches: list[dict[str, Any]], name: str) -> list[Any]:
    """Return the rows as Python values, with None where the batch says that one is missing."""
    found: list[Any] = []
    for batch in batches:
        rows = batch[name]
        mask = batch.get(f"{name}.is_null", np.zeros(rows.shape, bool))
        for row, gone in zip(rows, mask, strict=True):
            is_gone = (
                bool(np.all(gone))
                or row is None
                or (
                    rows.dtype.kind in "mMf"
                    and bool(np.all(np.isnat(row) if rows.dtype.kind in "mM" else np.isnan(row)))
                )
            )
            found.append(None if is_gone else plain(row))
    return found


def plain(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return value.tolist()
    return value.item() if isinstance(value, np.generic) else value


def expected_of(column: pa.Array) -> list[Any]:
    kind = column.type
    rows = column.to_pylist()
    if pa.types.is_timestamp(kind) and kind.tz:
        return [row and row.astimezone(datetime.UTC).replace(tzinfo=None) for row in rows]
    if pa.types.is_fixed_size_binary(kind):
        return [row if row is None else list(row) for row in rows]
    if pa.types.is_float16(kind) or pa.types.is_float32(kind):
        return [row if row is None else float(row) for row in rows]
    return rows


@pytest.mark.parametrize("missing", ["none", "some", "all"])
@pytest.mark.parametrize("name", ["parquet", "feather", "stream"])
def test_a_batch_has_the_same_type_with_and_without_missing_values(tmp_path: Path, name: str, missing: str) -> None:
    columns = {kind: column_of(kind, missing) for kind in KINDS}
    write(tmp_path, name, pa.table(columns))
    dataset = open_dataset(tmp_path, batch_size=30, shuffle=False, cache=tmp_path / "cache")
    batches = list(dataset)
    for kind, column in columns.items():
        types = {(batch[kind].dtype, batch[kind].shape[1:]) for batch in batches}
        assert len(types) == 1, kind
        assert values_of(batches, kind) == expected_of(column), kind
    assert {tuple(batch) for batch in batches} == {dataset.names}
    has_masks = any(each.endswith(".is_null") for each in dataset.names)
    assert has_masks == (missing != "none")


@pytest.mark.parametrize("order", ["sticky", "global"])
def test_shuffled_batches_keep_the_type_too(tmp_path: Path, order: Any) -> None:
    write(tmp_path, "parquet", pa.table({"x": column_of("int64", "some"), "b": column_of("bool", "some")}))
    with open_dataset(tmp_path, batch_size=7, order=order, shard_size=20, cache=tmp_path / "cache") as dataset:
        batches = list(dataset)
    assert {batch["x"].dtype for batch in batches} == {np.dtype(np.int64)}
    assert {batch["b"].dtype for batch in batches} == {np.dtype(bool)}
    assert sorted(v for v in values_of(batches, "x") if v is not None) == sorted(
        v for v in column_of("int64", "some").to_pylist() if v is not None
    )
    assert sum(int(batch["x.is_null"].sum()) for batch in batches) == 3


def test_a_column_brings_its_mask_along(tmp_path: Path) -> None:
    write(tmp_path, "parquet", pa.table({"x": column_of("int64", "some"), "y": column_of("int8", "none")}))
    rows = open_rows(tmp_path, columns=["x"], cache=tmp_path / "cache")
    assert rows.names == ("x", "x.is_null")
    assert rows.read(0, 1, ["x"]).names == ("x", "x.is_null")
    assert open_rows(tmp_path, columns=["y"], cache=tmp_path / "cache").names == ("y",)


def test_missing_numbers_as_nan_are_floats_in_every_batch_and_never_rounded(tmp_path: Path) -> None:
    table = pa.table({"x": pa.array([1, None, 3] * 20), "b": pa.array([True, None, False] * 20), "y": list(range(60))})
    write(tmp_path, "parquet", table)
    batches = list(open_dataset(tmp_path, batch_size=10, nulls="nan", shuffle=False, cache=tmp_path / "cache"))
    assert {(batch["x"].dtype.str, batch["b"].dtype.str, batch["y"].dtype.str) for batch in batches} == {
        ("<f8", "<f8", "<i8")
    }
    assert np.array_equal(batches[0]["x"][:3], [1, np.nan, 3], equal_nan=True)
    (tmp_path / "big").mkdir()
    write(tmp_path / "big", "parquet", pa.table({"x": pa.array([1, None, 2**53 + 1])}))
    with pytest.raises(DataError, match=r"a\.parquet, row 2: column 'x' has a number here that float64 cannot hold"):
        open_rows(tmp_path / "big", nulls="nan", cache=tmp_path / "cache").read(0, 3)


@pytest.mark.parametrize("kind", ["int64", "string", "pair", "float64"])
def test_missing_values_can_be_refused_by_name(tmp_path: Path, kind: str) -> None:
    write(tmp_path, "parquet", pa.table({"x": column_of(kind, "some")}))
    rows = open_rows(tmp_path, nulls="raise", cache=tmp_path / "cache")
    assert rows.read(0, 50).num_rows == 50
    with pytest.raises(DataError, match=r"a\.parquet, row 100: column 'x' has no value here"):
        rows.read(0, ROWS)


@pytest.mark.parametrize(
    "column",
    [
        pa.array([[1, 2], [3, None]], pa.list_(pa.int32(), 2)),
        pa.array([[1, 2], [3, 4, None]]),
        pa.array([{"a": 1, "b": ["x"]}, {"a": 2, "b": [None]}]),
    ],
)
def test_what_is_missing_inside_of_a_row_can_be_refused_too(tmp_path: Path, column: pa.Array) -> None:
    write(tmp_path, "parquet", pa.table({"x": column}))
    rows = open_rows(tmp_path, nulls="raise", cache=tmp_path / "cache")
    with pytest.raises(DataError, match=r"a\.parquet, row 1: column 'x' has no value here"):
        rows.read(0, 2)


@pytest.mark.parametrize("values", [[1, None], [[1, 2], [3, None]]])
def test_a_value_that_goes_missing_after_the_columns_were_looked_at_is_named(values: list[Any]) -> None:
    kind = pa.int64() if values[0] == 1 else pa.list_(pa.int64(), 2)
    table = pa.table({"x": pa.array(values, kind)})
    schema = pa.schema([pa.field("x", kind, nullable=False)])
    rows = TableRows(schema, 12, lambda start, stop: table.slice(start - 10, stop - start))
    assert rows.read(10, 11)["x"].tolist() == values[:1]
    with pytest.raises(DataError, match="row 11: column 'x' has no value here, and had one when indexed"):
        rows.read(10, 12)


def test_wrong_ways_to_give_missing_values_are_named(tmp_path: Path) -> None:
    write(tmp_path, "parquet", pa.table({"x": [1, None], "x.is_null": [1, 2]}))
    with pytest.raises(DataError, match=r"'x\.is_null' is a column already"):
        open_rows(tmp_path, cache=tmp_path / "cache")
    with pytest.raises(ValueError, match="use one of mask, nan, raise, arrow"):
        open_rows(tmp_path, nulls="zero", cache=tmp_path / "cache")
    with pytest.raises(ValueError, match="nulls='arrow' is for open_rows"):
        open_dataset(tmp_path, batch_size=1, nulls="arrow", cache=tmp_path / "cache")


def test_lists_with_holes_keep_their_numbers(tmp_path: Path) -> None:
    write(tmp_path, "parquet", pa.table({"x": [[2**60 + 5, None], [3], None]}))
    (batch,) = open_dataset(tmp_path, batch_size=3, shuffle=False, cache=tmp_path / "cache")
    assert [row if row is None else row.tolist() for row in batch["x"]] == [[2**60 + 5, None], [3], None]
    assert batch["x"][1].dtype == np.int64


@pytest.mark.parametrize("block_bytes", [64, 1 << 20])
@pytest.mark.parametrize(
    ("texts", "dtype", "values"),
    [
        (["1", "2", "-3"], "int64", [1, 2, -3]),
        (["1", "", "-3"], "int64", [1, None, -3]),
        ([str(2**63), "1", "2"], "uint64", [2**63, 1, 2]),
        ([str(2**63), "", "2"], "uint64", [2**63, None, 2]),
        ([str(2**63), "-1", "2"], "object", [str(2**63), "-1", "2"]),
        ([str(2**64), "1", "2"], "object", [str(2**64), "1", "2"]),
        (["1e300", "1", "0.5"], "float64", [1e300, 1.0, 0.5]),
        (["true", "", "false"], "bool", [True, None, False]),
        (["2024-01-01T00:00:00Z"] * 3, "datetime64[s]", None),
    ],
)
def test_numbers_in_text_are_never_rounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, block_bytes: int, texts: list[str], dtype: str, values: Any
) -> None:
    monkeypatch.setattr("strata.data.formats.text.lines.BLOCK_BYTES", block_bytes)
    for name in ("csv", "jsonl"):
        folder = tmp_path / name
        folder.mkdir()
        rows = [texts[row % 3] for row in range(60)]
        if name == "csv":
            (folder / "a.csv").write_text("x,y\n" + "".join(f"{text},{row}\n" for row, text in enumerate(rows)))
        elif "T" in texts[0]:
            continue  # strings that look like times stay strings in JSON
        else:
            (folder / "a.jsonl").write_text("".join(f'{{"x": {text or "null"}, "y": 0}}\n' for text in rows))
        batches = list(open_dataset(folder, batch_size=7, shuffle=False, cache=tmp_path / "cache"))
        assert {batch["x"].dtype for batch in batches} == {np.dtype(dtype)}, name
        if values is not None:
            assert values_of(batches, "x") == [values[row % 3] for row in range(60)], name


@pytest.mark.parametrize(
    ("texts", "values"),
    [
        (["18446744073709551615", "NA", " 2"], [2**64 - 1, None, 2]),
        (["+9007199254740993", "1", "2"], ["+9007199254740993", "1", "2"]),
        (["18446744073709551615", "-0", "2"], ["18446744073709551615", "-0", "2"]),
        (["inf", "NA", "0.5"], [np.inf, None, 0.5]),
        (["1e300", "nan", "0.5"], [1e300, None, 0.5]),
    ],
)
def test_numbers_of_csv_are_kept_beside_any_word_for_a_missing_one(
    tmp_path: Path, texts: list[str], values: list[Any]
) -> None:
    (tmp_path / "a.csv").write_text("x,y\n" + "".join(f"{text},0\n" for text in texts))
    rows = open_rows(tmp_path, nulls="arrow", cache=tmp_path / "cache").read(0, 3)["x"]
    assert (rows.tolist() if isinstance(rows, np.ndarray) else rows.to_pylist()) == values


def test_a_column_of_two_kinds_in_json_can_be_read_as_text(tmp_path: Path) -> None:
    rows = ['{"a": 1, "b": 1}', '{"a": "x", "b": 2}', '{"a": [1, {"c": 1e5}], "b": 3}', '{"a": null}', '{"a": 1e5}']
    (tmp_path / "a.jsonl").write_text("\n".join(rows))
    with pytest.raises(CorruptFileError, match=r"record 1\) .*types=\{'a': 'string'\}"):
        open_rows(tmp_path, cache=tmp_path / "cache")
    found = open_rows(tmp_path, options={"types": {"a": "string"}}, cache=tmp_path / "cache").read(0, 5).to_numpy()
    assert found["a"].tolist() == ["1", "x", '[1, {"c": 100000.0}]', None, "1e5"]
    assert found["b"].tolist() == [1, 2, 3, 0, 0]
    assert found["b.is_null"].tolist() == [False, False, False, True, True]


def test_nested_numbers_beyond_int64_are_given_as_json(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(f'{{"a": [1, {2**70}]}}\n{{"a": [0]}}\n')
    found = open_rows(tmp_path, cache=tmp_path / "cache").read(0, 2)["a"].to_pylist()
    assert [json.loads(each) for each in found] == [[1, 2**70], [0]]


def test_text_in_another_encoding_is_refused_until_it_is_named(tmp_path: Path) -> None:
    text = "name,n\n" + "".join(f"Zürich {row},{row}\n" for row in range(50))
    (tmp_path / "a.csv").write_bytes(text.encode("latin-1"))
    with pytest.raises(CorruptFileError, match="encoding=latin-1"):
        open_rows(tmp_path, cache=tmp_path / "cache")
    rows = open_rows(tmp_path, options={"encoding": "latin-1"}, cache=tmp_path / "cache")
    own = pa.csv.read_csv(tmp_path / "a.csv", pa.csv.ReadOptions(encoding="latin-1"))
    assert rows.read(0, 50)["name"].to_pylist() == own["name"].to_pylist()
    as_bytes = open_rows(tmp_path, options={"types": {"name": "binary"}}, cache=tmp_path / "cache")
    assert as_bytes.read(0, 1)["name"].to_pylist() == ["Zürich 0".encode("latin-1")]
    for wrong in ("utf-16", "nonsense"):
        with pytest.raises(ValueError, match=f"encoding='{wrong}'"):
            open_rows(tmp_path, options={"encoding": wrong}, cache=tmp_path / "cache")


@pytest.mark.parametrize("ending", ["parquet", "csv", "jsonl"])
def test_directories_of_hive_are_columns(tmp_path: Path, ending: str) -> None:
    number = 0
    for year in ("2023", "2024"):
        for place in ("a b", "__HIVE_DEFAULT_PARTITION__"):
            folder = tmp_path / "data" / f"year={year}" / f"place={place}".replace(" ", "%20")
            folder.mkdir(parents=True)
            table = pa.table({"x": list(range(number, number + 3))})
            number += 3
            if ending == "parquet":
                pq.write_table(table, folder / "a.parquet")
            elif ending == "csv":
                pa.csv.write_csv(table, folder / "a.csv")
            else:
                (folder / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in table.to_pylist()))
    rows = open_rows(tmp_path / "data", cache=tmp_path / "cache")
    assert rows.names == ("x", "year", "place")
    found = rows.read(0, rows.num_rows).to_numpy()
    if ending != "jsonl":
        own = pa.dataset.dataset(tmp_path / "data", format=ending, partitioning="hive").to_table().sort_by("x")
        order = np.argsort(found["x"])
        assert found["year"][order].tolist() == own["year"].to_pylist()
        assert found["place"][order].tolist() == own["place"].to_pylist()
    (batch,) = open_dataset(tmp_path / "data", columns=["year"], batch_size=12, cache=tmp_path / "cache")
    assert sorted(batch["year"].tolist()) == [2023] * 6 + [2024] * 6


def test_files_may_differ_where_nothing_is_lost(tmp_path: Path) -> None:
    pq.write_table(
        pa.table({"s": pa.array(["a"]), "n": pa.array([None], pa.null()), "i": pa.array([1], pa.int32())}),
        tmp_path / "0.parquet",
    )
    second = {"s": pa.array(["b"], pa.large_string()), "n": pa.array([7]), "i": pa.array([2**60 + 5]), "extra": [1]}
    pq.write_table(pa.table(second), tmp_path / "1.parquet")
    rows = open_rows(tmp_path, columns=["s", "n", "i"], cache=tmp_path / "cache")
    found = rows.read(0, 2).to_numpy()
    assert found["s"].tolist() == ["a", "b"]
    assert found["n"].tolist() == [0, 7]
    assert found["n.is_null"].tolist() == [True, False]
    assert found["i"].tolist() == [1, 2**60 + 5]
    assert rows.read(0, 1)["i"].dtype == rows.read(1, 2)["i"].dtype == np.int64
    with pytest.raises(SchemaMismatchError, match="column 'extra' is only in the second"):
        open_rows(tmp_path, cache=tmp_path / "cache")


def test_two_files_that_differ_are_named_whatever_the_files_after_them_have(tmp_path: Path) -> None:
    for number, values in enumerate(([1], ["a"], [2.5], ["b"])):
        pq.write_table(pa.table({"x": values, "y": [number]}), tmp_path / f"{number}.parquet")
    with pytest.raises(SchemaMismatchError, match=r"0\.parquet and .*1\.parquet differ in their columns: .*'x'"):
        open_rows(tmp_path, cache=tmp_path / "cache")
    assert open_rows(tmp_path, columns=["y"], cache=tmp_path / "cache").read(0, 4)["y"].tolist() == [0, 1, 2, 3]


def test_files_of_text_may_have_their_columns_in_any_order(tmp_path: Path) -> None:
    (tmp_path / "0.csv").write_text("a,b\n1,x\n")
    (tmp_path / "1.csv").write_text("b,a,c\ny,2,5\n")
    found = open_rows(tmp_path, columns=["a", "b"], cache=tmp_path / "cache").read(0, 2).to_numpy()
    assert (found["a"].tolist(), found["b"].tolist()) == ([1, 2], ["x", "y"])
    with pytest.raises(SchemaMismatchError, match="column 'c' is only in the header of the second"):
        open_rows(tmp_path, cache=tmp_path / "cache")


@pytest.mark.parametrize(
    ("first", "second", "wide"),
    [
        (pa.array([1], pa.int8()), pa.array([200], pa.uint8()), pa.int16()),
        (pa.array([60_000], pa.uint16()), pa.array([-1], pa.int32()), pa.int32()),
        (pa.array([2**32 - 1], pa.uint32()), pa.array([-1], pa.int8()), pa.int64()),
        (pa.array([2**32 - 1], pa.uint32()), pa.array([2**64 - 1], pa.uint64()), pa.uint64()),
        (pa.array([0.5], pa.float32()), pa.array([1e300]), pa.float64()),
        (pa.array([b"a"]), pa.array([b"b"], pa.large_binary()), pa.large_binary()),
        (
            pa.array([[1]], pa.list_(pa.int8())),
            pa.array([[2**60]], pa.large_list(pa.int64())),
            pa.large_list(pa.int64()),
        ),
        (pa.array([[]], pa.list_(pa.null())), pa.array([[1, 2]]), pa.list_(pa.int64())),
        (pa.array([["a"]]), pa.array([[]], pa.list_(pa.null())), pa.list_(pa.string())),
    ],
)
def test_columns_of_two_files_get_the_type_that_holds_both(
    tmp_path: Path, first: pa.Array, second: pa.Array, wide: pa.DataType
) -> None:
    pa.feather.write_feather(pa.table({"x": first}), tmp_path / "0.feather")
    pa.feather.write_feather(pa.table({"x": second}), tmp_path / "1.feather")
    rows = open_rows(tmp_path, cache=tmp_path / "cache")
    assert rows.schema.field("x").type == wide
    (batch,) = open_dataset(tmp_path, batch_size=2, shuffle=False, cache=tmp_path / "cache")
    assert [plain(value) for value in batch["x"]] == [*first.to_pylist(), *second.to_pylist()]


@pytest.mark.parametrize(
    ("first", "second", "problem"),
    [
        (pa.array([2**64 - 1], pa.uint64()), pa.array([-1]), "uint64 in the first and int64 in the second"),
        (pa.array([[1]]), pa.array([["a"]]), "'x' is list<.*int64> .* and list<.*string>"),
        (pa.array([1]), pa.array([0.5]), "'x' is int64 in the first and double in the second"),
    ],
)
def test_columns_of_two_files_that_no_type_holds_exactly_are_named(
    tmp_path: Path, first: pa.Array, second: pa.Array, problem: str
) -> None:
    pa.feather.write_feather(pa.table({"x": first}), tmp_path / "0.feather")
    pa.feather.write_feather(pa.table({"x": second}), tmp_path / "1.feather")
    with pytest.raises(SchemaMismatchError, match=problem):
        open_rows(tmp_path, cache=tmp_path / "cache")


@pytest.mark.parametrize("is_reversed", [True, False])
def test_arrays_kept_as_bytes_may_be_missing_in_a_whole_file(tmp_path: Path, is_reversed: bool) -> None:
    (tmp_path / "arrays").mkdir()
    np.save(tmp_path / "arrays" / "a.npy", np.arange(6, dtype=np.int16).reshape(3, 2))
    source = open_rows(tmp_path / "arrays", cache=tmp_path / "cache")
    prepare(source, str(tmp_path / "made"), Plan(arrays_as_bytes=True), cache=tmp_path / "cache")
    (made,) = (tmp_path / "made").glob("*.parquet")
    empty = pa.table({"data": pa.nulls(2)})
    (tmp_path / "both").mkdir()
    made.rename(tmp_path / "both" / ("1.parquet" if is_reversed else "0.parquet"))
    pq.write_table(empty, tmp_path / "both" / ("0.parquet" if is_reversed else "1.parquet"))
    (batch,) = open_dataset(tmp_path / "both", batch_size=5, shuffle=False, cache=tmp_path / "cache")
    assert batch["data"].dtype == np.int16
    order = slice(2, 5) if is_reversed else slice(0, 3)
    assert batch["data"][order].tolist() == [[0, 1], [2, 3], [4, 5]]
    assert batch["data.is_null"].all(axis=1).sum() == 2


@pytest.mark.parametrize("shape", [(3, 0), (3, 2, 0), (3, 2, 1)])
def test_arrays_kept_as_bytes_keep_their_shape_also_without_elements(tmp_path: Path, shape: tuple[int, ...]) -> None:
    schema = pa.schema([tensors.field_of("x", np.dtype(np.float32), shape[1:])])
    table = tensors.encode(Columns({"x": np.ones(shape, np.float32)}), schema)
    pa.feather.write_feather(table, tmp_path / "a.feather")
    found = open_rows(tmp_path, cache=tmp_path / "cache").read(0, 3)["x"]
    assert (found.shape, found.dtype) == (shape, np.float32)
    assert (found == 1).all()


def test_arrays_with_holes_are_not_written_as_bytes(tmp_path: Path) -> None:
    (tmp_path / "lists").mkdir()
    pq.write_table(pa.table({"x": pa.array([[1, None], [3, 4]], pa.list_(pa.int8(), 2))}), tmp_path / "lists/a.parquet")
    source = open_rows(tmp_path / "lists", nulls="arrow", cache=tmp_path / "cache")
    with pytest.raises(ValueError, match="column 'x' has values missing inside its arrays; write it as lists"):
        prepare(source, str(tmp_path / "bytes"), Plan(arrays_as_bytes=True), cache=tmp_path / "cache")
    prepare(source, str(tmp_path / "made"), Plan(arrays_as_bytes=False), cache=tmp_path / "cache")
    found = open_rows(tmp_path / "made", nulls="arrow", cache=tmp_path / "cache").read(0, 2)["x"]
    assert found.to_pylist() == [[1, None], [3, 4]]


def test_scalars_of_numpy_in_a_tar_are_a_column_of_numbers(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "a.tar", "w") as archive:
        for number in range(3):
            content = io.BytesIO()
            np.save(content, np.float32(number))
            member = tarfile.TarInfo(f"{number}.npy")
            member.size = len(content.getvalue())
            archive.addfile(member, io.BytesIO(content.getvalue()))
    found = open_rows(tmp_path, cache=tmp_path / "cache").read(0, 3)["npy"]
    assert (found.tolist(), found.dtype) == ([0, 1, 2], np.float32)


def test_a_format_that_does_not_exist_is_named_with_those_that_do() -> None:
    with pytest.raises(UnknownDataFormatError, match=r"parkett: there is no such format; name one of .*arrow, csv"):
        make_format("parkett")
