"""Chooses the examples that are held out of training, where a dataset does not come in splits."""

from collections.abc import Sequence

import numpy as np

from jaxdp.registry import ConfigError

_HELD_OUT = 10  # one in so many examples, of a set that comes without a test split
_STREAM = 1  # of random numbers; the order of training is drawn from (seed, epoch)


def stratified(labels: np.ndarray, count: int) -> np.ndarray:
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


def held_out(labels: Sequence[int] | np.ndarray) -> np.ndarray:
    """Returns a mask of the test examples of a set that comes as one: a tenth of each class, evenly spaced over its examples."""
    return stratified(np.asarray(labels), max(round(len(labels) / _HELD_OUT), 1))


def random_share(labels: np.ndarray, share: float, seed: int) -> np.ndarray:
    """Returns a mask of `share` of the examples of each class, rounded to the nearest whole number and drawn at random.

    Args:
        labels: integers (N,), none below 0; all the same for examples without classes.

    Raises:
        ConfigError: if one side is left without an example of a class.
    """
    mask = np.zeros(len(labels), bool)
    classes, sizes = np.unique(labels, return_counts=True)
    for label, size in zip(classes.tolist(), sizes.tolist(), strict=True):
        count = int(share * size + 0.5)
        if not 0 < count < size:
            side = "training" if count else "validation"
            of_class = f"class {label}, which has {size}" if len(classes) > 1 else f"the {size} that there are"
            remedy = "choose another share, or give validation as a pair of images and targets"
            raise ConfigError("", share, f"validation {share} leaves no {side} example of {of_class}; {remedy}")
        drawn = np.random.default_rng((seed, label, _STREAM)).permutation(size)[:count]
        mask[np.flatnonzero(labels == label)[drawn]] = True
    return mask
