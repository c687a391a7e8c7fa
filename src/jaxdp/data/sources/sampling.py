"""Reads a sample of the images of a dataset, and computes their mean, standard deviation and
percentile range.
"""

import concurrent.futures
import contextlib
import dataclasses
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np

from jaxdp.data.checking import NOT_FINITE
from jaxdp.data.dataset import BadExample, Source
from jaxdp.data.sources.fitting import name
from jaxdp.runtime import platform

_CHUNK = 512  # images at a time
_PERCENTILES = (0.1, 99.9)


@dataclasses.dataclass
class Sample:
    """Sums over the pixels of some examples, of uint8 as integers.

    `add` in the order of the examples changes nothing otherwise.

    Attributes:
        drawn: some pixels of each example, where their range is wanted.
    """

    shape: tuple[int, ...]
    pixels: int = 0
    total: Any = 0
    squares: Any = 0
    drawn: list[np.ndarray] = dataclasses.field(default_factory=list[np.ndarray])

    def add(self, part: "Sample") -> None:
        self.pixels, self.total, self.squares = (
            self.pixels + part.pixels,
            self.total + part.total,
            self.squares + part.squares,
        )
        self.drawn += part.drawn

    def pixel_range(self) -> tuple[float, float]:
        """Returns the percentile range of the drawn pixels; never an empty one."""
        pixels = np.concatenate(self.drawn).astype(np.float64)
        low, high = map(float, np.percentile(pixels, _PERCENTILES))
        if low == high:  # hardly any pixel differs
            low, high = float(pixels.min()), float(pixels.max())
        return low, high if high > low else low + 1.0

    def moments(
        self, pixel_range: tuple[float, float] | None = None
    ) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Returns mean and standard deviation of each channel.

        With a range, of pixels mapped from it to 0 to 255.
        """
        mean = self.total / self.pixels
        variance = self.squares / self.pixels - mean**2
        if pixel_range is not None:
            scale = 255 / (pixel_range[1] - pixel_range[0])
            mean, variance = (mean - pixel_range[0]) * scale, variance * scale**2
        # Without contrast there is nothing to divide by.
        std = [float(np.sqrt(value)) if value > 1e-6 else 1.0 for value in variance]
        return tuple(round(float(value), 3) for value in mean), tuple(
            round(value, 3) for value in std
        )


def moments_of(images: np.ndarray) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Returns mean and standard deviation of each channel of uint8 images (N, H, W, C), over all of
    them.
    """
    whole = _sums(images[:_CHUNK])
    for start in range(_CHUNK, len(images), _CHUNK):
        whole.add(_sums(images[start : start + _CHUNK]))
    return whole.moments()


def _sums(images: np.ndarray) -> Sample:
    """Returns the sums over an image (H, W, C), or several (N, H, W, C)."""
    pixels = images[..., 0].size
    if images.dtype != np.uint8:
        values = images.reshape(-1, images.shape[-1]).astype(np.float64)
        return Sample(images.shape, pixels, values.sum(0), (values**2).sum(0))
    counts = [
        np.bincount(images[..., channel].ravel(), minlength=256)
        for channel in range(images.shape[-1])
    ]
    values = np.arange(256)
    return Sample(images.shape, pixels, np.dot(counts, values), np.dot(counts, values**2))


def _draw(image: np.ndarray, count: int, index: int) -> np.ndarray:
    """Returns at most `count` pixels of an image, those that the number of the example draws: the
    same in every run.
    """
    pixels = image.ravel()
    return (
        pixels
        if len(pixels) <= count
        else pixels[np.random.default_rng(index).integers(0, len(pixels), count)]
    )


def measure(source: Source, index: int, drawn: int) -> Sample | BadExample:
    """Returns the sums of an example, with at most so many of its pixels."""
    try:
        image = source[index]["images"]
    except BadExample as error:
        return error
    if image.dtype.kind == "f" and not np.isfinite(image).all():
        return BadExample(name(source, index), NOT_FINITE)
    sums = _sums(image)
    if drawn:
        sums.drawn.append(_draw(image, drawn, index))
    return sums


def evenly(length: int, count: int) -> list[int]:
    """Returns at most `count` of `length` numbers, evenly spaced."""
    count = min(length, count)
    return [position * length // count for position in range(count)]


@contextlib.contextmanager
def in_threads(function: Callable[[Any], Any], values: Iterable[Any]) -> Iterator[Iterator[Any]]:
    """Context of the results, in order: decoding leaves the interpreter's lock, so that it is worth
    several threads.
    """
    pool = concurrent.futures.ThreadPoolExecutor(min(8, platform.cores()))
    try:
        yield pool.map(function, values)
    finally:
        # An error does not wait for the examples that nobody asks for any more.
        pool.shutdown(cancel_futures=True)
