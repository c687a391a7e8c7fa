"""Crops, flips and quarter turns against NumPy and Pillow."""

import functools
import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from PIL import Image, ImageOps

from jaxdp.data.augment import Preprocess, create, geometry

KEY = jax.random.key(0)
IMAGE = np.arange(1, 31, dtype=np.float32).reshape(6, 5, 1)  # all pixels differ
MASK = IMAGE[..., 0].astype(np.int32)


def apply(word: Any, example: dict[str, Any], number: int) -> dict[str, np.ndarray]:
    """Returns the example moved this many times, by a word or by an augmentation."""
    keys = jax.random.split(jax.random.key(0), number)
    augmentation = create(word) if isinstance(word, str) else word
    moved = jax.jit(jax.vmap(augmentation, (None, 0)))(jax.tree.map(jnp.asarray, example), keys)
    return jax.tree.map(np.asarray, moved)


def count_matches(results: np.ndarray, candidates: list[np.ndarray]) -> np.ndarray:
    """Counts how often each candidate is the result; each result must be exactly one of them."""
    equal = np.stack(
        [np.all(results == candidate, tuple(range(1, results.ndim))) for candidate in candidates]
    )
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


@pytest.mark.parametrize(
    ("word", "flip"), [("flip", ImageOps.mirror), ("flip_vertical", ImageOps.flip)]
)
def test_flips_half_of_the_images(word: str, flip: Any) -> None:
    moved = apply(word, {"images": IMAGE, "masks": MASK}, 500)
    flipped = np.asarray(flip(Image.fromarray(IMAGE[..., 0])))[..., None]
    assert_alike(count_matches(moved["images"], [IMAGE, flipped]))
    np.testing.assert_array_equal(moved["images"][..., 0], moved["masks"])


def test_rotate90_turns_each_way_alike() -> None:
    moved = apply("rotate90", {"images": IMAGE[:5], "masks": MASK[:5]}, 800)
    assert_alike(count_matches(moved["images"], [np.rot90(IMAGE[:5], turns) for turns in range(4)]))
    np.testing.assert_array_equal(moved["images"][..., 0], moved["masks"])


def test_crop_of_images_that_were_filled_up_lies_on_what_is_real() -> None:
    mask = np.full((12, 10), 255, np.int32)
    mask[2:9, 3:7] = np.arange(28).reshape(7, 4)
    image = np.arange(120, dtype=np.float32).reshape(12, 10, 1)

    def cropped(size: int, mask: np.ndarray) -> dict[str, np.ndarray]:
        crop = create(f"crop:{size}").within_valid()
        return apply(crop, {"images": image, "masks": mask}, 2000)

    moved = cropped(3, mask)
    corners = itertools.product(range(2, 7), range(3, 5))
    tiles = [image[row : row + 3, column : column + 3] for row, column in corners]
    assert_alike(count_matches(moved["images"], tiles))
    assert (moved["masks"] != 255).all()
    # Larger than what is real: all of that.
    assert ((cropped(8, mask)["masks"] != 255).sum((1, 2)) == 28).all()
    assert cropped(3, np.full_like(mask, 255))["images"].shape == (2000, 3, 3, 1)


PHOTO = np.random.default_rng(0).uniform(0, 255, (40, 60, 3)).astype(np.float32)


def test_random_resized_crop_is_a_crop_that_pillow_resizes() -> None:
    crop: Any = create("random_resized_crop:16")
    keys = jax.random.split(jax.random.key(1), 40)
    for key in keys:
        corner, sides = (np.asarray(part).astype(int) for part in crop.box(40, 60, key))
        found = np.asarray(crop({"images": jnp.asarray(PHOTO)}, key)["images"])
        part = PHOTO[corner[0] : corner[0] + sides[0], corner[1] : corner[1] + sides[1]]
        bands = [Image.fromarray(np.ascontiguousarray(part[..., band])) for band in range(3)]
        wanted = np.stack(
            [np.asarray(band.resize((16, 16), Image.Resampling.BILINEAR)) for band in bands], -1
        )
        np.testing.assert_allclose(found, wanted, atol=0.01)


@pytest.mark.parametrize(
    ("shape", "middle"),
    [((40, 60), 0), ((64, 64), 0), ((10, 400), 13), ((300, 9), 12)],
)
def test_random_resized_crop_draws_area_ratio_and_place(
    shape: tuple[int, int], middle: int
) -> None:
    """Where the image is too long for ten draws, it is the largest part in the middle."""
    crop: Any = create("random_resized_crop:16")
    boxes = jax.vmap(lambda key: jnp.stack(crop.box(*shape, key)))(
        jax.random.split(jax.random.key(0), 4000)
    )
    corners, sides = np.asarray(boxes).transpose(1, 0, 2)
    assert corners.min() >= 0
    assert (corners + sides <= shape).all()
    share, ratio = sides.prod(1) / np.prod(shape), sides[:, 1] / sides[:, 0]
    if middle:
        longest = sides.max(1) == middle
        assert longest.mean() > 0.05
        assert set(corners[longest].max(1)) == {(max(shape) - middle) // 2}
        return
    assert 0.07 < share.min() < 0.1
    assert 0.85 < share.max() <= 1  # 40 x 60 pixels hold no larger part of a ratio in the range
    assert 0.35 < share.mean() < 0.55
    assert 0.7 < ratio.min() < 0.8
    assert 1.25 < ratio.max() < 1.4
    places = corners / np.maximum(np.array(shape) - sides, 1)
    np.testing.assert_allclose(places[share < 0.3].mean(0), 0.5, atol=0.05)


@pytest.mark.parametrize(
    ("height", "width", "size"), [(37, 50, 16), (16, 16, 32), (3, 2, 8), (60, 9, 20)]
)
def test_a_resized_crop_is_that_of_pillow(height: int, width: int, size: int) -> None:
    image = np.random.default_rng(0).uniform(0, 255, (height, width, 3)).astype(np.float32)
    crop = geometry.RandomResizedCrop(size)
    keys = jax.random.split(KEY, 20)
    found = jax.jit(jax.vmap(lambda key: crop({"images": jnp.asarray(image)}, key)["images"]))(keys)
    boxes = jax.jit(jax.vmap(lambda key: jnp.stack(crop.box(height, width, key))))(keys)
    for resized, ((top, left), (rows, columns)) in zip(found, np.asarray(boxes, int), strict=True):
        part = image[top : top + rows, left : left + columns]
        expected = [
            Image.fromarray(channel).resize((size, size), Image.Resampling.BILINEAR)
            for channel in part.transpose(2, 0, 1)
        ]
        np.testing.assert_allclose(resized, np.stack(expected, -1), rtol=0, atol=1e-2)


@pytest.mark.parametrize(("height", "width", "size"), [(37, 50, 16), (16, 16, 32), (60, 9, 20)])
def test_a_resized_crop_of_a_cpu_is_that_of_other_devices(
    height: int, width: int, size: int
) -> None:
    image = np.random.default_rng(0).uniform(0, 255, (height, width, 3)).astype(np.float32)
    crop = geometry.RandomResizedCrop(size)
    corners, sides = jax.vmap(lambda key: crop.box(height, width, key))(jax.random.split(KEY, 20))
    taps, products = (
        jax.jit(jax.vmap(functools.partial(form, jnp.asarray(image), size=size)))(corners, sides)
        for form in (geometry._resized_by_taps, geometry._resized_by_products)
    )
    np.testing.assert_allclose(taps, products, rtol=0, atol=1e-3)


def test_alternating_flips_follow_the_turn_of_their_example() -> None:
    rng = np.random.default_rng(0)
    images, masks = rng.integers(0, 256, (3, 6, 5, 1)), rng.integers(0, 3, (3, 6, 5))
    batch = {
        "images": jnp.asarray(images, jnp.uint8),
        "masks": jnp.asarray(masks, jnp.uint8),
        "indices": jnp.asarray([4, 5, 6]),
    }
    preprocess = Preprocess((0.0,), (1.0,), (create("flip:alternating"),))
    out = preprocess(batch, lambda _: jax.random.split(KEY, 3), None, lambda each: each % 2 == 0)
    np.testing.assert_array_equal(out["images"][1], images[1])
    np.testing.assert_array_equal(out["masks"][1], masks[1])
    np.testing.assert_array_equal(out["images"][::2], images[::2, :, ::-1])
    np.testing.assert_array_equal(out["masks"][::2], masks[::2, :, ::-1])
    assert "turn" not in out
