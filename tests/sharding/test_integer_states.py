"""Integers and booleans in the state of a user's model keep their dtype and their value, wherever
the run trains, and through saving, loading and resuming.
"""

import dataclasses
import pathlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import jaxdp
from jaxdp.data import from_arrays
from jaxdp.step import combine

LABELS = np.arange(64) % 4
IMAGES = np.random.default_rng(0).integers(0, 255, (64, 4, 4), dtype=np.uint8)
DATA = from_arrays(IMAGES, LABELS, validation=0.25)
CASES: list[dict[str, Any]] = [
    {"devices": 1},
    {"devices": 8},
    {"devices": 2, "accumulate_steps": 2, "ema_decay": 0.9},
    {"devices": 2, "strategy": "shard_map", "on_divergence": "skip"},
    {"devices": 2, "strategy": "central", "accumulate_steps": 2},
    {"devices": 2, "strategy": "sharded", "ema_decay": 0.9},
    {"devices": 1, "strategy": "single", "accumulate_steps": 4},
    {"devices": 3, "strategy": "exact", "ema_decay": 0.9},
]


class Counting(nnx.Module):
    """Counts its steps, as an int32, and keeps whether it has trained."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        self.head = nnx.Linear(16, 4, rngs=rngs)
        self.steps = nnx.BatchStat(jnp.full((2,), -9, jnp.int32))
        self.has_trained = nnx.BatchStat(jnp.zeros((), bool))
        self.mean = nnx.BatchStat(jnp.zeros(()))
        self.use_running_average = False

    def __call__(self, images: jax.Array) -> jax.Array:
        flat = images.reshape(len(images), -1)
        if not self.use_running_average:
            self.steps.set_value(self.steps.get_value() + 1)
            self.has_trained.set_value(jnp.ones((), bool))
            self.mean.set_value(flat.mean())
        return self.head(flat)


def trainer(**settings: Any) -> jaxdp.Trainer:
    given = {"global_batch_size": 16, "schedule": "constant", "progress": False}
    return jaxdp.Trainer(Counting(nnx.Rngs(0)), DATA, **given | settings)


def kept(state: Any) -> tuple[list[int], bool]:
    found = state.batch_stats
    assert (found["steps"].dtype, found["has_trained"].dtype) == (np.int32, bool)
    if state.ema is not None:
        jax.tree.map(np.testing.assert_array_equal, state.ema[1]["steps"], found["steps"])
        assert state.ema[1]["has_trained"].dtype == bool
    return found["steps"].tolist(), bool(found["has_trained"])


@pytest.mark.usefixtures("no_pictures")
@pytest.mark.parametrize("settings", CASES, ids=str)
def test_a_counter_and_a_flag_are_the_same_everywhere(settings: dict[str, Any]) -> None:
    run = {"run_dir": "run", "eval_every": 100}
    first = trainer(**settings).fit(steps=3, **run)
    assert kept(first.state) == ([-6, -6], True)
    assert first.state.batch_stats["mean"].dtype == np.float32
    loaded = jaxdp.load("run", model=Counting(nnx.Rngs(1)))
    assert (loaded.step, kept(dataclasses.replace(loaded.state))) == (3, ([-6, -6], True))
    further = trainer(**settings).fit(steps=5, **run)
    assert kept(further.state) == ([-4, -4], True)


def test_parts_are_combined_by_their_dtype() -> None:
    one = {"mean": np.float32(1), "count": np.int32(-3), "flag": np.array(False)}
    other = {"mean": np.float32(2), "count": np.int32(-5), "flag": np.array(True)}
    total = combine.divide(combine.add(combine.add(combine.nothing(one), one), other), 2)
    assert (float(total["mean"]), int(total["count"]), bool(total["flag"])) == (1.5, -3, True)


def test_integers_that_an_optimizer_would_train_are_refused() -> None:
    class Wrong(Counting):
        def __init__(self, rngs: nnx.Rngs) -> None:
            super().__init__(rngs)
            self.table = nnx.Param(jnp.zeros((3,), jnp.int32))

    with pytest.raises(jaxdp.ConfigError, match=r"table is int32"):
        jaxdp.Trainer(Wrong(nnx.Rngs(0)), DATA, devices=1, progress=False)
    assert not pathlib.Path("run").exists()
