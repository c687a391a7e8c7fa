"""The small convolutional network takes images of any size, and learns."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from sklearn.datasets import load_digits

from jaxdp import models
from jaxdp.registry import ConfigError


def create(**kwargs):
    return models.create("cnn", num_classes=10, in_channels=1, rngs=nnx.Rngs(0), **kwargs)


def test_parameter_count_is_the_sum_of_its_layers() -> None:
    convs = 9 * (16 + 16 * 32 + 32 * 64) + 2 * (16 + 32 + 64)
    assert models.parameter_count(nnx.eval_shape(create)) == convs + (16 * 64 + 1) * 128 + 129 * 10


@pytest.mark.parametrize("size", [(1, 1), (8, 8), (28, 28), (33, 50)])
def test_any_size_works(size: tuple[int, int]) -> None:
    answer = nnx.eval_shape(lambda: create(dtype=jnp.bfloat16)(jnp.ones((2, *size, 1))))
    assert (answer.shape, answer.dtype) == ((2, 10), jnp.float32)


def test_it_learns_digits_in_seconds() -> None:
    digits = load_digits()
    images, labels = np.float32(digits.images[..., None] / 16), digits.target.astype(np.int32)
    model = create(dropout=0.1)
    optimizer = nnx.Optimizer(model, optax.sgd(0.1, momentum=0.9, nesterov=True), wrt=nnx.Param)

    @nnx.jit
    def step(model, optimizer, images, labels) -> None:
        def loss(model):
            return optax.softmax_cross_entropy_with_integer_labels(model(images), labels).mean()

        optimizer.update(model, nnx.grad(loss)(model))

    for start in [*range(0, 1408, 128)] * 6:
        step(model, optimizer, images[start : start + 128], labels[start : start + 128])
    model.eval()
    logits = nnx.jit(lambda model, images: model(images))(model, images[1408:])
    assert np.mean(np.argmax(logits, -1) == labels[1408:]) > 0.9


def test_dropout_draws_from_the_examples_keys() -> None:
    model = create(width=4, hidden=16, dropout=0.5)
    assert [dropout.index for dropout in model.dropouts] == [0, 1]
    images, keys = jnp.ones((4, 8, 8, 1)), jax.random.split(jax.random.key(1), 4)
    logits = model(images, keys=keys)
    np.testing.assert_array_equal(logits, model(images, keys=keys))
    assert np.any(logits[0] != logits[1])


def test_creating_it_does_not_compile_per_shape(count_compilations) -> None:
    create(width=4)
    before = count_compilations()
    create(width=5, hidden=7)
    assert count_compilations() - before <= 2


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"width": 0}, "width=0: must be a whole number of at least 1"),
        ({"hidden": 0}, "hidden=0"),
        ({"dropout": 1}, "below 1"),
        ({"hiden": 3}, "did you mean hidden"),
    ],
)
def test_impossible_keywords_are_explained(kwargs: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        nnx.eval_shape(lambda: create(**kwargs))
