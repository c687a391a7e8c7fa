"""PyramidNet has exactly the published numbers of parameters, and the architecture behind them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jaxdp import models
from jaxdp.models.pyramidnet import unit_widths
from jaxdp.registry import ConfigError

# Han et al. 2017 and the authors' code: (keywords, CIFAR-10, CIFAR-100).
PUBLISHED = [
    ({"depth": 110, "alpha": 48}, 1_772_706, 1_778_556),
    ({"depth": 110, "alpha": 84}, 3_904_446, 3_913_536),
    ({"depth": 110, "alpha": 270}, 28_485_477, 28_511_307),
    ({"depth": 110, "alpha": 4.75, "growth": "multiplicative"}, 1_762_206, 1_769_136),
    ({"depth": 110, "alpha": 8, "growth": "multiplicative"}, 3_876_547, 3_888_157),
    ({"depth": 164, "alpha": 270, "bottleneck": True}, 27_216_021, 27_319_071),
    ({"depth": 200, "alpha": 240, "bottleneck": True}, 26_752_702, 26_844_952),
    ({"depth": 236, "alpha": 220, "bottleneck": True}, 26_969_046, 27_054_096),
    ({"depth": 272, "alpha": 200, "bottleneck": True}, 26_210_842, 26_288_692),
]
IMAGENET = [
    ({"depth": 101, "alpha": 250, "bottleneck": True, "stem": "imagenet"}, 24_956_608),
    ({"depth": 200, "alpha": 300, "bottleneck": True, "stem": "imagenet"}, 62_368_168),
]


def create(num_classes: int = 10, in_channels: int = 3, **kwargs):
    return models.create(
        "pyramidnet", num_classes=num_classes, in_channels=in_channels, rngs=nnx.Rngs(0), **kwargs
    )


def abstract(num_classes: int = 10, **kwargs):
    return nnx.eval_shape(lambda: create(num_classes, **kwargs))


@pytest.mark.parametrize(("kwargs", "cifar10", "cifar100"), PUBLISHED)
def test_parameter_count_is_the_published_one(kwargs: dict, cifar10: int, cifar100: int) -> None:
    model = abstract(**kwargs)
    assert models.parameter_count(model) == cifar10
    # The dense layer alone depends on the classes: each takes the last unit's width, and a bias.
    assert cifar10 + 90 * (model.head.kernel.shape[0] + 1) == cifar100


@pytest.mark.parametrize(("kwargs", "expected"), IMAGENET)
def test_imagenet_parameter_count_is_the_published_one(kwargs: dict, expected: int) -> None:
    assert models.parameter_count(abstract(1000, **kwargs)) == expected


def test_widths_are_rounded_only_for_use() -> None:
    assert unit_widths(16, 48, 54, "additive")[-1] == 64
    # The closed form round(16 + k alpha / N) differs here, because sums of floats do.
    widths = unit_widths(16, 270, 54, "additive")
    assert widths[:3] == [21, 26, 31]
    assert widths[-1] == 286
    assert unit_widths(16, 4.75, 54, "multiplicative")[-1] == 76


def test_creating_many_layers_does_not_compile_per_shape(count_compilations) -> None:
    create(depth=20, alpha=10)
    before = count_compilations()
    create(depth=110, alpha=48)
    assert count_compilations() - before <= 2


def test_initial_weights_follow_the_authors() -> None:
    model = create(depth=20, alpha=270)
    kernel = np.asarray(model.units[-1].convs[-1].kernel[...])
    assert kernel.std() == pytest.approx(np.sqrt(2 / (9 * kernel.shape[-1])), rel=0.01)
    assert abs(kernel.mean()) < 1e-3
    bound = 1 / np.sqrt(model.head.kernel.shape[0])
    for values in (model.head.kernel[...], model.head.bias[...]):
        assert float(jnp.max(jnp.abs(values))) <= bound
    assert float(jnp.max(jnp.abs(model.head.kernel[...]))) > 0.9 * bound


def test_a_seed_gives_the_same_weights_eagerly_and_under_jit() -> None:
    eager = nnx.state(create(depth=8, alpha=6), nnx.Param)
    jitted = nnx.state(nnx.jit(lambda: create(depth=8, alpha=6))(), nnx.Param)
    jax.tree.map(np.testing.assert_array_equal, eager, jitted)


@pytest.mark.parametrize("size", [8, 9, 13])
def test_odd_sizes_work(size: int) -> None:
    assert nnx.eval_shape(lambda: create(depth=8, alpha=6)(jnp.ones((2, size, size, 3)))).shape == (
        2,
        10,
    )


def test_logits_are_float32_under_bfloat16() -> None:
    model = abstract(depth=8, alpha=6, dtype=jnp.bfloat16)
    assert nnx.eval_shape(lambda model: model(jnp.ones((2, 8, 8, 3))), model).dtype == jnp.float32
    assert {
        leaf.dtype for leaf in jax.tree.leaves(nnx.state(model, (nnx.Param, nnx.BatchStat)))
    } == {jnp.dtype("float32")}


def test_train_and_eval_modes() -> None:
    model = create(depth=8, alpha=6, shake_drop=0.5, dropout=0.5)
    images = jax.random.normal(jax.random.key(0), (4, 8, 8, 3))
    before = np.asarray(model.stem_norm.mean[...])
    first, second = model(images), model(images)
    assert not np.array_equal(first, second)  # without keys the model's own random stream moves on
    assert not np.array_equal(before, model.stem_norm.mean[...])
    model.eval()
    np.testing.assert_array_equal(model(images), model(images))
    model.train()
    keys = jax.random.split(jax.random.key(1), 4)
    np.testing.assert_array_equal(model(images, keys=keys), model(images, keys=keys))


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"depth": 21}, "20 or 26"),
        ({"depth": 3}, "8 or 14"),
        ({"depth": 20, "bottleneck": True}, None),
        ({"depth": 21, "bottleneck": True}, "20 or 29"),
        ({"depth": 110, "stem": "imagenet", "bottleneck": True}, "50, 101, 152, 200"),
        ({"depth": 50, "stem": "imagenet"}, "bottleneck=true"),
        ({"alpha": -1}, "greater than 0"),
        ({"alpha": float("nan")}, "finite number"),
        ({"growth": "adddtive"}, "additive"),
        ({"dropout": 1.0}, "below 1"),
        ({"depht": 20}, "did you mean depth"),
    ],
)
def test_impossible_keywords_are_explained(kwargs: dict, message: str | None) -> None:
    if message is None:
        abstract(**kwargs)
        return
    with pytest.raises(ConfigError, match=message):
        abstract(**kwargs)
