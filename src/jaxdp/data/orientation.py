"""Applies the tag Orientation, by which cameras and scanners say how a picture is turned."""

import contextlib
from typing import Any

from PIL import Image, ImageOps

from jaxdp.data import tiff
from jaxdp.data.source import Size

# Chunks of a PNG file that may hold an orientation, even after its pixels, and how many bytes are
# searched.
_METADATA = (b"eXIf", b"XML:com.adobe.xmp", b"Raw profile type exif")
_TAIL = 2**18


def size_of(image: Image.Image) -> Size:
    """Returns the height and width of the rotated image."""
    if image.format == "TIFF" or image.height == image.width:  # for TIFF they are
        return image.height, image.width
    file: Any = getattr(image, "fp", None)
    if image.format == "PNG" and "exif" not in image.info and file is not None:
        place, end = file.tell(), file.seek(0, 2)
        file.seek(max(end - _TAIL, 0))
        tail = file.read()
        file.seek(place)
        if any(kind in tail for kind in _METADATA):
            image.load()
    turned = _orientation(image) in tiff.SIDEWAYS
    return image.size if turned else (image.height, image.width)


def _orientation(image: Image.Image) -> int:
    """Returns the orientation of a picture from the part that has been read."""
    with contextlib.suppress(Exception):  # broken metadata cause no rotation
        return Image.Image.getexif(image).get(tiff.ORIENTATION, 1)
    return 1


def upright(image: Image.Image) -> Image.Image:
    """Returns a picture with its tag Orientation applied, and leaves the original unchanged."""
    # Pillow rotates TIFF itself, but 13.0 maps a file with a known name by the rotated size.
    file: Any = image
    name = file.filename if image.format == "TIFF" else None
    if name:
        file.filename = ""
    try:
        image.load()
    finally:
        if name:
            file.filename = name
    return image if _orientation(image) == 1 else ImageOps.exif_transpose(image)
