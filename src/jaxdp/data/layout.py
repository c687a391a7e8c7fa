"""Which axis of an array holds the channels: certain by its type, or asked for."""

from typing import Any

import numpy as np

_MOST_CHANNELS = 4  # that hardly any height or width is as small as


def is_tensor(value: Any) -> bool:
    """Returns whether a value is a tensor of PyTorch, or of a class derived from it, such as
    MONAI's, whose images have the channels first.
    """
    return any(each.__module__.partition(".")[0] == "torch" for each in type(value).__mro__)


def as_array(value: Any) -> np.ndarray:
    """Returns a value as an array, a tensor's from any device and with gradients or without."""
    return value.numpy(force=True) if is_tensor(value) else np.asarray(value)


def channels_last(array: np.ndarray, name: str, *, first: bool) -> np.ndarray:
    """Returns an image as (H, W, C), or images as (N, H, W, C).

    Args:
        name: of the array, for the remedy.
        first: whether the channels come first, as in a tensor.

    Raises:
        ValueError: for a shape that says otherwise.
    """
    channels, height, width = array.shape[-3:]
    few, many = (width, channels) if first else (channels, width)
    if few <= _MOST_CHANNELS < min(many, height):
        order = (-1, -3, -2) if first else (-2, -1, -3)
        axes = [*range(array.ndim - 3), *(array.ndim + axis for axis in order)]
        call = f"{'permute' if first else 'transpose'}({', '.join(map(str, axes))})"
        place = "first in tensors of PyTorch" if first else "last"
        problem = f"has the shape {array.shape}, and channels come {place}: use {name}.{call}"
        raise ValueError(problem)
    return np.moveaxis(array, -3, -1) if first else array
