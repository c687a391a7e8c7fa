"""Images of discs that touch, their instance labels, and predictions without errors."""

from typing import Any

import jax.numpy as jnp
import numpy as np

from jaxdp import data
from jaxdp.tasks.instance_segmentation import directions


def cells(number: int, height: int = 24, width: int = 24, count: int = 5) -> np.ndarray:
    """Returns the numbers of discs that touch, uint16: 3, 6, 9, ..."""
    rng = np.random.default_rng(number)
    rows, columns = np.mgrid[:height, :width]
    objects = np.zeros((height, width), np.uint16)
    for index, row, column in zip(
        range(count), rng.uniform(0, height, count), rng.uniform(0, width, count), strict=True
    ):
        objects[((rows - row) ** 2 + (columns - column) ** 2 < 25) & (objects == 0)] = 3 * (
            index + 1
        )
    return objects


def image_of(objects: np.ndarray, number: int = 0) -> np.ndarray:
    rng = np.random.default_rng(number)
    return (4000 + 20000 * (objects > 0) + rng.normal(0, 800, objects.shape)).astype(np.uint16)


def arrays(count: int = 16, **settings: Any) -> data.Dataset:
    objects = np.stack([cells(number) for number in range(count)])
    images = np.stack([image_of(each) for each in objects])[..., None]
    settings = {"instances": True, "test": (images[:4], objects[:4])} | settings
    return data.from_arrays(images, objects, **settings)


def perfect(objects: np.ndarray) -> np.ndarray:
    """What a network would predict that makes no error."""
    direction = np.asarray(directions(jnp.asarray(objects, jnp.int32)))
    return np.concatenate([(objects > 0)[..., None], direction], -1).astype(np.float32)
