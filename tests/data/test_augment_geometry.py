"""Crops, flips and quarter turns against NumPy and Pillow."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from PIL import Image, ImageOps

from jaxdp.data.augment import create

IMAGE = np.arange(1, 31, dtype=np.float32).reshape(6, 5, 1)  # all pixels differ
MASK = IMAGE[..., 0].astype(np.int32)


def apply(word: str, example: dict[str, Any], number: int) -> dict[str, np.ndarray]:
    keys = jax.random.split(jax.random.key(0), number)
    moved = jax.jit(jax.vmap(create(word), (None, 0)))({name: jnp.asarray(value) for name, value in example.items()}, keys)
    return {name: np.asarray(value) for name, value in moved.items()}


def count_matches(results: np.ndarray, candidates: list[np.ndarray]) -> np.ndarray:
    """Counts how often each candidate is the result; each result must be exactly one of them."""
    equal = np.stack([np.all(results == candidate, tuple(range(1, results.ndim))) for candidate in candidates])
    np.testing.assert_array_equal(equal.sum(0), 1)
    return equal.sum(1)


def assert_alike(counts: np.ndarray) -> None:
    """Five standard deviations of a binomial around equal shares."""
    expected = counts.sum() / len(counts)
    np.testing.assert_allclose(counts, expected, atol=5 * np.sqrt(expected))


@pytest.mark.parametrize(("mode", "dense"), [("constant", False), ("symmetric", True)])
def test_pad_crop_takes_each_place_alike(mode: Any, dense: bool) -> None:
    moved = apply("pad_crop:2", {"images": IMAGE} | ({"masks": MASK} if dense else {}), 2000)
    padded = np.pad(IMAGE, [(2, 2), (2, 2), (0, 0)], mode=mode)
    places = [padded[row : row + 6, column : column + 5] for row in range(5) for column in range(5)]
    assert_alike(count_matches(moved["images"], places))
    if dense:
        np.testing.assert_array_equal(moved["images"][..., 0], moved["masks"])


def test_crop_takes_each_tile_alike() -> None:
    moved = apply("crop:3", {"images": IMAGE, "masks": MASK, "targets": IMAGE}, 2000)
    tiles = [IMAGE[row : row + 3, column : column + 3] for row in range(4) for column in range(3)]
    assert_alike(count_matches(moved["images"], tiles))
    np.testing.assert_array_equal(moved["images"][..., 0], moved["masks"])
    np.testing.assert_array_equal(moved["images"], moved["targets"])


@pytest.mark.parametrize(("word", "flip"), [("flip", ImageOps.mirror), ("flip_vertical", ImageOps.flip)])
def test_flips_half_of_the_images(word: str, flip: Any) -> None:
    moved = apply(word, {"images": IMAGE, "masks": MASK}, 500)
    flipped = np.asarray(flip(Image.fromarray(IMAGE[..., 0])))[..., None]
    assert_alike(count_matches(moved["images"], [IMAGE, flipped]))
    np.testing.assert_array_equal(moved["images"][..., 0], moved["masks"])


def test_rotate90_turns_each_way_alike() -> None:
    moved = apply("rotate90", {"images": IMAGE[:5], "masks": MASK[:5]}, 800)
    assert_alike(count_matches(moved["images"], [np.rot90(IMAGE[:5], turns) for turns in range(4)]))
    np.testing.assert_array_equal(moved["images"][..., 0], moved["masks"])
