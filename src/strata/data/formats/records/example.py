"""``tf.train.Example`` without TensorFlow: its features as columns."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

if TYPE_CHECKING:
    from collections.abc import Sequence

    from strata.data.rows.columns import Column

_TYPES = {"bytes_list": pa.binary(), "float_list": pa.float32(), "int64_list": pa.int64()}
_Field = descriptor_pb2.FieldDescriptorProto


def _make_messages() -> tuple[Any, Any]:
    file = descriptor_pb2.FileDescriptorProto(name="strata/example.proto", package="strata.example", syntax="proto3")

    def add(owner: Any, name: str, number: int, kind: int, type_name: str = "", *, repeated: bool = False) -> Any:
        label = _Field.LABEL_REPEATED if repeated else _Field.LABEL_OPTIONAL
        return owner.field.add(name=name, number=number, type=kind, type_name=type_name or None, label=label)

    add(file.message_type.add(name="BytesList"), "value", 1, _Field.TYPE_BYTES, repeated=True)
    # On the wire, packed floats are bytes. Read as such they become an array at once, not number by number.
    add(file.message_type.add(name="FloatList"), "value", 1, _Field.TYPE_BYTES, repeated=True)
    add(file.message_type.add(name="Int64List"), "value", 1, _Field.TYPE_INT64, repeated=True)
    feature = file.message_type.add(name="Feature")
    feature.oneof_decl.add(name="kind")
    for number, name in enumerate(("Bytes", "Float", "Int64"), start=1):
        each = add(feature, f"{name.lower()}_list", number, _Field.TYPE_MESSAGE, f".strata.example.{name}List")
        each.oneof_index = 0
    features = file.message_type.add(name="Features")
    entry = features.nested_type.add(name="FeatureEntry")
    entry.options.map_entry = True
    add(entry, "key", 1, _Field.TYPE_STRING)
    add(entry, "value", 2, _Field.TYPE_MESSAGE, ".strata.example.Feature")
    add(features, "feature", 1, _Field.TYPE_MESSAGE, ".strata.example.Features.FeatureEntry", repeated=True)
    row = file.message_type.add(name="FeatureList")
    add(row, "feature", 1, _Field.TYPE_MESSAGE, ".strata.example.Feature", repeated=True)
    rows = file.message_type.add(name="FeatureLists")
    entry = rows.nested_type.add(name="FeatureListEntry")
    entry.options.map_entry = True
    add(entry, "key", 1, _Field.TYPE_STRING)
    add(entry, "value", 2, _Field.TYPE_MESSAGE, ".strata.example.FeatureList")
    add(rows, "feature_list", 1, _Field.TYPE_MESSAGE, ".strata.example.FeatureLists.FeatureListEntry", repeated=True)
    # On the wire a SequenceExample is an Example with lists of features beside the features, which it calls context.
    example = file.message_type.add(name="Example")
    add(example, "features", 1, _Field.TYPE_MESSAGE, ".strata.example.Features")
    add(example, "feature_lists", 2, _Field.TYPE_MESSAGE, ".strata.example.FeatureLists")
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    found = [pool.FindMessageTypeByName(f"strata.example.{name}") for name in ("Example", "FeatureList")]
    return message_factory.GetMessageClass(found[0]), message_factory.GetMessageClass(found[1])


_Example, _FeatureList = _make_messages()


def parse(payload: bytes) -> dict[str, Any]:
    """Return the features and feature lists of a serialized Example or SequenceExample by their names.

    Bad bytes are protobuf's DecodeError; a name that is both a feature and a list is a ValueError.
    """
    parsed = _Example.FromString(payload)
    found = dict(parsed.features.feature)
    for name, steps in parsed.feature_lists.feature_list.items():
        if name in found:
            raise ValueError(f"{name!r} is both a feature of the context and a feature list")
        found[name] = steps
    return found


class Shapes:
    """What has been seen of each feature: its kind, and how many values it has in a record."""

    def __init__(self) -> None:
        self._records = 0
        self._seen: dict[str, tuple[str, int, int, int]] = {}

    def add(self, features: Any) -> None:
        """Take notice of one record."""
        self._records += 1
        for name, feature in features.items():
            if isinstance(feature, _FeatureList):
                found = [step.WhichOneof("kind") for step in feature.feature]
                kinds = {each for each in found if each is not None}
                if len(kinds) > 1:
                    raise ValueError(f"feature list {name!r} has steps of {' and '.join(sorted(kinds))}")
                if not kinds:
                    continue
                kind, count = f"steps of {kinds.pop()}", 2
            else:
                kind = feature.WhichOneof("kind")
                if kind is None:
                    continue
                count = len(_values(feature, kind))
            known, low, high, records = self._seen.get(name, (kind, count, count, 0))
            if known != kind:
                raise ValueError(f"feature {name!r} is {known} in one record and {kind} in another")
            self._seen[name] = (kind, min(low, count), max(high, count), records + 1)

    def schema(self) -> pa.Schema:
        """Return a column per feature, with the narrowest type that holds all records."""
        return pa.schema([self._field(name, *seen) for name, seen in sorted(self._seen.items())])

    def _field(self, name: str, kind: str, low: int, high: int, records: int) -> pa.Field:
        may_miss = low == 0 or records < self._records
        return pa.field(name, self._type(kind, low, high, records), nullable=may_miss)

    def _type(self, kind: str, low: int, high: int, records: int) -> pa.DataType:
        if kind.startswith("steps of "):
            return pa.list_(pa.list_(_TYPES[kind.removeprefix("steps of ")]))
        value = _TYPES[kind]
        if high <= 1:
            return value
        is_fixed = low == high and records == self._records and kind != "bytes_list"
        return pa.list_(value, high) if is_fixed else pa.list_(value)


def merge(first: pa.Schema, second: pa.Schema) -> pa.Schema:
    """Return all features of both, each with a type that holds the values of both."""
    fields = {field.name: field for field in first}
    for field in second:
        known = fields.setdefault(field.name, field).type
        nullable = fields[field.name].nullable or field.nullable
        if known == field.type:
            fields[field.name] = field.with_nullable(nullable)
            continue
        if _value_type(known) != _value_type(field.type):
            raise ValueError(f"feature {field.name!r} is {known} in the first and {field.type} in the second")
        fields[field.name] = pa.field(field.name, pa.list_(_value_type(known)))
    for name in set(first.names) ^ set(second.names):
        fields[name] = fields[name].with_nullable(nullable=True)
        # Records without the feature have no values of it, so it has no one length any more.
        if pa.types.is_fixed_size_list(fields[name].type):
            fields[name] = pa.field(name, pa.list_(_value_type(fields[name].type)))
    return pa.schema(sorted(fields.values(), key=lambda field: field.name))


def build(examples: Sequence[Any], field: pa.Field) -> Column:
    """Return the feature of this name of all examples as a column."""
    value = _value_type(field.type)
    if pa.types.is_list(value):
        return _build_steps(examples, field)
    kind = next(kind for kind, each in _TYPES.items() if each == value)
    rows: list[Any] = [_values(each[field.name], kind) if field.name in each else () for each in examples]
    counts = np.fromiter(map(len, rows), np.int64, len(rows))
    if field.type == value:
        if counts.max(initial=0) > 1:
            raise ValueError(f"feature {field.name!r} had one value in every record when it was indexed, and has more")
        if kind == "bytes_list" or counts.min(initial=1) == 0:
            return pa.array([each[0] if len(each) else None for each in rows], value)
        return np.array([each[0] for each in rows], value.to_pandas_dtype())
    if kind == "bytes_list":
        return pa.array([list(each) for each in rows], pa.list_(value))
    dtype = value.to_pandas_dtype()
    flat = np.concatenate([np.empty(0, dtype), *(np.asarray(each, dtype) for each in rows)])
    if pa.types.is_fixed_size_list(field.type):
        if (counts != field.type.list_size).any():
            raise ValueError(f"feature {field.name!r} had {field.type.list_size} values in every record when indexed")
        return flat.reshape(len(rows), field.type.list_size)
    offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
    return pa.ListArray.from_arrays(offsets, flat)


def _build_steps(examples: Sequence[Any], field: pa.Field) -> pa.Array:
    value = field.type.value_type.value_type
    kind = next(kind for kind, each in _TYPES.items() if each == value)
    rows = []
    for each in examples:
        found = each.get(field.name)
        if found is not None and not isinstance(found, _FeatureList):
            raise ValueError(f"{field.name!r} was a feature list when it was indexed, and is a feature")
        rows.append(None if found is None else [list(_values(step, kind)) for step in found.feature])
    return pa.array(rows, field.type)


def _values(feature: Any, kind: str) -> Any:
    found = feature.WhichOneof("kind")
    if found is None:
        return ()
    if found != kind:
        raise ValueError(f"a feature is {found} and not {kind}, as it was when it was indexed")
    values = getattr(feature, kind)
    return _floats(values) if kind == "float_list" else values.value


def _floats(values: Any) -> Any:
    if packed := values.value:
        return np.frombuffer(packed[0] if len(packed) == 1 else b"".join(packed), "<f4")
    # Old writers put each number by itself: a tag byte, then four bytes. The parser keeps what it does not know.
    loose = np.frombuffer(values.SerializeToString(), np.uint8)
    return loose.reshape(-1, 5)[:, 1:].copy().view("<f4").reshape(-1)


def _value_type(kind: pa.DataType) -> pa.DataType:
    return kind.value_type if pa.types.is_list(kind) or pa.types.is_fixed_size_list(kind) else kind
