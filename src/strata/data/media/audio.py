"""Sound: WAV, FLAC, Ogg, MP3 and what else libsndfile reads; it releases the interpreter while it decodes."""

from __future__ import annotations

import io
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from strata.errors import MissingExtraError

# "audio" keeps the channels; "mono" is their mean.
MODES = ("audio", "mono")
# What libsndfile says where a header does not: FLAC that was written to a pipe.
_UNKNOWN_FRAMES = 1 << 62
# A WAV that was written to a pipe says more than this.
_STREAMED = 0xFFFF_0000


class Sound(NamedTuple):
    """Values of -1 to 1, of (frames, channels) or in mono of (frames), and how many frames a second has."""

    frames: npt.NDArray[np.float32]
    sample_rate: int


def decode_audio(data: bytes, mode: str = "audio") -> Sound:
    """Return a sound as an array; what is none is a ValueError."""
    soundfile = import_soundfile()
    _check_whole(data)
    try:
        with soundfile.SoundFile(io.BytesIO(data)) as file:
            if file.frames >= _UNKNOWN_FRAMES:
                raise ValueError("its header does not say how many frames it has; write it anew")
            frames = file.read(dtype="float32", always_2d=True)
            rate = file.samplerate
    except soundfile.SoundFileError as error:
        # The message of libsndfile alone: that of soundfile names the object that was read from.
        raise ValueError(str(getattr(error, "error_string", error))) from error
    return Sound(frames if mode == "audio" else frames.mean(axis=1, dtype=np.float32), rate)


def _check_whole(data: bytes) -> None:
    """Raise ValueError for a WAV that was cut off, of which libsndfile would return what is there."""
    announced = int.from_bytes(data[4:8], "little") + 8
    if data.startswith(b"RIFF") and len(data) < announced <= _STREAMED:
        raise ValueError(f"it has {len(data)} bytes, and its header says {announced}: it was cut off")


def import_soundfile() -> Any:
    """Return the library, or raise an error that says what to install."""
    try:
        import soundfile  # type: ignore[import-untyped]  # it ships no types
    except (ImportError, OSError) as error:  # OSError: the wheel for this machine has no libsndfile in it
        raise MissingExtraError("audio", needed_for="decoding sound") from error
    return soundfile
