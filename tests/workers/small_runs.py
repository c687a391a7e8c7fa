"""Short runs of a small CNN on the digits, and what they left."""

import contextlib
import hashlib
import importlib.util
import json
import os
import pathlib
import sys
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np
import pytest

import jaxdp
from jaxdp.runtime import ray_connection
from jaxdp.workers.worker import SLOWED

NEEDS_RAY = pytest.mark.skipif(
    importlib.util.find_spec("ray") is None, reason="needs Ray: pip install '.[ray]'"
)
SMALL = {"model_kwargs": {"width": 4, "hidden": 16}, "global_batch_size": 32}


@contextlib.contextmanager
def cluster(seconds: str = "") -> Iterator[None]:
    """Provides one Ray for several runs, each of which would take seconds to start one.

    Args:
        seconds: the least time for a slice of each worker. Its processes find it in their
            environment, which is that of this process when Ray starts.
    """
    # Ray must not be imported yet. One that runs already has other speeds.
    assert "ray" not in sys.modules or not sys.modules["ray"].is_initialized()
    os.environ[SLOWED] = seconds
    try:
        with ray_connection.connected(None, cpus=8):
            yield
    finally:
        del os.environ[SLOWED]


class At:
    """Acts once, after a step."""

    def __init__(self, step: int, act: Callable[[Any], Any]) -> None:
        self.step, self.act = step, act

    def on_step_end(self, run: Any, event: Any) -> None:
        if event.step == self.step:
            self.act(run)


def wait_for_all(run: Any) -> None:
    """Waits until all workers have joined, however long they take to start on a busy machine."""
    session = run.setup.strategy.session
    while session.pool.ready < session.pool.count:
        session.listen()


def events(folder: Any) -> list[str]:
    return [line["event"] for line in history(folder)]


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
