"""The datasets that there are, by name: `--dataset NAME` or `--dataset NAME:ARGUMENT`, e.g.
`folder:pictures`.

One file per kind; it registers a function that takes a `Request` and returns a `Dataset`.
"""

import dataclasses
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from jaxdp.config import DataConfig, settings_with
from jaxdp.data import splits
from jaxdp.data.checking import CheckedSource as CheckedSource
from jaxdp.data.checking import check_dataset as check_dataset
from jaxdp.data.checking import of_other_tasks
from jaxdp.data.dataset import IGNORE_LABEL as IGNORE_LABEL
from jaxdp.data.dataset import TARGET_FIELDS as TARGET_FIELDS
from jaxdp.data.dataset import ArraySource as ArraySource
from jaxdp.data.dataset import BadExample as BadExample
from jaxdp.data.dataset import Dataset as Dataset
from jaxdp.data.dataset import Description as Description
from jaxdp.data.dataset import Example as Example
from jaxdp.data.dataset import Source as Source
from jaxdp.parsing import printable
from jaxdp.registry import ConfigError, Registry, nearest


@dataclasses.dataclass(frozen=True)
class Request:
    """What is asked of a dataset.

    Attributes:
        config: every setting about data.
        argument: what follows the colon of the dataset's name.
        tasks: the tasks that would do, preferred first; none for any.
        flag: the setting that named the dataset; "" for one that was made of arrays.
    """

    config: DataConfig
    argument: str
    tasks: tuple[str, ...]
    flag: str = "dataset"

    def error(self, remedy: str) -> ConfigError:
        """Returns the error that says what is wrong with the dataset."""
        name = self.config.dataset
        return ConfigError(self.flag, name, remedy if self.flag else f"{name}: {remedy}")

    @property
    def validation_split(self) -> str | None:
        """The name of the split to validate on, if `--validation` names one."""
        wanted = self.config.validation
        return wanted if wanted not in (None, "none") and self.validation_share is None else None

    @property
    def validation_share(self) -> float | None:
        """The share of the training set to validate on, if `--validation` is one.

        Raises:
            ConfigError: for a number that is no share.
        """
        try:
            share = float(self.config.validation or "")
        except ValueError:
            return None
        if not 0 < share < 1:
            raise ConfigError(
                "validation",
                self.config.validation,
                "must be a share between 0 and 1, a split, or none",
            )
        return share

    def refuse(self, *settings: str) -> None:
        """Raises ConfigError if the user sets what this dataset has no use for."""
        for name in settings:
            if getattr(self.config, name) not in (None, False):
                raise ConfigError(
                    name, getattr(self.config, name), f"{self.config.dataset} does not take it"
                )

    def choose(self, *available: str) -> str:
        """Returns the first wanted task among those that the dataset has targets for.

        Raises:
            ConfigError: if there is none.
        """
        for task in self.tasks or available:
            if task in available:
                return task
        raise of_other_tasks(self.config.dataset or "", available, self.tasks)


_datasets: Registry[Callable[[Request], Dataset]] = Registry("dataset", "jaxdp.data.sources")
register = _datasets.register
names = _datasets.entries


def open_dataset(
    config: DataConfig | str,
    tasks: Sequence[str] = (),
    kind_of: Callable[[str], str] = lambda task: task,
) -> Dataset:
    """Opens a dataset whose splits are `CheckedSource`s.

    Args:
        config: settings, or a dataset's name alone.
        tasks: the tasks that would do, preferred first; none for any.
        kind_of: tells which of the three tasks here a task of your own is like.

    Raises:
        ConfigError: for an unknown name, a task that it has no targets for, or a split without
            examples.
    """
    config = DataConfig(dataset=config) if isinstance(config, str) else config
    return check_dataset(_opened(config, tasks), config, kind_of, tasks)


def _opened(config: DataConfig, tasks: Sequence[str]) -> Dataset:
    name, _, argument = (config.dataset or "").partition(":")
    request = Request(config, argument, tuple(tasks))
    opened = _datasets[name](request)
    if config.instances and not opened.instances:
        of = f"masks of object numbers; {config.dataset} is for {opened.task} and has none"
        raise ConfigError(
            "instances", "", f"takes {of}; choose another --dataset or --model, or leave it out"
        )
    dataset = _named_classes(_with_validation(opened, request), request)
    # Of folders and files: they go to terminals, figures and tables.
    names = tuple(map(printable, dataset.class_names))
    return dataclasses.replace(
        dataset, class_names=names, name=config.dataset or "", settings=config
    )


def _named_classes(dataset: Dataset, request: Request) -> Dataset:
    """Returns the dataset with the names of `--class-names`.

    Raises:
        ConfigError: for names that are too many, too few or not of their own, and where the classes
            have other names already.
    """
    names, name = request.config.class_names, request.config.dataset
    if names is None or names == dataset.class_names:
        return dataset
    given = ",".join(names)
    if dataset.class_names:
        known = ", ".join(dataset.class_names[:6]) + ", ..." * (len(dataset.class_names) > 6)
        raise ConfigError(
            "class_names",
            given,
            f"the classes of {name} have names already ({known}); leave it out",
        )
    if dataset.task not in ("classification", "segmentation"):
        raise ConfigError(
            "class_names",
            given,
            f"{name} has no classes, but targets for {dataset.task}; leave it out",
        )
    if len(names) != dataset.num_classes:
        remedy = (
            f"has {len(names)} names for the {dataset.num_classes} classes of {name}; give one for"
            " each, in their order"
        )
        raise ConfigError("class_names", given, remedy)
    if len(set(names)) < len(names) or not all(names):
        raise ConfigError("class_names", given, "must be names that differ and are not empty")
    return dataclasses.replace(dataset, class_names=names)


def _with_validation(dataset: Dataset, request: Request) -> Dataset:
    """Returns the dataset with the validation data that the settings ask for.

    Most sources have seen to it themselves.

    Raises:
        ConfigError: for a split that there is not, or where nothing is left to evaluate on.
    """
    wanted, share = request.config.validation, request.validation_share
    if wanted == "none":
        dataset = dataclasses.replace(dataset, validation=None)
        if dataset.test is None:
            raise ConfigError(
                "validation",
                wanted,
                f"{request.config.dataset} has no test data, so that nothing is left to evaluate",
            )
    if request.validation_split is not None and dataset.validation is None:
        raise ConfigError(
            "validation",
            wanted,
            f"{request.config.dataset} has no such split; give a share, e.g. 0.1, or none",
        )
    if share is not None and dataset.validation is None:
        train, drawn = splits.draw_validation(
            dataset.train, dataset.task, share, request.config.seed
        )
        dataset = dataclasses.replace(dataset, train=train, validation=drawn)
    return dataset


def load(name: str, *, task: str | None = None, **settings: Any) -> Dataset:
    """Opens a dataset by its name on the command line, e.g. `cifar10`, `folder:photos`,
    `npz:file.npz` or `tfds:NAME`.

    Args:
        task: which of its targets to read, where it has several, e.g. `segmentation` for
            `oxford_iiit_pet`.
        **settings: `data_dir`, `train_split`, `test_split`, `image_size`, `channels`, `tiff`,
            `num_classes`, `mask_values`, `instances`, `class_names`, `augment` and
            `on_bad_example`, as the flags of these names.

    Raises:
        ConfigError: for an unknown name or setting, a value that it cannot have, or data that
            cannot be read.
    """
    accepted = [name for name in settings_with(DataConfig, loads_data=True) if name != "dataset"]
    for setting in settings:
        if setting in settings_with(DataConfig, loads_data=False):
            raise ConfigError(
                "",
                setting,
                f"data.load() takes no {setting}: it is a setting of the training, not of the data",
            )
        if setting not in accepted:
            raise ConfigError(
                "",
                setting,
                f"data.load() takes no {setting}; {nearest(setting, [*accepted, 'task'])}",
            )
    config = read_settings({"dataset": name, **settings})
    dataset = _opened(config, (task,) if task else ())
    if config.augment is not None:
        dataset = dataclasses.replace(dataset, augment=config.augment)
    # What an example of a plugin's task holds may be known to the task alone: then whoever trains
    # on the dataset checks it.
    return (
        check_dataset(dataset, config)
        if dataset.targets or dataset.task in TARGET_FIELDS
        else dataset
    )


def from_folder(path: str | os.PathLike[str], **settings: Any) -> Dataset:
    """Opens a folder of pictures: a folder for each class, or `images` beside `masks`.

    With or without `train` and `test` above.

    Args:
        **settings: those of `load`.

    Raises:
        ConfigError: as `load` does.
    """
    return load(f"folder:{os.fspath(path)}", **settings)


def read_settings(settings: Mapping[str, Any]) -> DataConfig:
    """Returns settings that come from Python, after checking their types and values.

    Raises:
        ConfigError: for the first that does not fit.
    """
    plain = {
        name: (
            value.item()
            if isinstance(value, np.generic)
            else os.fspath(value)
            if isinstance(value, os.PathLike)
            else value
        )
        for name, value in settings.items()
    }
    return DataConfig.of(**plain)
