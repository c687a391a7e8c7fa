"""`python -m jaxdp.predict RUN_DIR PATH...`: predicts on images of your own with a trained model.

A classifier predicts classes, and other models predict masks or images as large as the input. The
dataset of the run is not required. The result is the same on any number of devices.
"""

import json
import pathlib
import sys
import time
from typing import TYPE_CHECKING, Literal

from jaxdp.cli.command_line import command
from jaxdp.config import (
    LOCAL,
    MOST_DEVICES,
    POSITIVE,
    REQUIRED,
    AveragedConfig,
    at_most,
    setting,
    settings_group,
)
from jaxdp.errors import ConfigError
from jaxdp.text.console import warn_again

if TYPE_CHECKING:
    from jaxdp.data.source import BadExample
    from jaxdp.inference.files import SurveyedImage
    from jaxdp.inference.predictor import Predictor

DESCRIPTION = "Predict with a trained model on images of any size, on all devices."


@settings_group
class PredictConfig(AveragedConfig):
    """The run, the images and the results."""

    # Repeated, because it comes before the images.
    run_dir: str = setting(REQUIRED, "folder of the run", metavar="RUN_DIR", positional=True)
    paths: tuple[str, ...] = setting(
        REQUIRED, "images, and folders to search for images", metavar="PATH ...", positional=True
    )
    on_bad_example: Literal["error", "skip"] = setting(
        "skip",
        """what to do about an image that cannot be read: go on without it, or stop before anything
        is written""",
    )
    top_k: int = setting(
        3,
        "classification: how many classes to name for each image, the most likely first",
        POSITIVE,
    )
    csv: str | None = setting(
        None,
        """CSV file with a line for each image, empty but for its name if it cannot be read:
        classification: the most likely class, its probability, and a column for each class;
        segmentation: the share of each class of the pixels; of a run with --instances a line for
        each object, and in NAME-images.csv a line for each image""",
        LOCAL,
        metavar="PATH",
    )
    output_dir: str | None = setting(
        None,
        """folder for results, with the subfolders of the searched folder; segmentation:
        NAME-overlay.png, and NAME-mask.png with the values or colours of training, or
        NAME-instances.tif with the numbers of the objects in 16 bits if the run has --instances;
        regression: NAME-prediction.png""",
        LOCAL,
        metavar="PATH",
    )
    json: bool = setting(False, "print a line of JSON for each image instead of a table")
    tile: int = setting(
        512,
        """segmentation, regression: side of the tiles in which larger images are predicted, in
        pixels; small tiles grow until they give the result of the whole image""",
    )
    devices: int | None = setting(
        None,
        "how many devices to use, by default all; on a CPU so many are simulated",
        POSITIVE,
        at_most(MOST_DEVICES),
    )


@command(PredictConfig, "jaxdp.predict", DESCRIPTION, defaults_file=False)
def main(config: PredictConfig) -> int:
    """Predicts on files, and prints and writes the predictions.

    Writes nothing unless all settings can work.
    """
    from jaxdp.inference import files
    from jaxdp.inference.results import Results
    from jaxdp.loading import load
    from jaxdp.reporting.progress import create_bar

    devices = config.devices
    result = load(config.run_dir, step=config.step, plugins=config.plugins, devices=devices)
    views = config.test_time_augmentation
    predictor = result.predictor(tile=config.tile, devices=devices, test_time_augmentation=views)
    results = Results(
        predictor.description,
        predictor.task,
        csv=config.csv,
        output_dir=config.output_dir,
        top_k=config.top_k,
        mask_values=predictor.config.mask_values,
    )
    known, bad = _survey(config, predictor)
    for error in bad:
        warn_again(f"{error.where}: {error.problem.template}")
    results.create_folders()
    files.say_notes(known, predictor)
    start = time.perf_counter()
    images = (
        (
            predictor.read(image.file.picture)[0] if image.pixels is None else image.pixels,
            image.pixel_size,
        )
        for image in known
    )
    # A progress bar would disturb rows on the same terminal.
    hidden = config.json and sys.stdout.isatty()
    with create_bar(f"predicting images: {len(known)}", hidden=hidden) as bar:
        shown = bar.add_task("", total=len(known))
        for image, ((pixels, _), answer) in zip(known, predictor(images), strict=True):
            text = files.difference(image, predictor)
            row = results.add(image.file, pixels, answer, text)
            bar.advance(shown)
            if config.json:
                print(json.dumps(row), flush=True)
    seconds = time.perf_counter() - start
    for error in bad:
        results.leave_out(error.where)
    results.finish(table=not config.json)
    if not config.json:
        rate = len(known) / seconds
        print(f"{rate:,.{0 if rate >= 10 else 1}f} images/s, compilation included")
    if bad:
        warn_again(f"{len(bad)} of {len(known) + len(bad)} images were left out")
    return 0


def _survey(
    config: PredictConfig, predictor: "Predictor"
) -> "tuple[list[SurveyedImage], list[BadExample]]":
    """Finds and reads the images. Returns the usable images, and the errors of the others."""
    from jaxdp.inference import files

    folder = pathlib.Path(config.output_dir) if config.output_dir else None
    places = [path for path in map(pathlib.Path, config.paths) if path.exists()]
    if folder and folder.is_dir() and any(map(folder.samefile, places)):
        remedy = "is searched for images, so a second run would take masks for some; give another"
        raise ConfigError("output_dir", folder, remedy)
    found = files.find(config.paths, leave_out=folder, tiff=predictor.config.tiff)
    if folder:
        files.check_names(found, whole=predictor.description.instances)
    known, bad = files.survey(found, predictor.read)
    if bad and config.on_bad_example == "error":
        raise bad[0]
    if not known:
        remedy = f"no image is left of {len(bad)}, e.g. {bad[0].where}: {bad[0].problem.template}"
        raise ConfigError("on_bad_example", "skip", remedy)
    return known, bad


if __name__ == "__main__":
    sys.exit(main())
