"""Mean, standard deviation and percentile range of pixels, as sums that can be added."""

import dataclasses
from typing import Any

import numpy as np

_PERCENTILES = (0.1, 99.9)
_CHUNK = 512  # images at a time

Moments = tuple[tuple[float, ...], tuple[float, ...]]  # mean and standard deviation per channel


@dataclasses.dataclass
class PixelStatistics:
    """Sums over the pixels of some examples, of uint8 as integers.

    Attributes:
        shape: of an image.
        drawn: some pixels of each example, if their range is wanted.
    """

    shape: tuple[int, ...]
    pixels: int = 0
    total: Any = 0
    squares: Any = 0
    drawn: list[np.ndarray] = dataclasses.field(default_factory=list[np.ndarray])

    @classmethod
    def of(cls, images: np.ndarray) -> "PixelStatistics":
        """Returns the sums over an image (H, W, C), or several (N, H, W, C)."""
        pixels = images[..., 0].size
        if images.dtype != np.uint8:
            values = images.reshape(-1, images.shape[-1]).astype(np.float64)
            return cls(images.shape, pixels, values.sum(0), (values**2).sum(0))
        counts = [
            np.bincount(images[..., channel].ravel(), minlength=256)
            for channel in range(images.shape[-1])
        ]
        values = np.arange(256)
        return cls(images.shape, pixels, np.dot(counts, values), np.dot(counts, values**2))

    def add(self, part: "PixelStatistics") -> None:
        """Adds the sums over other examples."""
        self.pixels += part.pixels
        self.total += part.total
        self.squares += part.squares
        self.drawn += part.drawn

    def draw(self, image: np.ndarray, count: int, index: int) -> None:
        """Draws at most `count` pixels of an image by the example's index: the same in each run."""
        pixels = image.ravel()
        if len(pixels) > count:
            pixels = pixels[np.random.default_rng(index).integers(0, len(pixels), count)]
        self.drawn.append(pixels)

    def pixel_range(self) -> tuple[float, float]:
        """Returns the percentile range of the drawn pixels; never an empty one."""
        pixels = np.concatenate(self.drawn).astype(np.float64)
        low, high = map(float, np.percentile(pixels, _PERCENTILES))
        if low == high:  # hardly any pixel differs
            low, high = float(pixels.min()), float(pixels.max())
        return low, high if high > low else low + 1.0

    def moments(self, pixel_range: tuple[float, float] | None = None) -> Moments:
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
        means = tuple(round(float(value), 3) for value in mean)
        return means, tuple(round(value, 3) for value in std)


def moments_of(images: np.ndarray) -> Moments:
    """Returns mean and standard deviation of each channel of all uint8 images (N, H, W, C)."""
    whole = PixelStatistics.of(images[:_CHUNK])
    for start in range(_CHUNK, len(images), _CHUNK):
        whole.add(PixelStatistics.of(images[start : start + _CHUNK]))
    return whole.moments()
