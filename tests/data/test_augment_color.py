"""Brightness and contrast against Pillow; what cutout erases."""

import collections

import jax
import jax.numpy as jnp
import numpy as np
from PIL import Image, ImageEnhance

from jaxdp.data.augment import create

KEYS = jax.random.split(jax.random.key(0), 400)


def apply(word: str, image: np.ndarray) -> np.ndarray:
    moved = jax.jit(jax.vmap(create(word), (None, 0)))(
        {"images": jnp.asarray(image, jnp.float32)}, KEYS
    )
    return np.asarray(moved["images"])


def assert_fills(factors: np.ndarray, low: float, high: float) -> None:
    assert low - 1e-3 < factors.min() < low + 0.02
    assert high - 0.02 < factors.max() < high + 1e-3


def test_brightness_multiplies_as_pillow_does() -> None:
    image = np.arange(20, 120, dtype=np.uint8).reshape(10, 10)
    results = apply("brightness:0.5", image[..., None])[..., 0]
    factors = results[:, 0, 0] / image[0, 0]
    assert_fills(factors, 0.5, 1.5)
    for result, factor in zip(results[:20], factors, strict=False):
        expected = ImageEnhance.Brightness(Image.fromarray(image)).enhance(float(factor))
        np.testing.assert_allclose(result, np.asarray(expected), atol=1)


def test_contrast_pulls_away_from_the_mean_as_pillow_does() -> None:
    image = np.arange(78, 178 + 1, dtype=np.uint8).repeat(2).reshape(2, 101)  # its mean is 128
    results = apply("contrast:0.5", image[..., None])[..., 0]
    factors = (results[:, 1, -1] - results[:, 0, 0]) / 100
    assert_fills(factors, 0.5, 1.5)
    for result, factor in zip(results[:20], factors, strict=False):
        expected = ImageEnhance.Contrast(Image.fromarray(image)).enhance(float(factor))
        np.testing.assert_allclose(result, np.asarray(expected), atol=1)


def test_contrast_is_cut_off_at_black_and_not_above() -> None:
    digit = np.zeros((4, 4, 1))
    digit[1:3, 1:3] = 16
    digit[0, 0] = 1
    results = apply("contrast:0.5", digit)
    assert results.min() == 0
    assert results.max() > 20
    colours = apply("contrast:0.5", np.broadcast_to([10.0, 20.0, 60.0], (4, 4, 3)))
    # About the mean over all channels.
    np.testing.assert_allclose(colours.mean((1, 2, 3)), 30, rtol=0.05)
    assert np.ptp(colours[:, 0, 0, 0]) > 5


def test_cutout_erases_a_square_around_any_pixel() -> None:
    height, width, size = 5, 6, 2
    image = np.random.default_rng(0).uniform(0, 255, (height, width, 3)).astype(np.float32)
    places: collections.Counter[bytes] = collections.Counter()
    for result in apply(f"cutout:{size}", image):
        erased = np.any(result != image, -1)
        np.testing.assert_allclose(
            result[erased], np.broadcast_to(image.mean((0, 1)), (erased.sum(), 3)), rtol=1e-5
        )
        places[erased.tobytes()] += 1
    expected = set()
    for row in range(height):
        for column in range(width):
            square = np.zeros((height, width), bool)
            square[max(row - 1, 0) : row + 1, max(column - 1, 0) : column + 1] = True
            expected.add(square.tobytes())
    assert set(places) == expected
    assert max(places.values()) < 4 * len(KEYS) / (height * width)
