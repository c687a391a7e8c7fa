"""Computes the class and the weight of each pixel for instance segmentation."""

import zlib

import numpy as np
from jaxtyping import Float, Int, Integer, Shaped, UInt8

from jaxdp.data.dataset import IGNORE_LABEL, PAD_LABEL
from jaxdp.data.masks import check_whole
from jaxdp.data.resize import pad
from jaxdp.data.source import BadExample

Objects = Integer[np.ndarray, "height width"]  # numbers of objects
CLASS_NAMES = ("background", "cell", "border")
BACKGROUND, CELL, BORDER = range(3)
# Equation 2 of the U-Net paper, and its values of w0 and sigma, in pixels.
W0, SIGMA = 10.0, 5.0
BORDER_WIDTH = 3.0  # the largest d1 + d2 of the class border, in pixels
# Distance in pixels from which an object counts as infinitely far, because its weight is below
# 2e-7.
REACH = 30
_HIGHEST = 2**24 - 1  # which float32 represents exactly, for resizing masks


def instance_labels(stored: np.ndarray, where: object) -> Int[np.ndarray, "height width"]:
    """Returns the instance labels of a mask as int32, with 0 for background.

    Every other number is an object.

    Args:
        stored: as `read_mask` returns it.
        where: names the mask in errors.

    Raises:
        BadExample: for colours, fractions and numbers out of range.
    """
    if stored.ndim != 2:
        remedy = "save the numbers of its objects as a greyscale picture of 8 or 16 bits"
        raise BadExample(where, f"has {stored.shape[2]} channels; {remedy}")
    check_whole(stored, where, _HIGHEST, "numbers of objects")
    return stored.astype(np.int32)


def distances(
    instances: Objects,
) -> tuple[Float[np.ndarray, "height width"], Float[np.ndarray, "height width"]]:
    """Returns the distance of each pixel to the border of the nearest object, d1, and of the second
    nearest object, d2, in pixels.

    The border of an object consists of its pixels with a neighbour above, below, left or right that
    does not belong to it. The edge of the image is not a border. Distances above `REACH` are
    infinite.
    """
    import scipy.ndimage  # 0.1 s, which few runs need

    numbers, places = np.unique(np.maximum(instances, 0), return_inverse=True)
    nearest, second = (np.full(instances.shape, np.inf, np.float32) for _ in range(2))
    # 0 is background, even if no pixel is background.
    numbered = places.reshape(instances.shape) + (numbers[0] > 0)
    for index, box in enumerate(scipy.ndimage.find_objects(numbered), 1):
        near = tuple(slice(max(side.start - REACH, 0), side.stop + REACH) for side in box)
        inside = numbered[near] == index
        border = inside & ~np.asarray(scipy.ndimage.binary_erosion(inside, border_value=1), bool)
        if not border.any():  # it fills the image
            continue
        distance = np.asarray(scipy.ndimage.distance_transform_edt(~border), np.float32)
        distance[distance > REACH] = np.inf
        second[near] = np.minimum(second[near], np.maximum(nearest[near], distance))
        nearest[near] = np.minimum(nearest[near], distance)
    return nearest, second


def targets(
    instances: Objects,
) -> tuple[UInt8[np.ndarray, "height width"], Shaped[np.ndarray, "height width"]]:
    """Returns the class of each pixel, uint8, and the second term of its weight, float16.

    The class border consists of the pixels, in an object or between objects, with d1 + d2 of at
    most 3 pixels. If objects touch, these are the two outermost rows of pixels of each object. Gaps
    of background of up to two pixels are also border. Pixels outside the image are IGNORE_LABEL.

    Source: Ronneberger, Fischer, Brox: U-Net, 2015, equation 2: w(x) = w_c(x) + w0 exp(-(d1(x) +
    d2(x))^2 / (2 sigma^2)). In the paper, the first term balances the classes. Here, it is the
    task's `class_weights`, by default 1.
    """
    height, width = real_size(instances)
    real = instances[:height, :width]
    apart = np.add(*distances(real))
    classes = np.where(apart <= BORDER_WIDTH, BORDER, np.where(real > 0, CELL, BACKGROUND))
    weights = W0 * np.exp(-(apart**2) / (2 * SIGMA**2))
    return (
        pad(classes.astype(np.uint8), instances.shape, value=IGNORE_LABEL),
        pad(weights.astype(np.float16), instances.shape, value=0),
    )


def real_size(instances: Objects) -> tuple[int, int]:
    """Returns height and width of an image without its padding at the bottom and right."""
    real = instances != PAD_LABEL
    return int(real.any(1).sum()), int(real.any(0).sum())


class Targets:
    """Makes the targets of a split. Each target is made once, however often an example is read.

    They are kept compressed.
    """

    def __init__(self) -> None:
        self._kept: dict[int, dict[str, tuple[np.dtype, bytes]]] = {}

    def __call__(self, index: int, instances: Objects) -> dict[str, np.ndarray]:
        """Returns the fields `masks` and `border_weights` of an example."""
        if index not in self._kept:
            fields = zip(("masks", "border_weights"), targets(instances), strict=True)
            self._kept[index] = {
                name: (values.dtype, zlib.compress(values.tobytes(), 1)) for name, values in fields
            }
        return {
            name: np.frombuffer(zlib.decompress(kept), dtype).reshape(instances.shape)
            for name, (dtype, kept) in self._kept[index].items()
        }
