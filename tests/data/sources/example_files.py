"""What tests of several sources write or read."""

import gzip
import io
import pathlib
from typing import Any

import numpy as np
from PIL import Image

from jaxdp.config import DataConfig
from jaxdp.data.sources import Dataset, Split, open_dataset


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


def opened(root: pathlib.Path, **settings: Any) -> Dataset:
    """Opens a folder."""
    return open_dataset(DataConfig.of(dataset=f"folder:{root}", **settings))


def read(source: Any) -> dict[str, np.ndarray]:
    """Reads all examples of a split."""
    assert isinstance(source, Split)
    return source.read(range(len(source)))
