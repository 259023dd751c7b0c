"""Missing values by a Parquet footer, as Arrow counts them; whatever the bytes are, only a ValueError comes out."""

from __future__ import annotations

import io

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from strata.data.formats.parquet_footer import columns_with_missing_values


def footer_of(table: pa.Table, **options: object) -> bytes:
    sink = io.BytesIO()
    pq.write_table(table, sink, row_group_size=2, **options)
    data = sink.getvalue()
    return data[-8 - int.from_bytes(data[-8:-4], "little") : -8]


TABLE = pa.table(
    {
        "whole": [1, 2, 3, 4],
        "some": [1, 2, 3, None],
        "dots.in.name": [None, 1, 2, 3],
        "flag": [True, False, True, False],
        "list": pa.array([[1.0, 2.0]] * 3 + [None], pa.list_(pa.float32(), 2)),
        "text": ["a", "b", "c", "d"],
    }
)


def test_columns_that_miss_a_value_in_some_row_group_are_named() -> None:
    assert columns_with_missing_values(footer_of(TABLE)) == {"some", "dots.in.name", "list"}


def test_without_statistics_every_column_may_miss_values() -> None:
    assert columns_with_missing_values(footer_of(TABLE, write_statistics=False)) == set(TABLE.column_names)


def test_a_file_without_rows_misses_nothing() -> None:
    assert columns_with_missing_values(footer_of(TABLE.slice(0, 0))) == set()


@given(st.data())
def test_a_damaged_footer_raises_nothing_but_a_value_error(data: st.DataObject) -> None:
    """A footer has no checksum, so damage may also read as another footer: then its columns have names."""
    changed = bytearray(footer_of(TABLE))
    place = data.draw(st.integers(0, len(changed) - 1))
    changed[place : place + data.draw(st.integers(0, 3))] = data.draw(st.binary(max_size=4))
    try:
        found = columns_with_missing_values(bytes(changed))
    except ValueError:
        return
    assert {type(name) for name in found} <= {str}


def test_a_footer_that_was_cut_anywhere_is_refused() -> None:
    footer = footer_of(TABLE)
    for size in range(len(footer)):
        with pytest.raises(ValueError, match="its footer"):
            columns_with_missing_values(footer[:size])


def test_what_is_nested_without_end_is_refused() -> None:
    with pytest.raises(ValueError, match="nested too deep"):
        columns_with_missing_values(b"\x1c" * 10_000)
    with pytest.raises(ValueError, match="nested too deep"):
        columns_with_missing_values(b"\x19" * 10_000)


def test_a_number_without_end_is_refused() -> None:
    with pytest.raises(ValueError, match="its footer has a number that is too long"):
        columns_with_missing_values(b"\x16" + b"\xff" * 20)
