"""Columns: rows survive slicing, taking and joining, whatever Arrow made of them."""

from __future__ import annotations

import datetime
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from strata.data.rows import columns as columns_module
from strata.data.rows.columns import Columns

VALUES = {
    "int": (pa.int32(), st.integers(-(2**31), 2**31 - 1)),
    "float": (pa.float64(), st.floats(allow_nan=False)),
    "bool": (pa.bool_(), st.booleans()),
    "text": (pa.string(), st.text(max_size=5)),
    "bytes": (pa.binary(), st.binary(max_size=5)),
    "fixed": (pa.binary(3), st.binary(min_size=3, max_size=3)),
    "pair": (pa.list_(pa.int16(), 2), st.lists(st.integers(-9, 9), min_size=2, max_size=2)),
    "list": (pa.list_(pa.int64()), st.lists(st.integers(-9, 9), max_size=3)),
    "category": (pa.dictionary(pa.int8(), pa.string()), st.sampled_from(["a", "bb", ""])),
    "when": (pa.date32(), st.dates(datetime.date(1970, 1, 1), datetime.date(2100, 1, 1))),
    "maybe": (pa.int64(), st.none() | st.integers(-9, 9)),
    "struct": (pa.struct({"x": pa.int64()}), st.fixed_dictionaries({"x": st.integers(-9, 9)})),
}


@st.composite
def tables(draw: st.DrawFn) -> pa.Table:
    names = draw(st.lists(st.sampled_from(sorted(VALUES)), min_size=1, max_size=4, unique=True))
    chunks = []
    for count in draw(st.lists(st.integers(0, 5), min_size=1, max_size=3)):
        columns = {}
        for name in names:
            kind, values = VALUES[name]
            columns[name] = pa.array(draw(st.lists(values, min_size=count, max_size=count)), type=kind)
        chunks.append(pa.table(columns))
    return pa.concat_tables(chunks)


def rows_of(columns: Columns) -> list[dict[str, Any]]:
    """The rows as plain Python values."""
    listed = {}
    for name in columns.names:
        column = columns[name]
        values = column.tolist() if isinstance(column, np.ndarray) else column.to_pylist()
        listed[name] = [bytes(value) for value in values] if name == "fixed" else values
    return [{name: listed[name][at] for name in listed} for at in range(columns.num_rows)]


@given(table=tables())
def test_every_arrow_table_becomes_columns_with_the_same_rows(table: pa.Table) -> None:
    assert rows_of(Columns.from_arrow(table)) == table.to_pylist()


@given(table=tables(), data=st.data())
def test_slicing_taking_and_joining_give_the_rows_asked_for(table: pa.Table, data: st.DataObject) -> None:
    columns, rows = Columns.from_arrow(table), table.to_pylist()
    cut = data.draw(st.integers(0, len(rows)))
    first, second = columns.slice(0, cut), columns.slice(cut, len(rows))
    assert (rows_of(first), rows_of(second)) == (rows[:cut], rows[cut:])
    assert rows_of(Columns.concat([first, second])) == rows
    if rows:
        indices = data.draw(st.lists(st.integers(0, len(rows) - 1), max_size=8))
        assert rows_of(columns.take(np.array(indices, dtype=np.int64))) == [rows[at] for at in indices]


@given(table=tables(), data=st.data())
def test_gathered_rows_stand_at_their_places(table: pa.Table, data: st.DataObject) -> None:
    columns, rows = Columns.from_arrow(table), table.to_pylist()
    if not rows:
        return
    parts = data.draw(st.lists(st.lists(st.integers(0, len(rows) - 1), min_size=1, max_size=5), min_size=1, max_size=3))
    total = sum(map(len, parts))
    order = np.array(data.draw(st.permutations(range(total))), dtype=np.int64)
    places = np.split(order, np.cumsum([len(part) for part in parts])[:-1])
    wanted = [np.array(part, dtype=np.int64) for part in parts]
    gathered = rows_of(Columns.gather([columns] * len(parts), wanted, places))
    for part, at in zip(parts, places, strict=True):
        assert [gathered[place] for place in at] == [rows[row] for row in part]


@given(table=tables())
def test_every_column_has_a_numpy_form_of_the_same_length(table: pa.Table) -> None:
    arrays = Columns.from_arrow(table).to_numpy()
    assert {name: len(array) for name, array in arrays.items()} == dict.fromkeys(table.column_names, table.num_rows)


def test_numbers_and_tensors_come_from_arrow_without_a_copy() -> None:
    numbers = pa.array(np.arange(12, dtype=np.float32))
    tensors = pa.FixedSizeListArray.from_arrays(pa.array(np.arange(24, dtype=np.int16)), 2)
    shaped = pa.FixedShapeTensorArray.from_numpy_ndarray(np.arange(48, dtype=np.int32).reshape(12, 2, 2))
    columns = Columns.from_arrow(pa.table({"n": numbers, "t": tensors, "s": shaped}))
    sliced = columns.slice(3, 7)
    assert np.shares_memory(sliced["n"], numbers.to_numpy())
    assert np.shares_memory(sliced["t"], tensors.values.to_numpy())
    assert (sliced["t"].shape, sliced["s"].shape) == ((4, 2), (4, 2, 2))
    assert np.shares_memory(sliced["s"], shaped.storage.values.to_numpy())


def test_a_part_with_missing_values_joins_one_without() -> None:
    whole = Columns({"n": np.arange(2, dtype=np.int64), "t": np.zeros((2, 3), dtype=np.int8)})
    gaps = Columns.from_arrow(
        pa.table({"n": pa.array([None, 7]), "t": pa.array([None, [1, 2, 3]], type=pa.list_(pa.int8(), 3))})
    )
    joined = Columns.concat([whole, gaps])
    assert joined["n"].to_pylist() == [0, 1, None, 7]
    assert joined["t"].to_pylist() == [[0, 0, 0], [0, 0, 0], None, [1, 2, 3]]


def test_parts_of_several_types_join_in_one_that_holds_all_values() -> None:
    parts = [
        {"n": pa.nulls(2), "text": pa.nulls(2), "list": pa.array([[1], None], pa.list_(pa.int32()))},
        {
            "n": pa.array([None, 2**60 + 5]),
            "text": pa.array(["a", "b"]),
            "list": pa.array([[2**60 + 5], []], pa.large_list(pa.int64())),
        },
    ]
    joined = Columns.concat([Columns(part) for part in parts])
    assert joined["n"].to_pylist() == [None, None, None, 2**60 + 5]
    assert joined["text"].to_pylist() == [None, None, "a", "b"]
    assert joined["list"].to_pylist() == [[1], None, [2**60 + 5], []]


@pytest.mark.parametrize(
    ("values", "wide"),
    [
        (["ab", None, "c"], pa.large_string()),
        ([b"ab", None], pa.large_binary()),
        ([[1, 2], None, []], pa.large_list(pa.int64())),
        ([None, 1, 2], pa.int64()),
    ],
)
def test_more_bytes_than_narrow_offsets_reach_are_joined_with_wide_ones(
    monkeypatch: pytest.MonkeyPatch, values: list[Any], wide: pa.DataType
) -> None:
    part = Columns({"x": pa.array(values)})
    narrow = Columns.concat([part, part])["x"]
    monkeypatch.setattr(columns_module, "_LARGEST_NARROW_BYTES", 3)
    joined = Columns.concat([part, part])["x"]
    assert (narrow.type, joined.type) == (pa.array(values).type, wide)
    assert joined.to_pylist() == narrow.to_pylist() == values * 2


def test_values_of_several_types_and_maps_with_missing_numbers_are_objects() -> None:
    union = pa.UnionArray.from_sparse(
        pa.array([0, 1, 0], pa.int8()), [pa.array([1, 2, 2**60 + 5]), pa.array(["", "b", ""])]
    )
    pairs = [[("a", 2**60 + 5), ("b", None)], None, []]
    maps = pa.array(pairs, pa.map_(pa.string(), pa.int64()))
    found = Columns.from_arrow(pa.table({"union": union, "map": maps})).to_numpy()
    assert found["union"].tolist() == [1, "b", 2**60 + 5]
    # A float would have lost the last digits of the number beside the missing one.
    assert found["map"].tolist() == pairs
    assert isinstance(found["map"][0][0][1], int)


def test_bytes_of_length_zero_are_rows_of_nothing() -> None:
    found = Columns.from_arrow(pa.table({"b": pa.array([b"", b""], pa.binary(0))}))["b"]
    assert (found.shape, found.dtype) == ((2, 0), np.uint8)


def test_columns_say_what_they_hold() -> None:
    columns = Columns({"a": np.zeros(2), "b": pa.array(["x", "y"])})
    assert repr(columns) == "Columns(a, b; 2 rows)"
    assert "b" in columns
    assert "c" not in columns


def test_columns_without_any_column_still_count_rows() -> None:
    columns = Columns({}, num_rows=5)
    assert columns.slice(1, 3).num_rows == 2
    assert Columns.concat([columns, columns]).num_rows == 10
    assert columns.take(np.array([4, 4, 4])).num_rows == 3


def test_what_does_not_fit_together_is_refused() -> None:
    with pytest.raises(ValueError, match="'b' has 2 rows where others have 1"):
        Columns({"a": np.zeros(1), "b": np.zeros(2)})
    with pytest.raises(ValueError, match="no column 'c'; the columns are a, b"):
        Columns({"a": np.zeros(1), "b": np.zeros(1)}).select(["c"])
    with pytest.raises(ValueError, match="give each the same"):
        Columns.concat([Columns({"a": np.zeros(1)}), Columns({"b": np.zeros(1)})])
    with pytest.raises(ValueError, match=r"columns \['a', 'a'\] have a name more than once; give each its own"):
        Columns.from_arrow(pa.table([[1], [2]], names=["a", "a"]))
    with pytest.raises(ValueError, match="at least one part"):
        Columns.concat([])
