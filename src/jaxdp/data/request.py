"""Defines the request for a dataset: the settings about data, and the accepted tasks."""

import dataclasses
from collections.abc import Mapping

from jaxdp.config import DataConfig
from jaxdp.data.dataset import Description
from jaxdp.data.source import Source
from jaxdp.errors import ConfigError, flag

SPLIT_FLAGS = {"train": "train_split", "validation": "validation", "test": "test_split"}
NOT_GIVEN = "(not given)"  # the value of a setting that an error requests


@dataclasses.dataclass(frozen=True)
class Request:
    """A request for a dataset.

    Attributes:
        config: every setting about data.
        argument: the text after the colon of the dataset's name.
        tasks: the accepted tasks, preferred first; empty for any task.
        flag: the setting that named the dataset; "" for a dataset that was made of arrays.
        known: what a trained model knows that is evaluated on the dataset. Its classes and mask
            values apply, and the dataset need not have training examples.
    """

    config: DataConfig
    argument: str = ""
    tasks: tuple[str, ...] = ()
    flag: str = "dataset"
    known: Description | None = None

    def error(self, remedy: str) -> ConfigError:
        """Returns an error about the dataset."""
        name = self.config.dataset
        return ConfigError(self.flag, name, remedy if self.flag else f"{name}: {remedy}")

    def check_not_empty(self, splits: Mapping[str, Source]) -> None:
        """Raises ConfigError for the first split without an example."""
        for split, source in splits.items():
            if len(source):
                continue
            remedy = f"{self.config.dataset} has no example there"
            if not self.flag:
                raise ConfigError(split, "", remedy)
            name = SPLIT_FLAGS[split]
            raise ConfigError(name, getattr(self.config, name) or split, remedy)

    @property
    def asks_for_numbers(self) -> bool:
        """Whether only the regression of numbers is accepted."""
        return self.tasks == ("scalar_regression",)

    @property
    def skip(self) -> bool:
        """Returns whether bad examples are left out."""
        return self.config.on_bad_example == "skip"

    @property
    def named_splits(self) -> dict[str, str | None]:
        """The names that the settings give to the splits, in `SPLIT_FLAGS`' order."""
        config, wanted = self.config, self.config.validation
        named = wanted not in (None, "none") and self.validation_share is None
        return {
            "train": config.train_split,
            "validation": wanted if named else None,
            "test": config.test_split,
        }

    @property
    def validation_share(self) -> float | None:
        """The share of the training set for validation, if `--validation` is a share.

        Raises:
            ConfigError: for a number that is not a share.
        """
        try:
            share = float(self.config.validation or "")
        except ValueError:
            return None
        if not 0 < share < 1:
            remedy = "must be a share between 0 and 1, a split, or none"
            raise ConfigError("validation", self.config.validation, remedy)
        return share

    def refuse(self, *settings: str) -> None:
        """Raises ConfigError if the user sets a setting that this dataset does not use."""
        for name in settings:
            if (value := getattr(self.config, name)) not in (None, False):
                raise ConfigError(name, value, f"{self.config.dataset} does not take it")

    def choose(self, *available: str) -> str:
        """Returns the first accepted task for which the dataset has targets.

        Raises:
            ConfigError: if there is no such task.
        """
        for task in self.tasks or available:
            if task in available:
                return task
        served, wanted = " or ".join(available), " or ".join(self.tasks)
        remedy = f"is for {served}, but {flag('model')} or {flag('task')} asks for {wanted}"
        raise ConfigError("dataset", self.config.dataset, remedy)
