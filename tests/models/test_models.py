"""What all models promise: published numbers of parameters, any size of image, random numbers from
the examples' keys, and one line for impossible keywords.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jaxdp import models
from jaxdp.errors import ConfigError
from jaxdp.models import layers

BOTTLENECK: dict[str, Any] = {"bottleneck": True}
WIDENING: dict[str, Any] = {"depth": 110, "growth": "multiplicative"}
IMAGENET: dict[str, Any] = {"stem": "imagenet", "bottleneck": True}
TORCHVISION: dict[str, Any] = {"head": "imagenet"}
UNET: dict[str, Any] = {"base_channels": 4, "levels": 2}
BILINEAR, RESIZE = UNET | {"upsampling": "bilinear"}, UNET | {"upsampling": "resize"}
VALID = UNET | {"padding": "valid"}
# (model, keywords, classes, channels, parameters)
PARAMETERS = [
    ("cnn", {}, 10, 1, 9 * (16 + 16 * 32 + 32 * 64) + 2 * 112 + (16 * 64 + 1) * 128 + 129 * 10),
    # Han et al. 2017 and the authors' code.
    ("pyramidnet", {"depth": 110, "alpha": 48}, 10, 3, 1_772_706),
    ("pyramidnet", {"depth": 110, "alpha": 270}, 10, 3, 28_485_477),
    ("pyramidnet", {"alpha": 4.75, **WIDENING}, 10, 3, 1_762_206),
    ("pyramidnet", {"depth": 164, "alpha": 270, **BOTTLENECK}, 10, 3, 27_216_021),
    ("pyramidnet", {"depth": 272, "alpha": 200, **BOTTLENECK}, 100, 3, 26_288_692),
    ("pyramidnet", {"depth": 101, "alpha": 250, **IMAGENET}, 1000, 3, 24_956_608),
    ("pyramidnet", {"depth": 200, "alpha": 300, **IMAGENET}, 1000, 3, 62_368_168),
    # Three stages with projections; four stages as in torchvision.
    ("resnet", {"depth": 20}, 10, 3, 272_474),
    ("resnet", {"depth": 110}, 10, 3, 1_730_714),
    ("resnet", {"depth": 18, "stem": "cifar"}, 10, 3, 11_173_962),
    ("resnet", {"depth": 18}, 1000, 3, 11_689_512),
    ("resnet", {"depth": 34}, 1000, 3, 21_797_672),
    ("resnet", {"depth": 50}, 1000, 3, 25_557_032),
    ("resnet", {"depth": 152}, 1000, 3, 60_192_808),
    ("vgg", {}, 10, 3, 14_728_266),
    # torchvision's.
    ("vgg", {"depth": 11, "batch_norm": False, **TORCHVISION}, 1000, 3, 132_863_336),
    ("vgg", {"depth": 13, **TORCHVISION}, 1000, 3, 133_053_736),
    ("vgg", {"depth": 16, "batch_norm": False, **TORCHVISION}, 1000, 3, 138_357_544),
    ("vgg", {"depth": 19, **TORCHVISION}, 1000, 3, 143_678_248),
    # The paper's (`valid`) and the common implementation's.
    ("unet", {}, 2, 1, 31_036_546),
    ("unet", {"upsampling": "bilinear"}, 2, 1, 17_261_890),
    ("unet", {"padding": "valid"}, 2, 1, 31_030_658),
    *[
        (
            "unet",
            RESIZE | {"base_channels": hidden},
            1,
            channels,
            495 * hidden**2 + (9 * channels + 22) * hidden + 1,
        )
        for hidden, channels in ((8, 1), (5, 3), (16, 2))
    ],
]
SMALL = [
    ("cnn", {}),
    ("pyramidnet", {"depth": 8, "alpha": 6}),
    ("resnet", {"depth": 8, "width": 4}),
    ("resnet", {"depth": 18, "width": 4, "dropout": 0.2}),
    ("resnet", {"depth": 18, "width": 4, "stem": "cifar"}),
    ("resnet", {"depth": 50, "width": 4}),
    ("vgg", {"depth": 11, "width": 4}),
    ("vgg", {"depth": 11, "width": 4, "batch_norm": False}),
    ("vgg", {"depth": 11, "width": 4, "head": "imagenet", "dropout": 0.0}),
    ("unet", UNET),
    ("unet", BILINEAR),
    ("unet", RESIZE),
]


def create(name: str, num_classes: int = 10, in_channels: int = 3, **kwargs: Any) -> Any:
    return models.create(
        name, num_classes=num_classes, in_channels=in_channels, rngs=nnx.Rngs(0), **kwargs
    )


def abstract(*args: Any, **kwargs: Any) -> Any:
    return nnx.eval_shape(lambda: create(*args, **kwargs))


@pytest.mark.parametrize(("name", "kwargs", "classes", "channels", "expected"), PARAMETERS)
def test_parameter_count_is_the_published_one(
    name: str, kwargs: dict, classes: int, channels: int, expected: int
) -> None:
    assert models.parameter_count(abstract(name, classes, channels, **kwargs)) == expected


@pytest.mark.parametrize(("name", "kwargs"), SMALL)
@pytest.mark.parametrize("size", [(1, 1), (5, 3), (16, 16), (17, 38)])
def test_any_size_works_and_outputs_are_float32(
    name: str, kwargs: dict, size: tuple[int, int]
) -> None:
    model = abstract(name, dtype=jnp.bfloat16, **kwargs)
    answer = nnx.eval_shape(lambda model: model(jnp.ones((2, *size, 3))), model)
    assert answer.shape == ((2, *size, 10) if name == "unet" else (2, 10))
    assert answer.dtype == jnp.float32
    arrays = jax.tree.leaves(nnx.state(model, (nnx.Param, nnx.BatchStat)))
    assert {leaf.dtype for leaf in arrays} == {jnp.dtype("float32")}


@pytest.mark.parametrize(("name", "kwargs"), [*SMALL[2:4], *SMALL[6:], ("unet", VALID)])
def test_every_weight_has_a_finite_gradient(name: str, kwargs: dict) -> None:
    model = create(name, **kwargs)
    images = jax.random.normal(jax.random.key(0), (2, 45, 44, 3))
    grads = nnx.jit(nnx.grad(lambda model: jnp.mean(jnp.square(model(images) - 1))))(model)
    leaves = jax.tree_util.tree_leaves_with_path(nnx.to_pure_dict(grads))
    assert all(np.isfinite(leaf).all() for _, leaf in leaves)
    # Batch norm takes the mean away, and with it what a bias before it adds.
    biased = name == "vgg" and kwargs.get("batch_norm", True)
    assert all(np.any(leaf) for path, leaf in leaves if not (biased and "bias" in str(path[-1])))
    plain = not kwargs.get("batch_norm", True) or kwargs in (RESIZE, VALID)
    assert bool(jax.tree.leaves(nnx.state(model, nnx.BatchStat))) == (not plain)


@pytest.mark.parametrize(
    ("name", "kwargs", "rates"),
    [
        ("cnn", {"width": 4, "hidden": 16, "dropout": 0.5}, [0.5, 0.5]),
        ("pyramidnet", {"depth": 8, "alpha": 6, "shake_drop": 0.5, "dropout": 0.5}, [0.5]),
        ("resnet", {"depth": 8, "width": 4, "dropout": 0.5}, [0.5]),
        ("vgg", {"depth": 11, "width": 8, "batch_norm": False, **TORCHVISION}, [0.5, 0.5]),
        ("vgg", {"depth": 11, "width": 8, "batch_norm": False}, []),
        ("vgg", {"depth": 11, "width": 8, "batch_norm": False, "dropout": 0.5}, [0.5]),
    ],
)
def test_random_numbers_are_those_of_the_examples_keys(
    name: str, kwargs: dict, rates: list[float]
) -> None:
    model = create(name, **kwargs)
    modules = [module for _, module in nnx.iter_modules(model)]
    drops = [each for each in modules if isinstance(each, layers.Stochastic) and each.rate]
    assert [each.rate for each in drops if isinstance(each, layers.Dropout)] == rates
    assert len({each.index for each in drops}) == len(drops)
    images = jnp.repeat(jax.random.normal(jax.random.key(0), (1, 8, 8, 3)), 4, 0)
    keys = jax.random.split(jax.random.key(1), 4)
    logits = model(images, keys=keys)
    np.testing.assert_array_equal(logits, model(images, keys=keys))
    assert bool(np.any(logits[0] != logits[1])) == bool(rates)
    # Without keys the model's own random stream moves on.
    assert np.array_equal(model(images), model(images)) == (not rates)
    model.eval()
    np.testing.assert_array_equal(model(images), model(images, keys=keys))


@pytest.mark.parametrize(
    ("name", "first", "others"),
    [
        ("cnn", {"width": 4}, [{"width": 5, "hidden": 7}]),
        ("pyramidnet", {"depth": 20, "alpha": 10}, [{"depth": 110, "alpha": 48}]),
        ("resnet", {"depth": 8, "width": 4}, [{"depth": 20}, {"depth": 50, "width": 3}]),
        (
            "vgg",
            {"depth": 11, "width": 4},
            [{"depth": 19, "width": 3}, {"depth": 13, "width": 2, "batch_norm": False}],
        ),
        ("unet", UNET, [each | {"base_channels": 6, "levels": 3} for each in (BILINEAR, VALID)]),
    ],
)
def test_creating_it_does_not_compile_per_shape(
    count_compilations, name: str, first: dict, others: list[dict]
) -> None:
    create(name, **first)
    before = count_compilations()
    for kwargs in others:
        create(name, **kwargs)
    assert count_compilations() - before <= 2


@pytest.mark.parametrize(
    ("name", "kwargs", "message"),
    [
        ("cnn", {"width": 0}, "width=0: must be a whole number of at least 1"),
        ("cnn", {"hidden": 0}, "hidden=0"),
        ("cnn", {"dropout": 1}, "below 1"),
        ("cnn", {"hiden": 3}, "did you mean hidden"),
        ("pyramidnet", {"depth": 21}, "20 or 26"),
        ("pyramidnet", {"depth": 3}, "8 or 14"),
        ("pyramidnet", {"depth": 21, **BOTTLENECK}, "20 or 29"),
        ("pyramidnet", {"depth": 110, **IMAGENET}, "50, 101, 152, 200"),
        ("pyramidnet", {"depth": 50, "stem": "imagenet"}, "bottleneck=true"),
        ("pyramidnet", {"alpha": -1}, "greater than 0"),
        ("pyramidnet", {"alpha": float("nan")}, "finite number"),
        ("pyramidnet", {"growth": "adddtive"}, "additive"),
        ("resnet", {"depth": 21}, "18, 34, 50, 101, 152, or 6n"),
        ("resnet", {"depth": 2}, "6n"),
        ("resnet", {"stem": "mnist"}, "known: auto, cifar, imagenet"),
        ("resnet", {"depth": 20, "stem": "imagenet"}, "stem=cifar"),
        ("resnet", {"width": -1}, "at least 1"),
        ("resnet", {"dropout": -0.1}, "below 1"),
        ("vgg", {"depth": 12}, "depth=12: known: 11, 13, 16, 19"),
        ("vgg", {"head": "mnist"}, "known: cifar, imagenet"),
        ("vgg", {"batch_norm": "yes"}, "true or false"),
        ("unet", {"base_channels": 0}, "base_channels=0: must be a whole number of at least 1"),
        ("unet", {"levels": 0}, "levels=0: must be a whole number of at least 1"),
        ("unet", {"upsampling": "nearest"}, "known: transposed, bilinear, resize"),
        ("unet", {"padding": "reflect"}, "known: same, valid"),
        ("unet", {"encoder": "vgg16"}, "known: resnet18, resnet34"),
        ("unet", {"encoder": "resnet18", "levels": 6}, "levels=6: must be at most 5"),
        ("unet", {"encoder": "resnet18", "padding": "valid"}, "goes with padding=same"),
        ("unet", {"padding": "valid", "upsampling": "bilinear"}, "padding=same"),
    ],
)
def test_impossible_keywords_are_explained(name: str, kwargs: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        abstract(name, **kwargs)


@pytest.mark.half_precision
@pytest.mark.parametrize(("name", "kwargs"), [*SMALL[:3], ("unet", UNET)])
def test_evaluation_in_bfloat16_is_that_in_float32(name: str, kwargs: dict) -> None:
    """XLA:CPU of jaxlib 0.11 and 0.12 gives NaN without the flag that runtime/platform.py sets."""
    images = jnp.asarray(np.random.default_rng(0).standard_normal((16, 16, 16, 3), np.float32))
    outputs = []
    for dtype in (jnp.float32, jnp.bfloat16):
        model = create(name, dtype=dtype, **kwargs)
        model.eval()
        graph, state = nnx.split(model)
        outputs.append(
            np.asarray(jax.jit(lambda state, graph=graph: nnx.merge(graph, state)(images))(state))
        )
    np.testing.assert_allclose(outputs[1], outputs[0], atol=0.05 * np.abs(outputs[0]).max())


def test_initial_weights_of_pyramidnet_follow_the_authors() -> None:
    model = create("pyramidnet", depth=20, alpha=270)
    kernel = np.asarray(model.units[-1].convs[-1].kernel[...])
    assert kernel.std() == pytest.approx(np.sqrt(2 / (9 * kernel.shape[-1])), rel=0.01)
    assert abs(kernel.mean()) < 1e-3
    bound = 1 / np.sqrt(model.head.kernel.shape[0])
    for values in (model.head.kernel[...], model.head.bias[...]):
        assert float(jnp.max(jnp.abs(values))) <= bound
    assert float(jnp.max(jnp.abs(model.head.kernel[...]))) > 0.9 * bound


def test_a_seed_gives_the_same_weights_eagerly_and_under_jit() -> None:
    name, kwargs = SMALL[1]
    eager = nnx.state(create(name, **kwargs), nnx.Param)
    jitted = nnx.state(nnx.jit(lambda: create(name, **kwargs))(), nnx.Param)
    jax.tree.map(np.testing.assert_array_equal, eager, jitted)


@pytest.mark.parametrize("name", ["CNN", "VGG", "PyramidNet", "ResNet", "UNet"])
def test_classes_are_exported_under_their_names(name: str) -> None:
    model_class = getattr(models, name)
    assert model_class.__name__ == name
    assert models.names()[name.lower()] is model_class
    with pytest.raises(AttributeError, match="no attribute 'PyramidNot'"):
        models.PyramidNot  # noqa: B018 - what is tested


def test_a_recipe_constructs_the_same_model() -> None:
    common: dict[str, Any] = {"num_classes": 3, "in_channels": 1, "dtype": jnp.bfloat16}
    model = models.CNN(**common, rngs=nnx.Rngs(0), width=4, hidden=8, dropout=0.5)
    recipe = models.constructor_of(model)
    assert recipe == ("cnn", {"width": 4, "hidden": 8, "dropout": 0.5})
    again = models.create(recipe[0], **common, rngs=nnx.Rngs(0), **recipe[1])
    assert nnx.graphdef(again) == nnx.graphdef(model)
    assert models.constructor_of(nnx.clone(again)) == recipe
    recipe[1]["width"] = 5
    assert models.constructor_of(again) == ("cnn", {"width": 4, "hidden": 8, "dropout": 0.5})


@pytest.mark.usefixtures("registries")
def test_what_yaml_cannot_hold_has_no_recipe() -> None:
    @models.register("listed")
    class Listed(nnx.Module):
        def __init__(
            self, *, widths: Any, num_classes: int, in_channels: int, rngs: nnx.Rngs, **others: Any
        ) -> None:
            pass

    class Derived(Listed):
        pass

    def recipe(widths: Any, of: Any = Listed, **kwargs: Any) -> Any:
        model = of(widths=widths, num_classes=3, in_channels=1, rngs=nnx.Rngs(0), **kwargs)
        return models.constructor_of(model)

    assert recipe([4, [8, 0.5]], name=None, flag=True) == (
        "listed",
        {"widths": [4, [8, 0.5]], "name": None, "flag": True},
    )
    for value in (jnp.ones(2), (4, 8), nnx.relu, {"a": 1}, [4, jnp.float32]):
        assert recipe(value) is None
    assert recipe([4], of=Derived) is None
    assert models.constructor_of(nnx.Linear(1, 1, rngs=nnx.Rngs(0))) is None
