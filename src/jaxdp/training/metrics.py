"""How do sums become figures? Sums add up over steps, in float64 on the host, and are divided once, at the end."""

from collections.abc import Mapping
from typing import SupportsFloat

Sums = dict[str, float]


def add(*parts: Mapping[str, SupportsFloat]) -> Sums:
    total: Sums = {}
    for part in parts:
        for name, value in part.items():
            total[name] = total.get(name, 0.0) + float(value)
    return total


def figures(sums: Mapping[str, float]) -> dict[str, float]:
    """Returns means per example, the loss first, and last `examples` itself as a whole number."""
    examples = sums["examples"]
    names = sorted(sums.keys() - {"examples"}, key=lambda name: (name != "loss", name))
    return {name: sums[name] / max(examples, 1) for name in names} | {"examples": round(examples)}
