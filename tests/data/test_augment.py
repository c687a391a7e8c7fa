"""What an image becomes depends on its own key alone."""

import jax
import jax.numpy as jnp
import numpy as np

from jaxdp.data.augment import Preprocess, Shift
from jaxdp.training.step import example_keys


def test_evaluation_only_normalizes() -> None:
    images = np.arange(2 * 4 * 4 * 2, dtype=np.uint8).reshape(2, 4, 4, 2)
    preprocess = Preprocess((1.0, 2.0), (2.0, 4.0), (Shift(1.0),))
    np.testing.assert_allclose(preprocess(jnp.asarray(images), None), (images - [1.0, 2.0]) / [2.0, 4.0], rtol=1e-6)


def test_shift_interpolates_between_pixels() -> None:
    image = np.zeros((5, 5, 1), np.float32)
    image[2, 2] = 1
    for number in range(8):
        moved = np.asarray(Shift(1.0)(jnp.asarray(image), jax.random.key(number)))[..., 0]
        row, column = (moved.sum(axis) @ np.arange(5) for axis in (1, 0))  # the centre of mass moves by the offset
        expected = 2 + np.asarray(jax.random.uniform(jax.random.key(number), (2,), minval=-1.0, maxval=1.0))
        np.testing.assert_allclose([row, column], expected, atol=1e-4)
        np.testing.assert_allclose(moved.sum(), 1, atol=1e-5)


def test_pixels_do_not_depend_on_the_batch_an_example_is_in() -> None:
    images = jax.random.randint(jax.random.key(0), (8, 6, 6, 1), 0, 255).astype(jnp.uint8)
    preprocess = Preprocess((0.0,), (1.0,), (Shift(1.0),))
    keys = example_keys(5, jnp.asarray(3), jnp.arange(8) * 7)
    whole = jax.jit(preprocess)(images, keys)
    parts = [jax.jit(preprocess)(images[start : start + 2], keys[start : start + 2]) for start in range(0, 8, 2)]
    np.testing.assert_array_equal(whole, jnp.concatenate(parts))
    assert not np.array_equal(whole, preprocess(images, example_keys(5, jnp.asarray(4), jnp.arange(8) * 7)))
