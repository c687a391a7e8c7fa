"""Finds how far a network sees, by changing pixels and looking which answers change.

Source: what depends on a pixel is its receptive field (Luo et al. 2016, Understanding the Effective
Receptive Field in Deep Convolutional Neural Networks); here it is measured, so that it holds for
any network.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float

# Sides of the probes, in pixels: the network must see less far than half a side.
_SIDES = (512, 1024, 2048)
_TRIES = 2  # probes of noise: in one alone a maximum or a ReLU may hide what a pixel changes
# The fraction of the answers' spread by which two runs of one program may differ on a GPU.
_ROUNDING = 1e-6
# The fraction of the answers' spread by which a part alone may differ from the whole: bfloat16
# rounds that much.
_TOLERANCE = 0.01

Network = Callable[[np.ndarray], Any]
Fit = Callable[[int], tuple[int, int]]


def measure(
    network: Network,
    fit: Fit,
    mean: Sequence[float],
    std: Sequence[float],
) -> int | None:
    """Returns how many pixels beyond a straight border the farthest answer lies that depends on
    pixels before it, or the reverse.

    Height and width are taken to behave alike. The border is where poolings by two, up to five of
    them, begin a new pixel.

    Args:
        network: maps images (batch, h, w, channels) to outputs (batch, h', w', outputs).
        fit: returns the side of the input that gives at least so large an answer, and the side of
            that answer.
        mean, std: of the channels of the noise that the network is shown, as of its training
            images.

    Returns:
        None if no tile can stand for the whole: if answers depend on all pixels, on the size of the
            image, or on pixels farther away than 1024.
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
    """Returns whether the left half of the images alone gives the same answers, but for those near
    its end.
    """
    input_side, side = fit(answers.shape[2] // 2)
    dropped = (input_side - side) // 2
    sure = side - max(reach - dropped, 0)
    part = np.asarray(network(images[:, :, :input_side]), np.float32)
    difference = np.abs(part - answers[:, :, :side])[:, :, :sure]
    return bool(difference.max(initial=0) <= _TOLERANCE * np.ptp(answers))
