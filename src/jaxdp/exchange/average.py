"""The average of replicas that train alone: in the command's process, or in that of a server that
holds some of its arrays.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np


class Average:
    """Averages arrays, and lets the mean of some of them change no more than a step of Nesterov's
    momentum does.

    Arrays that another server holds are None. This module imports no JAX.

    Args:
        learning_rate: by which the change of the mean is multiplied.
        momentum: of these changes; 0 for none.

    Source: Douillard et al. 2023, DiLoCo, algorithm 1.
    """

    def __init__(self, learning_rate: float, momentum: float) -> None:
        self._rate, self._momentum = np.float32(learning_rate), np.float32(momentum)
        self._plain = learning_rate == 1 and momentum == 0

    def install(self, arrays: Sequence[Any], steps: Sequence[bool]) -> None:
        """Begins with these arrays.

        Args:
            steps: which of them take steps; others become the mean.
        """
        self._arrays, self._steps = list(arrays), steps
        self._totals: list[Any] | None = None
        self._velocities = [0 if leaf is None else np.zeros_like(leaf) for leaf in arrays]

    def add(self, replica: Sequence[Any]) -> None:
        """Adds the arrays of a replica to those before it."""
        new = [None if leaf is None else np.asarray(leaf).astype(np.float64) for leaf in replica]
        if self._totals is None:
            self._totals = new
        else:
            self._totals = [
                None if leaf is None else total + leaf
                for total, leaf in zip(self._totals, new, strict=True)
            ]

    def apply(self, replicas: int) -> None:
        """Makes the mean of what was added, or a step towards it, what is trained on."""
        assert self._totals is not None
        for place, total in enumerate(self._totals):
            if total is not None:
                self._arrays[place] = np.asarray(
                    self._next(place, (total / replicas).astype(self._arrays[place].dtype))
                )
        self._totals = None

    def _next(self, place: int, mean: Any) -> Any:
        if self._plain or not self._steps[place]:
            return mean
        change = self._arrays[place] - mean
        self._velocities[place] = change + self._momentum * self._velocities[place]
        step = change + self._momentum * self._velocities[place]
        return self._arrays[place] - self._rate * step

    def check(self) -> None:
        """Answers."""

    def pull(self) -> list[Any]:
        """Returns the arrays."""
        return list(self._arrays)
