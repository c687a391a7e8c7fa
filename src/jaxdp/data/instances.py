"""Reads masks that hold the numbers of objects, for instance segmentation."""

import numpy as np
from jaxtyping import Int, Integer

from jaxdp.data.dataset import IGNORE_LABEL, PAD_LABEL
from jaxdp.data.masks import check_whole
from jaxdp.data.source import BadExample

Objects = Integer[np.ndarray, "height width"]  # numbers of objects
OUTPUT_NAMES = ("cell", "down", "right")  # outputs of a model, as `tasks.Instances` describes them
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


def as_masks(instances: Objects) -> Int[np.ndarray, "height width"]:
    """Returns instance labels as masks of a batch, in which padding is IGNORE_LABEL, as in other
    masks, and no object has this number.
    """
    numbers = np.where(instances >= IGNORE_LABEL, instances + 1, np.maximum(instances, 0))
    return np.where(instances == PAD_LABEL, IGNORE_LABEL, numbers).astype(np.int32)


def real_size(masks: Objects) -> tuple[int, int]:
    """Returns height and width of an image without its padding at the bottom and right.

    Args:
        masks: as `as_masks` returns them.
    """
    real = masks != IGNORE_LABEL
    return int(real.any(1).sum()), int(real.any(0).sum())
