"""Scores predicted objects against the objects of a mask."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from jaxtyping import Integer

from jaxdp.tasks.task import ratio

# Thresholds of the intersection over union, from which a predicted object is true: 0.5 to 0.95, in
# twentieths, which compare exactly.
THRESHOLDS = range(10, 20)


def sums(
    actual: Integer[np.ndarray, "height width"], predicted: Integer[np.ndarray, "height width"]
) -> dict[str, np.ndarray]:
    """Returns sums over the objects of one image, which add up over images.

    A predicted object is true if its intersection over union (IoU) with an object is at least the
    threshold. Of two halves of an object, which have an IoU of exactly 0.5, one is true.

    Args:
        actual: numbers of the objects, 0 for background.
        predicted: likewise; the numbers need not be the same.

    Returns:
        Counts of objects, `true_objects` (10,) among them, sums over the true objects at 0.5, and
        values of the image.
    """
    (numbers, place, areas), (others, other_place, other_areas) = (
        np.unique(each.ravel(), return_inverse=True, return_counts=True)
        for each in (actual, predicted)
    )
    pairs, shared = np.unique(place * len(others) + other_place, return_counts=True)
    rows, columns = np.divmod(pairs, len(others))
    union = areas[rows] + other_areas[columns] - shared
    true = np.flatnonzero((numbers[rows] > 0) & (others[columns] > 0) & (2 * shared >= union))
    for objects in (rows, columns):  # each object once
        true = true[np.unique(objects[true], return_index=True)[1]]
    hits = [np.count_nonzero(20 * shared[true] >= each * union[true]) for each in THRESHOLDS]
    count, other_count = (numbers > 0).sum(), (others > 0).sum()
    both = count + other_count
    values = {
        "objects": count,
        "predicted_objects": other_count,
        "true_objects": hits,
        "true_iou": (shared / union)[true].sum(),
        "true_area_ratio": (other_areas[columns] / areas[rows])[true].sum(),
        "images": 1,
        "scored_images": both > 0,
        "image_ap50": ratio(hits[0], both - hits[0]),
        "count_difference": abs(other_count - count),
    }
    return {name: np.asarray(value, np.float64) for name, value in values.items()}


def metrics(sums: Mapping[str, Any]) -> dict[str, float]:
    """Divides the sums. The page docs/metrics.md lists the formulas.

    Returns no metrics if there are neither objects nor predicted objects. Leaves out each metric
    whose divisor is 0.

    Sources: Caicedo et al., Nucleus segmentation across imaging experiments: the 2018 Data Science
    Bowl, 2019, for `f1` and `average_precision`; Kirillov et al., Panoptic segmentation, 2019,
    section 4.1, for `panoptic_quality`; StarDist and Cellpose for `ap50` and `ap50_per_image`.
    """
    both = sums.get("objects", 0.0) + sums.get("predicted_objects", 0.0)
    if not both:
        return {}
    true = np.asarray(sums["true_objects"])
    precision = true / (both - true)
    parts = {
        "ap50": (precision[0], 1),
        "average_precision": (precision.mean(), 1),
        "panoptic_quality": (2 * sums["true_iou"], both),
        "f1": (2 * true[0], both),
        "ap50_per_image": (sums["image_ap50"], sums["scored_images"]),
        "count_error": (sums["predicted_objects"] - sums["objects"], sums["objects"]),
        "count_mae": (sums["count_difference"], sums["images"]),
        "area_ratio": (sums["true_area_ratio"], true[0]),
    }
    return {name: float(part / whole) for name, (part, whole) in parts.items() if whole}
