"""Making an index: find the files, agree on their format, look through each once, and keep what was found."""

from __future__ import annotations

import logging
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from strata.data.compressed import CompressedFile
from strata.data.files import WatchedFile
from strata.data.formats.registry import FORMATS, check_compression, codec_of, guess_format, is_companion, make_format
from strata.data.index import Index, index_name
from strata.data.source import key_of
from strata.errors import DatasetNotFoundError, MixedFormatsError, SchemaMismatchError, UnknownDataFormatError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import pyarrow as pa

    from strata.data.cache import Cache
    from strata.data.files import ByteFile
    from strata.data.formats.protocol import FileMeta
    from strata.data.source import FileInfo, Source

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
) -> Index:
    """Look through every file once, several at a time, and return the index of them all."""
    made = make_format(kind, options)

    def scan_one(info: FileInfo) -> tuple[FileMeta, pa.Schema]:
        inner = WatchedFile(source.open(info, None), on_bytes)
        found = made.scan(_decompressed(source, info, inner, cache, data_bytes=0))
        inner.finish()
        return found

    metas: list[FileMeta] = []
    schema: pa.Schema | None = None
    executor = ThreadPoolExecutor(min(THREADS, len(files)), thread_name_prefix="strata-scan")
    try:
        for info, (meta, own) in zip(files, executor.map(scan_one, files), strict=True):
            metas.append(meta)
            try:
                schema = own if schema is None else made.merge(schema, own)
            except ValueError as error:
                first, second = source.name_of(files[0].path), source.name_of(info.path)
                raise SchemaMismatchError(first, second, str(error)) from error
    finally:
        # After an error, files that were not begun are left alone.
        executor.shutdown(cancel_futures=True)
    return Index.build(kind, options, schema, files, metas)


def find_index(
    source: Source, kind: str, options: Mapping[str, Any], files: Sequence[FileInfo], cache: Cache
) -> Index | None:
    """Return the stored index, beside the data or in the cache; one that no longer fits is a StaleIndexError."""
    name = index_name(kind, options, source.selection)
    data = source.read_beside(name)
    if data is not None:
        index = Index.from_bytes(data, name=source.name_of(name))
    elif (data := cache.read_index(cached_name(source, name))) is not None:
        index = Index.from_bytes(data, name=str(cache.directory / "index" / cached_name(source, name)))
    else:
        return None
    index.check(source, files)
    return index


def store_index(source: Source, index: Index, cache: Cache) -> str:
    """Keep the index beside the data, or in the cache where the data is read-only; return where."""
    name = index_name(index.kind, index.options, source.selection)
    data = index.to_bytes()
    if source.write_beside(name, data):
        return source.name_of(name)
    return str(cache.write_index(cached_name(source, name), data))


def load_index(source: Source, kind: str | None, options: Mapping[str, Any], cache: Cache) -> Index:
    """Return the stored index of these files, or scan them now; what is scanned here is not stored."""
    chosen, files = choose_files(source, kind)
    make_format(chosen, options)  # so that wrong options are said before anything is read with them
    if (found := find_index(source, chosen, options, files, cache)) is not None:
        return found
    started_s = time.monotonic()
    index = scan_files(source, chosen, options, files, cache)
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
