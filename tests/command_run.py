"""A short run by `jaxdp.train`, and the commands that take its folder."""

import pathlib
from collections.abc import Callable

import numpy as np
import pytest
from PIL import Image
from shared_run import make_once

from jaxdp import convert, evaluate, predict, train
from jaxdp.rundir.layout import RunDirectory

FLAGS = (
    "--model cnn --model-kwargs width=4 hidden=16 --global-batch-size 160 --steps 4 --log-every 1"
    " --eval-every 2 --checkpoint-every 2 --strategy single --validation 0.2 --run-dir run"
).split()
RUN = RunDirectory(pathlib.Path("run"))
COMMANDS: dict[str, Callable[[], int]] = {
    "train": lambda: train.main(FLAGS),
    "evaluate": lambda: evaluate.main(["run"]),
    "predict": lambda: predict.main(["run", "image.png"]),
    "export": lambda: convert.main(["export", "run", "--output", "weights.safetensors"]),
    "init-from": lambda: train.main([*FLAGS, "--run-dir", "second", "--init-from", "run"]),
}


def train_once(factory: pytest.TempPathFactory) -> pathlib.Path:
    """Returns a folder with the run, in its folder `run`, and an image."""
    folder, code = make_once(factory, lambda: train.main(FLAGS))
    assert code == 0
    Image.fromarray(np.zeros((8, 8), np.uint8)).save(folder / "image.png")
    return folder
