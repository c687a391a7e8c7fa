"""Computes mean, standard deviation and percentile range of pixels, from sums that can be added."""

import dataclasses
import functools
import math
from typing import Any

import numpy as np

_PERCENTILES = (0.1, 99.9)
_CHUNK = 2**17  # pixels at a time, whose counts stay in the processor's caches
NO_PIXELS = (math.nan, math.nan)

Moments = tuple[tuple[float, ...], tuple[float, ...]]  # mean and standard deviation per channel


@dataclasses.dataclass
class PixelStatistics:
    """Sums over the pixels of some examples, as integers for uint8.

    Attributes:
        shape: of an image.
        each: mean and standard deviation of each example, over all channels.
        drawn: some pixels of each example, if their range is requested.
        extremes: the smallest and the largest pixel of the first example, if the range is
            requested.
    """

    shape: tuple[int, ...]
    pixels: int
    total: Any
    squares: Any
    each: list[tuple[float, float]]
    drawn: list[np.ndarray]
    extremes: tuple[float, float] = NO_PIXELS

    @classmethod
    def of(cls, images: np.ndarray, draw: int = 0, seed: int = 0) -> "PixelStatistics":
        """Returns the sums over an image (H, W, C), or several (N, H, W, C).

        Args:
            draw: how many pixels to draw for their range.
            seed: of the draw.
        """
        drawn = [images.ravel()] if draw else []
        if draw and images.size > draw:
            drawn[0] = drawn[0][np.random.default_rng(seed).integers(0, images.size, draw)]
        ends = (float(images.min()), float(images.max())) if drawn and images.size else NO_PIXELS
        channels = images.reshape(-1, images.shape[-1])
        if images.dtype == np.uint8:
            counts = [np.bincount(channel, minlength=256) for channel in channels.T]
            values = np.arange(256)
            total, squares = np.dot(counts, values), np.dot(counts, values**2)
        else:
            channels = channels.astype(np.float64)
            total, squares = channels.sum(0), (channels**2).sum(0)
        mean, square = (np.sum(sums) / max(images.size, 1) for sums in (total, squares))
        each = [(float(mean), math.sqrt(max(square - mean**2, 0)))]
        return cls(images.shape, len(channels), total, squares, each, drawn, ends)

    def add(self, part: "PixelStatistics") -> "PixelStatistics":
        """Returns the sums over these examples and other examples with the same number of
        channels.
        """
        return PixelStatistics(
            self.shape,
            self.pixels + part.pixels,
            self.total + part.total,
            self.squares + part.squares,
            [*self.each, *part.each],
            [*self.drawn, *part.drawn],
        )

    def pixel_range(self) -> tuple[float, float]:
        """Returns the percentile range of the drawn pixels, which is never empty."""
        pixels = np.concatenate(self.drawn).astype(np.float64)
        low, high = map(float, np.percentile(pixels, _PERCENTILES))
        if low == high:  # hardly any pixel differs
            low, high = float(pixels.min()), float(pixels.max())
        # Beyond 2**53 a float does not change by 1.
        return low, high if high > low else low + max(1.0, abs(low) * 2.0**-20)

    def spread(self) -> tuple[float, ...]:
        """Returns `Dataset.spread`."""
        return tuple(end(values) for values in zip(*self.each, strict=True) for end in (min, max))

    def moments(self, pixel_range: tuple[float, float] | None = None) -> Moments:
        """Returns mean and standard deviation of each channel.

        With a range, the pixels are first mapped from the range to 0 to 255.
        """
        mean = self.total / self.pixels
        variance = self.squares / self.pixels - mean**2
        if pixel_range is not None:
            scale = 255 / (pixel_range[1] - pixel_range[0])
            mean, variance = (mean - pixel_range[0]) * scale, variance * scale**2
        # Without contrast, the divisor would be 0.
        std = [float(np.sqrt(value)) if value > 1e-6 else 1.0 for value in variance]
        means = tuple(round(float(value), 3) for value in mean)
        return means, tuple(round(value, 3) for value in std)


def moments_of(images: np.ndarray, indices: np.ndarray) -> Moments:
    """Returns mean and standard deviation of each channel of some of the uint8 images (N, H, W,
    C), of which only a few are copied at a time: they may be a file of any size.
    """
    size = max(_CHUNK // math.prod(images.shape[1:3]), 1)
    parts = (indices[start : start + size] for start in range(0, len(indices), size))
    chunks = (images[part] for part in parts)
    return functools.reduce(PixelStatistics.add, map(PixelStatistics.of, chunks)).moments()
