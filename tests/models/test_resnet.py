"""ResNet has exactly the published numbers of parameters, for CIFAR and for ImageNet."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jaxdp import models
from jaxdp.registry import ConfigError

# Three stages, 10 classes, with projections; four stages as in torchvision, 1000 classes.
CIFAR = [(20, 272_474), (56, 855_770), (110, 1_730_714)]
IMAGENET = [
    (18, 11_689_512),
    (34, 21_797_672),
    (50, 25_557_032),
    (101, 44_549_160),
    (152, 60_192_808),
]


def create(num_classes: int = 10, **kwargs):
    return models.create(
        "resnet", num_classes=num_classes, in_channels=3, rngs=nnx.Rngs(0), **kwargs
    )


def abstract(num_classes: int = 10, **kwargs):
    return nnx.eval_shape(lambda: create(num_classes, **kwargs))


@pytest.mark.parametrize(("depth", "expected"), CIFAR)
def test_cifar_parameter_count_is_the_published_one(depth: int, expected: int) -> None:
    assert models.parameter_count(abstract(depth=depth)) == expected


@pytest.mark.parametrize(("depth", "expected"), IMAGENET)
def test_imagenet_parameter_count_is_torchvisions(depth: int, expected: int) -> None:
    assert models.parameter_count(abstract(1000, depth=depth)) == expected


def test_four_stages_take_the_stem_for_small_images() -> None:
    model = abstract(depth=18, stem="cifar")
    assert models.parameter_count(model) == 11_173_962
    assert not model.large_stem


def test_each_convolution_with_its_depth() -> None:
    for depth in (8, 20, 56, 18, 34, 50, 101):
        model = abstract(depth=depth, width=2)
        assert 2 + sum(len(unit.convs) for unit in model.units) == depth


def test_bottlenecks_stride_in_their_3x3_convolution() -> None:
    strided = [unit for unit in abstract(depth=50).units if unit.convs[1].strides == 2]
    assert len(strided) == 3
    assert all(
        unit.convs[0].strides == 1 and unit.convs[1].kernel_size == (3, 3) for unit in strided
    )


@pytest.mark.parametrize(
    "kwargs", [{"depth": 8}, {"depth": 18}, {"depth": 18, "stem": "cifar"}, {"depth": 50}]
)
@pytest.mark.parametrize("size", [(1, 1), (8, 8), (9, 37)])
def test_any_size_works(kwargs: dict, size: tuple[int, int]) -> None:
    answer = nnx.eval_shape(
        lambda model: model(jnp.ones((2, *size, 3))), abstract(width=4, **kwargs)
    )
    assert (answer.shape, answer.dtype) == ((2, 10), jnp.float32)


@pytest.mark.parametrize("kwargs", [{"depth": 8}, {"depth": 18, "dropout": 0.2}])
def test_every_weight_has_a_finite_gradient(kwargs: dict) -> None:
    model = create(width=4, **kwargs)
    images = jax.random.normal(jax.random.key(0), (4, 9, 9, 3))
    grads = nnx.jit(nnx.grad(lambda model: jnp.mean(jnp.square(model(images) - 1))))(model)
    assert all(np.isfinite(leaf).all() and np.any(leaf) for leaf in jax.tree.leaves(grads))


def test_dropout_draws_from_the_examples_keys() -> None:
    model = create(depth=8, width=4, dropout=0.5)
    images, keys = jnp.ones((4, 8, 8, 3)), jax.random.split(jax.random.key(1), 4)
    logits = model(images, keys=keys)
    np.testing.assert_array_equal(logits, model(images, keys=keys))
    assert np.any(logits[0] != logits[1])


def test_creating_it_does_not_compile_per_shape(count_compilations) -> None:
    create(depth=8, width=4)
    before = count_compilations()
    create(depth=20)
    create(depth=50, width=3)
    assert count_compilations() - before <= 2


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"depth": 21}, "18, 34, 50, 101, 152, or 6n"),
        ({"depth": 2}, "6n"),
        ({"stem": "mnist"}, "known: auto, cifar, imagenet"),
        ({"depth": 20, "stem": "imagenet"}, "stem=cifar"),
        ({"width": -1}, "at least 1"),
        ({"dropout": -0.1}, "below 1"),
        ({"depht": 20}, "did you mean depth"),
    ],
)
def test_impossible_keywords_are_explained(kwargs: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        abstract(**kwargs)
