"""Scores of objects: the values of StarDist, Cellpose and cellseg-metrics, and values by hand.

`nox -s reference` compares random images with the packages themselves.
"""

import numpy as np
import pytest
import scipy.optimize

from jaxdp.step.metrics import add
from jaxdp.tasks import instances as scores

POOLED = ("ap50", "average_precision", "panoptic_quality", "f1", "count_error", "area_ratio")


def labels(row: str) -> np.ndarray:
    """Returns an image of one row: a digit is the number of an object, a dot is background."""
    return np.array([[int(each) for each in row.replace(".", "0")]])


# Truth and prediction, and the accuracy and the panoptic quality of StarDist 0.9.2. Cellpose 4.2.1.1
# has the same average precision, and cellseg-metrics 0.2.0 the same quality where no IoU is 0.5.
IMAGES = {
    "equal": (".111.222.", ".777.333.", 1, 1),
    "shifted": (".111..22222.", "..111..2222.", 1, 0.65),  # IoU 0.5 and 0.8
    "merged": (".111.222222.", ".1111111111.", 0.5, 0.4),  # IoU 0.3 and 0.6
    "split": (".11111111.", ".11111222.", 0.5, 0.4166667),  # IoU 0.625 and 0.375
    "split in halves": (".111111..222.", ".111222..333.", 0.6666667, 0.6),
    "merged halves": (".111222..333.", ".111111..222.", 0.6666667, 0.6),
    "missing": (".111.222.", ".111.....", 0.5, 0.6666667),
    "nothing found": (".111.222.", ".........", 0, 0),
    "no object": (".........", ".111.222.", 0, 0),
}
NEITHER = scores.sums(labels("...."), labels("...."))
SUMS = {name: scores.sums(labels(row), labels(other)) for name, (row, other, *_) in IMAGES.items()}


@pytest.mark.parametrize("name", IMAGES)
def test_an_image_has_the_scores_of_other_packages(name: str) -> None:
    *_, precision, quality = IMAGES[name]
    found = scores.metrics(SUMS[name])
    assert found["ap50"] == found["ap50_per_image"] == pytest.approx(precision, abs=5e-7)
    assert found["panoptic_quality"] == pytest.approx(quality, abs=5e-7)


def test_images_have_the_scores_of_other_packages() -> None:
    found = scores.metrics(add(*SUMS.values(), NEITHER))
    expected = {
        "ap50": 0.55,  # matching_dataset of StarDist, 11 of 16 objects and of 15 predicted ones
        "average_precision": 0.2782575,  # mean of matching_dataset over the thresholds
        "panoptic_quality": 0.55,
        "f1": 0.7096774,
        "ap50_per_image": 0.5370370,  # nanmean of Cellpose's average_precision
        "count_error": (15 - 16) / 16,
        "count_mae": (0 + 0 + 1 + 1 + 1 + 1 + 1 + 2 + 2 + 0) / 10,
        "area_ratio": (3 + 4 / 5 + 10 / 6 + 5 / 8 + 3 / 6 + 1 + 6 / 3 + 1 + 1) / 11,
    }
    assert found == pytest.approx(expected, abs=5e-7)
    assert list(found) == list(expected)


def test_a_metric_without_divisor_is_left_out() -> None:
    assert scores.metrics(NEITHER) == {}
    assert scores.metrics({"loss": 1.0}) == {}
    without_matches = scores.metrics(SUMS["nothing found"])
    assert without_matches["count_error"] == -1
    assert "area_ratio" not in without_matches
    assert not {"count_error", "area_ratio"} & scores.metrics(SUMS["no object"]).keys()


def iou_by_hand(actual: np.ndarray, predicted: np.ndarray) -> np.ndarray:
    """IoU of each pair of objects, from sets of pixels."""
    sets = [
        [set(map(tuple, np.argwhere(labels == number))) for number in np.unique(labels) if number]
        for labels in (actual, predicted)
    ]
    return np.array(
        [[len(one & other) / len(one | other) for other in sets[1]] for one in sets[0]]
    ).reshape(*map(len, sets))


def by_hand(actual: np.ndarray, predicted: np.ndarray) -> dict[str, float]:
    """The metrics of one image with objects, from as many pairs as there can be, each object
    once.
    """
    iou = iou_by_hand(actual, predicted)
    areas, other_areas = (
        np.unique(each[each > 0], return_counts=True)[1] for each in (actual, predicted)
    )
    true = []
    for threshold in np.arange(50, 100, 5) / 100:
        hits = iou >= threshold
        rows, columns = scipy.optimize.linear_sum_assignment(-1.0 * hits)
        kept = hits[rows, columns]
        true.append((rows[kept], columns[kept]))
    precisions = [len(rows) / (sum(iou.shape) - len(rows)) for rows, _ in true]
    rows, columns = true[0]
    found = {
        "ap50": precisions[0],
        "ap50_per_image": precisions[0],
        "average_precision": np.mean(precisions),
        "panoptic_quality": 2 * iou[rows, columns].sum() / sum(iou.shape),
        "f1": 2 * len(rows) / sum(iou.shape),
        "count_error": iou.shape[1] / iou.shape[0] - 1,
        "count_mae": abs(iou.shape[1] - iou.shape[0]),
    }
    if len(rows):
        found["area_ratio"] = np.mean(other_areas[columns] / areas[rows])
    return found


def random_pair(number: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns objects of a few pixels and others, some of them moved, merged, split and missing."""
    rng = np.random.default_rng(number)
    actual = rng.integers(0, 5, (3, 3)).repeat(2, 1)
    actual[0, 0] = 1
    predicted = np.where(rng.random(actual.shape) < 0.1, rng.integers(0, 5, actual.shape), actual)
    predicted[predicted == 4] = 3
    predicted[:, 1::2][predicted[:, 1::2] == 2] = 7
    return actual, predicted


def test_random_images_have_the_scores_that_one_would_count_by_hand() -> None:
    split, merged = 0, 0
    for number in range(300):
        actual, predicted = random_pair(number)
        halves = iou_by_hand(actual, predicted) == 0.5
        split, merged = split + (halves.sum(1) > 1).sum(), merged + (halves.sum(0) > 1).sum()
        found = scores.metrics(scores.sums(actual, predicted))
        assert found == pytest.approx(by_hand(actual, predicted)), number
    assert min(split, merged) > 10  # objects with two matches


def test_pooled_scores_do_not_depend_on_how_objects_are_spread_over_images() -> None:
    pairs = [random_pair(number) for number in range(40)]
    spread = scores.metrics(add(*(scores.sums(*pair) for pair in pairs)))
    side_by_side = [
        np.hstack([np.where(each > 0, each + 10 * index, 0) for index, each in enumerate(images)])
        for images in zip(*pairs, strict=True)
    ]
    joined = scores.metrics(scores.sums(*side_by_side))
    assert {name: spread[name] for name in POOLED} == pytest.approx(
        {name: joined[name] for name in POOLED}
    )
    assert spread["ap50_per_image"] != pytest.approx(joined["ap50_per_image"])
