"""A manifest is believed only if every byte of it is as it was written."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strata.checkpoint.digest import digest_bytes, digest_chunks, digest_part
from strata.checkpoint.manifest import (
    Extent,
    Manifest,
    ManifestProblem,
    ManifestVersionProblem,
    PartRecord,
    StoredSlice,
    StoredTensor,
    decode,
    encode,
)

CHUNKS = tuple(digest_chunks(memoryview(bytes(5 << 20))))
SAMPLE = Manifest(
    job_id="run",
    step=1000,
    epoch=3,
    created_s=1_700_000_000.25,
    parts=(
        PartRecord(
            5 << 20,
            digest_part(CHUNKS),
            CHUNKS,
            (Extent("step_500/a.safetensors", 0, 4 << 20), Extent("step_1000/a.delta", 0, 1 << 20)),
        ),
    ),
    tensors={"w": StoredTensor("float32", (2, 3), (StoredSlice(0, 4096, (0, 0), (2, 3)),))},
    structure={"dict": [["w", {"tensor": "w", "as": "torch"}], [3, {"float": "nan"}], ["lr", 0.1]]},
    generation=7,
    parent=500,
    deltas=1,
    cursors={"imagenet": {"position": 5}},
    metadata={"loss": 0.5},
)


def test_a_manifest_comes_back_equal() -> None:
    assert decode(encode(SAMPLE)) == SAMPLE


def test_a_manifest_is_json_for_everyone() -> None:
    document = json.loads(encode(SAMPLE))
    assert document["format"] == "strata-checkpoint"
    assert document["version"] == 1
    assert document["manifest"]["step"] == 1000


def test_the_digest_is_of_everything_after_the_first_line() -> None:
    first, _, rest = encode(SAMPLE).partition(b"\n")
    assert json.loads(first[:-1] + b"}")["digest"] == digest_bytes(rest).hex()


@given(st.data())
def test_any_flipped_byte_is_found(data: st.DataObject) -> None:
    encoded = bytearray(encode(SAMPLE))
    position = data.draw(st.integers(0, len(encoded) - 1))
    encoded[position] ^= data.draw(st.integers(1, 255))
    try:
        found = decode(bytes(encoded))
    except ManifestProblem:
        return
    assert found == SAMPLE  # white space or a hex digit's case in the first line: it means the same


@given(st.integers(0, len(encode(SAMPLE)) - 1))
def test_any_truncation_is_found(length: int) -> None:
    with pytest.raises(ManifestProblem):
        decode(encode(SAMPLE)[:length])


@given(st.binary(max_size=200))
def test_noise_is_no_manifest(noise: bytes) -> None:
    with pytest.raises(ManifestProblem):
        decode(noise)


def test_a_newer_version_is_told_from_damage() -> None:
    newer = encode(SAMPLE).replace(b'"version":1', b'"version":2')
    with pytest.raises(ManifestVersionProblem, match="version 2"):
        decode(newer)
    with pytest.raises(ManifestVersionProblem, match="strata-part"):
        decode(encode(SAMPLE, "strata-part"))


def seal(body: Any) -> bytes:
    rest = f'"manifest":{json.dumps(body)}}}\n'.encode()
    return f'{{"format":"strata-checkpoint","version":1,"digest":"{digest_bytes(rest).hex()}",\n'.encode() + rest


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (["step"], -1),
        (["step"], "1000"),
        (["step"], True),
        (["parts"], {}),
        (["parts", 0, "size"], 1),
        (["parts", 0, "digest"], "00" * 16),
        (["parts", 0, "chunks"], []),
        (["parts", 0, "extents"], [["x", 0, 1]]),
        (["parts", 0, "extents", 0, 0], 5),
        (["tensors", "w", "dtype"], "float3"),
        (["tensors", "w", "shape"], [1, 1]),
        (["tensors", "w", "slices", 0, 0], 9),
        (["tensors", "w", "slices", 0, 1], 5 << 20),
        (["structure"], [1]),
        (["structure"], {"tensor": "gone", "as": "torch"}),
        (["structure"], {"pickle": "gASV"}),
        (["metadata"], None),
    ],
)
def test_a_well_sealed_manifest_of_nonsense_is_refused(path: list[Any], value: Any) -> None:
    body = json.loads(encode(SAMPLE))["manifest"]
    place = body
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    with pytest.raises(ManifestProblem):
        decode(seal(body))


def test_metadata_that_is_not_json_is_refused() -> None:
    from dataclasses import replace

    for wrong in ({"loss": float("nan")}, {"model": object()}):
        with pytest.raises((ValueError, TypeError)):
            encode(replace(SAMPLE, metadata=wrong))
