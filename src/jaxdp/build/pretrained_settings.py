"""Fills in settings that initial weights determine: the model, and the preparation of images."""

import os
import pathlib
from typing import Any

from jaxdp.build import hub_files
from jaxdp.build.pretrained import Pretrained, find, of_run
from jaxdp.config import TrainConfig
from jaxdp.data.augment.geometry import crop_sides
from jaxdp.data.sources import Dataset
from jaxdp.errors import ConfigError, flag
from jaxdp.inference.hub_layout import CONFIG
from jaxdp.models.unet import ENCODERS
from jaxdp.rundir.layout import RunDirectory
from jaxdp.text.console import say


def with_pretrained(config: TrainConfig, dataset: Dataset | None = None) -> TrainConfig:
    """Returns the settings with the model of weights by name or of a run, and the preparation of
    their images, where they are not given. Prints them.

    A run that continues keeps its own.

    Args:
        dataset: given as an object, with channels and perhaps an augmentation of its own.
    """
    if config.init_from is None:
        return config
    if saved := _saved(config):
        defaults = TrainConfig()
        names = ("model", "normalize", "image_size", "channels")
        kept: dict[str, Any] = {
            name: getattr(saved, name)
            for name in names
            if getattr(config, name) == getattr(defaults, name)
        }
        return config.replace(**kept, model_kwargs={**saved.model_kwargs, **config.model_kwargs})
    found = find(config.init_from) or of_run(config.init_from, config.plugins)
    if found is None:
        return config
    decided = _decided(config, found, dataset)
    if decided:
        flags = " ".join(flag(name, value) for name, value in decided.items())
        say(f"note: {found.source}: {flags}")
    size = decided.pop("image_size", None)
    config = config.replace(**decided)
    # A filled-in size leaves the augmentation of photos at its default.
    return config if size is None else config.fill(image_size=size)


def _decided(config: TrainConfig, found: Pretrained, dataset: Dataset | None) -> dict[str, Any]:
    """Returns the settings that weights decide, because they have their defaults."""
    default = TrainConfig().model
    as_encoder = config.model == "unet" and found.model == "resnet"
    if config.model not in (found.model, default) and not as_encoder:
        if found.is_run:  # what fits is loaded
            return {}
        held = f"{found.source} is for {found.model}"
        if config.model == "unet":
            held += ", and the encoder of a unet can be a resnet"
        raise ConfigError("model", config.model, held)
    decided: dict[str, Any] = {}
    if config.model != found.model and not as_encoder:
        decided["model"] = found.model
    theirs = _encoder(found) if as_encoder else found.model_kwargs
    kwargs = {**theirs, **config.model_kwargs}
    for name in ("depth", "encoder"):  # blocks that are not there would be left out in silence
        if kwargs.get(name) != theirs.get(name, kwargs.get(name)):
            given, held = {name: kwargs[name]}, f"{found.source} is for {name}={theirs[name]}"
            raise ConfigError("model_kwargs", given, held)
    if kwargs != config.model_kwargs:
        decided["model_kwargs"] = kwargs
    return decided | _of_images(config, found, as_encoder, dataset)


def _of_images(
    config: TrainConfig, found: Pretrained, as_encoder: bool, dataset: Dataset | None
) -> dict[str, Any]:
    """Returns the preparation of the images of weights, where settings have their defaults."""
    decided: dict[str, Any] = {}
    if config.normalize == TrainConfig().normalize != found.normalize:
        decided["normalize"] = found.normalize
    # A U-Net sees images as large as they are.
    if config.image_size is None and not as_encoder and found.image_size is not None:
        decided["image_size"] = found.image_size
    converts = (config.dataset or "").startswith(("folder:", "hf:")) and dataset is None
    if config.channels is None and converts and (channels := found.channels):
        decided["channels"] = channels
    # Keywords of a U-Net that are given leave large images whole.
    own = found.own.settings if found.own is not None else TrainConfig()
    given = config.augment or (dataset and (dataset.settings or dataset).augment)
    if not given and found.model == "unet" and crop_sides(own.augment):
        decided["augment"] = own.augment
    return decided


def _encoder(found: Pretrained) -> dict[str, Any]:
    """Returns the keyword of a U-Net whose encoder has the weights of a ResNet."""
    kwargs = found.model_kwargs
    name = f"resnet{kwargs.get('depth')}"
    usual = kwargs.get("stem") != "cifar" and kwargs.get("width") in (None, 64)
    if name not in ENCODERS or not usual:
        remedy = f"its ResNet of {dict(kwargs)} is no encoder; known: {', '.join(ENCODERS)}"
        raise ConfigError("init_from", found.source, remedy)
    return {"encoder": name}


def _saved(config: TrainConfig) -> TrainConfig | None:
    """Returns the settings of the run that continues from the same weights, if there is one."""
    if config.run_dir is None or config.resume == "never":
        return None
    run = RunDirectory(pathlib.Path(config.run_dir))
    if not run.file("config.yaml").is_file():
        return None
    saved, source = run.load_config(), config.init_from or ""
    # A file decides nothing, and a repository's folder that is still there says the same.
    files = (source, os.path.join(source, CONFIG))
    is_there = not hub_files.is_name(source) and any(map(os.path.isfile, files))
    return saved if saved.init_from == source and not is_there else None
