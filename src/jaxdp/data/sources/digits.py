"""1,797 handwritten digits of 8x8 pixels that come with scikit-learn, so that a first run needs no download.

Source: Alpaydin and Kaynak, Optical Recognition of Handwritten Digits (UCI), its test part.
"""

import importlib.util
import pathlib

import numpy as np

from jaxdp.data import sources
from jaxdp.data.augment import Shift

_TEST_EXAMPLES = 360


@sources.register("digits")
def digits() -> sources.Dataset:
    """Returns 1,437 training and 360 test images, split once and for all: a fifth of each class, evenly spaced.

    The writers follow each other in the file, so that each has digits in both splits.
    """
    images, labels = _read()
    test = _stratified(labels, _TEST_EXAMPLES)
    return sources.Dataset(
        train=sources.ArraySource(images[~test], labels[~test]),
        test=sources.ArraySource(images[test], labels[test]),
        num_classes=10,
        image_shape=(8, 8, 1),
        mean=(4.88,),  # of the pixels 0 to 16, over the training split
        std=(6.02,),
        augmentations=(Shift(0.75),),
    )


def _read() -> tuple[np.ndarray, np.ndarray]:
    """Returns images uint8 (1797, 8, 8, 1) with values 0 to 16, and labels int32 (1797,)."""
    spec = importlib.util.find_spec("sklearn")
    folders = list(spec.submodule_search_locations or []) if spec else []
    for folder in folders:
        table = pathlib.Path(folder, "datasets", "data", "digits.csv.gz")
        if table.exists():  # reading it ourselves saves the 2 s that importing sklearn.datasets takes
            rows = np.loadtxt(table, delimiter=",", dtype=np.uint8)
            return rows[:, :-1].reshape(-1, 8, 8, 1), rows[:, -1].astype(np.int32)
    from sklearn.datasets import load_digits

    bunch = load_digits()
    return bunch.images[..., None].astype(np.uint8), bunch.target.astype(np.int32)  # pyright: ignore[reportAttributeAccessIssue]


def _stratified(labels: np.ndarray, count: int) -> np.ndarray:
    """Returns a mask of `count` examples: of each class its share, rounded by largest remainder, evenly spaced."""
    classes, sizes = np.unique(labels, return_counts=True)
    shares = sizes * count / len(labels)
    quotas = np.floor(shares).astype(int)
    quotas[np.argsort(quotas - shares, kind="stable")[: count - quotas.sum()]] += 1
    mask = np.zeros(len(labels), bool)
    for label, quota, size in zip(classes, quotas, sizes, strict=True):
        positions = (np.arange(quota) + 0.5) * size / quota
        mask[np.flatnonzero(labels == label)[positions.astype(int)]] = True
    return mask
