"""Scores predicted objects against the objects of a mask, as in the 2018 Data Science Bowl."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from jaxtyping import Integer

from jaxdp.tasks.task import ratio

# Thresholds of the intersection over union, above which a predicted object is true: 0.5 to 0.95, in
# twentieths, which compare exactly.
THRESHOLDS = range(10, 20)


def sums(
    actual: Integer[np.ndarray, "height width"], predicted: Integer[np.ndarray, "height width"]
) -> dict[str, np.ndarray]:
    """Returns counts of the objects in one image, which add up over images: `objects`,
    `predicted_objects`, `true_objects` (10,).

    A predicted object is true if its intersection over union (IoU) with an object is above the
    threshold. Above 0.5, a predicted object matches at most one object.

    Args:
        actual: numbers of the objects, 0 for background.
        predicted: likewise; the numbers need not be the same.
    """
    (numbers, place), (others, other_place) = (
        np.unique(each, return_inverse=True) for each in (actual, predicted)
    )
    pairs, shared = np.unique(place.ravel() * len(others) + other_place.ravel(), return_counts=True)
    rows, columns = np.divmod(pairs, len(others))
    areas, other_areas = np.bincount(place.ravel()), np.bincount(other_place.ravel())
    union = areas[rows] + other_areas[columns] - shared
    of_objects = (numbers[rows] > 0) & (others[columns] > 0)
    hits = [
        np.count_nonzero(of_objects & (20 * shared > threshold * union)) for threshold in THRESHOLDS
    ]
    counts = {
        "objects": (numbers > 0).sum(),
        "predicted_objects": (others > 0).sum(),
        "true_objects": hits,
    }
    return {name: np.asarray(value, np.float64) for name, value in counts.items()}


def metrics(sums: Mapping[str, Any]) -> dict[str, float]:
    """Returns `f1`, at an IoU above 0.5, and `average_precision`.

    Returns no metrics if there are neither objects nor predicted objects.

    Source: Caicedo et al., Nucleus segmentation across imaging experiments: the 2018 Data Science
    Bowl, 2019, for both. The average precision is the mean of TP / (TP + FP + FN) over the
    thresholds 0.5, 0.55, ... 0.95. The paper also averages over images. This function sums counts
    over images first, so that an image of few objects weighs less than an image of many objects.
    """
    both = sums.get("objects", 0.0) + sums.get("predicted_objects", 0.0)
    if not both:
        return {}
    true = np.asarray(sums["true_objects"])
    precisions: np.ndarray = ratio(true, both - true)
    return {
        "f1": float(ratio(2 * true[0], both)),
        "average_precision": float(precisions.mean()),
    }
