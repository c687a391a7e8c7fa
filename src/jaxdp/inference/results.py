"""Writes what a model says about the images that the command names, and collects it for tables."""

import functools
import pathlib
from collections.abc import Iterator

import numpy as np

from jaxdp.config.values import MaskValues
from jaxdp.data.sources import Description
from jaxdp.inference import instances
from jaxdp.inference.files import ImageFile
from jaxdp.inference.settings import ResultsConfig
from jaxdp.registry import ConfigError
from jaxdp.reporting import pictures, predictions
from jaxdp.rundir.read import Row
from jaxdp.rundir.write import check_file, check_folder

_NOT_GIVEN = "(not given)"


def check(results: ResultsConfig, task: str) -> None:
    """Raises ConfigError if what a task gives has no place, or what was asked for is not what it
    gives.

    Args:
        task: classification, segmentation or regression.
    """
    if task == "classification" and results.output_dir is not None:
        raise ConfigError(
            "output_dir",
            results.output_dir,
            "is for images; the run is one of classification: use --csv FILE.csv",
        )
    if task == "regression" and results.csv is not None:
        raise ConfigError(
            "csv",
            results.csv,
            "is for classes; the run is one of regression: use --output-dir FOLDER",
        )
    if results.csv is not None:
        check_file("csv", pathlib.Path(results.csv), "predictions.csv")
    if task != "classification" and results.output_dir is None and results.csv is None:
        what = "masks" if task == "segmentation" else "images"
        raise ConfigError(
            "output_dir",
            _NOT_GIVEN,
            f"the run is one of {task}, whose results are {what}; give a folder for them",
        )


def check_writable(results: ResultsConfig) -> None:
    """Makes sure that there are folders for the results, and that files can be written there.

    Raises:
        ConfigError: if not.
    """
    if results.output_dir:
        check_folder("output_dir", pathlib.Path(results.output_dir))
    if results.csv:
        check_folder("csv", pathlib.Path(results.csv).parent)


class Results:
    """The results of all images; masks and images are written as they come, tables at the end.

    Args:
        mask_values: of the run, which predicted masks have as well.
    """

    def __init__(
        self, config: ResultsConfig, description: Description, mask_values: MaskValues | None = None
    ) -> None:
        self._config = config
        self._description = description
        self._mask_values = mask_values
        self._folder = pathlib.Path(config.output_dir) if config.output_dir else None
        self._rows: list[Row] = []
        self._shares: list[list[float]] = []

    def add_classes(self, file: ImageFile, probabilities: np.ndarray) -> Row:
        """Takes the probabilities of an image's classes, and returns what there is to say of the
        image.
        """
        self._shares.append([float(value) for value in probabilities])
        return self._add(
            file,
            predictions.top_k(probabilities, self._description.class_names, self._config.top_k),
        )

    def add_pixels(self, file: ImageFile, image: np.ndarray, strips: Iterator[np.ndarray]) -> Row:
        """Takes what the model says of each pixel of an image, from top to bottom, and returns what
        there is to say.
        """
        if self._description.answer == "segmentation":
            return self._add(file, self._segment(file, image, strips))
        assert self._folder is not None
        pixels = np.concatenate(
            [(strip.clip(0, 1) * 255).round().astype("uint8") for strip in strips]
        )
        return self._add(
            file,
            predictions.brightness(pixels)
            | predictions.write_prediction(self._folder, file.name, pixels),
        )

    def _segment(self, file: ImageFile, image: np.ndarray, strips: Iterator[np.ndarray]) -> Row:
        names = self._description.class_names
        picture_of = functools.partial(
            pictures.as_picture, pixel_range=self._description.pixel_range
        )
        if self._description.instances:  # a watershed needs the probabilities of the whole image
            parts = [strip.copy() for strip in strips]
        else:
            parts = [strip.argmax(-1).astype("uint8") for strip in strips]
        whole = np.concatenate(parts)
        if self._description.instances:
            objects = instances.separate(whole)
            row = predictions.count_objects(objects)
            write = functools.partial(predictions.write_objects, objects=objects)
        else:
            row = predictions.shares(whole, names)
            self._shares.append(list(row["shares"].values()))
            write = functools.partial(
                predictions.write_mask, mask=whole, names=names, values=self._mask_values
            )
        if self._folder is not None:
            row |= write(self._folder, file.name, pictures.by_rows(picture_of, image))
        return row

    def _add(self, file: ImageFile, row: Row) -> Row:
        self._rows.append({"file": str(file)} | row)
        return self._rows[-1]

    def finish(self) -> None:
        """Writes and prints the tables."""
        if self._config.csv and self._description.instances:
            predictions.write_object_csv(pathlib.Path(self._config.csv), self._rows)
        elif self._config.csv:
            files = [row["file"] for row in self._rows]
            predictions.write_csv(
                pathlib.Path(self._config.csv), self._description.class_names, files, self._shares
            )
        if not self._config.json:
            predictions.print_table(self._rows)
