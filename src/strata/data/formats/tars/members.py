"""What a member of a sample holds: by its ending JSON, a number, a text, an array, or bytes."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.json as pj

from strata.data.formats import npy, tensors
from strata.data.formats.text import json_text, whole_numbers
from strata.data.formats.text.jsonl import without_time
from strata.data.formats.text.lines import BYTE_ORDER_MARK

if TYPE_CHECKING:
    from collections.abc import Sequence

    from strata.data.rows.columns import Column

_KINDS = {"json": "json", "cls": "number", "cls2": "number", "index": "number", "id": "number"}
_KINDS |= {"txt": "text", "text": "text", "transcript": "text", "npy": "array"}
_ONE_LINE = bytes.maketrans(b"\r\n", b"  ")
# How Arrow names the value that it could not read.
_ROW = re.compile(r"in row (\d+)")
_PLAIN = {"number": pa.int64(), "text": pa.string()}


class MemberError(Exception):
    """A member that cannot be decoded; ``number`` says of which sample, ``ending`` which one of it."""

    def __init__(self, problem: str, number: int, ending: str = "") -> None:
        super().__init__(problem)
        self.number = number
        self.ending = ending


def infer_schema(samples: Sequence[dict[str, Any]], key: str, *, decode: bool) -> pa.Schema:
    """Return a column per ending that these samples have, with the type of what its members hold."""
    names = dict.fromkeys(name for sample in samples for name in sample if name != key)
    fields = [pa.field(key, pa.string())]
    for name in sorted(names):
        values = [sample.get(name) for sample in samples]
        try:
            fields.append(_infer(name, values, decode=decode))
            fields[-1] = fields[-1].with_nullable(None in values or (_kind(name) == "json" and fields[-1].nullable))
        except MemberError as error:
            raise MemberError(str(error), error.number, name) from error
    return pa.schema(fields)


def merge_schemas(first: pa.Schema, second: pa.Schema) -> pa.Schema:
    """Return all columns of both, each with a type that holds the values of both; arrays of two shapes as bytes."""
    fields = {field.name: field for field in first}
    for field in second:
        known = fields.get(field.name)
        fields[field.name] = field if known is None else _merge(known, field)
    for name in set(first.names) ^ set(second.names):
        # Rows without an array cannot be part of one.
        fields[name] = _loosen(fields[name]).with_nullable(nullable=True)
    return pa.schema(sorted(fields.values(), key=lambda field: field.name))


def build(name: str, values: Sequence[bytes | None], field: pa.Field, *, decode: bool) -> Column:
    """Return members of one ending as a column of the type of the dataset."""
    match _kind(name) if decode else None:
        case "text":
            return pa.array(_each(values, lambda data: data.decode()), pa.string())
        case "number":
            numbers = _each(values, _whole)
            return pa.array(numbers, pa.int64()) if None in numbers else np.array(numbers, np.int64)
        case "array" if not pa.types.is_binary(field.type):
            return _stack(values, field)
        case "json" if json_text.is_marked(field):
            return pa.array(_each(values, _json_text), pa.string())
        case "json":
            return _parse_json(values, field.type)
        case _:
            return pa.array(values, pa.binary())


def _kind(name: str) -> str | None:
    return _KINDS.get(name.rsplit(".", 1)[-1])


def _infer(name: str, values: Sequence[bytes | None], *, decode: bool) -> pa.Field:
    kind = _kind(name) if decode else None
    if kind in _PLAIN:
        return pa.field(name, _PLAIN[kind])
    if kind == "json":
        parsed = _parse_json(values, None)
        field = json_text.refine(pa.field("v", without_time(parsed.type)), parsed, _as_lines(values))
        return field.with_name(name)
    if kind == "array" and None not in values:
        shapes = {_shape(data) for data in values if data is not None}
        if len(shapes) == 1 and (shape := shapes.pop()) is not None:
            return tensors.field_of(name, shape[0], shape[1])
    return pa.field(name, pa.binary())


def _merge(first: pa.Field, second: pa.Field) -> pa.Field:
    nullable = first.nullable or second.nullable
    if first.with_nullable(nullable).equals(second.with_nullable(nullable), check_metadata=True):
        return first.with_nullable(nullable)
    if json_text.is_marked(first) or json_text.is_marked(second):
        return json_text.mark(first.name, nullable=nullable)
    if (found := whole_numbers.merge(first, second)) is not None:
        return json_text.mark(first.name, nullable=nullable) if pa.types.is_string(found.type) else found
    if pa.types.is_binary(first.type) or pa.types.is_binary(second.type) or tensors.is_tensor(first):
        return pa.field(first.name, pa.binary())
    try:
        return pa.unify_schemas([pa.schema([first]), pa.schema([second])], promote_options="permissive").field(0)
    except pa.ArrowException as error:
        problem = f".{first.name} is {first.type} in one place and {second.type} in another"
        raise ValueError(f"{problem}; read it as bytes with the option decode=false") from error


def _loosen(field: pa.Field) -> pa.Field:
    return pa.field(field.name, pa.binary()) if tensors.is_tensor(field) else field


def _each(values: Sequence[bytes | None], decode: Any) -> list[Any]:
    decoded = []
    for number, data in enumerate(values):
        try:
            decoded.append(None if data is None else decode(data))
        except ValueError as error:
            raise MemberError(str(error), number) from error
        except RecursionError as error:
            raise MemberError("its values are nested too deeply", number) from error
    return decoded


def _shape(data: bytes) -> tuple[np.dtype[Any], tuple[int, ...]] | None:
    """Return what the header of an array says; None if it is none, or one with fields, which is no plain array."""
    try:
        header = npy.parse_header(data)
    except ValueError:
        return None
    if header.dtype.names is not None:
        return None
    return header.dtype.newbyteorder("="), header.shape


def _stack(values: Sequence[bytes | None], field: pa.Field) -> Column:
    arrays = _each(values, npy.parse_array)
    dtype, shape = tensors.shape_of(field)
    for number, array in enumerate(arrays):
        if array is None or array.shape != shape or array.dtype.newbyteorder("=") != dtype:
            raise MemberError(f"its array is not {dtype}{list(shape)} any more", number)
    return np.stack(arrays).astype(dtype, copy=False)


def _parse_json(values: Sequence[bytes | None], kind: pa.DataType | None) -> pa.Array:
    text = _as_lines(values)
    parsing = pj.ParseOptions(explicit_schema=None if kind is None else pa.schema({"v": kind}))
    try:
        text.decode()
        table = pj.read_json(
            pa.BufferReader(text), pj.ReadOptions(use_threads=False, block_size=len(text) + 1), parsing
        )
        if table.num_rows == len(values) and table.num_columns == 1:
            return table.column(0).combine_chunks()
        problem = "it is not one JSON value"
    except (pa.ArrowException, UnicodeDecodeError) as error:
        problem = str(error).splitlines()[0]
    _each(values, json.loads)
    found = _ROW.search(problem)
    raise MemberError(problem, int(found[1]) if found else 0)


def _as_lines(values: Sequence[bytes | None]) -> bytes:
    # Each becomes a line; a newline in JSON stands between tokens only, so a space does as well.
    plain = (b"null" if data is None else data.removeprefix(BYTE_ORDER_MARK) for data in values)
    return b"\n".join(b'{"v":%s}' % data.translate(_ONE_LINE) for data in plain)


def _json_text(data: bytes) -> str | None:
    """Return a string as itself, and any other value as its JSON text."""
    text = data.removeprefix(BYTE_ORDER_MARK).decode().strip()
    value = json.loads(text)
    return value if value is None or isinstance(value, str) else text


def _whole(data: bytes) -> int:
    number = int(data)
    if not -(2**63) <= number < 2**63:
        raise ValueError(f"{number} does not fit into int64")
    return number
