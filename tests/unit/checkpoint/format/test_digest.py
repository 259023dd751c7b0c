"""Digests are part of the format: each chunk has that of its own bytes, in however many threads they are made."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from strata.checkpoint.format import digest
from strata.checkpoint.format.delta import find_changes
from strata.checkpoint.format.manifest import Extent, PartRecord

CHUNK_BYTES = 4


@pytest.fixture(scope="module", autouse=True)
def _small_chunks() -> Iterator[None]:
    """Chunks of four bytes, and threads from four chunks on."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(digest, "CHUNK_BYTES", CHUNK_BYTES)
        patch.setattr(digest, "PARALLEL_BYTES", 4 * CHUNK_BYTES)
        yield


def chunks_of(data: bytes) -> list[bytes]:
    return [data[start : start + CHUNK_BYTES] for start in range(0, len(data), CHUNK_BYTES)]


@given(data=st.binary(max_size=60), choice=st.randoms())
def test_every_chunk_has_the_digest_of_its_own_bytes(data: bytes, choice: Random) -> None:
    expected = [xxhash.xxh3_128_digest(chunk) for chunk in chunks_of(data)]
    assert digest.chunk_count(len(data)) == len(expected)
    assert digest.digest_chunks(memoryview(data)) == expected
    chosen = [index for index in range(len(expected)) if choice.random() < 0.7]
    assert digest.digest_chunks(memoryview(data), chosen) == [expected[index] for index in chosen]


@given(st.binary(max_size=60))
def test_a_chunk_is_read_only_when_all_of_it_is_there(data: bytes) -> None:
    filled, ready = bytearray(len(data)), []

    def fill(end: int) -> None:
        filled[:end] = data[:end]
        ready.append(end)

    assert digest.digest_behind(memoryview(filled), fill) == digest.digest_chunks(memoryview(data))
    assert ready == [min(start + CHUNK_BYTES, len(data)) for start in range(0, len(data), CHUNK_BYTES)]


def test_the_digest_of_a_part_is_that_of_its_chunks_digests_in_a_row() -> None:
    chunks = digest.digest_chunks(memoryview(b"some bytes of a part"))
    assert digest.digest_part(chunks) == xxhash.xxh3_128_digest(b"".join(chunks))
    assert digest.digest_part(chunks) != digest.digest_part(chunks[::-1])


def changed(data: bytes, indices: set[int]) -> memoryview:
    """Return the data with the last byte of some chunks changed."""
    new = bytearray(data)
    for index in indices:
        new[min((index + 1) * CHUNK_BYTES, len(new)) - 1] ^= 1
    return memoryview(bytes(new))


DATA = bytes(range(78))
PARENT = PartRecord(len(DATA), b"", tuple(map(xxhash.xxh3_128_digest, chunks_of(DATA))), (Extent("x", 0, len(DATA)),))


@pytest.mark.parametrize(
    ("indices", "runs"),
    [
        (set(), []),
        ({0}, [(0, 1)]),
        ({19}, [(19, 20)]),
        ({1, 2, 5, 7, 8, 9}, [(1, 3), (5, 6), (7, 10)]),
        (set(range(16)), [(0, 16)]),
    ],
)
def test_runs_of_changed_chunks_are_found(indices: set[int], runs: list[tuple[int, int]]) -> None:
    view = changed(DATA, indices)
    changes = find_changes(view, PARENT)
    assert changes is not None
    assert changes.runs == runs
    assert changes.digests == digest.digest_chunks(view)


@pytest.mark.parametrize("view", [changed(DATA, set(range(17))), memoryview(DATA[:-1]), memoryview(b"")])
def test_a_part_that_changed_nearly_everywhere_or_in_its_size_is_written_in_full(view: memoryview) -> None:
    assert find_changes(view, PARENT) is None


def test_an_empty_part_is_written_in_full_since_it_has_no_chunk_to_keep() -> None:
    assert find_changes(memoryview(b""), PartRecord(0, b"", (), ())) is None
