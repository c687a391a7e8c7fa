"""`python -m jaxdp.predict RUN_DIR PATH...`: what does a trained model say about pictures of your own?

Classes for a classifier; for the others masks or images, as large as the pictures. The run's dataset need not be there. It uses one
device, JAX's first.
"""

import dataclasses
import json
import pathlib
import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from jaxdp import command_line
from jaxdp.config import OptionalInt, OptionalPath, validate
from jaxdp.registry import ConfigError
from jaxdp.run_directory import RunDirectory
from jaxdp.runtime import platform

if TYPE_CHECKING:
    import numpy as np

    from jaxdp.data.sources import BadExample, Description
    from jaxdp.inference.files import SurveyedFile

DESCRIPTION = "Predict with a trained model on images of any size, on one device."
_NOT_GIVEN = "(not given)"
_LEAST_TILE = 64
_FAR = 20  # deviations from the mean of a dataset at which pixels are hardly on its scale


@dataclasses.dataclass(frozen=True)
class ImagesConfig:
    run_dir: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="RUN_DIR", help_behavior_hint="")]
    """folder of the run"""
    paths: Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="PATH ...", help_behavior_hint="")]
    """images, and folders to search for images"""
    step: OptionalInt = None
    """step of the checkpoint (default: the best one)"""
    on_bad_example: Literal["error", "skip"] = "error"
    """what to do about an image that cannot be read: stop before anything is written, or go on without it"""


@dataclasses.dataclass(frozen=True)
class ResultsConfig:
    top_k: int = 3
    """classification: how many classes to name for each image, the likeliest first"""
    output: OptionalPath = None
    """classification: CSV file for these classes and their probabilities"""
    output_dir: OptionalPath = None
    """segmentation: folder for NAME-mask.png, whose pixels are class numbers, and NAME-overlay.png; regression: for
    NAME-prediction.png. In it are the same folders as in the one that was searched for images"""
    json: tyro.conf.FlagCreatePairsOff[bool] = False
    """print a line of JSON for each image instead of a table"""


@dataclasses.dataclass(frozen=True)
class TilesConfig:
    tile: int = 512
    """segmentation, regression: side of the tiles in which larger images are predicted, in pixels"""
    overlap: int = 64
    """how many pixels neighbouring tiles share at least"""


@dataclasses.dataclass(frozen=True)
class PredictConfig(TilesConfig, ResultsConfig, ImagesConfig):
    """What `python -m jaxdp.predict` takes."""

    def __post_init__(self) -> None:
        validate(self)
        if self.top_k < 1:
            raise ConfigError("top_k", self.top_k, "must be greater than 0")
        if not self.paths:
            raise ConfigError("", "", "no images are named; give files or folders after the folder of the run")
        _check_tiles(self.tile, self.overlap)


def _check_tiles(tile: int, overlap: int) -> None:
    if tile < _LEAST_TILE:
        raise ConfigError("tile", tile, f"must be at least {_LEAST_TILE}")
    if not 0 <= overlap <= tile // 2:
        raise ConfigError("overlap", overlap, f"must be from 0 to {tile // 2}, half of --tile")


def main(argv: Sequence[str] | None = None) -> int:
    return command_line.main(_main, argv, "jaxdp.predict")


def _main(argv: Sequence[str]) -> int:
    from jaxdp.inference import files
    from jaxdp.reporting import predictions

    command = command_line.parse(PredictConfig, argv, prog="python -m jaxdp.predict", description=DESCRIPTION, defaults_file=False)
    channels = _check_run(command)
    directory = pathlib.Path(command.output_dir) if command.output_dir else None
    if directory and directory.is_dir() and any(directory.samefile(path) for path in command.paths if pathlib.Path(path).exists()):
        raise ConfigError(
            "output_dir", directory, "is searched for images, so a second run would take masks for some; give another"
        )
    found = files.find(command.paths, leave_out=directory)
    if directory:
        files.check_names(found)
    bad: list[BadExample] = []
    known = files.survey(found, channels, bad.append if command.on_bad_example == "skip" else None)
    for error in bad:
        _say(f"warning: {error.where}: {error.problem}")
    if not known:
        raise ConfigError("on_bad_example", "skip", f"no image is left; those that cannot be read: {len(bad)}")

    platform.configure(None)
    from jaxdp.inference.predictor import Predictor

    predictor = Predictor(command.run_dir, step=command.step, tile=command.tile, overlap=command.overlap)
    if directory:
        _check_writable("output_dir", directory)
    if command.output:
        _check_writable("output", pathlib.Path(command.output).parent)
    _say_changes(known, predictor.description, resized=predictor.resized)
    rows: list[predictions.Row] = []
    images = (files.read(facts.file.path, channels)[0] for facts in known)
    with predictions.Progress(len(known), hidden=command.json and sys.stdout.isatty()) as progress:
        for facts, (image, answer) in zip(known, predictor(images, len(known), progress.advance), strict=True):
            rows.append({"file": str(facts.file)})
            rows[-1] |= _result(image, answer, predictor.description, directory, facts.file.name, command.top_k)
            if command.json:
                print(json.dumps(rows[-1]), flush=True)
    if command.output:
        predictions.write_csv(pathlib.Path(command.output), rows)
    if not command.json:
        predictions.print_table(rows)
    if bad:
        _say(f"warning: {len(bad)} of {len(found)} images were left out")
    return 0


def _check_run(command: PredictConfig) -> int:
    """Returns the channels of the run's images.

    Raises:
        ConfigError: if there is no run, or what its task writes has no place.
    """
    run = RunDirectory(pathlib.Path(command.run_dir))
    run.load_config()
    content = run.read_dataset()
    task, channels = content.get("kind") or content["task"], content["image_shape"][-1]
    if channels not in (1, 3):
        raise ConfigError("run_dir", run.path, f"its images have {channels} channels, files 1 or 3; use predict() from Python")
    if task == "regression" and content["num_classes"] not in (1, 3):
        remedy = f"its targets have {content['num_classes']} channels, files 1 or 3; use predict() from Python"
        raise ConfigError("run_dir", run.path, remedy)
    if task == "classification" and command.output_dir is not None:
        raise ConfigError(
            "output_dir", command.output_dir, "is for images; the run is one of classification: use --output FILE.csv"
        )
    if command.output is not None and pathlib.Path(command.output).is_dir():
        raise ConfigError("output", command.output, "is a folder; give a file, e.g. predictions.csv")
    if task != "classification" and command.output is not None:
        raise ConfigError("output", command.output, f"is for classes; the run is one of {task}: use --output-dir FOLDER")
    if task != "classification" and command.output_dir is None:
        what = "masks" if task == "segmentation" else "images"
        raise ConfigError("output_dir", _NOT_GIVEN, f"the run is one of {task}, whose results are {what}; give a folder for them")
    return channels


def _check_writable(flag: str, folder: pathlib.Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe = folder / ".write-probe"
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise ConfigError(flag, folder, f"cannot be written ({error.strerror}); give another folder") from error


def _say_changes(known: "Sequence[SurveyedFile]", description: "Description", *, resized: bool) -> None:
    """Tells once of each kind what happens to the images before the model sees them, or should have happened."""
    height, width, _ = description.image_shape
    changed: dict[str, list[SurveyedFile]] = {}
    for facts in known:
        for change in facts.changes:
            changed.setdefault(change, []).append(facts)
        if resized and facts.size != (height, width):
            changed.setdefault(f"not {height}x{width} pixels: resized, as the model was trained at that size", []).append(facts)
    for change, those in changed.items():
        _say(f"note: {len(those)} of {len(known)} images {'is' if len(those) == 1 else 'are'} {change} (e.g. {those[0].file})")
    for highest, mean, std in zip(
        zip(*(facts.highest for facts in known), strict=True), description.mean, description.std, strict=True
    ):
        if max(highest) > mean + _FAR * std:
            where = known[highest.index(max(highest))].file
            _say(
                f"warning: pixels go up to {max(highest)} (in {where}), but those of the run's dataset are {mean:g} "
                f"on average and deviate by {std:g}; are these images on its scale?"
            )
            return


def _say(text: str) -> None:
    print(text, file=sys.stderr)


def _result(
    image: "np.ndarray", answer: "np.ndarray", description: "Description", directory: pathlib.Path | None, name: pathlib.PurePath,
    top_k: int,
) -> dict[str, Any]:  # fmt: skip
    """Writes what is to be written of one image, and returns its figures."""
    from jaxdp.reporting import predictions

    if description.answer == "classification":
        return predictions.likeliest(answer, description.class_names, top_k)
    assert directory is not None
    if description.answer == "segmentation":
        mask = answer.argmax(-1).astype("uint8")
        figures = predictions.shares(mask, description.class_names)
        return figures | predictions.write_mask(directory, name, image, mask, description.num_classes)
    pixels = (answer.clip(0, 1) * 255).round().astype("uint8")
    return predictions.brightness(pixels) | predictions.write_prediction(directory, name, pixels)


def predict(
    run_dir: str | pathlib.Path, images: "Iterable[str | pathlib.Path | np.ndarray]", *, step: int | None = None, tile: int = 512,
    overlap: int = 64,
) -> "list[np.ndarray]":  # fmt: skip
    """Returns a model's answer to each image, as float32.

    For classification the probabilities of the classes (classes,); for segmentation those of each pixel (H, W, classes); for
    regression pixels (H, W, channels), about from 0 to 1. H and W are those of the image.

    Args:
        images: files, or arrays uint8 (H, W, C), with the channels and on the scale of the run's dataset.
        step: which checkpoint; None for the best, or the newest where none was evaluated.
        tile, overlap: in pixels, as the flags.

    Raises:
        ConfigError: if there is no run or no such checkpoint, or an image cannot be used.
    """
    _check_tiles(tile, overlap)
    platform.configure(None)
    from jaxdp.inference import files
    from jaxdp.inference.predictor import Predictor

    predictor = Predictor(run_dir, step=step, tile=tile, overlap=overlap)
    channels = predictor.description.image_shape[-1]
    items = list(images)
    pixels = (files.read(pathlib.Path(item), channels)[0] if isinstance(item, str | pathlib.Path) else item for item in items)
    return [answer for _, answer in predictor(pixels, len(items))]


if __name__ == "__main__":
    sys.exit(main())
