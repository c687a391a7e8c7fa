"""What tests of several sources write or read."""

import gzip
import io
import pathlib

import numpy as np
from PIL import Image


def png(pixels: np.ndarray, kind: str = "PNG") -> io.BytesIO:
    buffer = io.BytesIO()
    Image.fromarray(pixels[..., 0] if pixels.shape[2:] == (1,) else pixels).save(buffer, kind)
    buffer.seek(0)
    return buffer


def noise(seed: int, *shape: int, high: int = 256) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, high, shape, np.uint8)


def read_idx(path: pathlib.Path) -> np.ndarray:
    """Returns the uint8 array of a gzipped file in MNIST's own format."""
    raw = gzip.decompress(path.read_bytes())
    return np.frombuffer(raw, np.uint8, offset=4 + 4 * raw[3]).reshape(
        np.frombuffer(raw, ">i4", raw[3], 4)
    )
