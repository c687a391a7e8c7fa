"""Reads the numbers of PGM and PPM files as stored. Pillow would scale them to 8 or 16 bits, and
colours to 8.
"""

import math
import re
from typing import Any

import numpy as np


def largest_number(image: Any) -> int | None:
    """Returns the header of an open PGM or PPM file, or None for any other picture, for a decoded
    picture, and for a picture that Pillow reads as stored.
    """
    for tile in getattr(image, "tile", ()) if image.format == "PPM" and image.mode != "1" else ():
        if tile.codec_name.startswith("ppm"):
            return tile.args[1]
    return None


def read_numbers(image: Any, largest: int) -> np.ndarray:
    """Returns the numbers of an open file, uint8 or uint16 (H, W, C).

    Raises:
        ValueError: for fewer numbers than its size requires, and for numbers that are too large.
    """
    shape = (image.height, image.width, len(image.getbands()))
    count, tile, wide = math.prod(shape), image.tile[0], largest > 255
    image.fp.seek(tile.offset)
    content = image.fp.read()
    if tile.codec_name == "ppm":
        numbers = np.frombuffer(content, ">u2" if wide else np.uint8, count)
    else:
        texts = re.sub(rb"#[^\r\n]*", b"", content).split()
        numbers = np.array(texts[:count]).astype(np.int64)
    lowest, highest = numbers.min(initial=0), numbers.max(initial=0)
    if lowest < 0 or highest > largest:
        number = lowest if lowest < 0 else highest
        raise ValueError(f"it holds {number}, but its header says {largest} at most")
    return numbers.reshape(shape).astype(np.uint16 if wide else np.uint8)
