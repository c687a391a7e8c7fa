"""Provides the datasets by name, for `--dataset NAME` or `--dataset NAME:ARGUMENT`, e.g.
`folder:photos`.

Each file registers a function that accepts a `Request` and returns a `Dataset`. Facts that the
dataset does not declare are measured.
"""

import dataclasses
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from jaxdp.config import DataConfig, settings_with
from jaxdp.data.dataset import TARGET_FIELDS, Dataset, Description, kind_of
from jaxdp.data.opening import check_dataset, complete
from jaxdp.data.request import Request
from jaxdp.data.source import ArraySource, BadExample, Example
from jaxdp.data.split import Split
from jaxdp.errors import ConfigError
from jaxdp.plugins.registry import Registry
from jaxdp.text.messages import nearest, printable

_datasets: Registry[Callable[[Request], Dataset]] = Registry("dataset", "jaxdp.data.sources")
register = _datasets.register
names = _datasets.entries


def open_dataset(
    config: DataConfig | str,
    tasks: Sequence[str] = (),
    kind_of: Callable[[str], str] = kind_of,
    known: Description | None = None,
) -> Dataset:
    """Opens a dataset. Its splits are `Split`s.

    Args:
        config: settings, or a dataset's name alone.
        tasks: the tasks that would do, preferred first; none for any.
        kind_of: returns which of the three tasks here a task of your own is like.
        known: what a model that will be evaluated knows about its own dataset.

    Raises:
        ConfigError: for an unknown name, a task for which the dataset has no targets, or a split
            without examples.
    """
    config = DataConfig(dataset=config) if isinstance(config, str) else config
    name, _, argument = (config.dataset or "").partition(":")
    if os.path.isdir(name) and name not in names():
        raise ConfigError("dataset", name, f"is a folder; did you mean folder:{name}?")
    request = Request(config, argument, tuple(tasks), known=known)
    found = _datasets[name](request)
    # Names of classes come from folders and files, and go to terminals, figures and tables.
    dataset = dataclasses.replace(
        found,
        kind=kind_of(found.task),
        class_names=tuple(map(printable, found.class_names)),
        name=config.dataset or "",
        settings=config,
    )
    return complete(dataset, request)


def load(name: str, *, task: str | None = None, **settings: Any) -> Dataset:
    """Opens a dataset by its name on the command line, e.g. `cifar10`, `folder:photos`,
    `npz:file.npz`, `tfds:NAME` or `hf:NAME`.

    Args:
        task: which of its targets to read, if it has several, e.g. `segmentation` for
            `oxford_iiit_pet`.
        **settings: `data_dir`, `train_split`, `test_split`, `image_size`, `channels`, `tiff`,
            `columns`, `num_classes`, `mask_values`, `instances`, `class_names`, `augment` and
            `on_bad_example`, as the flags of these names.

    Raises:
        ConfigError: for an unknown name or setting, an invalid value, or data that cannot be read.
    """
    accepted = [each for each in settings_with(DataConfig, loads_data=True) if each != "dataset"]
    for setting in settings:
        if setting not in accepted:
            remedy = f"; {nearest(setting, [*accepted, 'task'])}"
            if setting in settings_with(DataConfig, loads_data=False):
                remedy = ": it is a setting of the training, not of the data"
            raise ConfigError("", setting, f"data.load() takes no {setting}{remedy}")
    config = read_settings({"dataset": name, **settings})
    return open_dataset(config, (task,) if task else ())


def from_folder(path: str | os.PathLike[str], **settings: Any) -> Dataset:
    """Opens a folder of images, with a folder for each class, or with `images` and `masks`. Folders
    `train` and `test` may be above these.

    Args:
        **settings: as for `load`.

    Raises:
        ConfigError: as `load` does.
    """
    return load(f"folder:{os.fspath(path)}", **settings)


def read_settings(settings: Mapping[str, Any]) -> DataConfig:
    """Returns settings that come from Python, after checking their types and values.

    Raises:
        ConfigError: for the first invalid setting.
    """
    plain = {
        name: value.item() if isinstance(value, np.generic) else value
        for name, value in settings.items()
    }
    return DataConfig.of(**plain)
