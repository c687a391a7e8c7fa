"""Predicts with the model of a run: on arrays and files from Python, and on the images that the
command names.

For the command it checks what can be checked before anything is computed, and writes what comes
out.
"""

import dataclasses
import json
import pathlib
import sys
import time
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from jaxdp.config.values import MaskValues
from jaxdp.inference.settings import PredictConfig, check_tiles
from jaxdp.parsing import printable
from jaxdp.registry import ConfigError
from jaxdp.rundir.layout import RunDirectory
from jaxdp.rundir.read import Row
from jaxdp.runtime import platform

if TYPE_CHECKING:
    import numpy as np

    from jaxdp.data.resize import Resize
    from jaxdp.data.sources import BadExample, Description
    from jaxdp.inference.files import SurveyedImage
    from jaxdp.inference.predictor import Predictor
    from jaxdp.inference.results import Results

_FAR = 20  # deviations from the mean of a dataset at which pixels are hardly on its scale


@dataclasses.dataclass(frozen=True)
class Stored:
    """What the images of a run are like: their channels, the dtype of their pixels, how training
    resized them, what planes of TIFF files are, its masks.
    """

    channels: int
    dtype: str
    resize: "Resize | None"
    tiff: str | None
    mask_values: MaskValues | None


def predict(
    run_dir: str | pathlib.Path,
    images: "Iterable[str | pathlib.Path | np.ndarray]",
    *,
    step: int | None = None,
    tile: int = 512,
    overlap: int | None = None,
    plugins: Sequence[str] = (),
    devices: int | None = None,
) -> "list[np.ndarray]":
    """Returns a model's answer to each image, as float32.

    For classification the probabilities of the classes (classes,); for segmentation those of each
    pixel (H, W, classes); for regression pixels (H, W, channels), about from 0 to 1. H and W are
    those of the image. Each page of a TIFF file is an image.

    Args:
        images: files, or arrays (H, W, C), with the dtype, the channels and on the scale of the
            run's dataset, mostly uint8.
        step: which checkpoint; None for the best by validation data, or the newest where there are
            none.
        tile, overlap: in pixels, as the flags; by default tiles grow where the model sees too far
            for them.
        plugins: files or modules that the run was trained with.
        devices: how many to use; None for all of this process.

    Raises:
        ConfigError: if there is no run or no such checkpoint, or an image cannot be used.
    """
    check_tiles(tile, overlap)
    config = RunDirectory(pathlib.Path(run_dir)).load_config()
    platform.configure(devices, precision=config.precision)
    platform.check_backend()
    from jaxdp.data.resize import Resize
    from jaxdp.inference import files
    from jaxdp.inference.predictor import Predictor

    predictor = Predictor.of_run(
        run_dir, step=step, tile=tile, overlap=overlap, plugins=plugins, devices=devices
    )
    channels, dtype = predictor.description.image_shape[-1], predictor.description.dtype
    tiff = config.tiff
    resize = Resize.while_reading(config, predictor.description.answer)
    items = [
        each
        for item in images
        for each in (
            files.pages(pathlib.Path(item), tiff)
            if isinstance(item, str | pathlib.Path)
            else [item]
        )
    ]
    pixels = (
        files.read(item, channels, dtype, resize)[0] if isinstance(item, files.Picture) else item
        for item in items
    )
    return [answer for _, answer in predictor(pixels)]


def predict_files(config: PredictConfig) -> None:
    """Predicts on files, and prints and writes what the model says about them.

    Raises:
        ConfigError: for whatever cannot work; then nothing is written.
    """
    stored = _check_run(config)
    known, left_out = _survey(config, stored)
    run = RunDirectory(pathlib.Path(config.run_dir))
    platform.configure(config.devices, precision=run.load_config().precision)
    platform.check_backend()
    from jaxdp.inference import results
    from jaxdp.inference.predictor import Predictor

    predictor = Predictor.of_run(
        config.run_dir,
        step=config.step,
        tile=config.tile,
        overlap=config.overlap,
        plugins=config.plugins,
        devices=config.devices,
    )
    results.check_writable(config)
    _say_changes(known, predictor.description, resized=predictor.resized)
    if note := predictor.note_on_tiles(each.size for each in known):
        _say(f"note: {note}")
    found = results.Results(config, predictor.description, stored.mask_values)
    start = time.perf_counter()
    _predict_each(config, stored, known, predictor, found)
    seconds = time.perf_counter() - start
    found.finish()
    if not config.json:
        rate = len(known) / seconds
        print(f"{rate:,.{0 if rate >= 10 else 1}f} images/s, compilation included")
    if left_out:
        _say(f"warning: {left_out} of {len(known) + left_out} images were left out")


def _survey(config: PredictConfig, stored: Stored) -> "tuple[list[SurveyedImage], int]":
    """Finds and reads the images, and returns those that can be used, and how many are left out."""
    from jaxdp.inference import files

    folder = pathlib.Path(config.output_dir) if config.output_dir else None
    if (
        folder
        and folder.is_dir()
        and any(folder.samefile(path) for path in config.paths if pathlib.Path(path).exists())
    ):
        remedy = "is searched for images, so a second run would take masks for some; give another"
        raise ConfigError("output_dir", folder, remedy)
    found = files.paged(files.find(config.paths, leave_out=folder), stored.tiff)
    if folder:
        files.check_names(found)
    bad: list[BadExample] = []
    known = files.survey(
        found,
        stored.channels,
        bad.append if config.on_bad_example == "skip" else None,
        stored.dtype,
        stored.resize,
    )
    for error in bad:
        _say(f"warning: {error.where}: {error.problem}")
    if not known:
        raise ConfigError(
            "on_bad_example", "skip", f"no image is left; those that cannot be read: {len(bad)}"
        )
    return known, len(bad)


def _predict_each(
    config: PredictConfig,
    stored: Stored,
    known: "Sequence[SurveyedImage]",
    predictor: "Predictor",
    found: "Results",
) -> None:
    """Predicts, and hands over what comes out as it comes."""
    from jaxdp.inference import files
    from jaxdp.reporting import predictions

    def pixels_of(each: "SurveyedImage") -> "np.ndarray":
        if each.pixels is not None:
            return each.pixels
        picture = each.file.picture or each.file.path
        return files.read(picture, stored.channels, stored.dtype, stored.resize)[0]

    images = map(pixels_of, known)
    with predictions.Progress(len(known), hidden=config.json and sys.stdout.isatty()) as progress:
        if predictor.description.answer == "classification":
            for each, (_, answer) in zip(known, predictor(images, progress.advance), strict=True):
                _say_row(config, found.add_classes(each.file, answer))
        else:
            for each, (image, strips) in zip(
                known, predictor.strips(images, progress.advance), strict=True
            ):
                _say_row(config, found.add_pixels(each.file, image, strips))


def _say_row(config: PredictConfig, row: Row) -> None:
    if config.json:
        print(json.dumps(row), flush=True)


def _check_run(config: PredictConfig) -> Stored:
    """Returns what the run's images are like.

    Raises:
        ConfigError: if there is no run, or what its task writes has no place.
    """
    from jaxdp.data.resize import Resize
    from jaxdp.inference import instances, results

    run = RunDirectory(pathlib.Path(config.run_dir))
    settings = run.load_trusted_config(config.plugins)
    content = run.read("dataset.json")
    task, channels = content.get("kind") or content["task"], content["image_shape"][-1]
    if task == "regression" and content["num_classes"] not in (1, 3):
        remedy = (
            f"its targets have {content['num_classes']} channels, files 1 or 3; use predict() from"
            " Python"
        )
        raise ConfigError("run_dir", run.path, remedy)
    results.check(config, task)
    if content.get("instances"):
        instances.require()
    return Stored(
        channels,
        content.get("dtype", "uint8"),
        Resize.while_reading(settings, task),
        settings.tiff,
        settings.mask_values,
    )


def _say_changes(
    known: "Sequence[SurveyedImage]", description: "Description", *, resized: bool
) -> None:
    """Tells once of each kind what happens to the images before the model sees them, or should have
    happened.
    """
    height, width, _ = description.image_shape
    changed: dict[str, list[SurveyedImage]] = {}
    for facts in known:
        for change in facts.changes:
            changed.setdefault(change, []).append(facts)
        if resized and facts.size != (height, width):
            changed.setdefault(
                f"not {height}x{width} pixels: resized, as the model was trained at that size", []
            ).append(facts)
    for change, those in changed.items():
        _say(
            f"note: {len(those)} of {len(known)} images {'is' if len(those) == 1 else 'are'}"
            f" {change} (e.g. {those[0].file})"
        )
    if description.pixel_range is not None:
        _say_range(known, description.pixel_range)
        return
    for highest, mean, std in zip(
        zip(*(facts.highest for facts in known), strict=True),
        description.mean,
        description.std,
        strict=True,
    ):
        if max(highest) > mean + _FAR * std:
            where = known[highest.index(max(highest))].file
            _say(
                f"warning: pixels go up to {max(highest)} (in {where}), but those of the run's"
                f" dataset are {mean:g} on average and deviate by {std:g}; are these images on its"
                " scale?"
            )
            return


def _say_range(known: "Sequence[SurveyedImage]", pixel_range: tuple[float, float]) -> None:
    """Warns of images most of whose pixels lie beyond half a range outside that of the training
    set.
    """
    low, high = pixel_range
    margin = (high - low) / 2
    outside = [
        facts
        for facts in known
        if facts.spread[0] < low - margin or facts.spread[1] > high + margin
    ]
    if outside:
        first = outside[0]
        _say(
            f"warning: pixels of {len(outside)} of {len(known)} images lie far outside {low:g} to"
            f" {high:g}, the range of the run's dataset (e.g. {first.spread[0]:g} to"
            f" {first.spread[1]:g} in {first.file}); are these images on its scale?"
        )


def _say(text: str) -> None:
    print(printable(text), file=sys.stderr)
