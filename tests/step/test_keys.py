"""Random keys depend on the seed, the step and the example, and on no setting of JAX."""

from collections.abc import Iterator

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from jaxdp import models
from jaxdp.data.augment import Preprocess, create_augmentations
from jaxdp.step.keys import create_key, example_keys, fold, turns
from jaxdp.step.state import Constants, create_train_state, merge


@pytest.fixture(params=["rbg", "unsafe_rbg"])
def _another_default(request: pytest.FixtureRequest) -> Iterator[None]:
    before = jax.config.jax_default_prng_impl  # pyright: ignore[reportAttributeAccessIssue]
    jax.config.update("jax_default_prng_impl", request.param)
    yield
    jax.config.update("jax_default_prng_impl", before)


def augmented(indices: np.ndarray) -> np.ndarray:
    """Returns random parts of examples that are all alike."""
    preprocess = Preprocess((0.0,), (1.0,), create_augmentations(["rotate:20"], dense=False))
    image = np.arange(64, dtype=np.uint8).reshape(1, 8, 8, 1)
    batch = {"images": jnp.asarray(image.repeat(len(indices), 0)), "indices": jnp.asarray(indices)}
    key = jnp.asarray(Constants.create([0.1], seed=3).key)
    return np.asarray(
        preprocess(batch, lambda numbers: fold(example_keys(key, jnp.int32(2), numbers), 0))[
            "images"
        ]
    )


@pytest.mark.usefixtures("_another_default")
def test_augmentation_depends_on_no_neighbours_whatever_the_default_generator() -> None:
    """With `JAX_DEFAULT_PRNG_IMPL=rbg` it depended on how many examples a device has."""
    together = augmented(np.arange(8))
    for index in range(8):
        np.testing.assert_array_equal(augmented(np.arange(index, index + 1))[0], together[index])


def drawn() -> list[np.ndarray]:
    """Returns the run's key, initial weights and a model's own dropout."""

    class Net(nnx.Module):
        def __init__(self) -> None:
            self.dense = nnx.Linear(4, 3, rngs=nnx.Rngs(create_key(5)))
            self.dropout = nnx.Dropout(0.5, rngs=nnx.Rngs(0))

        def __call__(self, x: jax.Array) -> jax.Array:
            return self.dropout(x)

    cnn = models.create(
        "cnn", num_classes=3, in_channels=1, rngs=nnx.Rngs(create_key(5)), width=4, hidden=4
    )
    state = create_train_state(Net(), optax.sgd(0.1))
    dropped = merge(state, state.params, state.batch_stats)(jnp.ones((4, 4)))
    found = [nnx.to_pure_dict(nnx.state(cnn, nnx.Param)), state.params, dropped]
    return [Constants.create([0.1], seed=7).key, *map(np.asarray, jax.tree.leaves(found))]


EXPECTED = drawn()


@pytest.mark.usefixtures("_another_default")
def test_weights_and_dropout_do_not_depend_on_the_default_generator() -> None:
    for found, expected in zip(drawn(), EXPECTED, strict=True):
        np.testing.assert_array_equal(found, expected)


def test_each_example_has_its_turn_in_every_second_epoch() -> None:
    indices, key = jnp.arange(1000), jnp.asarray(Constants.create([0.1], seed=3).key)
    first, second, third = (np.asarray(turns(key, jnp.int32(epoch), indices)) for epoch in range(3))
    np.testing.assert_array_equal(first, ~second)
    np.testing.assert_array_equal(first, third)
    assert abs(first.sum() - 500) < 80  # five standard deviations
    np.testing.assert_array_equal(first[::-1], turns(key, jnp.int32(0), indices[::-1]))
    other = np.asarray(
        turns(jnp.asarray(Constants.create([0.1], seed=4).key), jnp.int32(0), indices)
    )
    assert abs((first != other).sum() - 500) < 80
