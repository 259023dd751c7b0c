"""Sound by column, as libsndfile decodes it."""

from __future__ import annotations

import io
import sys
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import soundfile

from strata.data import open_dataset
from strata.data.media.audio import decode_audio
from strata.data.media.decode import DecodeColumns
from strata.errors import DataError, MissingExtraError
from tests.unit.data.formats.switches import runs_beside


def sound(kind: str = "WAV", *, frames: int = 400, channels: int = 2, rate: int = 16_000) -> bytes:
    wave = np.sin(np.arange(frames) / 20)[:, None] * np.linspace(0.2, 0.8, channels)
    sink = io.BytesIO()
    soundfile.write(sink, wave, rate, format=kind)
    return sink.getvalue()


@pytest.mark.parametrize("kind", ["WAV", "FLAC", "OGG", "MP3", "AIFF"])
def test_sounds_are_those_of_libsndfile(kind: str) -> None:
    data = sound(kind)
    expected, rate = soundfile.read(io.BytesIO(data), dtype="float32", always_2d=True)
    found = decode_audio(data)
    # MP3 is rounded differently from call to call.
    assert np.allclose(found.frames, expected, atol=1e-6)
    assert (found.frames.dtype, found.sample_rate) == (np.float32, rate)
    mono = decode_audio(data, "mono").frames
    assert mono.shape == (len(expected),)
    assert np.allclose(mono, expected.mean(axis=1), atol=1e-6)


def pad(batch: dict[str, Any]) -> dict[str, Any]:
    made = np.zeros((len(batch["wav"]), 60, 2), np.float32)
    for row, frames in enumerate(batch["wav"]):
        made[row, : len(frames)] = frames
    return {"x": made, "rate": batch["wav.sample_rate"]}


@pytest.mark.part("torch")
@pytest.mark.parametrize("processes", [0, 1])
def test_columns_of_sound_come_with_their_rates(tmp_path: Path, processes: int) -> None:
    with tarfile.open(tmp_path / "a.tar", "w") as archive:
        for row in range(5):
            for ending, content in (("wav", sound(frames=50 + row, rate=8_000 + row)), ("cls", b"%d" % row)):
                info = tarfile.TarInfo(f"{row}.{ending}")
                info.size = len(content)
                archive.addfile(info, io.BytesIO(content))
    with open_dataset(tmp_path, batch_size=5, shuffle=False, decode={"wav": "audio"}, cache=tmp_path / "c") as dataset:
        (batch,) = dataset
    assert [each.shape for each in batch["wav"]] == [(50 + row, 2) for row in range(5)]
    assert batch["wav.sample_rate"].tolist() == [8_000 + row for row in range(5)]
    with open_dataset(
        tmp_path,
        batch_size=5,
        shuffle=False,
        decode={"wav": "audio"},
        transform=pad,
        to="torch",
        processes=processes,
        cache=tmp_path / "c",
    ) as dataset:
        (made,) = dataset
    assert tuple(made["x"].shape) == (5, 60, 2)
    assert made["rate"].tolist() == [8_000 + row for row in range(5)]


def test_a_missing_sound_is_none_and_one_of_hugging_face_is_its_bytes() -> None:
    table = pa.table({"a": [None, {"bytes": sound(rate=22_050), "path": None}]})
    with open_dataset(table, batch_size=2, shuffle=False, decode={"a": "mono"}) as dataset:
        (batch,) = dataset
    assert batch["a"][0] is None
    assert batch["a"][1].shape == (400,)
    assert batch["a.sample_rate"].tolist() == [0, 22_050]


@pytest.mark.parametrize("bad", [b"", b"nonsense", sound()[:30], sound()[:-100], sound("FLAC")[:200], b"\xff\xd8\xff"])
def test_a_sound_that_is_none_or_cut_off_is_named_by_column_and_row(bad: bytes) -> None:
    with pytest.raises(DataError, match="column 'a', row 1 of the batch cannot be decoded") as caught:
        DecodeColumns({"a": "audio"})({"a": np.array([sound(), bad], object)})
    assert "BytesIO" not in str(caught.value)


def test_sound_that_was_written_to_a_pipe_is_read_where_its_length_can_be_known() -> None:
    streamed = bytearray(sound())
    streamed[4:8] = b"\xff\xff\xff\xff"
    assert decode_audio(bytes(streamed)).frames.shape == (400, 2)
    flac = bytearray(sound("FLAC"))
    flac[21] &= 0xF0
    flac[22:26] = bytes(4)
    with pytest.raises(ValueError, match="does not say how many frames"):
        decode_audio(bytes(flac))


def test_without_the_library_for_sound_a_dataset_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "soundfile", None)
    with pytest.raises(MissingExtraError, match=r"decoding sound needs .*\[audio\]"):
        open_dataset(pa.table({"a": [b""]}), batch_size=1, decode={"a": "mono"})


@pytest.mark.parametrize("kind", ["WAV", "FLAC", "MP3"])
def test_other_threads_run_while_a_sound_is_decoded(kind: str) -> None:
    data = sound(kind, frames=60_000)
    decode_audio(data)  # so that nothing is imported in the thread
    assert runs_beside(lambda: decode_audio(data), attempts=10_000)
