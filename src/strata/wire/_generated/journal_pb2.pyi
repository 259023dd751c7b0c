from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Head(_message.Message):
    __slots__ = ("version", "term", "sequence", "last", "snapshot", "starts")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    TERM_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    LAST_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOT_FIELD_NUMBER: _ClassVar[int]
    STARTS_FIELD_NUMBER: _ClassVar[int]
    version: int
    term: int
    sequence: int
    last: int
    snapshot: Snapshot
    starts: _containers.RepeatedCompositeFieldContainer[TermStart]
    def __init__(self, version: _Optional[int] = ..., term: _Optional[int] = ..., sequence: _Optional[int] = ..., last: _Optional[int] = ..., snapshot: _Optional[_Union[Snapshot, _Mapping]] = ..., starts: _Optional[_Iterable[_Union[TermStart, _Mapping]]] = ...) -> None: ...

class TermStart(_message.Message):
    __slots__ = ("term", "last")
    TERM_FIELD_NUMBER: _ClassVar[int]
    LAST_FIELD_NUMBER: _ClassVar[int]
    term: int
    last: int
    def __init__(self, term: _Optional[int] = ..., last: _Optional[int] = ...) -> None: ...

class Snapshot(_message.Message):
    __slots__ = ("number", "pieces", "size_bytes", "digest", "term", "sequence")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    PIECES_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    TERM_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    number: int
    pieces: int
    size_bytes: int
    digest: bytes
    term: int
    sequence: int
    def __init__(self, number: _Optional[int] = ..., pieces: _Optional[int] = ..., size_bytes: _Optional[int] = ..., digest: _Optional[bytes] = ..., term: _Optional[int] = ..., sequence: _Optional[int] = ...) -> None: ...

class Batch(_message.Message):
    __slots__ = ("first", "entries")
    FIRST_FIELD_NUMBER: _ClassVar[int]
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    first: int
    entries: _containers.RepeatedCompositeFieldContainer[Entry]
    def __init__(self, first: _Optional[int] = ..., entries: _Optional[_Iterable[_Union[Entry, _Mapping]]] = ...) -> None: ...

class Entry(_message.Message):
    __slots__ = ("at_s", "command")
    AT_S_FIELD_NUMBER: _ClassVar[int]
    COMMAND_FIELD_NUMBER: _ClassVar[int]
    at_s: float
    command: bytes
    def __init__(self, at_s: _Optional[float] = ..., command: _Optional[bytes] = ...) -> None: ...

class Piece(_message.Message):
    __slots__ = ("index", "count", "digest", "data")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    index: int
    count: int
    digest: bytes
    data: bytes
    def __init__(self, index: _Optional[int] = ..., count: _Optional[int] = ..., digest: _Optional[bytes] = ..., data: _Optional[bytes] = ...) -> None: ...

class Replica(_message.Message):
    __slots__ = ("grpc", "http", "version")
    GRPC_FIELD_NUMBER: _ClassVar[int]
    HTTP_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    grpc: str
    http: str
    version: str
    def __init__(self, grpc: _Optional[str] = ..., http: _Optional[str] = ..., version: _Optional[str] = ...) -> None: ...
