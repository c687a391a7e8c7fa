"""Scores of objects agree with StarDist, Cellpose and cellseg-metrics on random images.

Runs in `nox -s reference`, which installs the packages.
"""

import warnings
from typing import Any

import numpy as np
import pytest
import scipy.ndimage

from jaxdp.step.metrics import add
from jaxdp.tasks import instances

MISSING = "needs stardist, cellpose and cellseg-metrics; `nox -s reference` has them"
with warnings.catch_warnings(action="ignore"):
    stardist = pytest.importorskip("stardist.matching", reason=MISSING)
    cellpose = pytest.importorskip("cellpose.metrics", reason=MISSING)
    cellseg_metrics = pytest.importorskip("cellseg_metrics", reason=MISSING)

# A package divides in float32, or adds 1e-8 to the divisor.
CLOSE: dict[str, Any] = {"rel": 2e-6, "abs": 1e-6}
# As decimals: numbers of `np.arange` are above these by the last bits.
THRESHOLDS = [each / 100 for each in range(50, 100, 5)]


def pair(kind: str, number: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns the truth, touching objects on a background, and a prediction of this kind."""
    rng = np.random.default_rng(number)
    noise = scipy.ndimage.gaussian_filter(rng.normal(size=(96, 80)), 3)
    seeds = rng.integers(0, (96, 80), (24, 2))
    nearest = np.argmin(((np.stack(np.mgrid[:96, :80], -1)[:, :, None] - seeds) ** 2).sum(-1), -1)
    truth = np.where(noise > -0.02, nearest + 1, 0)
    truth[:2] = 0  # Cellpose miscounts images without background
    found = truth.copy()
    if kind in ("shifted", "mixed"):
        found = np.roll(found, (1, 1), (0, 1))
    if kind in ("merged", "mixed"):
        found[(found > 0) & (found < 16)] |= 1
    if kind in ("split", "mixed"):
        found[::4][found[::4] > 12] += 50
    if kind in ("missing", "mixed"):
        found[found % 4 == 0] = 0
    if kind in ("halves", "merged halves"):
        truth, found = truth.repeat(2, 1), found.repeat(2, 1)
        found[:, 1::2][found[:, 1::2] > 0] += 50
    empty = np.zeros_like(truth)
    return {
        "nothing found": (truth, empty),
        "no object": (empty, truth),
        "neither": (empty, empty),
        "merged halves": (found, truth),
    }.get(kind, (truth, found))


KINDS = ["equal", "shifted", "merged", "split", "missing", "mixed", "mixed", "mixed", "mixed"]
KINDS += ["halves", "merged halves", "nothing found", "no object", "neither"]
PAIRS = [pair(kind, number) for number, kind in enumerate(KINDS)]
TRUTHS, PREDICTIONS = map(list, zip(*PAIRS, strict=True))
SUMS = [instances.sums(*each) for each in PAIRS]


def test_pooled_scores_are_those_of_stardist() -> None:
    ours = instances.metrics(add(*SUMS))
    theirs = stardist.matching_dataset(TRUTHS, PREDICTIONS, thresh=THRESHOLDS, show_progress=False)
    assert 0.2 < ours["ap50"] < 0.8
    assert ours["ap50"] == pytest.approx(theirs[0].accuracy, **CLOSE)
    assert ours["f1"] == pytest.approx(theirs[0].f1, **CLOSE)
    assert ours["panoptic_quality"] == pytest.approx(theirs[0].panoptic_quality, **CLOSE)
    mean = np.mean([each.accuracy for each in theirs])
    assert ours["average_precision"] == pytest.approx(mean, **CLOSE)
    true = add(*SUMS)["true_objects"]
    np.testing.assert_array_equal(true, [each.tp for each in theirs])


@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning:cellpose")
def test_scores_of_images_are_those_of_cellpose() -> None:
    theirs, *_ = cellpose.average_precision(TRUTHS, PREDICTIONS, threshold=THRESHOLDS)
    for kind, sums, precisions in zip(KINDS, SUMS, theirs, strict=True):
        ours = instances.metrics(sums)
        if kind == "neither":
            assert ours == {}
            assert np.isnan(precisions).all()
            continue
        assert ours["ap50"] == pytest.approx(precisions[0], **CLOSE), kind
        assert ours["average_precision"] == pytest.approx(precisions.mean(), **CLOSE), kind
    ours = instances.metrics(add(*SUMS))["ap50_per_image"]
    assert ours == pytest.approx(np.nanmean(theirs[:, 0]), **CLOSE)


@pytest.mark.parametrize("number", range(len(PAIRS)))
def test_panoptic_quality_of_an_image_is_that_of_cellseg_metrics(number: int) -> None:
    ours = instances.metrics(SUMS[number]).get("panoptic_quality", 0.0)
    # It compares by `>`, and adds 1e-8 to the union.
    theirs = cellseg_metrics.panoptic_quality(*PAIRS[number], thresh=0.5 - 1e-7)["pq"]
    assert ours == pytest.approx(theirs, **CLOSE)
