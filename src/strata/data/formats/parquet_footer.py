"""What the footer of a Parquet file says of its columns, read without Arrow.

Arrow ends the whole process when it looks at a column whose statistics are damaged, and there is no error to catch. So
the footer (Thrift's compact protocol) is read here, and damage is a ValueError.
"""

from __future__ import annotations

from typing import Any, NamedTuple

# Deeper than any footer; what is damaged may go on for ever.
_MAX_DEPTH = 32
# Field numbers of parquet.thrift: FileMetaData, RowGroup, ColumnChunk, ColumnMetaData, Statistics.
_ROW_GROUPS, _COLUMNS, _NUM_ROWS, _META_DATA, _PATH, _STATISTICS, _NULL_COUNT = 4, 1, 3, 3, 3, 12, 3
_DATA_OFFSET, _DICTIONARY_OFFSET = 9, 11


class Footer(NamedTuple):
    """Where each row group begins, and the top-level columns that miss values or do not say that they miss none."""

    group_offsets: list[int]
    columns_with_missing_values: set[str]


def parse_footer(footer: bytes) -> Footer:
    """Read the footer; one that is damaged is a ValueError, as far as that can be seen."""
    try:
        groups = _Compact(footer).read_struct(0).get(_ROW_GROUPS, ())
        missing = {
            chunk[_META_DATA][_PATH][0].decode()
            for group in groups
            if group[_NUM_ROWS]
            for chunk in group[_COLUMNS]
            if chunk[_META_DATA].get(_STATISTICS, {}).get(_NULL_COUNT) != 0
        }
        offsets = [_offset(group[_COLUMNS][0][_META_DATA]) if group[_COLUMNS] else 0 for group in groups]
    except (IndexError, KeyError, TypeError, AttributeError) as error:
        raise ValueError("its footer has not the fields of a Parquet file") from error
    if not all(isinstance(offset, int) and 0 <= offset < 2**63 for offset in offsets):
        raise ValueError("its footer names a place outside of the file")
    return Footer(offsets, missing)


def _offset(column: dict[int, Any]) -> Any:
    return column.get(_DICTIONARY_OFFSET) or column[_DATA_OFFSET]


class _Compact:
    """Reads structs of Thrift's compact protocol as dicts by the numbers of their fields."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def read_struct(self, depth: int) -> dict[int, Any]:
        """Return the fields of the struct that begins here."""
        fields: dict[int, Any] = {}
        number = 0
        while head := self._byte():
            number = number + (head >> 4) if head >> 4 else self._signed()
            kind = head & 15
            # A flag is in the head itself; in a list it would be a byte of its own.
            fields[number] = kind == 1 if kind in (1, 2) else self._value(kind, depth + 1)
        return fields

    def _value(self, kind: int, depth: int) -> Any:
        if depth > _MAX_DEPTH:
            raise ValueError("its footer is nested too deep")
        if kind in (4, 5, 6):
            return self._signed()
        if kind == 8:
            return self._bytes(self._varint())
        if kind in (9, 10):
            head = self._byte()
            count = self._varint() if head >> 4 == 15 else head >> 4
            return [self._value(head & 15, depth + 1) for _ in range(count)]
        if kind == 12:
            return self.read_struct(depth)
        if kind in (1, 2, 3):
            return self._byte()
        if kind == 7:
            return self._bytes(8)
        raise ValueError(f"its footer has a field of the unknown kind {kind}")

    def _byte(self) -> int:
        self._at += 1
        return self._data[self._at - 1]

    def _bytes(self, count: int) -> bytes:
        self._at += count
        if self._at > len(self._data):
            raise ValueError("its footer is cut off")
        return self._data[self._at - count : self._at]

    def _varint(self) -> int:
        value, shift = 0, 0
        while (byte := self._byte()) >= 0x80:
            value |= (byte & 0x7F) << shift
            shift += 7
            if shift > 63:
                raise ValueError("its footer has a number that is too long")
        return value | byte << shift

    def _signed(self) -> int:
        value = self._varint()
        return (value >> 1) ^ -(value & 1)
