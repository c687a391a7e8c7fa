"""VGG has exactly the published numbers of parameters, with both heads."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jaxdp import models
from jaxdp.registry import ConfigError

# torchvision's, for 1000 classes: (depth, plain, with batch norm)
IMAGENET = [
    (11, 132_863_336, 132_868_840),
    (13, 133_047_848, 133_053_736),
    (16, 138_357_544, 138_365_992),
    (19, 143_667_240, 143_678_248),
]


def create(num_classes: int = 10, **kwargs):
    return models.create("vgg", num_classes=num_classes, in_channels=3, rngs=nnx.Rngs(0), **kwargs)


def abstract(num_classes: int = 10, **kwargs):
    return nnx.eval_shape(lambda: create(num_classes, **kwargs))


@pytest.mark.parametrize(("depth", "plain", "normalized"), IMAGENET)
def test_imagenet_parameter_count_is_torchvisions(depth: int, plain: int, normalized: int) -> None:
    for batch_norm, expected in ((False, plain), (True, normalized)):
        assert (
            models.parameter_count(
                abstract(1000, depth=depth, head="imagenet", batch_norm=batch_norm)
            )
            == expected
        )


def test_cifar_parameter_count_is_the_known_one() -> None:
    assert models.parameter_count(abstract()) == 14_728_266


@pytest.mark.parametrize("head", ["cifar", "imagenet"])
@pytest.mark.parametrize("size", [(1, 1), (8, 8), (9, 37), (224, 224)])
def test_any_size_works(head: str, size: tuple[int, int]) -> None:
    answer = nnx.eval_shape(
        lambda model: model(jnp.ones((2, *size, 3))), abstract(head=head, width=4)
    )
    assert (answer.shape, answer.dtype) == ((2, 10), jnp.float32)


@pytest.mark.parametrize(
    "kwargs", [{}, {"batch_norm": False}, {"head": "imagenet", "dropout": 0.0}]
)
def test_every_weight_has_a_finite_gradient(kwargs: dict) -> None:
    model = create(depth=11, width=4, **kwargs)
    images = jax.random.normal(jax.random.key(0), (4, 12, 12, 3))
    grads = nnx.jit(nnx.grad(lambda model: jnp.mean(jnp.square(model(images) - 1))))(model)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(grads))
    assert all(
        np.any(conv["kernel"])
        for stage in nnx.to_pure_dict(grads)["stages"].values()
        for conv in stage["convs"].values()
    )
    assert bool(jax.tree.leaves(nnx.state(model, nnx.BatchStat))) == kwargs.get("batch_norm", True)


@pytest.mark.parametrize(
    ("kwargs", "rates"), [({"head": "imagenet"}, 2), ({}, 0), ({"dropout": 0.5}, 1)]
)
def test_dropout_draws_from_the_examples_keys(kwargs: dict, rates: int) -> None:
    model = create(depth=11, width=8, batch_norm=False, **kwargs)
    layers = [
        module for _, module in nnx.iter_modules(model) if isinstance(module, models.layers.Dropout)
    ]
    assert [layer.rate for layer in layers] == [0.5] * rates
    assert len({layer.index for layer in layers}) == rates
    images = jnp.repeat(jax.random.normal(jax.random.key(0), (1, 8, 8, 3)), 4, 0)
    keys = jax.random.split(jax.random.key(1), 4)
    logits = model(images, keys=keys)
    np.testing.assert_array_equal(logits, model(images, keys=keys))
    assert bool(np.any(logits[0] != logits[1])) == (rates > 0)
    model.eval()
    np.testing.assert_array_equal(model(images), model(images, keys=keys))


def test_creating_it_does_not_compile_per_shape(count_compilations) -> None:
    create(depth=11, width=4)
    before = count_compilations()
    create(depth=19, width=3)
    create(depth=13, width=2, head="imagenet", batch_norm=False)
    assert count_compilations() - before <= 2


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"depth": 12}, "depth=12: known: 11, 13, 16, 19"),
        ({"head": "mnist"}, "known: cifar, imagenet"),
        ({"batch_norm": "yes"}, "true or false"),
        ({"width": 0}, "at least 1"),
        ({"dropout": 1.0}, "below 1"),
        ({"dept": 11}, "did you mean depth"),
    ],
)
def test_impossible_keywords_are_explained(kwargs: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        abstract(**kwargs)
