"""Arrays land where PyTorch's names say, or nothing changes and one line says why. Without PyTorch; with it: tests/reference."""

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


def arrays(model) -> list[np.ndarray]:
    return [np.asarray(array) for array in jax.tree.leaves(nnx.state(model, (nnx.Param, nnx.BatchStat)))]


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
    model = nnx.eval_shape(lambda: create("pyramidnet", depth=50, alpha=30, bottleneck=True, stem="imagenet"))
    units = {".".join(name.split(".")[:2]) for name in reference_names(model) if name.startswith("layer")}
    assert units == {
        f"layer{stage}.{index}" for stage, count in zip((1, 2, 3, 4), (3, 4, 6, 3), strict=True) for index in range(count)
    }
    assert {"layer4.2.conv3.weight", "layer4.2.bn4.running_var"} <= set(reference_names(model))


@pytest.mark.parametrize("upsampling", ["transposed", "bilinear"])
def test_the_names_of_unet(upsampling: str) -> None:
    blocks = ["inc", "down1.maxpool_conv.1", "down2.maxpool_conv.1", "up1.conv", "up2.conv"]
    expected = {"outc.conv.weight", "outc.conv.bias"}
    expected |= {f"{block}.double_conv.{part}.weight" for block in blocks for part in (0, 3)}
    expected |= {f"{block}.double_conv.{part}.{vector}" for block in blocks for part in (1, 4) for vector in VECTORS}
    if upsampling == "transposed":
        expected |= {f"up{index}.up.{vector}" for index in (1, 2) for vector in ("weight", "bias")}
    assert set(reference_names(create("unet", base_channels=2, levels=2, upsampling=upsampling))) == expected


@pytest.mark.parametrize("prefix", ["", "module."])
@pytest.mark.parametrize(("name", "kwargs"), MODELS)
def test_arrays_land_in_our_order_of_dims(name: str, kwargs: dict, prefix: str) -> None:
    model = create(name, **kwargs)
    state = random_state(model)
    counters = {"bn1.num_batches_tracked": np.asarray(3)}
    load_reference_weights(model, {prefix + key: array for key, array in (state | counters).items()})
    for key, (path, _) in reference_names(model).items():
        theirs, ours = state[key], np.asarray(leaf(model, path))
        if theirs.ndim > 1:
            theirs = np.einsum({4: "iohw->hwio" if ".up." in key else "oihw->hwio", 2: "oi->io"}[theirs.ndim], theirs)
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize("dtype", [np.float64, np.float16, np.int32])
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
        (lambda state: state.update({"fc.bias": np.ones(3)}), "1 of another shape: fc.bias 3, expected 4$"),
        (lambda state: state.update({"conv1.weight": np.ones((3, 3, 3, 16))}), "conv1.weight 3x3x3x16, expected 16x3x3x3$"),
        (lambda state: state.update({"fc.bias": np.asarray([1, 2, np.nan, 3])}), "1 not finite numbers: fc.bias$"),
        (lambda state: state.update({"fc.bias": np.asarray(["a"] * 4)}), "1 not finite numbers: fc.bias$"),
        (
            lambda state: state.clear(),
            r"53 missing: conv1.weight, bn1.weight, bn1.bias, bn1.running_mean, bn1.running_var and 48 more$",
        ),
        (
            lambda state: state.update({"fc3.bias": np.ones(3), "fc.bias": np.ones(3), "conv9": state.pop("conv1.weight")}),
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
        ("vgg", {"depth": 11, "width": 2}),
        ("resnet", {"depth": 8}),
        ("cnn", {}),
        ("unet", {"padding": "valid", "base_channels": 2}),
        ("unet", {"upsampling": "resize", "base_channels": 2}),
    ],
)
def test_models_without_a_table_say_which_have_one(name: str, kwargs: dict) -> None:
    with pytest.raises(ConfigError, match="known for: PyramidNet, and UNet with same padding"):
        load_reference_weights(create(name, **kwargs), {})
