"""Decoding columns of bytes that are pictures or sound, on the threads or processes that run the transform."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib.util import find_spec
from typing import Any, TypeAlias

import numpy as np

from strata.data.media import audio, pictures
from strata.data.media.audio import Sound, decode_audio, import_soundfile
from strata.data.media.pictures import Picture, decode_image
from strata.errors import DataError, MissingExtraError

# How a column is decoded: "rgb", "gray", "audio" or "mono", or a function from bytes to an array.
Decoder: TypeAlias = str | Callable[[bytes], Any]
# Beside a column of sound stands one of this name, with the frames a second of each.
SAMPLE_RATE = ".sample_rate"


class DecodeColumns:
    """A transform that decodes columns of bytes, then calls another.

    A decoded column is an array of objects, each of its own size, in every batch; what is missing stays None. Pictures
    are ``uint8`` of height, width and 3, or of height and width in gray. Sound is ``float32`` of frames and channels,
    or of frames in mono, and the column ``NAME.sample_rate`` has its rates, 0 where the sound is missing.
    """

    def __init__(
        self, decoders: Mapping[str, Decoder], then: Callable[[dict[str, Any]], Mapping[str, Any]] | None = None
    ) -> None:
        if not isinstance(decoders, Mapping):
            raise TypeError(f"decode is {decoders!r}; use a dict of decoders by column, such as {{'jpg': 'rgb'}}")
        self._decoders = {name: _make(name, decoder) for name, decoder in decoders.items()}
        self._then = then

    def __call__(self, batch: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the batch with decoded columns."""
        made = dict(batch)
        for name, decode in self._decoders.items():
            if name not in made:
                raise ValueError(f"decode names the column {name!r}; the columns are {', '.join(made)}")
            decoded = np.empty(len(made[name]), object)
            rates = np.zeros(len(decoded), np.int64)
            for row, value in enumerate(made[name]):
                found = None if value is None else _decode_row(decode, name, row, value)
                if isinstance(found, Sound):
                    found, rates[row] = found
                decoded[row] = found
            made[name] = decoded
            if isinstance(decode, _DecodeSound):
                made[f"{name}{SAMPLE_RATE}"] = rates
        return made if self._then is None else self._then(made)


class _DecodeSound:
    """Decodes sound to one mode."""

    def __init__(self, mode: str) -> None:
        self._mode = mode

    def __call__(self, data: bytes) -> Sound:
        return decode_audio(data, self._mode)


class _DecodePicture:
    """Decodes pictures to one mode; a class, so that it can be sent to other processes."""

    def __init__(self, mode: str) -> None:
        self._mode = mode

    def __call__(self, data: bytes) -> Picture:
        return decode_image(data, self._mode)


def _make(name: str, decoder: Decoder) -> Callable[[bytes], Any]:
    if callable(decoder):
        return decoder
    if decoder in audio.MODES:
        import_soundfile()
        return _DecodeSound(decoder)
    if decoder not in pictures.MODES:
        known = ", ".join(map(repr, (*pictures.MODES, *audio.MODES)))
        raise ValueError(f"decode={{{name!r}: {decoder!r}}} is not known; use {known} or a function of bytes")
    if find_spec("PIL") is None:
        raise MissingExtraError("images", needed_for="decoding pictures")
    return _DecodePicture(decoder)


def _decode_row(decode: Callable[[bytes], Any], name: str, row: int, value: Any) -> Any:
    # Hugging Face's datasets keep a picture as its bytes and where it came from.
    data = value.get("bytes") if isinstance(value, Mapping) else value
    if not isinstance(data, bytes):
        raise DataError(f"column {name!r}, row {row} of the batch: {type(data).__name__} cannot be decoded; bytes can")
    try:
        return decode(data)
    except ValueError as error:
        raise DataError(f"column {name!r}, row {row} of the batch cannot be decoded: {error}") from error
