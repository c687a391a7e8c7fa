"""What user code reads may change between two runs: the second run computes with the new value.

JAX keeps traces in memory, which must not give an old program.
"""

import itertools
import types
from typing import Any

import jax
import numpy as np
import pytest
from flax import nnx

import jaxdp
from jaxdp import models

changing = types.SimpleNamespace(SCALE=1.0)


@jax.jit
def jitted(x: jax.Array) -> jax.Array:
    return x * changing.SCALE


@nnx.remat
def rematerialized(x: jax.Array) -> jax.Array:
    return x * changing.SCALE


def scanned(x: jax.Array, _: None) -> tuple[jax.Array, None]:
    return x * changing.SCALE, None


class Changing(nnx.Module):
    """Reads a constant of its module where it is called, and in functions whose traces JAX
    keeps.
    """

    def __init__(self, num_classes: int, in_channels: int, dtype: Any, rngs: nnx.Rngs) -> None:
        self.head = nnx.Linear(64 * in_channels, num_classes, dtype=dtype, rngs=rngs)

    def __call__(self, images: jax.Array) -> jax.Array:
        x = self.head(images.reshape(len(images), -1))
        inner = jitted(x) + rematerialized(x) + jax.lax.scan(scanned, x, None, length=1)[0]
        return x * changing.SCALE + inner


def fit(trainer: jaxdp.Trainer) -> tuple[list[float], np.ndarray]:
    """Returns the losses of training and evaluation, and probabilities of two images."""
    result = trainer.fit()
    losses = [row["loss"] for row in result.history]
    answers = result.predict(np.zeros((2, 8, 8, 1), np.uint8))
    return [*losses, result.metrics["test"]["loss"]], np.asarray(answers)


@pytest.mark.parametrize(
    ("strategy", "settings"),
    [
        ("single", {"devices": 1}),
        ("pmap", {"devices": 2}),
        ("shard_map", {"devices": 2}),
        ("sharded", {"devices": 2}),
        ("sharded", {"devices": 2, "shard_params": True}),
        ("central", {"devices": 2}),
    ],
)
def test_the_next_trainer_of_a_process_computes_with_what_changed(
    strategy: str, settings: dict[str, Any], registries: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    models.register("changing")(Changing)
    common = {"global_batch_size": 32, "steps": 2, "progress": False, "strategy": strategy}
    trainers, found = [], []
    for scale in (1.0, 0.0, 2.0) if strategy == "single" else (1.0, 0.0):
        monkeypatch.setattr(changing, "SCALE", scale)
        trainers.append(jaxdp.Trainer("changing", "digits", **common, **settings))
        found.append(fit(trainers[-1]))
    # If all outputs are 0, the ten classes are equally likely.
    np.testing.assert_allclose(found[1][0], np.log(10), rtol=1e-6)
    np.testing.assert_allclose(found[1][1], 0.1, rtol=1e-6)
    for one, other in itertools.combinations(found, 2):
        assert all(a != b for a, b in zip(one[0], other[0], strict=True))
        assert not np.array_equal(one[1], other[1])
    # A Trainer keeps the program that it has.
    assert fit(trainers[0])[0] == found[0][0]
