"""Finds weights by name: `timm:NAME`, `hf://ORGANIZATION/NAME[@REVISION]`, or a folder in the same
layout. It reads which model they are for, and how their images were prepared. The settings of a run
say the same.

A repository or folder holds `config.json` and `model.safetensors`. Nothing else is read or run.
"""

import dataclasses
import functools
import json
import math
import os
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from jaxdp.build import hub_files
from jaxdp.build.data import IMAGENET_MEAN, IMAGENET_STD
from jaxdp.build.saved_model import read_description, read_facts
from jaxdp.config import OBJECT, TrainConfig
from jaxdp.config.values import MOST_CLASSES
from jaxdp.data.dataset import Description
from jaxdp.errors import ConfigError, flag
from jaxdp.inference.hub_layout import CONFIG, LIBRARY, WEIGHTS
from jaxdp.rundir.layout import RunDirectory
from jaxdp.text.messages import brief, one_line, printable

# Arguments of timm's models: those that the dataset decides, and values that change nothing.
_OF_DATA = ("num_classes", "in_chans")
_USUAL = {"global_pool": (None, "avg", ""), "drop_rate": (0, 0.0)}
# What JSON of another form, or with other numbers, raises.
_BROKEN = (
    *(ValueError, TypeError, KeyError, AttributeError),
    *(ArithmeticError, RecursionError),
)
# The names of ImageNet's 1,000 classes, the first of WordNet's each, and the end of tags of weights
# that were last trained on them.
_IMAGENET, _OF_IMAGENET = pathlib.Path(__file__).with_name("imagenet.txt"), "in1k"
_LARGEST = 16384  # side of an image
_CLOSE = 1e-3  # relative difference of means and deviations that are written with four digits


class Architecture(NamedTuple):
    """A model of timm that a model here equals.

    Attributes:
        megabytes: size of its weights for 1,000 classes.
    """

    model: str
    model_kwargs: dict[str, Any]
    megabytes: int


ARCHITECTURES = {
    f"resnet{depth}": Architecture("resnet", {"depth": depth}, size)
    for depth, size in {18: 47, 34: 87, 50: 102, 101: 179, 152: 241}.items()
} | {
    f"vgg{depth}{'_bn' * normed}": Architecture(
        "vgg", {"depth": depth, "head": "imagenet", "batch_norm": normed}, size
    )
    for depth, size in {11: 531, 13: 532, 16: 553, 19: 575}.items()
    for normed in (False, True)
}


class Own(NamedTuple):
    """What `jaxdp.convert export --hub-layout` writes next to weights, or what a run has.

    Attributes:
        settings: of a run all, else those that prediction requires; others have their defaults.
        description: of the dataset.
        metrics: by split.
    """

    settings: TrainConfig
    description: Description
    metrics: Mapping[str, Mapping[str, float]]


@dataclasses.dataclass(frozen=True)
class Pretrained:
    """Weights by name, and what is known of them.

    Attributes:
        source: the name, with the revision that was read.
        weights: the file, or the folder of a run.
        model: the model here.
        model_kwargs: its keyword arguments.
        facts: how images were prepared, as timm writes it; empty if it is unknown.
        num_classes: number of logits; 0 if unknown.
        class_names: of the classes; empty if unknown.
        own: what jaxdp wrote with its own weights; None for other weights.
    """

    source: str
    weights: pathlib.Path
    model: str
    model_kwargs: Mapping[str, Any]
    facts: Mapping[str, Any]
    num_classes: int
    class_names: tuple[str, ...]
    own: Own | None = None

    @property
    def is_run(self) -> bool:
        """Whether the weights belong to a run."""
        return self.weights.is_dir()

    @property
    def normalize(self) -> str:
        """The value of `--normalize` that prepares images in the same way.

        Raises:
            ConfigError: if there is none.
        """
        if self.own is not None:
            return self.own.settings.normalize
        stated = [self.facts[name] for name in ("mean", "std")]
        for numbers, known in zip(stated, (IMAGENET_MEAN, IMAGENET_STD), strict=True):
            given = [255 * each for each in numbers]
            close = [math.isclose(a, b, rel_tol=_CLOSE) for a, b in zip(given, known, strict=False)]
            if len(given) != len(known) or not all(close):
                mean, std = stated
                remedy = (
                    f"its images were normalized by mean {mean} and deviation {std}, which are not"
                    " ImageNet's"
                )
                raise ConfigError("init_from", self.source, remedy)
        return "imagenet"

    @property
    def channels(self) -> int | None:
        """Number of channels to which images are converted; None if they stay as they are."""
        if self.own is None:
            return self.facts["input_size"][0]
        is_colour = self.own.description.image_shape[-1] == 3
        return self.own.settings.channels or (3 if is_colour else None)

    @property
    def image_size(self) -> str | None:
        """The value of `--image-size` that prepares images in the same way, as timm's
        `create_transform` does for evaluation. None if images had no other size.

        Raises:
            ConfigError: for images that are not square, or are prepared in a way that is unknown
                here.
        """
        if self.own is not None:
            return self.own.settings.image_size
        _, height, width = self.facts["input_size"]
        mode, interpolation = self.facts["crop_mode"], self.facts["interpolation"]
        if height != width or mode != "center" or interpolation not in ("bilinear", "bicubic"):
            remedy = (
                f"its images of {height}x{width} were prepared by {mode} and {interpolation}; give"
                f" {flag('image_size')}"
            )
            raise ConfigError("init_from", self.source, remedy)
        shorter = math.floor(height / self.facts["crop_pct"])
        return f"resize_crop:{height}/{shorter}" + ":bicubic" * (interpolation == "bicubic")


def find(path: str) -> Pretrained | None:
    """Returns the weights of a name or a folder; None for a run or a file, which are no names.

    Files are fetched if they are not in the cache of the hub. A process fetches a name once.

    Raises:
        ConfigError: if the weights cannot be fetched, or are for a model that jaxdp does not have.
    """
    if hub_files.is_name(path):
        return _of_hub(path)
    folder = pathlib.Path(path)
    is_run = os.path.exists(RunDirectory(folder).file("config.yaml"))
    if is_run or not os.path.isfile(folder / CONFIG):  # also False for a name that is too long
        return None
    if not os.path.isfile(folder / WEIGHTS):
        raise ConfigError("init_from", path, f"has {CONFIG}, but no {WEIGHTS}")
    return _described(path, path, folder / CONFIG, folder / WEIGHTS)


def of_run(path: str, plugins: Sequence[str]) -> Pretrained | None:
    """Returns what a run knows of its weights. None if it is no run, or has a model that settings
    cannot name.

    Args:
        plugins: that the command or the program names.

    Raises:
        ConfigError: if files of the run are damaged.
    """
    run = RunDirectory(pathlib.Path(path))
    if not os.path.isfile(run.file("config.yaml")):  # also False for a name that is too long
        return None
    try:
        settings, description = run.load_config(), read_description(run)
    except ConfigError as error:
        raise ConfigError("init_from", path, error.remedy) from error
    if settings.model == OBJECT or not {*settings.plugins} <= {*plugins}:
        return None
    classes, names = description.num_classes, description.names
    model, kwargs = settings.model, settings.model_kwargs
    own = Own(settings, description, {})
    return Pretrained(path, run.path, model, kwargs, {}, classes, names, own)


@functools.cache
def _of_hub(path: str) -> Pretrained:
    repository, revision = hub_files.parse(path)
    architecture = ARCHITECTURES.get(repository.partition("/")[2].partition(".")[0])
    size = f" ({architecture.megabytes} MB)" if architecture is not None else ""
    config, weights = hub_files.fetch(path, repository, revision, size)
    return _described(path, f"{path} (revision {config.parent.name[:12]})", config, weights)


def for_prediction(found: Pretrained) -> Own:
    """Returns what a model with these weights requires to predict their classes.

    Raises:
        ConfigError: if the weights do not say how images are prepared.
    """
    if found.own is not None:
        return found.own
    if not found.num_classes:
        raise ConfigError("init_from", found.source, f"its {CONFIG} does not say num_classes")
    settings = TrainConfig.of(
        model=found.model,
        model_kwargs=dict(found.model_kwargs),
        normalize=found.normalize,
        image_size=found.image_size,
        task="classification",
    )
    channels, height, width = found.facts["input_size"]
    description = Description(
        task="classification",
        num_classes=found.num_classes,
        image_shape=(height, width, channels),
        mean=IMAGENET_MEAN,
        std=IMAGENET_STD,
        class_names=found.class_names or tuple(map(str, range(found.num_classes))),
        examples={},
        named=bool(found.class_names),
    )
    return Own(settings, description, {})


def _described(path: str, source: str, config: pathlib.Path, weights: pathlib.Path) -> Pretrained:
    """Returns what `config.json` says."""
    try:
        return _read(path, source, json.loads(config.read_bytes()), weights)
    except ConfigError:
        raise
    except (OSError, *_BROKEN) as error:
        problem = f"its {CONFIG} cannot be read: {brief(one_line(error))}"
        raise ConfigError("init_from", path, problem) from error


def _read(path: str, source: str, content: Mapping[str, Any], weights: pathlib.Path) -> Pretrained:
    if content.get("library_name") == LIBRARY:
        settings = content["settings"]
        description, metrics = _checked(read_facts(content["description"]), content["metrics"])
        return Pretrained(
            source,
            weights,
            settings["model"],
            settings.get("model_kwargs", {}),
            {},
            description.num_classes,
            description.names,
            Own(TrainConfig.of(**settings), description, metrics),
        )
    name = content.get("architecture")
    known = ARCHITECTURES.get(str(name))
    if known is None:
        held = f"is for {name}, which jaxdp does not have" if name else "names no model of timm"
        remedy = f"its {CONFIG} {held}; known: {', '.join(ARCHITECTURES)}"
        raise ConfigError("init_from", path, remedy)
    facts = _facts(content.get("pretrained_cfg") or content)
    arguments = {**(content.get("model_args") or {}), "global_pool": content.get("global_pool")}
    unlike = {
        name: value
        for name, value in arguments.items()
        if value not in _USUAL.get(name, ()) and name not in _OF_DATA
    }
    if unlike:
        remedy = f"its model has arguments that jaxdp does not have: {unlike}"
        raise ConfigError("init_from", path, remedy)
    classes = int(content.get("num_classes") or 0)
    if not 0 <= classes <= MOST_CLASSES:
        raise ValueError(f"num_classes {classes}")
    descriptions = content.get("label_descriptions") or {}
    labels = content.get("label_names") or ()
    names = tuple(printable(str(descriptions.get(label, label))) for label in labels)
    tag = str((content.get("pretrained_cfg") or content).get("tag"))
    if not names and tag.endswith(_OF_IMAGENET):
        names = tuple(_IMAGENET.read_text().splitlines())
    return Pretrained(
        source,
        weights,
        known.model,
        known.model_kwargs,
        facts,
        classes,
        names if len(names) == classes == len(set(names)) else (),
    )


def _facts(content: Mapping[str, Any]) -> dict[str, Any]:
    """Returns how images were prepared, with numbers of the right types."""
    channels, height, width = map(int, content["input_size"])
    crop = float(content.get("crop_pct") or 1)
    if not crop <= 1 or not all(0 < side <= crop * _LARGEST for side in (height, width)):
        raise ValueError(f"input_size {content['input_size']} and crop_pct {crop}")
    return {
        "input_size": (channels, height, width),
        "mean": tuple(map(float, content.get("mean") or ())),
        "std": tuple(map(float, content.get("std") or ())),
        "crop_pct": crop,
        "crop_mode": content.get("crop_mode") or "center",
        "interpolation": content.get("interpolation") or "bicubic",
    }


def _checked(description: Description, metrics: Any) -> tuple[Description, dict[str, Any]]:
    """Returns what jaxdp's own layout says of a dataset and of its metrics.

    Raises:
        ValueError, TypeError, AttributeError: for content of another form.
    """
    sides = [int(side) for side in description.image_shape]
    moments = [float(each) for each in (*description.mean, *description.std)]
    if len(sides) != 3 or not all(0 < side <= _LARGEST for side in sides):
        raise ValueError(f"image_shape {description.image_shape}")
    if not all(map(math.isfinite, moments)) or not 0 < description.num_classes <= MOST_CLASSES:
        raise ValueError(f"num_classes {description.num_classes}, or mean and std")
    return description, {split: dict(values) for split, values in metrics.items()}
