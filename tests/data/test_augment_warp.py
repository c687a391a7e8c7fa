"""Shifts, rotations, affine and elastic deformations against SciPy and Pillow."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.ndimage
from PIL import Image

from jaxdp.data.augment import create
from jaxdp.data.augment.warp import sample_bilinear, sample_nearest

HEIGHT, WIDTH = 17, 21
IMAGE = np.random.default_rng(0).uniform(1, 255, (HEIGHT, WIDTH, 1)).astype(np.float32)
PICTURE = Image.fromarray(IMAGE[..., 0])
KEYS = jax.random.split(jax.random.key(0), 600)


def positions_of(word: str) -> tuple[np.ndarray, np.ndarray]:
    rows, columns = jax.jit(jax.vmap(lambda key: create(word).positions(HEIGHT, WIDTH, key)))(KEYS)
    return np.asarray(rows), np.asarray(columns)


def fit_affine(rows: np.ndarray, columns: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns matrix and offset about the image's centre, in (row, column).

    Fails where no affine map fits.
    """
    centre = np.array([HEIGHT - 1, WIDTH - 1]) / 2
    grid = np.stack(np.mgrid[:HEIGHT, :WIDTH], -1).reshape(-1, 2) - centre
    wanted = np.stack([rows, columns], -1).reshape(-1, 2) - centre
    solution, *_ = np.linalg.lstsq(np.c_[grid, np.ones(len(grid))], wanted)
    np.testing.assert_allclose(np.c_[grid, np.ones(len(grid))] @ solution, wanted, atol=1e-4)
    return solution[:2].T, solution[2]


def test_sampling_agrees_with_scipy_also_far_outside() -> None:
    rng = np.random.default_rng(1)
    rows, columns = (
        rng.uniform(-3 * size, 4 * size, (30, 31)).astype(np.float32) for size in (HEIGHT, WIDTH)
    )
    image = rng.uniform(0, 255, (HEIGHT, WIDTH, 2)).astype(np.float32)
    ours = sample_bilinear(jnp.asarray(image), jnp.asarray(rows), jnp.asarray(columns))
    for channel in range(2):
        expected = scipy.ndimage.map_coordinates(
            image[..., channel], [rows, columns], order=1, mode="reflect"
        )
        np.testing.assert_allclose(ours[..., channel], expected, atol=2e-3)
    mask = rng.integers(0, 100, (HEIGHT, WIDTH)).astype(np.int32)
    expected = scipy.ndimage.map_coordinates(mask, [rows, columns], order=0, mode="reflect")
    np.testing.assert_array_equal(
        sample_nearest(jnp.asarray(mask), jnp.asarray(rows), jnp.asarray(columns)), expected
    )


@pytest.mark.parametrize("word", ["shift:3.3", "rotate:40", "affine:0.3", "elastic:2"])
def test_dense_examples_are_mirrored_as_scipy_does(word: str) -> None:
    mask = IMAGE[..., 0].astype(np.int32)
    example = {"images": jnp.asarray(IMAGE), "masks": jnp.asarray(mask)}
    moved = jax.jit(jax.vmap(create(word), (None, 0)))(example, KEYS[:3])
    positions = zip(*positions_of(word), strict=True)
    for place, image, labels in zip(positions, moved["images"], moved["masks"], strict=False):
        expected = scipy.ndimage.map_coordinates(IMAGE[..., 0], place, order=1, mode="reflect")
        np.testing.assert_allclose(image[..., 0], expected, atol=2e-2)
        expected = scipy.ndimage.map_coordinates(mask, place, order=0, mode="reflect")
        # Rounding decides between two pixels equally near.
        assert np.mean(labels != expected) < 0.01


@pytest.mark.parametrize("word", ["shift:3.3", "rotate:40", "affine:0.3"])
def test_images_alone_get_black_borders_as_pillow_does(word: str) -> None:
    moved = jax.jit(jax.vmap(create(word), (None, 0)))({"images": jnp.asarray(IMAGE)}, KEYS[:5])[
        "images"
    ]
    for image, rows, columns in zip(moved, *positions_of(word), strict=False):
        matrix, offset = fit_affine(rows, columns)
        # Pillow wants x and y in the original from x and y, both counted from the image's corner.
        swapped, middle = matrix[::-1, ::-1], np.array([WIDTH, HEIGHT]) / 2
        constant = middle + offset[::-1] - swapped @ middle
        data = (*swapped[0], constant[0], *swapped[1], constant[1])
        expected = PICTURE.transform(
            (WIDTH, HEIGHT), Image.Transform.AFFINE, data, Image.Resampling.BILINEAR
        )
        np.testing.assert_allclose(image[..., 0], expected, atol=2e-2)
        assert np.any(np.asarray(expected) == 0)


def assert_fills(values: Any, bound: float) -> None:
    """Evenly drawn from -bound to bound: nothing beyond, and of 600 draws the outermost near it on
    both sides.
    """
    values = np.asarray(values) / bound
    assert -1.0001 < values.min() < -0.98
    assert 0.98 < values.max() < 1.0001


@pytest.mark.parametrize(
    ("word", "turn", "shear", "scale", "share"),
    [
        ("shift:3.3", 0, 0, 0, (3.3, 3.3)),
        ("rotate:40", 40, 0, 0, (0, 0)),
        ("affine:0.2", 18, 0.2, np.log(1.2), (0.2 * HEIGHT, 0.2 * WIDTH)),
    ],
)
def test_affine_maps_are_drawn_evenly_within_their_bounds(
    word: str, turn: float, shear: float, scale: float, share: tuple[float, float]
) -> None:
    found: list[Any] = []
    for pair in zip(*positions_of(word), strict=True):
        matrix, offset = fit_affine(*pair)
        # matrix = rotation @ [[1, 0], [shear, 1]] @ diag(scales)
        width_scale = np.linalg.norm(matrix[:, 1])
        height_scale = np.linalg.det(matrix) / width_scale
        sheared = matrix[:, 0] @ matrix[:, 1] / (height_scale * width_scale)
        angle = np.degrees(np.arctan2(-matrix[0, 1], matrix[1, 1]))
        found.append([angle, sheared, np.log(height_scale), np.log(width_scale), *offset])
    bounds = [turn, shear, scale, scale, *share]
    for values, bound in zip(np.transpose(found), bounds, strict=True):
        if bound:
            assert_fills(values, bound)
        else:
            np.testing.assert_allclose(values, 0, atol=1e-3)


def test_elastic_interpolates_nine_gaussian_displacements() -> None:
    rows, columns = positions_of("elastic:3")
    displacements = np.stack([rows, columns], -1) - np.stack(np.mgrid[:HEIGHT, :WIDTH], -1)
    # Corners, middles of the sides, centre.
    coarse = displacements[:, :: HEIGHT // 2, :: WIDTH // 2]
    assert coarse.shape == (600, 3, 3, 2)
    np.testing.assert_allclose(coarse.std(0), 3, rtol=0.15)
    np.testing.assert_allclose(coarse.std(), 3, rtol=0.05)
    correlation = np.corrcoef(coarse.reshape(600, 18).T) - np.eye(18)
    assert np.abs(correlation).max() < 0.2
    # Pillow's box counts from the edges of the coarse pixels: ours extends half a fine pixel beyond
    # their centres.
    step = np.array([2 / (WIDTH - 1), 2 / (HEIGHT - 1)])
    box = (*(0.5 - step / 2), *(2.5 + step / 2))
    for number in range(3):
        for part in range(2):
            grid = Image.fromarray(np.ascontiguousarray(coarse[number, ..., part], np.float32))
            expected = np.asarray(grid.resize((WIDTH, HEIGHT), Image.Resampling.BICUBIC, box=box))
            np.testing.assert_allclose(displacements[number, ..., part], expected, atol=1e-3)
