"""Do the scores of experiments/scripts/membranes.py equal those of the challenge ISBI 2012?"""

import pathlib
from types import ModuleType

import numpy as np
import pytest

SCRIPTS = pathlib.Path(__file__).parents[2] / "experiments" / "scripts"
# Two slices: the truth, with # for membranes, beside tenths of the probability of cells.
SLICES = (
    """
    ......##..####  95979811441102
    ......###.####  99998735254004
    ......###.##..  99929501340149
    .......##.####  99997981050220
    .......#######  97947990020402
    .......######.  79995983310019
    ......####....  68999300347798
    .....####.....  98999474618894
    .....###......  99675228699999
    .....##.......  79899107779998
    """,
    """
    .....########.  99992000000205
    ....##########  99915002220401
    ...###########  98956000101140
    ..#########.##  95000130241420
    .####.##.###..  80205402310265
    ####..##.###..  10009902502028
    ###...##..###.  00089402592018
    ##....##..###.  73799904890516
    ......##...###  56999942996332
    ......##...###  99999750895510
    """,
)
# What the challenge's program gives for them: the classes RandError, VariationOfInformation and
# PixelError of github.com/fiji/Trainable_Segmentation at 41c7083382816b8d40deffbb06c9c3eace0b1e55,
# with FindConnectedRegions of github.com/fiji/VIB-lib at 04a351db5566244fb1d61d3bd14bbc478304e44d.
# The methods, with the thresholds 0, 1, 0.1: getMaximalVRandAfterThinning, with its mean over
# slices, getMaximalVInfoAfterThinning, and 1 minus getForegroundRestrictedRandIndexMaximalFScore
# and getPixelErrorMaximalFScore.
SCORES = {"v_rand": 0.938306, "v_info": 0.878107, "rand_error": 0.133588, "pixel_error": 0.096774}
# The same at each threshold.
CURVES = {
    "v_rand": "0.667677 0.667677 0.667677 0.875406 0.869156 0.938306 0.938306 0.880047 0.880047"
    " 0.554424 0.554424",
    "v_info": "0.425985 0.425985 0.425985 0.770140 0.759771 0.878107 0.878107 0.791572 0.791572"
    " 0.000000 0.000000",
    "rand_error": "0.313248 0.313248 0.313612 0.226339 0.237343 0.133588 0.133588 0.405624 0.405624"
    " 0.943418 0.943418",
}
# The same for maps that are the same at every threshold.
EDGES = {
    "membranes": {"v_rand": 0.554424, "v_info": 0, "rand_error": 0.943418, "pixel_error": 1},
    "cells": {"v_rand": 0.554424, "v_info": 0, "rand_error": 0.384193, "pixel_error": 0.311475},
    "truth": {"v_rand": 1, "v_info": 1, "rand_error": 0, "pixel_error": 0},
}


@pytest.fixture
def membranes(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(SCRIPTS))
    return pytest.importorskip("membranes")


@pytest.fixture
def truth() -> np.ndarray:
    return np.array([[[c == "." for c in row.split()[0]] for row in rows(s)] for s in SLICES])


@pytest.fixture
def maps() -> np.ndarray:
    return np.array([[[int(c) / 10 for c in row.split()[1]] for row in rows(s)] for s in SLICES])


def rows(text: str) -> list[str]:
    return text.strip().splitlines()


def test_the_scores_are_those_of_the_challenge(
    membranes: ModuleType, maps: np.ndarray, truth: np.ndarray
) -> None:
    assert membranes.scores(maps, truth) == pytest.approx(SCORES, abs=1e-6)
    found = membranes.curves(maps, truth)
    for name, right in CURVES.items():
        assert found[name] == pytest.approx(list(map(float, right.split())), abs=1e-6), name


@pytest.mark.parametrize("edge", EDGES)
def test_maps_without_a_membrane_or_a_cell_are_scored(
    membranes: ModuleType, truth: np.ndarray, edge: str
) -> None:
    maps = {"membranes": np.zeros(truth.shape), "cells": np.ones(truth.shape), "truth": truth}
    found = membranes.curves(maps[edge], truth)
    for name, right in EDGES[edge].items():
        assert found[name] == pytest.approx(11 * [right], abs=1e-6), name
