"""Addresses of datasets: paths, URLs, patterns and lists of them, and the place with files that each stands for."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias
from urllib.parse import unquote, urlsplit

from strata.data.files.patterns import expand_braces, has_wildcard, split_pattern
from strata.data.files.source import LocalSource, Source, StorageSource, reopen

if TYPE_CHECKING:
    from strata.storage import Storage

Address: TypeAlias = str | os.PathLike[str]


def open_source(address: Address | Sequence[Any], storage: Storage | None = None) -> Source:
    """Return the place that is meant: a directory, one file, a pattern such as ``data/**/*.parquet``, or a list.

    ``{000..999}`` and ``{a,b}`` are expanded, and each of what they stand for must be there. With a ``storage``,
    addresses are paths in it.
    """
    given = [address] if isinstance(address, str | os.PathLike) else list(address)
    if not given:
        raise ValueError("the list of addresses is empty; name at least one file or directory")
    for each in given:
        if isinstance(each, str | os.PathLike) and os.fspath(each):
            continue
        raise ValueError(f"{each!r} is no address; use a path or a URL")
    texts = [text for each in given for text in _expand(os.fspath(each), storage)]
    if len(texts) == 1 and len(given) == 1:
        return _open_one(texts[0], storage)
    from strata.data.files.listed import ListedSource, Part

    parents: dict[str, StorageSource] = {}
    parts = []
    for text in texts:
        above, _, name = text.rstrip("/").rpartition("/")
        if (storage is not None or _is_stored(text)) and not has_wildcard(text) and above.strip("/"):
            # One listing for all objects of a directory, and not one for each.
            if above not in parents:
                parents[above] = _open_stored(above, storage)
            parts.append(Part(parents[above], name))
        else:
            parts.append(Part(_open_one(text, storage), None))
    return ListedSource(parts, texts)


def _expand(text: str, storage: Storage | None) -> list[str]:
    # A name may have braces or a tilde in it and be no pattern.
    if storage is None and "://" not in text and not _exists(text):
        text = str(Path(text).expanduser())
    is_name = storage is None and "://" not in text and _exists(text)
    return [text] if is_name else expand_braces(text)


def _open_one(text: str, storage: Storage | None) -> Source:
    if storage is not None or _is_stored(text):
        return _narrowed(_open_stored(text, storage))
    scheme = urlsplit(text).scheme if "://" in text else ""
    if scheme in ("http", "https"):
        from strata.data.files.web import WebSource

        if has_wildcard(urlsplit(text).path):
            raise ValueError(
                f"{text!r}: a web server does not list its files, so a pattern has no meaning; name each file, or use "
                "braces, as in part-{000..099}.parquet"
            )
        return WebSource(text)
    if scheme == "hf":
        from strata.data.files.hub import open_hub

        return open_hub(text)
    path = unquote(urlsplit(text).path) if scheme == "file" else text
    whole = Path(path).absolute()
    # A name may have a bracket in it and be no pattern.
    base, selection = (str(whole), "") if _exists(path) else split_pattern(str(whole))
    root = Path(base)
    if not selection and _exists(base) and root.is_file():
        return LocalSource(root.parent, root.name)
    return LocalSource(root, selection)


def _exists(path: str) -> bool:
    try:
        return Path(path).exists()
    except OSError:
        # A pattern may be longer than any name, and still stand for files.
        return False


def _is_stored(text: str) -> bool:
    return "://" in text and urlsplit(text).scheme not in ("file", "http", "https", "hf")


def _open_stored(text: str, storage: Storage | None) -> StorageSource:
    if storage is not None:
        base, selection = split_pattern(text.strip("/"))
        return reopen(storage, base, selection, f"{storage!r}/{base}".rstrip("/"), None)
    split = urlsplit(text)
    opened = f"{split.scheme}://{split.netloc}"
    # A question mark is a wildcard here, and not the beginning of a query.
    path = text.removeprefix(opened)
    base, selection = split_pattern(path.strip("/"))
    return reopen(None, base, selection, f"{opened}/{base}".rstrip("/"), opened)


def _narrowed(source: StorageSource) -> StorageSource:
    """If there is nothing below, the path may be that of one object: look for it among its siblings."""
    if source.selection or not source.prefix or source.list():
        return source
    sibling = source.parent()
    return sibling if sibling.list() else source
