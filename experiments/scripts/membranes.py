"""Scores maps of cells, which membranes separate, as the challenge ISBI 2012 does.

A map is the probability that a pixel belongs to a cell. At each of 11 thresholds, the cells are the
pixels above the threshold that touch along an edge. The challenge's scores are those of the best
threshold. They compare how the pixels inside the true cells are grouped:

- `v_rand` by pairs of pixels and `v_info` by mutual information, each a mean over the slices. The
  membranes are first thinned to a line, so that their width counts for little.
- `rand_error` by pairs of pixels of all slices together, without thinning.
- `pixel_error` compares single pixels, as 1 minus the F-score of the pixels of cells.

Sources: Arganda-Carreras et al., Crowdsourcing the creation of image segmentation algorithms for
connectomics, 2015; for details, such as the order in which thinning visits pixels, the challenge's
program (github.com/fiji/Trainable_Segmentation) and its script (imagej.net, Segmentation evaluation
after border thinning). The results equal those of the program.
"""

from collections.abc import Iterable
from typing import Any

import numpy as np
from scipy import ndimage

# Sums of 0.1, as in the challenge: the last one is just below 1.
THRESHOLDS = np.cumsum([0.0] + 10 * [0.1])
SCORES = ("v_rand", "v_info", "rand_error", "pixel_error")
# Values of pixels in `thin`; numbers above 0 are cells.
_MEMBRANE, _OUTSIDE, _WAITING, _QUEUED = 0, -1, -2, -3


def scores(probabilities: Iterable[Any], inside: Iterable[Any]) -> dict[str, float]:
    """Returns each score at the threshold that is best for it.

    Args:
        probabilities: of cells, (height, width) for each slice.
        inside: which pixels of each slice are in a cell.
    """
    return best(curves(probabilities, inside))


def best(curves: dict[str, list[float]]) -> dict[str, float]:
    """Returns the largest value of each score, and the smallest of each error."""
    return {
        name: min(values) if name.endswith("error") else max(values)
        for name, values in curves.items()
    }


def curves(probabilities: Iterable[Any], inside: Iterable[Any]) -> dict[str, list[float]]:
    """Returns each score at each threshold; the arguments are those of `scores`."""
    slices = [
        (np.asarray(each, np.float32).astype(np.float64), np.asarray(cells, bool))
        for each, cells in zip(probabilities, inside, strict=True)
    ]
    rows = [_scores_at(threshold, slices) for threshold in THRESHOLDS]
    return {name: [row[name] for row in rows] for name in SCORES}


def label(inside: np.ndarray) -> np.ndarray:
    """Returns a number for each cell: the pixels that touch along an edge; 0 for the membranes."""
    return ndimage.label(inside)[0]  # pyright: ignore


def thin(inside: np.ndarray) -> np.ndarray:
    """Returns the numbers of the cells after each cell has grown until it meets another.

    The membranes are flooded from the cells, in the order in which a queue reaches their pixels. A
    pixel joins the cell that it touches; if it touches several cells, or only pixels that stayed
    membrane, it stays membrane. The order is that of the challenge: column by column at first, and
    each pixel then adds its neighbours on the left, above, on the right and below.
    """
    cells = label(inside)
    if not inside.any():
        return np.ones_like(cells)  # the challenge takes an empty slice for one cell
    first = np.pad(ndimage.binary_dilation(inside) & ~inside, 1).T
    pixels = np.pad(np.where(inside, cells, _WAITING), 1, constant_values=_OUTSIDE).T
    pixels[first] = _QUEUED
    steps = (-pixels.shape[1], -1, pixels.shape[1], 1)
    queue, values = np.flatnonzero(first).tolist(), pixels.ravel().tolist()
    for place in queue:  # which grows meanwhile
        touched = set[int]()
        for step in steps:
            value = values[place + step]
            if value > 0:
                touched.add(value)
            elif value == _WAITING:
                values[place + step] = _QUEUED
                queue.append(place + step)
        values[place] = touched.pop() if len(touched) == 1 else _MEMBRANE
    return np.array(values).reshape(pixels.shape).T[1:-1, 1:-1]


def _scores_at(threshold: float, slices: list[tuple[np.ndarray, np.ndarray]]) -> dict[str, float]:
    pairs, pixels, rand, info = [], [], [], []
    for probabilities, inside in slices:
        found, truth = probabilities > threshold, label(inside)
        pixels.append(((found & inside).sum(), inside.sum(), found.sum()))
        pairs.append(_pairs(_groups(truth, label(found))))
        thinned = _groups(truth, thin(found))
        rand.append(_f_score(*_pairs(thinned)))
        info.append(_f_score(*_information(thinned)))
    return {
        "v_rand": float(np.mean(rand)),
        "v_info": float(np.mean(info)),
        "rand_error": 1 - _f_score(*np.sum(pairs, 0)),
        "pixel_error": 1 - _f_score(*np.sum(pixels, 0)),
    }


def _groups(truth: np.ndarray, found: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns the numbers of pixels in each overlap of a true and a found cell, in each true cell
    and in each found cell.

    Only pixels in true cells count. Each membrane pixel that is found there is a cell of its own.
    """
    counted = truth > 0
    truth, found = truth[counted], found[counted].astype(np.int64)
    alone = found == 0
    found[alone] = found.max(initial=0) + 1 + np.arange(alone.sum())
    both = found * (truth.max(initial=0) + 1) + truth
    both, true, found = (np.unique(each, return_counts=True)[1] for each in (both, truth, found))
    return both, true, found


def _pairs(groups: tuple[np.ndarray, np.ndarray, np.ndarray]) -> Any:
    """Returns how many ordered pairs of pixels are together in both, in the truth, in what was
    found.
    """
    return [np.sum(counts.astype(float) ** 2) for counts in groups]


def _information(groups: tuple[np.ndarray, np.ndarray, np.ndarray]) -> Any:
    """Returns the mutual information of truth and what was found, and the entropy of each."""
    shares = [counts / counts.sum() for counts in groups]
    both, true, found = (-np.sum(share * np.log(share)) for share in shares)
    return true + found - both, true, found


def _f_score(shared: float, true: float, found: float) -> float:
    """Returns the harmonic mean of what is shared as a part of the truth and of what was found."""
    return float(2 * shared / (true + found)) if true + found else 0.0
