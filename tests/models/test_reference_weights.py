"""Arrays land where PyTorch's names say, or nothing changes and one line says why.

Without PyTorch; with it: tests/reference.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jaxdp import models
from jaxdp.models.reference_weights import load_reference_weights, reference_names
from jaxdp.registry import ConfigError

VECTORS = ("weight", "bias", "running_mean", "running_var")
MODELS = [
    ("pyramidnet", {"depth": 8, "alpha": 6}),
    ("pyramidnet", {"depth": 11, "alpha": 6, "bottleneck": True}),
    ("unet", {"base_channels": 2, "levels": 2}),
    ("unet", {"base_channels": 2, "levels": 3, "upsampling": "bilinear"}),
    ("resnet", {"depth": 18, "width": 4}),
    ("resnet", {"depth": 50, "width": 2}),
    ("resnet", {"depth": 8, "width": 2}),
    ("vgg", {"depth": 11, "width": 2}),
    ("vgg", {"depth": 11, "width": 1, "head": "imagenet", "batch_norm": False}),
]


def create(name: str, **kwargs):
    return models.create(name, num_classes=4, in_channels=3, rngs=nnx.Rngs(0), **kwargs)


def random_state(model) -> dict[str, np.ndarray]:
    """A state that fits a model: each array in PyTorch's order of dims."""
    rng, state = np.random.default_rng(0), {}
    for name, (path, axes) in reference_names(model).items():
        shape = np.take(leaf(model, path).shape, np.argsort(axes))
        state[name] = rng.normal(size=shape).astype(np.float32)
    return state


def leaf(model, path) -> jax.Array:
    for part in path:
        model = getattr(model, part) if isinstance(part, str) else model[part]
    return model[...]


def shape_of(model, path) -> tuple[int, ...]:
    """Also of a model of shapes."""
    for part in path:
        model = getattr(model, part) if isinstance(part, str) else model[part]
    return model.shape


def arrays(model) -> list[np.ndarray]:
    return [
        np.asarray(array) for array in jax.tree.leaves(nnx.state(model, (nnx.Param, nnx.BatchStat)))
    ]


@pytest.mark.parametrize(("name", "kwargs"), MODELS)
def test_every_array_of_a_model_has_a_name_of_its_own(name: str, kwargs: dict) -> None:
    model = create(name, **kwargs)
    paths = {place.path for place in reference_names(model).values()}
    flat = nnx.to_flat_state(nnx.state(model, (nnx.Param, nnx.BatchStat)))
    assert paths == {path for path, _ in flat}
    assert len(paths) == len(reference_names(model))


def test_the_names_of_pyramidnet() -> None:
    expected = {"conv1.weight", "fc.weight", "fc.bias"}
    expected |= {f"{norm}.{vector}" for norm in ("bn1", "bn_final") for vector in VECTORS}
    for unit in ("layer1.0", "layer2.0", "layer3.0"):
        expected |= {f"{unit}.conv{part}.weight" for part in (1, 2)}
        expected |= {f"{unit}.bn{part}.{vector}" for part in (1, 2, 3) for vector in VECTORS}
    assert set(reference_names(create("pyramidnet", depth=8, alpha=6))) == expected


def test_the_names_of_pyramidnet_for_imagenet() -> None:
    model = nnx.eval_shape(
        lambda: create("pyramidnet", depth=50, alpha=30, bottleneck=True, stem="imagenet")
    )
    units = {
        ".".join(name.split(".")[:2]) for name in reference_names(model) if name.startswith("layer")
    }
    assert units == {
        f"layer{stage}.{index}"
        for stage, count in zip((1, 2, 3, 4), (3, 4, 6, 3), strict=True)
        for index in range(count)
    }
    assert {"layer4.2.conv3.weight", "layer4.2.bn4.running_var"} <= set(reference_names(model))


@pytest.mark.parametrize("upsampling", ["transposed", "bilinear"])
def test_the_names_of_unet(upsampling: str) -> None:
    blocks = ["inc", "down1.maxpool_conv.1", "down2.maxpool_conv.1", "up1.conv", "up2.conv"]
    expected = {"outc.conv.weight", "outc.conv.bias"}
    expected |= {f"{block}.double_conv.{part}.weight" for block in blocks for part in (0, 3)}
    expected |= {
        f"{block}.double_conv.{part}.{vector}"
        for block in blocks
        for part in (1, 4)
        for vector in VECTORS
    }
    if upsampling == "transposed":
        expected |= {f"up{index}.up.{vector}" for index in (1, 2) for vector in ("weight", "bias")}
    assert (
        set(reference_names(create("unet", base_channels=2, levels=2, upsampling=upsampling)))
        == expected
    )


@pytest.mark.parametrize("prefix", ["", "module."])
@pytest.mark.parametrize(("name", "kwargs"), MODELS)
def test_arrays_land_in_our_order_of_dims(name: str, kwargs: dict, prefix: str) -> None:
    model = create(name, **kwargs)
    state = random_state(model)
    counters = {"bn1.num_batches_tracked": np.asarray(3)}
    load_reference_weights(
        model, {prefix + key: array for key, array in (state | counters).items()}
    )
    for key, (path, _) in reference_names(model).items():
        theirs, ours = state[key], np.asarray(leaf(model, path))
        if key == "classifier.0.weight":  # of 7x7 positions, with PyTorch's channels first
            theirs = theirs.reshape(len(theirs), -1, 49).transpose(0, 2, 1).reshape(len(theirs), -1)
        if theirs.ndim > 1:
            theirs = np.einsum(
                {4: "iohw->hwio" if ".up." in key else "oihw->hwio", 2: "oi->io"}[theirs.ndim],
                theirs,
            )
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize("dtype", [np.float64, np.float16, jnp.bfloat16])
def test_other_formats_become_float32(dtype) -> None:
    model = create("unet", base_channels=2, levels=1)
    state = {name: (10 * array).astype(dtype) for name, array in random_state(model).items()}
    load_reference_weights(model, state)
    np.testing.assert_array_equal(model.head.bias[...], state["outc.conv.bias"].astype(np.float32))
    assert {array.dtype for array in arrays(model)} == {np.dtype(np.float32)}


def test_the_model_keeps_no_memory_of_the_state() -> None:
    model = create("unet", base_channels=2, levels=1)
    state = random_state(model)
    load_reference_weights(model, state)
    before = [array.copy() for array in arrays(model)]
    for array in state.values():
        array[...] = 7
    for old, new in zip(before, arrays(model), strict=True):
        np.testing.assert_array_equal(old, new)


def test_an_abstract_model_becomes_a_real_one() -> None:
    model = nnx.eval_shape(lambda: create("unet", base_channels=2, levels=1))
    load_reference_weights(model, random_state(create("unet", base_channels=2, levels=1)))
    assert model(jnp.ones((1, 4, 4, 3))).shape == (1, 4, 4, 4)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda state: state.pop("fc.bias"), "1 missing: fc.bias$"),
        (lambda state: state.update({"fc2.bias": np.ones(3)}), "1 unexpected: fc2.bias$"),
        (
            lambda state: state.update({"fc.bias": np.ones(3)}),
            "1 of another shape: fc.bias 3, expected 4$",
        ),
        (
            lambda state: state.update({"conv1.weight": np.ones((3, 3, 3, 16))}),
            "conv1.weight 3x3x3x16, expected 16x3x3x3$",
        ),
        (
            lambda state: state.update({"fc.bias": np.asarray([1, 2, np.nan, 3])}),
            "1 not finite numbers: fc.bias$",
        ),
        (
            lambda state: state.update({"fc.bias": np.asarray(["a"] * 4)}),
            "1 of another dtype: fc.bias <U1, expected float32$",
        ),
        (
            lambda state: state.clear(),
            (
                r"53 missing: conv1.weight, bn1.weight, bn1.bias, bn1.running_mean, bn1.running_var"
                r" and 48 more$"
            ),
        ),
        (
            lambda state: state.update(
                {"fc3.bias": np.ones(3), "fc.bias": np.ones(3), "conv9": state.pop("conv1.weight")}
            ),
            "1 missing: conv1.weight; 2 unexpected: fc3.bias, conv9; 1 of another shape",
        ),
    ],
)
def test_what_does_not_fit_is_listed_and_changes_nothing(change, message: str) -> None:
    model = create("pyramidnet", depth=8, alpha=6)
    state, before = random_state(model), arrays(model)
    change(state)
    with pytest.raises(ConfigError, match=message) as error:
        load_reference_weights(model, state)
    assert "\n" not in str(error.value)
    jax.tree.map(np.testing.assert_array_equal, before, arrays(model))


@pytest.mark.parametrize(
    ("name", "kwargs"),
    [
        ("cnn", {}),
        ("unet", {"padding": "valid", "base_channels": 2}),
        ("unet", {"upsampling": "resize", "base_channels": 2}),
    ],
)
def test_models_without_a_table_say_which_have_one(name: str, kwargs: dict) -> None:
    with pytest.raises(
        ConfigError, match="known for: PyramidNet, ResNet, VGG, and UNet with same padding"
    ):
        load_reference_weights(create(name, **kwargs), {})


def torchvision_resnet(convs: int, units: tuple[int, ...], *, first_projects: bool) -> set[str]:
    """The names in the state dicts that torchvision publishes, without num_batches_tracked."""
    names = {"conv1.weight", "fc.weight", "fc.bias"} | {f"bn1.{vector}" for vector in VECTORS}
    for stage, count in enumerate(units, 1):
        for unit in (f"layer{stage}.{index}" for index in range(count)):
            names |= {f"{unit}.conv{part}.weight" for part in range(1, convs + 1)}
            names |= {
                f"{unit}.bn{part}.{vector}" for part in range(1, convs + 1) for vector in VECTORS
            }
        if stage > 1 or first_projects:
            names |= {f"layer{stage}.0.downsample.0.weight"} | {
                f"layer{stage}.0.downsample.1.{vector}" for vector in VECTORS
            }
    return names


@pytest.mark.parametrize(
    ("depth", "convs", "units", "entries"),
    [
        (18, 2, (2, 2, 2, 2), 102),
        (34, 2, (3, 4, 6, 3), 182),
        (50, 3, (3, 4, 6, 3), 267),
        (152, 3, (3, 8, 36, 3), 777),
    ],
)
def test_the_names_of_torchvisions_resnets(
    depth: int, convs: int, units: tuple[int, ...], entries: int
) -> None:
    model = nnx.eval_shape(
        lambda: models.create(
            "resnet", num_classes=1000, in_channels=3, rngs=nnx.Rngs(0), depth=depth
        )
    )
    names = reference_names(model)
    assert set(names) == torchvision_resnet(convs, units, first_projects=depth >= 50)
    assert len(names) == entries

    def shape(name: str) -> tuple[int, ...]:
        path, axes = names[name]
        return tuple(np.take(shape_of(model, path), np.argsort(axes)).tolist())

    assert shape("conv1.weight") == (64, 3, 7, 7)
    width = 2048 if depth >= 50 else 512
    assert (shape("fc.weight"), shape("layer4.1.bn2.running_var")) == ((1000, width), (512,))
    assert shape("layer2.0.downsample.0.weight") == (
        (512, 256, 1, 1) if depth >= 50 else (128, 64, 1, 1)
    )


@pytest.mark.parametrize(
    ("depth", "batch_norm", "convs"),
    [
        (11, False, [0, 3, 6, 8, 11, 13, 16, 18]),
        (16, False, [0, 2, 5, 7, 10, 12, 14, 17, 19, 21, 24, 26, 28]),
        (16, True, [0, 3, 7, 10, 14, 17, 20, 24, 27, 30, 34, 37, 40]),
    ],
)
def test_the_names_of_torchvisions_vggs(depth: int, batch_norm: bool, convs: list[int]) -> None:
    kwargs = {"depth": depth, "head": "imagenet", "batch_norm": batch_norm}
    model = nnx.eval_shape(
        lambda: models.create("vgg", num_classes=1000, in_channels=3, rngs=nnx.Rngs(0), **kwargs)
    )
    expected = {f"features.{number}.{kind}" for number in convs for kind in ("weight", "bias")}
    expected |= {
        f"features.{number + 1}.{vector}" for number in convs for vector in VECTORS if batch_norm
    }
    expected |= {
        f"classifier.{number}.{kind}" for number in (0, 3, 6) for kind in ("weight", "bias")
    }
    names = reference_names(model)
    assert set(names) == expected
    path, axes = names["classifier.0.weight"]
    assert tuple(np.take(shape_of(model, path), np.argsort(axes)).tolist()) == (4096, 25088)
