"""Checks weights that come from files, and casts them to the dtypes of a model's arrays."""

from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np

from jaxdp.text.messages import some


def fit_weights(
    arrays: Mapping[str, np.ndarray], expected: Mapping[str, Any]
) -> tuple[dict[str, np.ndarray], str]:
    """Returns the arrays that fit, in the expected dtypes, and the problems of all other arrays.

    Args:
        arrays: weights by name, of any dtype. Only numbers that are finite in the expected dtype
            fit. Floating-point numbers are cast. All other numbers must have the expected dtype.
        expected: objects with `shape` and `dtype`, by name.

    Returns:
        The arrays, and the problems in one line, which is empty if all arrays fit.
    """
    fitting: dict[str, np.ndarray] = {}
    problems = {
        "missing": [name for name in expected if name not in arrays],
        "unexpected": [name for name in arrays if name not in expected],
        "of another shape": [],
        "of another dtype": [],
        "not finite numbers": [],
    }
    for name, like in expected.items():
        if name not in arrays:
            continue
        array = arrays[name]
        if array.shape != tuple(like.shape):
            text = f"{name} {shape_text(array.shape)}, expected {shape_text(like.shape)}"
            problems["of another shape"].append(text)
        elif array.dtype != like.dtype and not (_is_floating(array) and _is_floating(like)):
            problems["of another dtype"].append(f"{name} {array.dtype}, expected {like.dtype}")
        else:
            with np.errstate(over="ignore"):
                fitting[name] = array.astype(like.dtype, copy=False)
            if not np.isfinite(fitting[name]).all():
                problems["not finite numbers"].append(name)
    found = [f"{len(names)} {kind}: {some(names)}" for kind, names in problems.items() if names]
    return fitting, "; ".join(found)


def _is_floating(array: Any) -> bool:
    return jnp.issubdtype(array.dtype, jnp.floating)  # NumPy's own does not know bfloat16


def shape_text(shape: tuple[int, ...]) -> str:
    """Returns a shape as errors show it."""
    return "x".join(map(str, shape)) or "scalar"
