"""A manifest is believed only if every byte of it is as it was written."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strata.checkpoint.format.digest import digest_bytes, digest_chunks, digest_part
from strata.checkpoint.format.manifest import (
    Extent,
    Manifest,
    PartRecord,
    StoredSlice,
    StoredTensor,
    encode,
    seal,
)
from strata.checkpoint.format.manifest_reader import ManifestProblem, ManifestVersionProblem, decode
from strata.cluster.values import Divergence

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


def test_a_manifest_of_a_clock_that_shows_1970_is_read() -> None:
    assert decode(encode(replace(SAMPLE, created_s=0.0))).created_s == 0.0


def test_a_slice_may_end_where_its_part_ends() -> None:
    last = StoredTensor("float32", (2, 3), (StoredSlice(0, (5 << 20) - 24, (0, 0), (2, 3)),))
    assert decode(encode(replace(SAMPLE, tensors={"w": last}))).tensors["w"] == last


def test_a_manifest_names_every_rank_that_differs_however_many() -> None:
    diverged = replace(SAMPLE, diverged=Divergence(tuple(range(1_000)), "w", 3))
    assert decode(encode(diverged)) == diverged


def test_a_manifest_is_json_for_everyone() -> None:
    document = json.loads(encode(SAMPLE))
    assert document["format"] == "strata-checkpoint"
    assert document["version"] == 2
    assert document["manifest"]["step"] == 1000


def test_the_digest_is_of_every_byte_and_counts_itself_as_zeros() -> None:
    encoded = encode(SAMPLE)
    digest = json.loads(encoded)["digest"]
    assert digest_bytes(encoded.replace(digest.encode(), b"0" * 32, 1)).hex() == digest


def test_a_manifest_of_version_1_is_read() -> None:
    rest = encode(SAMPLE).partition(b"\n")[2]
    old = f'{{"format":"strata-checkpoint","version":1,"digest":"{digest_bytes(rest).hex()}",\n'.encode() + rest
    assert decode(old) == SAMPLE


@given(st.data())
def test_any_flipped_byte_is_damage_and_never_a_newer_version(data: st.DataObject) -> None:
    encoded = bytearray(encode(SAMPLE))
    position = data.draw(st.integers(0, len(encoded) - 1) | st.integers(0, 100))
    encoded[position] ^= data.draw(st.integers(1, 255))
    with pytest.raises(ManifestProblem) as caught:
        decode(bytes(encoded))
    assert not isinstance(caught.value, ManifestVersionProblem)


@given(st.integers(0, len(encode(SAMPLE)) - 1))
def test_any_truncation_is_found(length: int) -> None:
    with pytest.raises(ManifestProblem):
        decode(encode(SAMPLE)[:length])


@given(st.binary(max_size=200))
def test_noise_is_no_manifest(noise: bytes) -> None:
    with pytest.raises(ManifestProblem):
        decode(noise)


def test_a_newer_version_is_told_from_damage() -> None:
    rest = encode(SAMPLE).partition(b"\n")[2]
    with pytest.raises(ManifestVersionProblem, match="version 3"):
        decode(seal("strata-checkpoint", 3, rest))
    with pytest.raises(ManifestProblem, match="its digest differs"):
        decode(encode(SAMPLE).replace(b'"version":2', b'"version":3'))
    with pytest.raises(ManifestProblem, match="strata-part"):
        decode(encode(SAMPLE, "strata-part"))


@pytest.mark.parametrize("line", [b"[" * 100_000, b'{"a":' * 100_000, b"\xff" * 10])
def test_brackets_without_end_are_no_manifest(line: bytes) -> None:
    for data in (line, line + b"\n" + line, seal("strata-checkpoint", 2, b'"manifest":' + line)):
        with pytest.raises(ManifestProblem):
            decode(data)


def seal_body(body: Any) -> bytes:
    return seal("strata-checkpoint", 2, f'"manifest":{json.dumps(body)}}}\n'.encode())


def nest(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = {"list": [value]}
    return value


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (["step"], -1),
        (["step"], "1000"),
        (["step"], True),
        (["parts"], {}),
        (["parts", 0, "size"], 1),
        (["parts", 0, "digest"], "00" * 16),
        (["parts", 0, "digest"], "00" * 15),
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
        (["structure"], nest(250)),
        (["structure"], {"dict": [], "as": "os"}),
        (["structure"], {"dict": [[10**30, 1]]}),
        (["structure"], {"size": [1 << 63]}),
        (["structure"], {"deque": [], "maxlen": "x"}),
        (["structure"], {"int": "0xzz"}),
        (["structure"], {"complex": "os"}),
        (["structure"], {"opaque": True}),
        (["structure"], {"opaque": False}),
        (["structure"], {"tensor": "w", "as": "bytes"}),
        (["structure"], {"tensor": "w", "as": "scalar"}),
        (["metadata"], None),
        (["metadata"], [["a", 1]]),
        (["metadata"], nest(250)),
        (["created_s"], float("nan")),
        (["created_s"], 10**400),
        (["created_s"], "now"),
        (["created_s"], -1),
        (["created_s"], 1e15),
        (["created_s"], 253_402_300_800),
        (["step"], 10**30),
        (["parts", 0, "extents", 0, 0], "../../etc/passwd"),
        (["parts", 0, "extents", 0, 0], "/etc/passwd"),
        (["parts", 0, "extents", 0, 0], "elsewhere/x"),
        (["parts", 0, "extents", 0, 0], "step_1/a\x00"),
        (["tensors", "w", "shape"], [1 << 62, 1 << 62]),
        (["tensors", "w", "shape"], [1] * 100),
        (["tensors", "empty"], {"dtype": "float32", "shape": [1 << 62, 1 << 62, 0], "slices": []}),
        (["tensors", "empty"], {"dtype": "float64", "shape": [0, 1 << 62], "slices": []}),
        (["tensors", "w", "slices"], []),
        (["tensors", "w", "slices"], [[0, 4096, [0, 1], [2, 3]]]),
        (["tensors", "w", "slices"], [[0, 4096, [0], [6]]]),
        (["tensors", "w", "slices"], [[0, (5 << 20) - 23, [0, 0], [2, 3]]]),
        (["tensors", "w", "slices"], [[0, 4096, [0, 0], [2, 2]], [0, 4096, [0, 1], [1, 2]]]),
    ],
)
def test_a_well_sealed_manifest_of_nonsense_is_refused(path: list[Any], value: Any) -> None:
    body = json.loads(encode(SAMPLE))["manifest"]
    place = body
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    with pytest.raises(ManifestProblem):
        decode(seal_body(body))


@pytest.mark.parametrize(("kind", "is_read"), [("numpy", True), ("jax", False)])
def test_a_jax_array_of_a_type_that_jax_does_not_have_is_refused(kind: str, *, is_read: bool) -> None:
    body = json.loads(encode(SAMPLE))["manifest"]
    body["tensors"]["w"]["dtype"] = "datetime64[ns]"
    body["structure"] = {"tensor": "w", "as": kind}
    if is_read:
        assert decode(seal_body(body)).tensors["w"].dtype == "datetime64[ns]"
        return
    with pytest.raises(ManifestProblem):
        decode(seal_body(body))


@pytest.mark.parametrize("key", ["created_s", "metadata", "structure"])
def test_a_number_beyond_all_floats_is_refused_and_not_infinity(key: str) -> None:
    body = json.loads(encode(SAMPLE))["manifest"]
    body[key] = {"metadata": {"loss": 4711}, "structure": {"dict": [["lr", 4711]]}}.get(key, 4711)
    text = json.dumps(body).replace("4711", "1e999")
    with pytest.raises(ManifestProblem, match="not as a manifest must be"):
        decode(seal("strata-checkpoint", 2, f'"manifest":{text}}}\n'.encode()))


def test_metadata_that_is_not_json_is_refused() -> None:
    with pytest.raises(TypeError, match="not JSON serializable"):
        encode(replace(SAMPLE, metadata={"model": object()}))


def test_nan_in_metadata_is_null_to_readers_that_do_not_know_it() -> None:
    metadata = {"loss": float("nan"), "all": [1.0, {"low": float("-inf")}], "null": None}
    data = encode(replace(SAMPLE, metadata=metadata))
    body = json.loads(data, parse_constant=pytest.fail)["manifest"]
    assert body["metadata"] == {"loss": None, "all": [1.0, {"low": None}], "null": None}
    assert body["nonfinite"] == [[["loss"], "nan"], [["all", 1, "low"], "-inf"]]
    assert repr(decode(data).metadata) == repr(metadata)


@pytest.mark.parametrize(
    "row", [[["loss"], "nan"], [["none"], "1.0"], [["gone"], "nan"], [[], "nan"], [["deep", 5], "nan"], 3, [["none"]]]
)
def test_a_number_that_is_infinite_where_there_is_another_value_is_refused(row: Any) -> None:
    body = json.loads(encode(replace(SAMPLE, metadata={"loss": 0.5, "none": None, "deep": []})))["manifest"]
    with pytest.raises(ManifestProblem):
        decode(seal_body({**body, "nonfinite": [row]}))
