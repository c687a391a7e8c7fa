"""Weights of a ResNet by name become the encoder of a U-Net."""

import pathlib
from typing import Any

import jax
import numpy as np
import pytest
import safetensors.numpy
import timm_layout
from example_files import noise
from flax import nnx

import jaxdp
from jaxdp.build import pretrained
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


@pytest.mark.parametrize("kwargs", [{"depth": 20}, {"depth": 18, "stem": "cifar"}])
def test_a_resnet_for_small_images_is_no_encoder(kwargs: dict[str, Any]) -> None:
    found = pretrained.Pretrained("hf://a/b", pathlib.Path("f"), "resnet", kwargs, {}, 5, ())
    with pytest.raises(ConfigError, match="is no encoder; known: resnet18"):
        pretrained._encoder(found)
