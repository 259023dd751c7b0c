"""Keys: which names an object may have, and what a listing may be asked for.

A key is relative, its segments are separated by "/", and it means the same on every store. Pure checks:
nothing here touches a store.
"""

from __future__ import annotations

import re

from strata.errors import InvalidKeyError

# S3, GCS and Azure end at 1,024 bytes for a key with the prefix of its storage.
MAX_KEY_BYTES = 900
MAX_ROOT_BYTES = 1024 - MAX_KEY_BYTES - 1
# What Linux file systems allow one name to have.
MAX_SEGMENT_BYTES = 255
# First segments that storages keep for themselves: temporary files, probes.
RESERVED = ".strata-"

# Control characters differ from store to store; a backslash is a separator to some and a letter to others.
# A lone surrogate is no text at all: it cannot be encoded.
_REFUSED = re.compile(r"[\x00-\x1f\x7f-\x9f\\\ud800-\udfff]")


def check_key(path: str) -> str:
    """Return ``path`` if every store may be asked for it, or raise InvalidKeyError."""
    if not isinstance(path, str):
        raise InvalidKeyError(path, f"a key is a string, not {type(path).__name__}")
    if not path:
        raise InvalidKeyError(path, "the key is empty")
    if path.startswith("/"):
        raise InvalidKeyError(path, "the key is absolute")
    if found := _REFUSED.search(path):
        raise InvalidKeyError(path, f"the key contains {found[0]!r}")
    if len(path.encode()) > MAX_KEY_BYTES:
        raise InvalidKeyError(path, f"the key has more than {MAX_KEY_BYTES} bytes")
    for segment in path.split("/"):
        _check_segment(path, segment)
    if is_reserved(path):
        raise InvalidKeyError(path, f"keys that begin with {RESERVED} are Strata's own")
    return path


def check_prefix(prefix: str) -> str:
    """Return ``prefix`` without a trailing "/", or raise InvalidKeyError; "" means the whole store."""
    if prefix == "":
        return prefix
    return check_key(prefix.removesuffix("/"))


def check_root(prefix: str) -> str:
    """Return the prefix that a storage puts before every key, or raise InvalidKeyError."""
    checked = check_prefix(prefix)
    if len(checked.encode()) > MAX_ROOT_BYTES:
        raise InvalidKeyError(prefix, f"the prefix of a storage has more than {MAX_ROOT_BYTES} bytes")
    return checked


def is_reserved(path: str) -> bool:
    """Whether this key is one that storages keep for themselves."""
    return path.startswith(RESERVED)


def _check_segment(path: str, segment: str) -> None:
    if not segment:
        raise InvalidKeyError(path, "the key has an empty segment")
    if segment in (".", ".."):
        raise InvalidKeyError(path, f"the key has the segment {segment!r}")
    if len(segment.encode()) > MAX_SEGMENT_BYTES:
        raise InvalidKeyError(path, f"a segment of the key has more than {MAX_SEGMENT_BYTES} bytes")
