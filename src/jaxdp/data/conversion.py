"""Converts pictures of any colour mode and depth into arrays, in the same way for training and for
prediction.
"""

from typing import Any

import numpy as np
from PIL import Image

from jaxdp.data.dataset import DTYPES
from jaxdp.data.source import BadExample
from jaxdp.data.tiff import ASSOCIATED

_AS_FLOAT = ("int8", "int16", "float16", "float64")
_LUMA = np.array(
    [0.299, 0.587, 0.114], np.float32
)  # ITU-R 601-2, as in Pillow's conversion from colour to grey


def convert(
    image: Image.Image | np.ndarray,
    channels: int | None,
    where: object,
    *,
    opacity: int = 0,
) -> np.ndarray:
    """Returns a picture as an array (H, W, C) with the requested channels, at its own depth.

    Pillow converts pictures for which it has a mode: 8 bits, in grey or colour, with or without
    opacity.

    Args:
        image: Pillow's image, or an array (H, W, C).
        opacity: `tiff.Plane.opacity` of an array, if its last channel is the opacity.

    Raises:
        BadExample: for numbers that do not fit any supported depth.
    """
    if isinstance(image, Image.Image):
        if dtype_of_mode(image.mode) == "uint8":
            return _convert_picture(image, channels)
        image = np.asarray(image)[..., None]
    pixels = _standard(image, where)
    if opacity == ASSOCIATED and channels != 4:  # it is already blended with black
        pixels, opacity = pixels[..., :-1], 0
    if pixels.dtype == np.uint8 and (pixels.shape[2] in (1, 3) or opacity):
        plain = pixels[..., 0] if pixels.shape[2] == 1 else pixels
        return _convert_picture(Image.fromarray(plain), channels)
    opaque = 1.0 if pixels.dtype.kind == "f" else float(np.iinfo(pixels.dtype).max)
    alpha = np.full_like(pixels[..., :1], opaque)
    if opacity:
        pixels, alpha = pixels[..., :-1], pixels[..., -1:]
    if channels == 4 and pixels.shape[2] in (1, 3):
        return np.concatenate([np.broadcast_to(pixels, (*pixels.shape[:2], 3)), alpha], axis=-1)
    if opacity:
        pixels = _rounded(pixels * (alpha.astype(np.float32) / opaque), pixels.dtype)
    if channels == 3 and pixels.shape[2] == 1:
        return np.repeat(pixels, 3, axis=-1)
    if channels == 1 and pixels.shape[2] == 3:
        return _rounded((pixels @ _LUMA)[..., None], pixels.dtype)
    return pixels


def _convert_picture(image: Image.Image, channels: int | None) -> np.ndarray:
    if channels == 4:
        return np.asarray(image.convert("RGBA"))
    mode = "L" if is_grey(image) else "RGB"
    if image.has_transparency_data:
        black = Image.new("RGBA", image.size, (0, 0, 0, 255))
        image = Image.alpha_composite(black, image.convert("RGBA")).convert(mode)
    if channels in (1, 3):
        mode = "L" if channels == 1 else "RGB"
    return np.atleast_3d(np.asarray(image.convert(mode)))


def _rounded(values: np.ndarray, dtype: np.dtype[Any]) -> np.ndarray:
    return (values if dtype.kind == "f" else values.round()).astype(dtype)


def _standard(pixels: np.ndarray, where: object) -> np.ndarray:
    """Returns pixels as uint8, uint16 or float32.

    Only the last digits of float64 are lost.
    """
    dtype = dtype_of(pixels.dtype)
    if pixels.dtype == np.bool_:
        return pixels * np.uint8(255)
    if dtype == "uint16" and pixels.dtype.name != dtype:
        whole = pixels.dtype.kind in "iu"
        if not whole or pixels.min(initial=0) < 0 or pixels.max(initial=0) >= 2**16:
            raise BadExample(
                where,
                f"has {pixels.dtype.itemsize * 8} bits a pixel ({pixels.dtype}); save it as uint8,"
                " uint16 or float32",
            )
    return pixels.astype(dtype, copy=False)


def dtype_of(dtype: np.dtype[Any]) -> str:
    """Returns the dtype to which stored pixels of this dtype are converted."""
    if dtype == np.bool_:
        return "uint8"
    if dtype.name in _AS_FLOAT:
        return "float32"
    return dtype.name if dtype.name in DTYPES else "uint16"


def dtype_of_mode(mode: str) -> str:
    """Returns the dtype to which the pixels of a picture of this mode are converted."""
    return "float32" if mode == "F" else "uint16" if mode.startswith("I") else "uint8"


def is_grey(image: Image.Image) -> bool:
    """Returns whether the mode of a picture has no colour."""
    return Image.getmodebase(image.mode) == "L"
