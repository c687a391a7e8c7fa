"""Short runs of a small CNN on the digits, and what they left."""

import hashlib
import importlib.util
import json
import pathlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import jaxdp

NEEDS_RAY = pytest.mark.skipif(
    importlib.util.find_spec("ray") is None, reason="needs Ray: pip install 'jaxdp[ray]'"
)


def lines(path: pathlib.Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def history(folder: Any) -> list[dict[str, Any]]:
    return lines(pathlib.Path(folder, "history.jsonl"))


def rows(folder: Any) -> list[dict[str, Any]]:
    return [row for row in lines(pathlib.Path(folder, "metrics.jsonl")) if row["split"] == "train"]


def trained(folder: str, **settings: Any) -> dict[str, np.ndarray]:
    """Trains a small CNN on the digits and returns its parameters and batch statistics."""
    callbacks = settings.pop("callbacks", [])
    small = {
        "model_kwargs": {"width": 4, "hidden": 16},
        "global_batch_size": 32,
        "batch_norm": "group:4",
        "learning_rate": 0.001,
    }
    plan = {"steps": 6, "eval_every": 100, "log_every": 1, "run_dir": folder}
    result = jaxdp.Trainer(
        "cnn", "digits", callbacks=callbacks, progress=False, **small | plan | settings
    ).fit()
    state = result.state
    return {
        f"{kind}/{name}": np.asarray(leaf)
        for kind in ("params", "batch_stats")
        for name, leaf in flat(getattr(state, kind))
    }


def flat(tree: Any) -> Iterator[tuple[str, Any]]:
    import jax

    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        yield jax.tree_util.keystr(path), leaf


def digest(arrays: dict[str, np.ndarray]) -> str:
    return hashlib.sha256(b"".join(arrays[name].tobytes() for name in sorted(arrays))).hexdigest()


def difference(one: dict[str, np.ndarray], other: dict[str, np.ndarray]) -> float:
    assert one.keys() == other.keys()
    return max(float(np.abs(one[name] - other[name]).max()) for name in one)
