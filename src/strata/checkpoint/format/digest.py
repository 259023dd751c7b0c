"""Digests: xxh3-128 of every 4 MiB chunk, and of a part as the digest of its chunks' digests.

Hashing releases the interpreter's lock, so a few threads outrun any disk.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from typing import TYPE_CHECKING

import xxhash

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

CHUNK_BYTES = 4 << 20
DIGEST_BYTES = 16
THREADS = 2
# Below this, starting threads costs more than they save.
PARALLEL_BYTES = 16 << 20


def digest_bytes(data: bytes | memoryview) -> bytes:
    """The digest of one chunk, or of anything small."""
    return xxhash.xxh3_128_digest(data)


def chunk_count(size_bytes: int) -> int:
    """How many chunks a part of this size has; the last one may be short."""
    return -(-size_bytes // CHUNK_BYTES)


def digest_chunks(view: memoryview, indices: Sequence[int] | None = None) -> list[bytes]:
    """The digests of the chunks of ``view``, all of them or those of ``indices``."""
    wanted = range(chunk_count(len(view))) if indices is None else indices

    def digest(index: int) -> bytes:
        return xxhash.xxh3_128_digest(view[index * CHUNK_BYTES : (index + 1) * CHUNK_BYTES])

    if len(wanted) * CHUNK_BYTES < PARALLEL_BYTES:
        return [digest(index) for index in wanted]
    lanes = [wanted[lane::THREADS] for lane in range(THREADS)]
    with ThreadPoolExecutor(THREADS, thread_name_prefix="strata-digest") as threads:
        done = list(threads.map(lambda lane: [digest(index) for index in lane], lanes))
    digests: list[bytes] = [b""] * len(wanted)
    for lane, found in enumerate(done):
        digests[lane::THREADS] = found
    return digests


def digest_without(view: memoryview, chunks: Sequence[bytes], span: slice) -> bytes:
    """The digest of a part without the bytes of one span; ``chunks`` are its digests with them."""
    digests = list(chunks)
    for index in range(span.start // CHUNK_BYTES, chunk_count(span.stop)):
        low, high = index * CHUNK_BYTES, min((index + 1) * CHUNK_BYTES, len(view))
        kept = xxhash.xxh3_128(view[low : max(low, span.start)])
        kept.update(view[min(high, span.stop) : high])
        digests[index] = kept.digest()
    return digest_part(digests)


def digest_behind(view: memoryview, wait_ready: Callable[[int], object]) -> list[bytes]:
    """The digests of all chunks, in one thread that follows whoever fills the view."""
    digests = []
    for start in range(0, len(view), CHUNK_BYTES):
        end = min(start + CHUNK_BYTES, len(view))
        wait_ready(end)
        digests.append(xxhash.xxh3_128_digest(view[start:end]))
    return digests


def digest_part(chunks: Iterable[bytes]) -> bytes:
    """The digest of a part: that of its chunks' digests, one after the other."""
    return xxhash.xxh3_128_digest(bytes(chain.from_iterable(chunks)))
