"""Short runs of a small CNN on the digits, and what they left."""

import hashlib
import importlib.util
import json
import pathlib
from typing import Any

import jax
import numpy as np
import pytest

import jaxdp

NEEDS_RAY = pytest.mark.skipif(
    importlib.util.find_spec("ray") is None, reason="needs Ray: pip install 'jaxdp[ray]'"
)
SMALL = {"model_kwargs": {"width": 4, "hidden": 16}, "global_batch_size": 32}


def lines(path: pathlib.Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def history(folder: Any) -> list[dict[str, Any]]:
    return lines(pathlib.Path(folder, "history.jsonl"))


def rows(folder: Any) -> list[dict[str, Any]]:
    return [row for row in lines(pathlib.Path(folder, "metrics.jsonl")) if row["split"] == "train"]


def trained(folder: str, **settings: Any) -> dict[str, np.ndarray]:
    """Trains a small CNN on the digits and returns the arrays of its state."""
    callbacks = settings.pop("callbacks", [])
    usual = {"batch_norm": "group:4", "learning_rate": 0.001, "steps": 6, "eval_every": 100}
    usual |= {"log_every": 1, "run_dir": folder, **SMALL}
    state = (
        jaxdp.Trainer("cnn", "digits", callbacks=callbacks, progress=False, **usual | settings)
        .fit()
        .state
    )
    kept = (state.params, state.batch_stats, state.opt_state, state.ema)
    leaves = jax.tree_util.tree_leaves_with_path(kept)
    return {jax.tree_util.keystr(path): np.asarray(leaf) for path, leaf in leaves}


def digest(arrays: dict[str, np.ndarray]) -> str:
    return hashlib.sha256(b"".join(arrays[name].tobytes() for name in sorted(arrays))).hexdigest()


def difference(one: dict[str, np.ndarray], other: dict[str, np.ndarray]) -> float:
    assert one.keys() == other.keys()
    return max(float(np.abs(one[name] - other[name]).max()) for name in one)
