"""Arrays land where PyTorch's names say, or nothing changes and one line says why.

Without PyTorch; with it: tests/reference.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from reference_state import load_reference_weights
from test_models import abstract, create

from jaxdp.errors import ConfigError
from jaxdp.models.reference_weights import reference_names

VECTORS = ("weight", "bias", "running_mean", "running_var")
UNET: dict[str, Any] = {"base_channels": 2, "levels": 2}
MODELS = [
    ("pyramidnet", {"depth": 8, "alpha": 6}),
    ("pyramidnet", {"depth": 11, "alpha": 6, "bottleneck": True}),
    ("unet", UNET),
    ("unet", {"base_channels": 2, "levels": 3, "upsampling": "bilinear"}),
    ("resnet", {"depth": 18, "width": 4}),
    ("resnet", {"depth": 50, "width": 2}),
    ("resnet", {"depth": 8, "width": 2}),
    ("vgg", {"depth": 11, "width": 2}),
    ("vgg", {"depth": 11, "width": 1, "head": "imagenet", "batch_norm": False}),
]


def shapes(model) -> dict[str, tuple[int, ...]]:
    """The shape of each array of a PyTorch state that fits a model."""
    ours = dict(nnx.to_flat_state(nnx.state(model, (nnx.Param, nnx.BatchStat))))
    return {
        name: tuple(np.take(ours[place.path].shape, np.argsort(place.axes)).tolist())
        for name, place in reference_names(model).items()
    }


def random_state(model) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    return {
        name: rng.normal(size=shape).astype(np.float32) for name, shape in shapes(model).items()
    }


def arrays(model) -> list[np.ndarray]:
    leaves = jax.tree.leaves(nnx.state(model, (nnx.Param, nnx.BatchStat)))
    return [np.array(leaf) for leaf in leaves]


def norms(*names: str) -> set[str]:
    return {f"{name}.{vector}" for name in names for vector in VECTORS}


@pytest.mark.parametrize("prefix", ["", "module."])
@pytest.mark.parametrize(("name", "kwargs"), MODELS)
def test_every_array_lands_in_our_order_of_dims(name: str, kwargs: dict, prefix: str) -> None:
    model = create(name, 4, **kwargs)
    state = random_state(model)
    counters = {"bn1.num_batches_tracked": np.asarray(3)}
    load_reference_weights(
        model, {prefix + key: array for key, array in (state | counters).items()}
    )
    flat = dict(nnx.to_flat_state(nnx.state(model, (nnx.Param, nnx.BatchStat))))
    names = {place.path: key for key, place in reference_names(model).items()}
    assert names.keys() == flat.keys()
    assert len(names) == len(state)
    for path, variable in flat.items():
        key = names[path]
        theirs = state[key]
        if key == "classifier.0.weight":  # of 7x7 positions, with PyTorch's channels first
            theirs = theirs.reshape(len(theirs), -1, 49).transpose(0, 2, 1).reshape(len(theirs), -1)
        if theirs.ndim > 1:
            dims = {4: "iohw->hwio" if ".up." in key else "oihw->hwio", 2: "oi->io"}
            theirs = np.einsum(dims[theirs.ndim], theirs)
        np.testing.assert_array_equal(variable[...], theirs)


def test_the_names_of_pyramidnet() -> None:
    expected = {"conv1.weight", "fc.weight", "fc.bias"} | norms("bn1", "bn_final")
    for unit in ("layer1.0", "layer2.0", "layer3.0"):
        expected |= {f"{unit}.conv{part}.weight" for part in (1, 2)}
        expected |= norms(*[f"{unit}.bn{part}" for part in (1, 2, 3)])
    assert set(shapes(abstract("pyramidnet", depth=8, alpha=6))) == expected
    imagenet = {"depth": 50, "alpha": 30, "bottleneck": True, "stem": "imagenet"}
    names = set(shapes(abstract("pyramidnet", **imagenet)))
    units = {".".join(name.split(".")[:2]) for name in names if name.startswith("layer")}
    assert units == {
        f"layer{stage}.{index}"
        for stage, count in zip((1, 2, 3, 4), (3, 4, 6, 3), strict=True)
        for index in range(count)
    }
    assert {"layer4.2.conv3.weight", "layer4.2.bn4.running_var"} <= names


@pytest.mark.parametrize("upsampling", ["transposed", "bilinear"])
def test_the_names_of_unet(upsampling: str) -> None:
    blocks = ["inc", "down1.maxpool_conv.1", "down2.maxpool_conv.1", "up1.conv", "up2.conv"]
    expected = {"outc.conv.weight", "outc.conv.bias"}
    expected |= {f"{block}.double_conv.{part}.weight" for block in blocks for part in (0, 3)}
    expected |= norms(*[f"{block}.double_conv.{part}" for block in blocks for part in (1, 4)])
    if upsampling == "transposed":
        expected |= {f"up{index}.up.{vector}" for index in (1, 2) for vector in ("weight", "bias")}
    assert set(shapes(abstract("unet", upsampling=upsampling, **UNET))) == expected


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
    """The names in the state dicts that torchvision publishes, without num_batches_tracked."""
    expected = {"conv1.weight", "fc.weight", "fc.bias"} | norms("bn1")
    for stage, count in enumerate(units, 1):
        for unit in (f"layer{stage}.{index}" for index in range(count)):
            expected |= {f"{unit}.conv{part}.weight" for part in range(1, convs + 1)}
            expected |= norms(*[f"{unit}.bn{part}" for part in range(1, convs + 1)])
        if stage > 1 or depth >= 50:
            expected |= {f"layer{stage}.0.downsample.0.weight"}
            expected |= norms(f"layer{stage}.0.downsample.1")
    found = shapes(abstract("resnet", 1000, depth=depth))
    assert set(found) == expected
    assert len(found) == entries
    assert found["conv1.weight"] == (64, 3, 7, 7)
    width = 2048 if depth >= 50 else 512
    assert (found["fc.weight"], found["layer4.1.bn2.running_var"]) == ((1000, width), (512,))
    assert found["layer2.0.downsample.0.weight"] == (
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
    layers = [f"features.{number}" for number in convs]
    layers += [f"classifier.{number}" for number in (0, 3, 6)]
    expected = {f"{layer}.{kind}" for layer in layers for kind in ("weight", "bias")}
    expected |= norms(*[f"features.{number + 1}" for number in convs if batch_norm])
    found = shapes(abstract("vgg", 1000, depth=depth, head="imagenet", batch_norm=batch_norm))
    assert set(found) == expected
    assert found["classifier.0.weight"] == (4096, 25088)


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16, jnp.bfloat16])
def test_other_formats_become_float32_and_the_model_keeps_no_memory_of_the_state(dtype) -> None:
    model = create("unet", 4, **UNET)
    state = {name: (10 * array).astype(dtype) for name, array in random_state(model).items()}
    load_reference_weights(model, state)
    np.testing.assert_array_equal(model.head.bias[...], state["outc.conv.bias"].astype(np.float32))
    before = arrays(model)
    assert {array.dtype for array in before} == {np.dtype(np.float32)}
    for array in state.values():
        array[...] = 7
    for old, new in zip(before, arrays(model), strict=True):
        np.testing.assert_array_equal(old, new)


def test_an_abstract_model_becomes_a_real_one() -> None:
    model = abstract("unet", 4, **UNET)
    load_reference_weights(model, random_state(model))
    assert model(jnp.ones((1, 4, 4, 3))).shape == (1, 4, 4, 4)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"fc.bias": None}, "1 missing: fc.bias$"),
        ({"fc2.bias": np.ones(3)}, "1 unexpected: fc2.bias$"),
        ({"fc.bias": np.ones(3)}, "1 of another shape: fc.bias 3, expected 4$"),
        (
            {"conv1.weight": np.ones((3, 3, 3, 16))},
            "conv1.weight 3x3x3x16, expected 16x3x3x3$",
        ),
        ({"fc.bias": np.asarray([1, 2, np.nan, 3])}, "1 not finite numbers: fc.bias$"),
        (
            {"fc.bias": np.asarray(["a"] * 4)},
            "1 of another dtype: fc.bias <U1, expected float32$",
        ),
        (
            {},
            "53 missing: conv1.weight, bn1.weight, bn1.bias, bn1.running_mean, bn1.running_var"
            " and 48 more$",
        ),
        (
            {
                "fc3.bias": np.ones(3),
                "fc.bias": np.ones(3),
                "conv9": np.ones(3),
                "conv1.weight": None,
            },
            "1 missing: conv1.weight; 2 unexpected: fc3.bias, conv9; 1 of another shape",
        ),
    ],
)
def test_what_does_not_fit_is_listed_and_changes_nothing(change: dict, message: str) -> None:
    model = create("pyramidnet", 4, depth=8, alpha=6)
    before, changed = arrays(model), random_state(model) | change if change else {}
    state = {name: array for name, array in changed.items() if array is not None}
    with pytest.raises(ConfigError, match=message) as error:
        load_reference_weights(model, state)
    assert "\n" not in str(error.value)
    jax.tree.map(np.testing.assert_array_equal, before, arrays(model))


@pytest.mark.parametrize(
    ("name", "kwargs"),
    [
        ("cnn", {}),
        ("unet", {"padding": "valid", **UNET}),
        ("unet", {"upsampling": "resize", **UNET}),
    ],
)
def test_models_without_a_table_say_which_have_one(name: str, kwargs: dict) -> None:
    with pytest.raises(
        ConfigError, match="known for: PyramidNet, ResNet, VGG, and UNet with batch norm"
    ):
        load_reference_weights(create(name, **kwargs), {})
