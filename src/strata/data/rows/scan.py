"""Making an index: find the files, agree on their format, look through each once, and keep what was found."""

from __future__ import annotations

import logging
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from strata.data.files.compressed import CompressedFile
from strata.data.files.random_access import WatchedFile
from strata.data.files.source import key_of
from strata.data.formats.registry import FORMATS, check_compression, codec_of, guess_format, is_companion, make_format
from strata.data.rows.index import Index, index_name, may_be_copy
from strata.data.rows.partitions import partition_fields
from strata.data.rows.schemas import SchemaMerge
from strata.data.rows.splits import check_one_split
from strata.errors import (
    CorruptFileError,
    DatasetNotFoundError,
    MixedFormatsError,
    StaleIndexError,
    UnknownDataFormatError,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from strata.data.files.cache import Cache
    from strata.data.files.random_access import ByteFile
    from strata.data.files.source import FileInfo, Source
    from strata.data.formats.protocol import FileMeta

log = logging.getLogger(__name__)

# Scans wait for disks and stores more than they compute, and what they compute is mostly Arrow's, outside the lock.
THREADS = 16
# From here on, someone who opened a dataset may wonder what it is doing.
LONG_SCAN_S = 2.0


def choose_files(source: Source, kind: str | None) -> tuple[str, Sequence[FileInfo]]:
    """Return the format and its files; without a name for the format, the endings must agree on one."""
    files = source.list()
    if not files:
        selected = f"nothing here matches {source.selection}" if source.selection else "there are no files in it"
        hint = "check the path; names that begin with a dot or an underscore do not count"
        raise DatasetNotFoundError(source.url, selected, hint=hint)
    if kind is not None:
        if kind not in FORMATS:
            raise UnknownDataFormatError(source.url, f"there is no format {kind!r}", known=FORMATS)
        # Files without a telling name are taken as they are; among others, only those of the format are meant.
        chosen = [info for info in files if guess_format(info.path) == kind] or files
    else:
        kind, chosen = _guess(source, files)
    check_one_split(source, files, chosen)
    for info in chosen:
        check_compression(kind, info.path)
    return kind, chosen


def scan_files(
    source: Source,
    kind: str,
    options: Mapping[str, Any],
    files: Sequence[FileInfo],
    cache: Cache,
    *,
    on_bytes: Callable[[int], None] = lambda count: None,
    on_bad: Callable[[FileInfo, CorruptFileError], None] | None = None,
) -> Index:
    """Look through every file once, several at a time, and return the index of them all.

    With ``on_bad``, files that cannot be understood are told to it and left out, as long as one is good.
    """
    made = make_format(kind, options)

    def scan_one(info: FileInfo) -> tuple[FileMeta, pa.Schema]:
        # A scan leaves the cache to what will be read, but for files that can only be streamed.
        inner = WatchedFile(source.open(info, cache if source.needs_cache(info) else None), on_bytes)
        found = made.scan(_decompressed(source, info, inner, cache, data_bytes=0))
        inner.finish()
        return found

    def try_one(info: FileInfo) -> tuple[FileMeta, pa.Schema] | CorruptFileError:
        try:
            return scan_one(info)
        except CorruptFileError as error:
            if on_bad is None:
                raise
            return error

    metas: list[FileMeta] = []
    good: list[FileInfo] = []
    merge = SchemaMerge(made)
    without_rows: list[tuple[str, pa.Schema]] = []
    executor = ThreadPoolExecutor(min(THREADS, len(files)), thread_name_prefix="strata-scan")
    try:
        for info, found in zip(files, executor.map(try_one, files), strict=True):
            if isinstance(found, CorruptFileError):
                assert on_bad is not None
                on_bad(info, found)
                continue
            meta, own = found
            good.append(info)
            metas.append(meta)
            if meta.rows:
                merge.add(source.name_of(info.path), own)
            else:
                without_rows.append((source.name_of(info.path), own))
    finally:
        # After an error, files that were not begun are left alone.
        executor.shutdown(cancel_futures=True)
    if not good:
        raise DatasetNotFoundError(source.url, "none of its files can be read", hint="bring good copies of the files")
    # What has no rows decides nothing, unless no file has any: no value of it is missing, and none has another type.
    for name, own in [] if any(meta.rows for meta in metas) else without_rows:
        merge.add(name, own)
    schema = merge.schema()
    added = partition_fields([info.path for info in good], schema.names)
    return Index.build(kind, options, pa.schema([*schema, *added]), good, metas)


def find_index(
    source: Source, kind: str, options: Mapping[str, Any], files: Sequence[FileInfo], cache: Cache
) -> Index | None:
    """Return the stored index, beside the data or in the cache; one that no longer fits is a StaleIndexError.

    A copied dataset has other inodes than the index says, and so has one with a file that was replaced by another of
    the same size and time. So the files are scanned; where rows are as they were indexed, the index is replaced.
    """
    index = read_index(source, kind, options, cache)
    if index is None or list(index.files) == list(files):
        return index
    if not index.may_be_of_copies(files):
        index.check(source, files)
    log.info("%s: its files are not those that were indexed, as after copying; they are scanned", source.url)
    fresh = scan_files(source, kind, options, files, cache)
    if not fresh.has_rows_of(index):
        index.check(source, files)
    source.write_beside(index_name(kind, options, source.selection), fresh.to_bytes())
    return fresh


def read_index(source: Source, kind: str, options: Mapping[str, Any], cache: Cache) -> Index | None:
    """Return the stored index, whether it fits the files or not."""
    name = index_name(kind, options, source.selection)
    data = source.read_beside(name)
    if data is not None:
        return Index.from_bytes(data, name=source.name_of(name))
    if (data := cache.read_index(cached_name(source, name))) is not None:
        return Index.from_bytes(data, name=str(cache.directory / "index" / cached_name(source, name)))
    return None


def _keep_index(
    source: Source,
    kind: str,
    options: Mapping[str, Any],
    files: Sequence[FileInfo],
    cache: Cache,
    on_bad: Callable[[FileInfo, CorruptFileError], None],
) -> Index | None:
    """Return the stored index if all files that changed since are bad now, and tell of these; it has their rows."""
    index = read_index(source, kind, options, cache)
    before = {} if index is None else {info.path: info for info in index.files}
    if index is None or [info.path for info in files] != list(before):
        return None
    made = make_format(kind, options)
    bad = []
    kept = []
    for info in files:
        is_copy = may_be_copy(before[info.path], info)
        kept.append(info if is_copy else before[info.path])
        if info == before[info.path]:
            continue
        try:
            made.scan(_decompressed(source, info, source.open(info, None), cache, data_bytes=0))
        except CorruptFileError as error:
            bad.append((info, error))
        else:
            if not is_copy:
                return None
    for info, problem in bad:
        on_bad(info, problem)
    return replace(index, files=kept)


def store_index(source: Source, index: Index, cache: Cache) -> str:
    """Keep the index beside the data, or in the cache where the data is read-only; return where."""
    name = index_name(index.kind, index.options, source.selection)
    data = index.to_bytes()
    if source.write_beside(name, data):
        return source.name_of(name)
    return str(cache.write_index(cached_name(source, name), data))


def load_index(
    source: Source,
    kind: str | None,
    options: Mapping[str, Any],
    cache: Cache,
    *,
    on_bad: Callable[[FileInfo, CorruptFileError], None] | None = None,
) -> Index:
    """Return the stored index of these files, or scan them now; what is scanned here is not stored.

    With ``on_bad``, a file that is bad now and was good when it was indexed is told to it, and stays in the index.
    """
    chosen, files = choose_files(source, kind)
    make_format(chosen, options)  # so that wrong options are said before anything is read with them
    try:
        if (found := find_index(source, chosen, options, files, cache)) is not None:
            return found
    except (StaleIndexError, CorruptFileError):
        if on_bad is None or (kept := _keep_index(source, chosen, options, files, cache, on_bad)) is None:
            raise
        return kept
    started_s = time.monotonic()
    index = scan_files(source, chosen, options, files, cache, on_bad=on_bad)
    if (elapsed_s := time.monotonic() - started_s) > LONG_SCAN_S:
        log.warning(
            "%s has no index, so %d files were scanned for %.1f s; 'strata data index %s' does that once for all",
            source.url,
            len(files),
            elapsed_s,
            source.url,
        )
    return index


def open_file(source: Source, info: FileInfo, cache: Cache, *, data_bytes: int) -> ByteFile:
    """Open a file, decompressed if it is compressed."""
    return _decompressed(source, info, source.open(info, cache), cache, data_bytes=data_bytes)


def _decompressed(source: Source, info: FileInfo, inner: ByteFile, cache: Cache, *, data_bytes: int) -> ByteFile:
    if (codec := codec_of(info.path)) is None:
        return inner
    return CompressedFile(inner, codec, size_bytes=data_bytes, key=key_of(source, info), cache=cache)


def cached_name(source: Source, name: str) -> str:
    """Return what the cache calls the index of a read-only place."""
    import xxhash

    return f"{xxhash.xxh3_64_hexdigest(source.url.encode())}{name}"


def _guess(source: Source, files: Sequence[FileInfo]) -> tuple[str, Sequence[FileInfo]]:
    by_kind: dict[str, list[FileInfo]] = {}
    unknown: list[FileInfo] = []
    for info in files:
        kind = guess_format(info.path)
        if kind is not None:
            by_kind.setdefault(kind, []).append(info)
        elif not is_companion(info.path):
            unknown.append(info)
    if not by_kind:
        example = source.name_of((unknown or list(files))[0].path)
        raise UnknownDataFormatError(example, "its ending is that of no format", known=FORMATS)
    if len(by_kind) > 1 or unknown:
        examples = {kind: source.name_of(found[0].path) for kind, found in by_kind.items()}
        if unknown:
            examples["unknown"] = source.name_of(unknown[0].path)
        raise MixedFormatsError(source.url, examples)
    return next(iter(by_kind.items()))
