"""Trains StarDist from nothing for some seconds, and labels test frames.

    python stardist_side.py FOLDER SECONDS

FOLDER has the frames that real_cells.py writes. Labels go to FOLDER/found. Importing, choosing
thresholds on the validation frames and predicting do not count.
"""

import pathlib
import sys
import time

import numpy as np
import tensorflow as tf
import tifffile
from csbdeep.utils import normalize
from stardist.models import Config2D, StarDist2D


def frames(folder: pathlib.Path) -> tuple[list[np.ndarray], list[np.ndarray]]:
    images, masks = (
        [tifffile.imread(path) for path in sorted((folder / kind).glob("*.tif"))]
        for kind in ("images", "masks")
    )
    return [normalize(image, 1, 99.8) for image in images], masks


class Until(tf.keras.callbacks.Callback):
    """Ends training when the time is over."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self.end = time.monotonic() + seconds

    def on_train_batch_end(self, batch: int, logs: object = None) -> None:
        if time.monotonic() > self.end:
            self.model.stop_training = True


RNG = np.random.default_rng(0)


def augment(image: np.ndarray, mask: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Flips and rotates by right angles, as in StarDist's example."""
    turns, flips = RNG.integers(4), RNG.integers(2)
    image, mask = np.rot90(image, turns), np.rot90(mask, turns)
    return (image[::-1], mask[::-1]) if flips else (image, mask)


def main() -> None:
    folder, seconds = pathlib.Path(sys.argv[1]), float(sys.argv[2])
    train, validation = frames(folder / "train"), frames(folder / "validation")
    side = min(128, *train[0][0].shape)
    config = Config2D(
        n_rays=32,
        grid=(2, 2),
        train_patch_size=(side, side),
        train_batch_size=4,
        train_steps_per_epoch=50,
        train_epochs=10_000,
        train_foreground_only=0.9,
        train_tensorboard=False,
    )
    model = StarDist2D(config, name="model", basedir=str(folder / "stardist"))
    model.prepare_for_training()
    model.callbacks.append(Until(seconds))
    model.train(*train, validation_data=validation, augmenter=augment)
    model.optimize_thresholds(*validation)
    (folder / "found").mkdir(exist_ok=True)
    for path in sorted((folder / "test" / "images").glob("*.tif")):
        labels, _ = model.predict_instances(normalize(tifffile.imread(path), 1, 99.8))
        tifffile.imwrite(folder / "found" / path.name, labels.astype(np.uint16))


if __name__ == "__main__":
    main()
