"""Brightness and contrast against Pillow; what cutout erases."""

import collections
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from PIL import Image, ImageEnhance

from jaxdp.data.augment import create

KEYS = jax.random.split(jax.random.key(0), 400)


def apply(word: str, image: np.ndarray) -> np.ndarray:
    moved = jax.jit(jax.vmap(create(word), (None, 0)))(
        {"images": jnp.asarray(image, jnp.float32)}, KEYS
    )
    return np.asarray(moved["images"])


def dark(results: np.ndarray) -> np.ndarray:
    return results[:, 0, 0] / 20


def far_apart(results: np.ndarray) -> np.ndarray:
    return (results[:, 1, -1] - results[:, 0, 0]) / 100


@pytest.mark.parametrize(
    ("word", "pixels", "factors_of", "enhancer"),
    [
        ("brightness:0.5", np.arange(20, 120).reshape(10, 10), dark, ImageEnhance.Brightness),
        # Its mean is 128.
        (
            "contrast:0.5",
            np.arange(78, 179).repeat(2).reshape(2, 101),
            far_apart,
            ImageEnhance.Contrast,
        ),
    ],
)
def test_brightness_and_contrast_are_those_of_pillow(
    word: str, pixels: np.ndarray, factors_of: Any, enhancer: Any
) -> None:
    image = pixels.astype(np.uint8)
    results = apply(word, image[..., None])[..., 0]
    factors = factors_of(results)
    assert 0.499 < factors.min() < 0.52
    assert 1.48 < factors.max() < 1.501
    for result, factor in zip(results[:20], factors, strict=False):
        expected = enhancer(Image.fromarray(image)).enhance(float(factor))
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
    for row, column in np.ndindex(height, width):
        square = np.zeros((height, width), bool)
        square[max(row - 1, 0) : row + 1, max(column - 1, 0) : column + 1] = True
        expected.add(square.tobytes())
    assert set(places) == expected
    assert max(places.values()) < 4 * len(KEYS) / (height * width)
