"""Finds the dim of an array that holds the channels, from its type, or asks for it."""

from typing import Any

import numpy as np

_MOST_CHANNELS = 4  # which few heights or widths are as small as


def is_tensor(value: Any) -> bool:
    """Returns whether a value is a tensor of PyTorch or of a derived class, such as MONAI's. Images
    in these tensors have the channels first.
    """
    return any(each.__module__.partition(".")[0] == "torch" for each in type(value).__mro__)


def as_array(value: Any) -> np.ndarray:
    """Returns a value as an array. A tensor may be on any device, with or without gradients."""
    return value.numpy(force=True) if is_tensor(value) else np.asarray(value)


def channels_last(array: np.ndarray, name: str, *, first: bool) -> np.ndarray:
    """Returns an image as (H, W, C), or images as (N, H, W, C).

    Args:
        name: of the array, for the remedy.
        first: whether the channels come first, as in a tensor.

    Raises:
        ValueError: for a shape that contradicts it.
    """
    channels, height, width = array.shape[-3:]
    few, many = (width, channels) if first else (channels, width)
    if few <= _MOST_CHANNELS < min(many, height):
        order = (-1, -3, -2) if first else (-2, -1, -3)
        axes = [*range(array.ndim - 3), *(array.ndim + axis for axis in order)]
        call = f"{'permute' if first else 'transpose'}({', '.join(map(str, axes))})"
        place = "first in tensors of PyTorch" if first else "last"
        raise ValueError(
            f"has the shape {array.shape}, and channels come {place}: use {name}.{call}"
        )
    return np.moveaxis(array, -3, -1) if first else array
