"""Labels instances in the probabilities of background, cell and border.

Scikit-image, an extra, has the watershed.
"""

import functools
import importlib.util
from collections.abc import Iterator
from typing import Any

import numpy as np
from jaxtyping import Float, Integer

from jaxdp.data.instances import BACKGROUND, CELL, real_size
from jaxdp.data.sources import Description, Split
from jaxdp.errors import ConfigError
from jaxdp.inference.predictor import Predictor
from jaxdp.step.metrics import Sums
from jaxdp.tasks import instances

SMOOTHING = 1.5  # standard deviation in pixels, so that noise makes no seeds
# Pixels by which the depth in the middle of an object exceeds the depth where it meets another
# object.
RISE = 0.75
SMALLEST = 16  # pixels of an object
_HIGHEST = 2**16 - 1


def require() -> None:
    """Raises ConfigError unless scikit-image is installed."""
    if importlib.util.find_spec("skimage") is None:
        raise ConfigError("instances", "", "needs scikit-image: pip install '.[instances]'")


def label_instances(
    probabilities: Float[np.ndarray, "height width 3"],
) -> Integer[np.ndarray, "height width"]:
    """Returns the number of the object at each pixel, uint16, with 0 for background.

    Seeds are the maxima of the distance to the nearest pixel that is probably not cell. A maximum
    counts if it rises at least 0.75 pixels above the path to a higher maximum. A watershed of the
    distance and the cell probability grows the seeds over all pixels that are more likely cell or
    border than background. Objects of fewer than 16 pixels are left out.

    Args:
        probabilities: of background, cell and border.

    Raises:
        ConfigError: without scikit-image, and for more objects than 16 bits can number.
    """
    require()
    import scipy.ndimage  # 0.1 s, which few runs need
    from skimage import measure, morphology, segmentation  # pyright: ignore

    smooth = functools.partial(scipy.ndimage.gaussian_filter, sigma=SMOOTHING)
    probability = smooth(probabilities[..., CELL])
    cell = probability > 0.5
    depth = smooth(scipy.ndimage.distance_transform_edt(cell))
    seeds = measure.label((morphology.h_maxima(depth, RISE) > 0) & cell)
    # Where objects meet, the cell probability is lowest. A probability of 1 counts as 3 pixels of
    # depth.
    height = -depth - 3 * probability
    grown = segmentation.watershed(height, seeds, mask=probabilities[..., BACKGROUND] < 0.5)
    large = np.bincount(grown.ravel()) >= SMALLEST
    large[0] = False
    numbers = np.cumsum(large) * large
    if numbers.max(initial=0) > _HIGHEST:
        remedy = f"an image has {numbers.max()} objects, and 16 bits number {_HIGHEST}"
        raise ConfigError("", "", f"{remedy}; predict parts of it")
    return numbers.astype(np.uint16)[grown]


def class_numbers(
    probabilities: Float[np.ndarray, "height width classes"], description: Description
) -> Integer[np.ndarray, "height width"]:
    """Returns the most likely class at each pixel or, for a run with instances, instance labels."""
    if description.instances:
        return label_instances(probabilities)
    return probabilities.argmax(-1).astype(np.uint8)


def count(predictor: Predictor, source: Split) -> Iterator[Sums]:
    """Yields the counts of found objects for each example of a split.

    An example that was left out yields no sums.

    Args:
        predictor: of a model for instance segmentation. The scored labels equal its predictions for
            files.
        source: a split with every example already read.
    """
    for index in range(len(source)):
        if index in source.errors:
            yield {}
            continue
        example: Any = source.unchecked(index)
        height, width = real_size(example["masks"])
        [(_, probabilities)] = predictor([example["images"][:height, :width]])
        yield instances.sums(example["masks"][:height, :width], label_instances(probabilities))
