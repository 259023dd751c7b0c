"""Pictures: JPEG by libjpeg-turbo, all else by Pillow; both release the interpreter."""

from __future__ import annotations

import io
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from strata.errors import MissingExtraError

Picture: TypeAlias = npt.NDArray[np.uint8]
# What users say, and what Pillow calls it.
MODES = {"rgb": "RGB", "gray": "L"}
_JPEG = b"\xff\xd8\xff"


def decode_image(data: bytes, mode: str = "rgb") -> Picture:
    """Return a picture as an array; what is none is a ValueError."""
    if data.startswith(_JPEG):
        try:
            import simplejpeg
        except ImportError:
            return _decode_with_pillow(data, mode)
        try:
            picture: Picture = simplejpeg.decode_jpeg(data, colorspace="RGB" if mode == "rgb" else "GRAY")
        except ValueError:
            # Four colours and other rare kinds of JPEG: Pillow knows them, or says what is wrong.
            return _decode_with_pillow(data, mode)
        return picture if mode == "rgb" else picture[:, :, 0]
    return _decode_with_pillow(data, mode)


def _decode_with_pillow(data: bytes, mode: str) -> Picture:
    try:
        from PIL import Image, UnidentifiedImageError
    except ImportError as error:
        raise MissingExtraError("images", needed_for="decoding pictures") from error
    try:
        with Image.open(io.BytesIO(data)) as image:
            return np.asarray(image.convert(MODES[mode]))
    except (UnidentifiedImageError, OSError, SyntaxError, Image.DecompressionBombError) as error:
        raise ValueError(str(error)) from error
