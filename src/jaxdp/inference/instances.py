"""Labels instances in the probabilities of background, cell and border.

Scikit-image, an extra, has the watershed.
"""

import functools
import importlib.util
from collections.abc import Iterator
from typing import Any

import numpy as np
from jaxtyping import Float, Integer, Shaped

from jaxdp.data.instances import BACKGROUND, CELL, real_size
from jaxdp.data.sources import Description, Split
from jaxdp.data.tiff import Plane
from jaxdp.inference.predictor import Predictor
from jaxdp.registry import ConfigError
from jaxdp.step.metrics import Sums
from jaxdp.tasks import instances

SMOOTHING = 1.5  # standard deviation in pixels: noise makes no seeds
# Pixels by which the middle of an object is farther from what is not cell than where it meets
# another.
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

    Seeds are where the class cell is deepest: the maxima of the distance to the nearest pixel that
    is likelier no cell, as far as they rise 0.75 pixels above the way to a higher one. A watershed
    of that distance grows them over all pixels that are likelier than not cell or border, borders
    between objects included. Objects of fewer than 16 pixels are left out.

    Args:
        probabilities: of background, cell and border.

    Raises:
        ConfigError: without scikit-image, and for more objects than 16 bits can number.
    """
    require()
    import scipy.ndimage  # 0.1 s, which few runs need
    from skimage import measure, morphology, segmentation  # pyright: ignore

    smooth = functools.partial(scipy.ndimage.gaussian_filter, sigma=SMOOTHING)
    cell = smooth(probabilities[..., CELL]) > 0.5
    depth = smooth(np.asarray(scipy.ndimage.distance_transform_edt(cell), np.float32))
    seeds = measure.label((morphology.h_maxima(depth, RISE) > 0) & cell)
    grown = segmentation.watershed(-depth, seeds, mask=probabilities[..., BACKGROUND] < 0.5)
    large = np.bincount(grown.ravel()) >= SMALLEST
    large[0] = False
    numbers = np.cumsum(large) * large
    if numbers.max(initial=0) > _HIGHEST:
        remedy = f"an image has {numbers.max()} objects, and 16 bits number {_HIGHEST}"
        raise ConfigError("", "", f"{remedy}; predict parts of it")
    return numbers.astype(np.uint16)[grown]


def measurements(
    objects: Integer[np.ndarray, "height width"],
    image: Shaped[np.ndarray, "height width channels"],
    plane: Plane | None,
) -> list[list[object]]:
    """Returns for each object what `columns` names.

    Args:
        objects: as `label_instances` returns it.
        plane: what a TIFF file says of the image.
    """
    from skimage import measure  # pyright: ignore

    properties = ("label", "area", "centroid", "bbox", "eccentricity", "intensity_mean")
    table = measure.regionprops_table(objects, image, properties)
    numbers = np.stack([*table.values()], 1).astype(float)
    lengths = numbers[:, 2:8]
    at_edge = (lengths[:, 2:4] == 0).any(1) | (lengths[:, 4:] == objects.shape).any(1)
    place, size = (plane.place, plane.pixel_size) if plane else ({}, None)
    size = size or (np.nan, np.nan)
    numbers = np.hstack([numbers, numbers[:, 1:2] * np.prod(size), lengths * (3 * size)])
    return [
        [place.get("T"), place.get("Z"), edge, *(f"{x:.9g}".replace("nan", "") for x in row)]
        for edge, row in zip(at_edge.tolist(), numbers.tolist(), strict=True)
    ]


def columns(channels: int) -> list[str]:
    """Returns the names of what is measured; the last seven only where a file has a resolution."""
    lengths = "centroid_y centroid_x top left bottom right".split()
    intensities = [f"mean_intensity_{channel}" for channel in range(channels)]
    pixels = ["area_pixels", *lengths, "eccentricity", *intensities]
    return ["t", "z", "touches_edge", "label", *pixels, "area_um2", *(f"{x}_um" for x in lengths)]


def class_numbers(
    probabilities: Float[np.ndarray, "height width classes"], description: Description
) -> Integer[np.ndarray, "height width"]:
    """Returns the likeliest class at each pixel or, of a run with instances, their numbers."""
    if description.instances:
        return label_instances(probabilities)
    return probabilities.argmax(-1).astype(np.uint8)


def count(predictor: Predictor, source: Split) -> Iterator[Sums]:
    """Yields for each example of a split how many of its objects were found.

    Of one that is left out nothing.

    Args:
        predictor: of a model for instance segmentation: what is scored is what it predicts for
            files.
        source: of which every example was read before.
    """
    for index in range(len(source)):
        if index in source.errors:
            yield {}
            continue
        example: Any = source.unchecked(index)
        height, width = real_size(example["masks"])
        [(_, probabilities)] = predictor([example["images"][:height, :width]])
        yield instances.sums(example["masks"][:height, :width], label_instances(probabilities))
