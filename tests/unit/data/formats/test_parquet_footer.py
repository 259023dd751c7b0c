"""What a Parquet footer says, as Arrow reads it; whatever the bytes are, only a ValueError comes out."""

from __future__ import annotations

import io

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from strata.data.formats.parquet_footer import parse_footer


def footer_of(table: pa.Table, **options: object) -> bytes:
    sink = io.BytesIO()
    pq.write_table(table, sink, **({"row_group_size": 2} | options))
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
    assert parse_footer(footer_of(TABLE)).columns_with_missing_values == {"some", "dots.in.name", "list"}


@pytest.mark.parametrize("use_dictionary", [True, False])
def test_row_groups_begin_where_arrow_says(use_dictionary: bool) -> None:
    sink = io.BytesIO()
    pq.write_table(TABLE, sink, row_group_size=1, use_dictionary=use_dictionary)
    metadata = pq.read_metadata(sink)
    columns = [metadata.row_group(number).column(0) for number in range(4)]
    expected = [column.dictionary_page_offset or column.data_page_offset for column in columns]
    footer = footer_of(TABLE, row_group_size=1, use_dictionary=use_dictionary)
    assert parse_footer(footer).group_offsets == expected
    assert len(set(expected)) == 4


def test_without_statistics_every_column_may_miss_values() -> None:
    assert parse_footer(footer_of(TABLE, write_statistics=False)).columns_with_missing_values == set(TABLE.column_names)


def test_a_file_without_rows_misses_nothing() -> None:
    assert parse_footer(footer_of(TABLE.slice(0, 0))).columns_with_missing_values == set()


@given(st.data())
def test_a_damaged_footer_raises_nothing_but_a_value_error(data: st.DataObject) -> None:
    """A footer has no checksum, so damage may also read as another footer: then its columns have names."""
    changed = bytearray(footer_of(TABLE))
    place = data.draw(st.integers(0, len(changed) - 1))
    changed[place : place + data.draw(st.integers(0, 3))] = data.draw(st.binary(max_size=4))
    try:
        found = parse_footer(bytes(changed)).columns_with_missing_values
    except ValueError:
        return
    assert {type(name) for name in found} <= {str}


def test_a_footer_that_was_cut_anywhere_is_refused() -> None:
    footer = footer_of(TABLE)
    for size in range(len(footer)):
        with pytest.raises(ValueError, match="its footer"):
            parse_footer(footer[:size])


def test_what_is_nested_without_end_is_refused() -> None:
    with pytest.raises(ValueError, match="nested too deep"):
        parse_footer(b"\x1c" * 10_000)
    with pytest.raises(ValueError, match="nested too deep"):
        parse_footer(b"\x19" * 10_000)


def test_a_number_without_end_is_refused() -> None:
    with pytest.raises(ValueError, match="its footer has a number that is too long"):
        parse_footer(b"\x16" + b"\xff" * 20)


def test_a_row_group_that_begins_nowhere_is_refused() -> None:
    footer = footer_of(TABLE, use_dictionary=False)
    assert parse_footer(footer).group_offsets[0] == 4
    # The place of the first page is 4, written as 8. Where it stands: -5, or no number at all.
    for wrong in (b"\x26\x09", b"\x28\x00"):
        with pytest.raises(ValueError, match="its footer names a place outside of the file"):
            parse_footer(footer.replace(b"\x26\x08", wrong, 1))


@pytest.mark.parametrize("field", [b"\xf7" + bytes(8), b"\xf3\xff", b"\xf8\x03abc", b"\xf9\x23\x01\x02", b"\xfc\0"])
def test_fields_of_later_versions_are_passed_over(field: bytes) -> None:
    """A double, a byte, a text, a list of bytes and a struct, none of which a footer has today."""
    footer = footer_of(TABLE)
    assert parse_footer(footer[:-1] + field + footer[-1:]) == parse_footer(footer)
