"""Weights by name give timm's logits, and images are prepared as timm prepares them."""

import json
import pathlib
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from example_files import noise
from flax import nnx
from PIL import Image

import jaxdp
from jaxdp import models

torch: Any = pytest.importorskip("torch", reason="PyTorch is not installed; `nox -s reference`")
timm: Any = pytest.importorskip("timm", reason="timm is not installed; `nox -s reference` has it")
ARCHITECTURES = ("resnet18", "resnet34", "resnet50", "resnet101", "resnet152", "vgg11", "vgg13_bn")


def write(model: Any, folder: str) -> dict[str, Any]:
    """Writes a model as timm does for the hub, and returns its `pretrained_cfg`."""
    path = pathlib.Path(folder)
    timm.models.save_for_hf(model, path, safe_serialization=True)
    return json.loads((path / "config.json").read_text())["pretrained_cfg"]


def created(name: str) -> Any:
    torch.manual_seed(0)
    model = timm.create_model(name, pretrained=False, num_classes=10).eval()
    for module in model.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            torch.nn.init.normal_(module.running_mean, std=0.1)
            torch.nn.init.uniform_(module.running_var, 0.5, 1.5)
            torch.nn.init.uniform_(module.weight, 0.5, 1.0)
    return model


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_logits_equal_timms(name: str) -> None:
    model = created(name)
    write(model, "weights")
    result = jaxdp.load("weights")
    images = np.random.default_rng(0).normal(size=(1, 224, 224, 3)).astype(np.float32)
    with torch.no_grad():
        expected = model(torch.from_numpy(images).permute(0, 3, 1, 2)).numpy()
    found = np.asarray(result.model(jnp.asarray(images)))
    np.testing.assert_allclose(found, expected, atol=1e-5 * max(1, np.abs(expected).max()))


@pytest.mark.parametrize("name", [name for name in ARCHITECTURES if "resnet" in name])
def test_the_encoder_of_a_unet_has_timms_features(name: str) -> None:
    """At each resolution, of images whose sides are odd at some of them."""
    model = created(name)
    write(model, "weights")
    features = timm.create_model(name, pretrained=False, features_only=True).eval()
    features.load_state_dict(model.state_dict(), strict=False)
    images = noise(0, 3, 75, 90, 3)
    masks = images[..., 0] // 128
    data = jaxdp.data.from_arrays(images, masks, test=(images, masks))
    kwargs = {"encoder": name, "base_channels": 4}
    trainer = jaxdp.Trainer("unet", data, init_from="weights", model_kwargs=kwargs, devices=1)
    weights = trainer.setup.initial.weights
    unet = models.create("unet", num_classes=2, in_channels=3, rngs=nnx.Rngs(0), **kwargs)
    weights.load_into(unet)
    unet.eval()
    inputs = np.random.default_rng(0).normal(size=(2, 75, 90, 3)).astype(np.float32)
    with torch.no_grad():
        expected = features(torch.from_numpy(inputs).permute(0, 3, 1, 2))
    x = jnp.asarray(inputs)
    for (before, units), theirs in zip(unet.encoder.parts(), expected, strict=True):
        x = before(x)
        for unit in units:
            x = unit(x)
        wanted = theirs.permute(0, 2, 3, 1).numpy()
        np.testing.assert_allclose(x, wanted, atol=1e-5 * max(1, np.abs(wanted).max()))


def test_classes_of_imagenet_have_timms_names() -> None:
    """The first of each class, and another one where two classes have the same."""
    model = timm.create_model("resnet18.a1_in1k", pretrained=False)
    write(model, "weights")
    names = jaxdp.load("weights").description.class_names
    info = timm.data.ImageNetInfo()
    firsts = [info.index_to_description(number).split(", ")[0] for number in range(1000)]
    others = {ours for ours, first in zip(names, firsts, strict=True) if ours != first}
    assert others == {"crane bird", "maillot tank suit"}
    assert all(firsts.count(first) == 1 for first in firsts if first not in ("crane", "maillot"))


@pytest.mark.parametrize("size", [(300, 400), (500, 333), (224, 224), (90, 120)])
@pytest.mark.parametrize("tag", ["resnet18.a1_in1k", "resnet18.tv_in1k", "resnet50.ram_in1k"])
def test_images_are_prepared_as_timm_prepares_them(tag: str, size: tuple[int, int]) -> None:
    known = timm.get_pretrained_cfg(tag)
    model = timm.create_model(tag.partition(".")[0], pretrained=False, num_classes=10)
    model.pretrained_cfg = known.to_dict()
    write(model, "weights")
    pixels = noise(0, *size, 3)
    Image.fromarray(pixels).save("photo.png")
    predictor = jaxdp.load("weights").predictor(devices=1)
    image, _ = predictor.read(pathlib.Path("photo.png"))
    prepared = predictor._fit.apply(image)
    mean, std = predictor.description.stored_moments()
    ours = (prepared - mean) / std
    config = timm.data.resolve_data_config(pretrained_cfg=known.to_dict())
    transform = timm.data.create_transform(**config)
    theirs = transform(Image.open("photo.png")).permute(1, 2, 0).numpy()
    assert ours.shape == theirs.shape
    assert np.abs((ours - theirs) * std).max() <= 1  # of 255
