"""Weights of a ResNet by name become the encoder of a U-Net."""

import json
import pathlib
import shutil
from typing import Any

import jax
import numpy as np
import pytest
import safetensors.numpy
import timm_layout
from example_files import noise
from example_files import write as write_images
from flax import nnx

import jaxdp
from jaxdp import models, plan
from jaxdp.build import pretrained, pretrained_settings
from jaxdp.errors import ConfigError
from jaxdp.step.state import array_name

pytestmark = pytest.mark.usefixtures("no_pictures")
SMALL: dict[str, Any] = {"devices": 1, "global_batch_size": 2, "progress": False}


@pytest.fixture(scope="module")
def resnet() -> dict[str, np.ndarray]:
    """Random arrays of a ResNet 18 by our names."""
    return timm_layout.random_arrays()


def write(arrays: dict[str, np.ndarray]) -> str:
    """Writes the arrays as timm writes those of its resnet18, and returns the folder."""
    pathlib.Path("weights").mkdir()
    for name, content in timm_layout.files(arrays).items():
        pathlib.Path("weights", name).write_bytes(content)
    return "weights"


def dense_images(side: int = 40) -> Any:
    """Six images whose classes per pixel are those of their brightness, and two for testing."""
    images = noise(1, 8, side, side, 3)
    masks = (images.mean(-1) > 127).astype(np.int32)
    return jaxdp.data.from_arrays(images[:6], masks[:6], test=(images[6:], masks[6:]))


def unet(data: Any, **settings: Any) -> jaxdp.Trainer:
    return jaxdp.Trainer("unet", data, **SMALL | settings)


def test_a_name_decides_the_encoder(
    resnet: dict[str, np.ndarray], capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write(resnet)
    settings: dict[str, Any] = {"model_kwargs": {"base_channels": 4}, "freeze": "encoder"}
    trainer = unet(dense_images(), init_from=folder, run_dir="run", steps=2, **settings)
    config = trainer.config
    assert config.model_kwargs == {"encoder": "resnet18", "base_channels": 4}
    assert (config.normalize, config.image_size) == ("imagenet", None)  # masks keep their pixels
    assert "encoder" in capsys.readouterr().err
    weights = trainer.setup.initial.weights
    assert weights is not None
    assert sorted(weights.skipped) == ["fc.bias", "fc.weight"]
    expected = {f"encoder/{name}": each for name, each in resnet.items() if name[:4] != "head"}
    assert weights.arrays.keys() == expected.keys()
    assert not [name for name in weights.fresh if name.startswith("encoder")]

    result = trainer.fit()
    for path, leaf in jax.tree_util.tree_leaves_with_path(
        nnx.to_pure_dict(nnx.state(result.model, nnx.Param))
    ):
        if (name := array_name(path)) in expected:
            np.testing.assert_array_equal(leaf, expected[name])
    assert result.predict(noise(3, 1, 40, 40, 3)).shape == (1, 40, 40)
    # A whole U-Net starts from another one, not from its encoder alone.
    again = unet(dense_images(), init_from="run", model_kwargs=config.model_kwargs)
    assert again.setup.initial.weights is not None
    assert not again.setup.initial.weights.fresh


def test_a_file_of_our_own_names(resnet: dict[str, np.ndarray]) -> None:
    safetensors.numpy.save_file(
        {name.replace("/", "."): array for name, array in resnet.items()}, "resnet.safetensors"
    )
    kwargs = {"encoder": "resnet18", "base_channels": 4, "levels": 3}
    trainer = unet(dense_images(), init_from="resnet.safetensors", model_kwargs=kwargs)
    weights = trainer.setup.initial.weights
    assert weights is not None
    (kernel,) = (each for name, each in weights.arrays.items() if name.endswith("stem_conv/kernel"))
    np.testing.assert_array_equal(kernel, resnet["stem_conv/kernel"])
    assert all(name.startswith("encoder/") for name in weights.arrays)
    assert "encoder/head/kernel" in weights.skipped
    assert any(name.startswith("encoder/units/4") for name in weights.skipped)  # the third stage


def test_large_images_are_cropped_as_without_weights(resnet: dict[str, np.ndarray]) -> None:
    folder = write(resnet)
    images = noise(1, 4, 600, 600, 3)
    masks = np.zeros(images.shape[:3], np.int32)
    masks[:, 300:] = 1
    data = jaxdp.data.from_arrays(images[:3], masks[:3], test=(images[3:], masks[3:]))
    with_weights = unet(data, init_from=folder).setup.config
    without = unet(data).setup.config
    assert with_weights.augment == without.augment
    assert with_weights.model_kwargs == {**without.model_kwargs, "encoder": "resnet18"}


def folder_of_images(side: int) -> str:
    """Writes grey images with masks, and returns the name of the dataset."""
    files = {}
    for number in range(4):
        files[f"set/images/{number}.png"] = noise(number, side, side + 10)
        files[f"set/masks/{number}.png"] = noise(number, side, side + 10) // 128
    return f"folder:{write_images(files) / 'set'}"


@pytest.mark.parametrize(
    ("side", "kwargs", "gone"),
    [(150, {}, False), (30, {"base_channels": 4, "levels": 2}, True)],
    ids=["crops", "own keywords, and the weights are gone"],
)
def test_the_same_settings_continue_a_run(
    resnet: dict[str, np.ndarray], side: int, kwargs: dict[str, Any], gone: bool
) -> None:
    folder, data = write(resnet), folder_of_images(side)
    settings: dict[str, Any] = {"data": data, "init_from": folder, "model_kwargs": kwargs}
    before = jaxdp.Trainer("unet", run_dir="run", **settings, **SMALL).fit(steps=1)
    assert before.config.channels == 3
    if gone:
        shutil.rmtree(folder)
    config = jaxdp.Trainer("unet", run_dir="run", **settings, **SMALL).setup.config
    for name in ("model_kwargs", "augment", "normalize", "channels"):
        assert getattr(config, name) == getattr(before.config, name), name


def test_a_plan_is_of_the_model_that_trains(
    resnet: dict[str, np.ndarray], capsys: pytest.CaptureFixture[str]
) -> None:
    flags = f"--model unet --init-from {write(resnet)} --dataset {folder_of_images(30)} --json"
    assert plan.main([*flags.split(), "--model-kwargs", "base_channels=4"]) == 0
    planned = json.loads(capsys.readouterr().out)
    kwargs = {"encoder": "resnet18", "base_channels": 4}
    made = nnx.eval_shape(
        lambda: models.create("unet", num_classes=2, in_channels=3, rngs=nnx.Rngs(0), **kwargs)
    )
    assert planned["parameters"] == models.parameter_count(made)


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"model_kwargs": {"encoder": "resnet34"}}, "weights is for encoder=resnet18"),
        ({"model": "resnet", "model_kwargs": {"depth": 34}}, "weights is for depth=18"),
        (
            {"init_from": "weights/model.safetensors"},
            "has weights of a ResNet; give model_kwargs=encoder=resnet18",
        ),
    ],
)
def test_what_contradicts_the_weights_is_one_line(
    resnet: dict[str, np.ndarray], settings: dict[str, Any], problem: str
) -> None:
    given = {"model": "unet", "data": dense_images(), "init_from": write(resnet)} | settings
    if given["model"] == "resnet":
        given["data"] = jaxdp.data.from_arrays(noise(1, 8, 8, 8, 3), np.arange(8) % 2)
    with pytest.raises(ConfigError, match=problem):
        _ = jaxdp.Trainer(**given, **SMALL).setup.initial.weights


def test_a_deeper_network_is_not_cut_short(resnet: dict[str, np.ndarray]) -> None:
    """By PyTorch's names, all arrays of the shallower one would be found in it."""
    folder = pathlib.Path(write(resnet))
    state = safetensors.numpy.load_file(folder / "model.safetensors")
    more = {name.replace("layer1.1", "layer1.2"): each for name, each in state.items()}
    safetensors.numpy.save_file(state | more, "deeper.safetensors")
    kwargs = {"encoder": "resnet18", "base_channels": 4, "levels": 3}
    with pytest.raises(ConfigError, match="layer1 has more blocks in it than in the model"):
        _ = unet(dense_images(), init_from="deeper.safetensors", model_kwargs=kwargs).setup
    # Whole stages may be left out.
    known = unet(dense_images(), init_from=str(folder), model_kwargs=kwargs).setup.initial.weights
    assert known is not None
    assert any(name.startswith("layer3") for name in known.skipped)


def test_a_dataset_object_keeps_its_channels(
    resnet: dict[str, np.ndarray], capsys: pytest.CaptureFixture[str]
) -> None:
    data = jaxdp.data.load(folder_of_images(30))
    with pytest.raises(ConfigError, match="have 1 channels; open a folder with channels=3"):
        _ = unet(data, init_from=write(resnet)).setup
    assert "channels=3" not in capsys.readouterr().err


def test_datasets_of_small_images_do_not_cut_an_encoder_short() -> None:
    config = unet("digits-denoise", model_kwargs={"encoder": "resnet18"}).setup.config
    assert config.model_kwargs == {"encoder": "resnet18", "base_channels": 16}


@pytest.mark.parametrize(
    "kwargs", [{"depth": 18, "dropout": 0.1}, {"depth": 18, "stem": "imagenet", "width": 64}]
)
def test_what_is_no_part_of_an_encoder_does_not_matter(kwargs: dict[str, Any]) -> None:
    found = pretrained.Pretrained("hf://a/b", pathlib.Path("f"), "resnet", kwargs, {}, 5, ())
    assert pretrained_settings._encoder(found) == {"encoder": "resnet18"}


@pytest.mark.parametrize("kwargs", [{"depth": 20}, {"depth": 18, "stem": "cifar"}])
def test_a_resnet_for_small_images_is_no_encoder(kwargs: dict[str, Any]) -> None:
    found = pretrained.Pretrained("hf://a/b", pathlib.Path("f"), "resnet", kwargs, {}, 5, ())
    with pytest.raises(ConfigError, match="is no encoder; known: resnet18"):
        pretrained_settings._encoder(found)
