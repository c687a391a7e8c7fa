"""Alternating flips show each image from its other side in every next epoch."""

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jaxtyping import Array

import jaxdp
from jaxdp.data import from_arrays

EPOCHS, STEPS_PER_EPOCH = 4, 2


class Side(nnx.Module):
    """Returns how much brighter the right side of each image is, as the first of two outputs."""

    def __init__(self) -> None:
        self.factor = nnx.Param(jnp.ones(()))

    def __call__(self, images: Array) -> Array:
        difference = (images[:, :, 1] - images[:, :, 0]).mean(1)
        return self.factor * jnp.concatenate([difference, 0 * difference], 1)


def losses(*augment: str, **settings: Any) -> np.ndarray:
    """Returns the mean output in each epoch of a model that does not change."""
    images = np.random.default_rng(0).integers(0, 256, (32, 4, 2, 1)).astype(np.uint8)
    trainer = jaxdp.Trainer(
        Side(),
        from_arrays(images, np.arange(32) % 2),
        lambda outputs, targets: outputs[:, 0],
        augment=augment,
        optimizer="sgd",
        learning_rate=0.0,
        weight_decay=0.0,
        global_batch_size=16,
        log_every=1,
        epochs=EPOCHS,
        progress=False,
        **settings,
    )
    rows = [row["loss"] for row in trainer.fit().history if row["split"] == "train"]
    return np.asarray(rows).reshape(EPOCHS, STEPS_PER_EPOCH).mean(1)


@pytest.mark.parametrize("settings", [{"strategy": "single"}, {"strategy": "exact"}], ids=str)
def test_the_sides_of_two_epochs_are_opposite(settings: Any) -> None:
    found = losses("flip:alternating", devices=1, **settings)
    assert abs(found[0]) > 1e-3
    np.testing.assert_allclose(found, [found[0], -found[0]] * 2, rtol=1e-4, atol=1e-6)
    assert len(np.unique(np.abs(losses("flip", devices=1, **settings)).round(5))) == EPOCHS


def test_the_sides_depend_on_no_number_of_devices() -> None:
    one, four = (losses("flip:alternating", strategy="pmap", devices=each) for each in (1, 4))
    np.testing.assert_allclose(four, one, rtol=1e-4, atol=1e-6)
