"""Writes the predictions for the images that the command names, and collects them for tables."""

import pathlib
import re
from typing import Any

import numpy as np

from jaxdp.config.values import MaskValues
from jaxdp.data.image_file import planes_of
from jaxdp.data.sources import Description
from jaxdp.errors import ConfigError, flag
from jaxdp.inference import instances, measurements
from jaxdp.inference.files import ImageFile
from jaxdp.reporting import pictures, predictions
from jaxdp.rundir.read import Row
from jaxdp.rundir.write import check_file, check_folder, replace_file
from jaxdp.tasks import Task
from jaxdp.text import csv_text
from jaxdp.text.messages import valid_text
from jaxdp.text.parsing import resolved

_NOT_GIVEN = "(not given)"


class Results:
    """The results of all images. Masks and images are written at once, and tables at the end.

    Args:
        task: which states the predictions of a classifier.
        csv: file for a line for each image or object.
        output_dir: folder for masks and images.
        top_k: how many classes to name for each image.
        mask_values: value of the run, which also applies to predicted masks.

    Raises:
        ConfigError: if the predictions have no destination, or if the model does not give the
            requested results.
    """

    def __init__(
        self,
        description: Description,
        task: Task,
        *,
        csv: str | None,
        output_dir: str | None,
        top_k: int,
        mask_values: MaskValues | None = None,
    ) -> None:
        kind = description.answer
        if kind == "classification" and output_dir is not None:
            remedy = (
                f"is for images; the run is one of classification: use {flag('csv', 'FILE.csv')}"
            )
            raise ConfigError("output_dir", output_dir, remedy)
        if kind == "regression" and description.num_classes not in (1, 3):
            remedy = (
                f"its targets have {description.num_classes} channels, files 1 or 3; use predict()"
                " from Python"
            )
            raise ConfigError("run_dir", "", remedy)
        if kind == "regression" and csv is not None:
            remedy = (
                f"is for classes; the run is one of regression: use {flag('output_dir', 'FOLDER')}"
            )
            raise ConfigError("csv", csv, remedy)
        if kind != "classification" and output_dir is None and csv is None:
            what = "masks" if kind == "segmentation" else "images"
            remedy = f"results of {kind} are {what}; give a folder for them"
            raise ConfigError("output_dir", _NOT_GIVEN, remedy)
        self._description = description
        self._task = task
        self._folder = pathlib.Path(output_dir) if output_dir else None
        self._top_k = top_k
        self._mask_values = mask_values
        self._rows: list[Row] = []
        columns = [*description.class_names]
        if kind == "classification":
            columns = task.columns()
        elif task.finds_instances:
            instances.require()
            columns = measurements.columns(description.image_shape[-1])
        self._cells: list[Any] = [["file", *columns]]
        self._image_cells: list[Any] = [["file", *measurements.IMAGE_COLUMNS]]
        self._tables: dict[pathlib.Path, list[Any]] = {}  # cells of each CSV file
        if csv is not None:
            path = pathlib.Path(csv)
            check_file("csv", path, "predictions.csv")
            self._tables[path] = self._cells
            if task.finds_instances:
                path = path.with_stem(f"{path.stem}-images")
                check_file("csv", path, "predictions.csv")
                self._tables[path] = self._image_cells
        # Labels of one file, and facts of its images.
        self._stack: dict[pathlib.Path, tuple[list[np.ndarray], Any]] = {}

    def create_folders(self) -> None:
        """Makes sure that the folders for the results exist and can be written.

        Raises:
            ConfigError: if they cannot be written.
        """
        if self._folder:
            check_folder("output_dir", self._folder)
        for path in self._tables:
            check_folder("csv", path.parent)

    def add(self, file: ImageFile, image: np.ndarray, answer: np.ndarray, warning: str = "") -> Row:
        """Writes the prediction for an image, and returns facts about the image.

        Args:
            image: as stored (H, W, C).
            answer: probabilities of the classes, or a prediction for each pixel.
            warning: text for the table of images.
        """
        if self._description.answer == "classification":
            row = self._task.row(answer, self._top_k)
            self._cells.append([str(file), *self._task.cells(answer)])
        elif self._description.answer == "regression":
            row = self._pixels(file, answer)
        elif self._task.finds_instances:
            row = self._objects(file, image, answer)
            self._image_cells[-1].append(warning)
        else:
            row = self._labels(file, image, answer)
        self._rows.append({"file": str(file)} | row)
        return self._rows[-1]

    def leave_out(self, where: str) -> None:
        """Adds a line to the CSV file for an image that could not be read, or to the one of images.

        Args:
            where: the name of a file, and its page in brackets.
        """
        if self._task.finds_instances:
            [(file, page)] = re.findall(r"(?s)^(.+?)(?:\[(\d+)\])?\Z", where)
            self._image_cells.append([file, page or 0])
        else:
            self._cells.append([where])

    def _pixels(self, file: ImageFile, answer: np.ndarray) -> Row:
        assert self._folder is not None
        pixels = (answer.clip(0, 1) * 255).round().astype(np.uint8)
        row = {
            "size": list(pixels.shape[:2]),
            "mean": round(float(pixels.mean()), 3),
            "lowest": int(pixels.min()),
            "highest": int(pixels.max()),
        }
        path = self._folder / f"{file.name}-prediction.png"
        return row | {"prediction": predictions.save(pictures.to_pillow(pixels), path)}

    def _labels(self, file: ImageFile, image: np.ndarray, probabilities: np.ndarray) -> Row:
        names = self._description.class_names
        labels = self._task.label(probabilities)
        counts = np.bincount(labels.ravel(), minlength=len(names))
        shares = [round(share, 6) for share in (counts / labels.size).tolist()]
        self._cells.append([str(file), *(f"{share:.6f}" for share in shares)])
        row = {"size": list(labels.shape), "shares": dict(zip(names, shares, strict=True))}
        if self._folder is not None:
            shown = pictures.as_picture(image, self._description.pixel_range)
            row |= predictions.write_mask(
                self._folder, file.name, shown, labels, names, self._mask_values
            )
        return row

    def _objects(self, file: ImageFile, image: np.ndarray, probabilities: np.ndarray) -> Row:
        labels = self._task.label(probabilities)
        count = int(labels.max(initial=0))
        area = round(np.count_nonzero(labels) / max(count, 1), 2)
        row: Row = {"size": list(labels.shape), "objects": count, "mean_area_pixels": area}
        picture, page = file.picture, file.picture.page or 0
        planes = planes_of(picture)
        if self._tables:
            plane, first = planes[page] if planes else None, [valid_text(str(picture.path)), page]
            of_image, of_objects = measurements.measurements(labels, image, plane)
            self._image_cells.append([*first, *of_image])
            self._cells += [[*first, *cells] for cells in of_objects]
        if self._folder is not None:
            path = self._folder / f"{file.whole}-instances.tif"
            if path not in self._stack:
                while self._stack:  # of the file before
                    predictions.write_stack(*self._stack.popitem())
                # Pages that are left out stay 0.
                pages = [np.zeros(plane.size, np.uint16) for plane in planes]
                self._stack[path] = (pages or [labels], planes)
            self._stack[path][0][page] = labels
            shown = pictures.as_picture(image, self._description.pixel_range)
            overlay = pictures.overlay_objects(shown, labels)
            overlay_path = self._folder / f"{file.name}-overlay.png"
            row |= {"instances": str(path), "overlay": predictions.save(overlay, overlay_path)}
        return row

    def finish(self, *, table: bool) -> None:
        """Writes the last stack and the CSV files, and prints a table if requested."""
        while self._stack:
            predictions.write_stack(*self._stack.popitem())
        for path, lines in self._tables.items():
            filled = ([*line, *[""] * (len(lines[0]) - len(line))] for line in lines)
            # A link that the user names stays a link.
            replace_file(resolved(path), csv_text.write(filled))
        if table:
            predictions.print_table(self._rows)
