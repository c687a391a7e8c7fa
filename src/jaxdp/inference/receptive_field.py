"""Measures the receptive field of a network, by changing pixels and comparing the outputs.

Source: Luo et al. 2016, Understanding the Effective Receptive Field in Deep Convolutional Neural
Networks. Here, the receptive field is measured, so the method applies to any network.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float

# Sides of the probes, in pixels. The receptive field must reach less than half a side.
_SIDES = (512, 1024, 2048)
# Number of noise probes: a maximum or a ReLU may hide the effect of a pixel in one probe.
_TRIES = 2
# The fraction of the spread of the outputs by which two runs of a program may differ on a GPU.
_ROUNDING = 1e-6
# The fraction of the spread of the outputs by which a part alone may differ from the whole, because
# of rounding in bfloat16.
_TOLERANCE = 0.01

Network = Callable[[np.ndarray], Any]
Fit = Callable[[int], tuple[int, int]]


def measure(
    network: Network,
    fit: Fit,
    mean: Sequence[float],
    std: Sequence[float],
) -> int | None:
    """Returns the distance in pixels from a straight border to the farthest output that depends on
    pixels on the other side.

    The function assumes that height and width behave in the same way. The border is at a position
    where up to five poolings by two begin a new pixel.

    Args:
        network: maps images (batch, h, w, channels) to outputs (batch, h', w', outputs).
        fit: returns the side of the input that gives at least an output of this side, and the side
            of this output.
        mean, std: of the channels of the noise, as of the training images.

    Returns:
        None if no tile can replace the whole image. This is so if outputs depend on all pixels, on
            the size of the image, or on pixels farther away than 1024.
    """
    random = np.random.default_rng(0)
    height, _ = fit(32)
    for wanted in _SIDES:
        width, answer_width = fit(wanted)
        before, border = (width - answer_width) // 2, wanted // 2
        shape = (_TRIES, height, width, len(mean))
        images, others = (random.normal(mean, std, shape).astype(np.float32) for _ in range(2))
        answers = np.asarray(network(images), np.float32)
        columns = np.arange(width)[:, None] < before + border
        least = _ROUNDING * np.ptp(answers)
        changed = (
            np.asarray(network(np.where(columns == side, others, images)), np.float32)
            for side in (True, False)
        )
        # (answer_width,) each.
        right, left = (np.max(np.abs(answers - each), (0, 1, 3)) > least for each in changed)
        if not right[-1] and not left[0]:
            reach = max(int(right[border:].sum()), int(left[:border].sum()))
            return reach if _is_whole(network, fit, images, answers, reach) else None
    return None


def _is_whole(
    network: Network,
    fit: Fit,
    images: np.ndarray,
    answers: Float[np.ndarray, "batch h w outputs"],
    reach: int,
) -> bool:
    """Returns whether the left half of the images alone gives the same outputs, except near its
    end.
    """
    input_side, side = fit(answers.shape[2] // 2)
    dropped = (input_side - side) // 2
    sure = side - max(reach - dropped, 0)
    part = np.asarray(network(images[:, :, :input_side]), np.float32)
    difference = np.abs(part - answers[:, :, :side])[:, :, :sure]
    return bool(difference.max(initial=0) <= _TOLERANCE * np.ptp(answers))
