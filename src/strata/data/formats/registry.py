"""Which formats there are, and which one a path is of."""

from __future__ import annotations

import inspect
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple

from strata.data.option_checks import check_flag, check_whole
from strata.errors import UnknownDataFormatError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from strata.data.formats.protocol import Format


class _Entry(NamedTuple):
    home: str
    name: str
    endings: tuple[str, ...]
    # Whether a file of it may be compressed as a whole; the others have compression of their own.
    compressible: bool
    # Options that say how rows are read and not which rows there are, so that one index serves all of them.
    only_reading: frozenset[str] = frozenset()


FORMATS = {
    "parquet": _Entry(
        "parquet", "Parquet", (".parquet", ".pq"), compressible=False, only_reading=frozenset({"verify"})
    ),
    "arrow": _Entry("arrow", "Arrow", (".arrow", ".arrows", ".feather", ".ipc"), compressible=False),
    "csv": _Entry("text.csv", "Csv", (".csv", ".tsv"), compressible=True),
    "jsonl": _Entry("text.jsonl", "JsonLines", (".jsonl", ".ndjson", ".jsonlines"), compressible=True),
    "tfrecord": _Entry("records.tfrecord", "TfRecord", (".tfrecord", ".tfrecords"), compressible=True),
    "webdataset": _Entry("tars.webdataset", "WebDataset", (".tar", ".tgz"), compressible=True),
    "numpy": _Entry("arrays", "Arrays", (".npy", ".npz"), compressible=False),
    "tokens": _Entry("tokens", "Tokens", (".bin", ".tokens"), compressible=False),
}
# Endings of compressed files, and what Arrow calls the codec; xz is the standard library's.
CODECS = {".gz": "gzip", ".zst": "zstd", ".bz2": "bz2", ".lz4": "lz4", ".xz": "xz", ".tgz": "gzip"}
# What lies beside data and is none.
COMPANIONS = (".md", ".txt", ".rst", ".json", ".yaml", ".yml", ".html", ".pdf", ".py", ".crc", ".idx")


def codec_of(path: str) -> str | None:
    """Return the codec that the whole file is compressed with, by its ending."""
    return next((codec for ending, codec in CODECS.items() if path.lower().endswith(ending)), None)


def guess_format(path: str) -> str | None:
    """Return the format that the file's ending stands for, also under that of a compression."""
    name = path.lower()
    for kind, entry in FORMATS.items():
        if name.endswith(entry.endings):
            return kind
    for ending in CODECS:
        if name.endswith(ending):
            inner = name.removesuffix(ending)
            return next((kind for kind, entry in FORMATS.items() if inner.endswith(entry.endings)), None)
    return None


def is_companion(path: str) -> bool:
    """Whether the file is documentation or the like, which may lie beside data."""
    name = path.rsplit("/", 1)[-1].lower()
    return name.endswith(COMPANIONS) or "." not in name


def check_compression(kind: str, path: str) -> None:
    """Refuse a file that is compressed as a whole where the format needs random access."""
    if codec_of(path) is not None and not FORMATS[kind].compressible:
        problem = f"a compressed {kind} file has no random access; decompress it, or use the format's own compression"
        raise UnknownDataFormatError(path, problem, known=[kind for kind in FORMATS if FORMATS[kind].compressible])


def indexed_options(kind: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options that decide which rows there are."""
    return {name: value for name, value in options.items() if name not in FORMATS[kind].only_reading}


def make_format(kind: str, options: Mapping[str, Any] | None = None) -> Format:
    """Return the format with its options; an unknown name or option is an error that lists the known ones."""
    if kind not in FORMATS:
        raise UnknownDataFormatError(kind, "there is no such format", known=FORMATS)
    entry = FORMATS[kind]
    made = getattr(import_module(f"{__package__}.{entry.home}"), entry.name)
    known = inspect.signature(made).parameters
    for name, value in (options or {}).items():
        if name not in known:
            raise ValueError(f"format {kind} has no option {name!r}; it has {', '.join(known) or 'none'}")
        # Signatures say their types as text. Each format checks by itself what its numbers and words may be.
        if known[name].annotation == "int":
            check_whole(name, value, least=0)
        elif known[name].annotation == "bool":
            check_flag(name, value)
    result: Format = made(**(options or {}))
    return result
