"""TFRecord files as TensorFlow writes them, made without it and without the code under test."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any

import google_crc32c

if TYPE_CHECKING:
    from collections.abc import Iterable


def record(payload: bytes) -> bytes:
    """Frame one record."""
    length = struct.pack("<Q", len(payload))
    return length + _masked(length) + payload + _masked(payload)


def example(features: dict[str, list[Any]], *, packed: bool = True) -> bytes:
    """Serialize a tf.train.Example; the kind of a feature is that of its first value."""
    entries = b"".join(
        _field(1, _field(1, name.encode()) + _field(2, _feature(values, packed=packed)))
        for name, values in features.items()
    )
    return _field(1, entries)


def sequence_example(context: dict[str, list[Any]], steps: dict[str, list[list[Any]]]) -> bytes:
    """Serialize a tf.train.SequenceExample: features of the context, and lists of features by step."""
    entries = b"".join(
        _field(
            1, _field(1, name.encode()) + _field(2, b"".join(_field(1, _feature(step, packed=True)) for step in each))
        )
        for name, each in steps.items()
    )
    return example(context) + _field(2, entries)


def tfrecords(rows: Iterable[dict[str, list[Any]]], *, packed: bool = True) -> bytes:
    """Return the content of a file."""
    return b"".join(record(example(row, packed=packed)) for row in rows)


def _masked(data: bytes) -> bytes:
    crc = google_crc32c.value(data)
    return struct.pack("<I", (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF)


def _feature(values: list[Any], *, packed: bool) -> bytes:
    if not values:
        return b""
    if isinstance(values[0], bytes):
        return _field(1, b"".join(_field(1, value) for value in values))
    if isinstance(values[0], float):
        numbers = [struct.pack("<f", value) for value in values]
        return _field(2, _field(1, b"".join(numbers)) if packed else b"".join(b"\x0d" + each for each in numbers))
    numbers = [_varint(value % 2**64) for value in values]
    return _field(3, _field(1, b"".join(numbers)) if packed else b"".join(b"\x08" + each for each in numbers))


def _field(number: int, data: bytes) -> bytes:
    return _varint(number << 3 | 2) + _varint(len(data)) + data


def _varint(value: int) -> bytes:
    found = bytearray()
    while value > 0x7F:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*found, value])
