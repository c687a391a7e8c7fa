"""Adds up the metric sums of steps, in float64 on the host, and computes metrics from them."""

from collections.abc import Mapping
from typing import Any

import numpy as np

Sums = dict[str, Any]  # of float or np.ndarray


def add(*parts: Mapping[str, Any]) -> Sums:
    """Returns the sums of all parts, as float64. A name that a part lacks counts as 0 for this
    part.
    """
    total: Sums = {}
    for part in parts:
        for name, value in part.items():
            total[name] = total.get(name, 0.0) + np.asarray(value, np.float64)
    return total


def to_json(sums: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the sums as numbers and nested lists, which JSON can hold."""
    return {name: np.asarray(value).tolist() for name, value in sums.items()}


def compute(task: Any, sums: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the metrics that a task computes from its sums, followed by `examples`, a whole
    number.
    """
    return task.metrics(sums) | {"examples": round(float(sums["examples"]))}
