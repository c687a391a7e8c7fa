"""How do sums become figures? Sums add up over steps, in float64 on the host, and a task divides them once, at the end."""

from collections.abc import Mapping
from typing import Any

import numpy as np

Sums = dict[str, Any]  # of float or np.ndarray


def add(*parts: Mapping[str, Any]) -> Sums:
    total: Sums = {}
    for part in parts:
        for name, value in part.items():
            total[name] = total.get(name, 0.0) + np.asarray(value, np.float64)
    return total


def to_json(sums: Mapping[str, Any]) -> dict[str, Any]:
    return {name: np.asarray(value).tolist() for name, value in sums.items()}


def figures(task: Any, sums: Mapping[str, Any]) -> dict[str, float]:
    """Returns the task's figures, and last `examples` as a whole number."""
    return task.figures(sums) | {"examples": round(float(sums["examples"]))}
