"""Masks of colours and of object numbers, from training over evaluation to prediction, by the
commands.
"""

import json
import pathlib

import numpy as np
import pytest
import yaml
from example_files import write
from numpy.testing import assert_array_equal
from PIL import Image
from runs import evaluated

from jaxdp import evaluate, predict, train
from jaxdp.config.values import MaskValues
from jaxdp.data.image_file import decode_mask
from jaxdp.reporting import predictions

FLAGS = (
    "--model unet --model-kwargs base_channels=8 levels=1 --global-batch-size 4 --strategy single"
    " --optimizer adam --learning-rate 0.01 --steps 30 --run-dir run"
)


def slides(kind: str) -> None:
    """Writes bright cells on a dark ground, with masks of two colours or 16-bit object numbers from
    1 on.
    """
    for number in range(8):
        rng = np.random.default_rng(number)
        mask = np.zeros((32, 32), np.uint16)
        corners = 8 * np.array([*np.ndindex(4, 4)])
        for index, (row, column) in enumerate(rng.permutation(corners)[: 5 + number], 1):
            mask[row : row + 6, column : column + 6] = index
        image = (40 + 150 * (mask > 0) + rng.normal(0, 10, mask.shape)).astype(np.uint8)
        colours = np.array([[0, 0, 255], [255, 200, 0]], np.uint8)[(mask > 0).astype(int)]
        masks = mask if kind == "objects" else colours
        for split in ("train", "test"):
            pair = {f"images/{number}.png": image, f"masks/{number}.png": masks}
            write(pair, pathlib.Path("slides", split))


@pytest.mark.parametrize(
    ("kind", "asks", "values"),
    [
        pytest.param(
            "colours",
            "hold 2 colours; name the colours of class 0, 1, ...: --mask-values 0000ff,ffc800",
            "0000ff,ffc800",
            marks=pytest.mark.slow,
        ),
        (
            "objects",
            "--mask-values binary if 0 is background and everything else class 1",
            "binary",
        ),
    ],
)
def test_masks_that_one_line_asks_about_train_as_it_says(
    kind: str, asks: str, values: str, capsys: pytest.CaptureFixture[str]
) -> None:
    slides(kind)
    flags = [*FLAGS.split(), "--dataset", "folder:slides"]
    assert train.main(flags) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert asks in line
    names = ["background", "cell"]
    assert train.main([*flags, "--mask-values", values, "--class-names", ",".join(names)]) == 0
    capsys.readouterr()

    config = yaml.safe_load(pathlib.Path("run/config.yaml").read_text())
    assert (config["mask_values"], config["class_names"]) == (values, names)
    assert json.loads(pathlib.Path("run/dataset.json").read_text())["class_names"] == names
    trained = json.loads(pathlib.Path("run/summary.json").read_text())["metrics"]["test"]
    assert trained["iou/cell"] > 0.8
    # Reads the masks in the same way.
    assert evaluated("run")[1] == pytest.approx(trained, rel=1e-4)
    pathlib.Path("slides").rename("others")
    assert evaluate.main(["run", "--dataset", "folder:others", "--split", "test", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["iou/cell"] == pytest.approx(
        trained["iou/cell"], rel=1e-4
    )

    assert predict.main(["run", "others/test/images/0.png", "--json", "--output-dir", "out"]) == 0
    assert '"cell"' in capsys.readouterr().out
    with Image.open("out/0-mask.png") as written:
        assert written.info["Description"] == "0: background, 1: cell"
        assert written.mode == "P"
        if kind == "colours":  # as in training, to any program
            with Image.open("others/test/masks/0.png") as truth:
                assert np.mean(np.asarray(written.convert("RGB")) == np.asarray(truth)) > 0.9


@pytest.mark.parametrize(
    ("text", "mode"), [("7,128,255", "L"), ("0,300,65535", "I;16"), ("000000,ff0000,00ff80", "P")]
)
def test_predicted_masks_have_the_values_of_training(text: str, mode: str) -> None:
    values, names = MaskValues.parse(text), ("ground", "nucleus", "Zellmembran 细胞膜")
    mask = np.random.default_rng(0).integers(0, 3, (20, 30)).astype(np.uint8)
    image = np.zeros((20, 30, 1), np.uint8)
    row = predictions.write_mask(
        pathlib.Path("out"), pathlib.PurePath("deep/a"), image, mask, names, values
    )
    with Image.open(row["mask"]) as written:
        assert written.mode == mode
        pixels = np.asarray(written.convert("RGB") if mode == "P" else written)
        assert written.info["Description"].endswith(": Zellmembran 细胞膜")
    stored = (
        [[0, 0, 0], [255, 0, 0], [0, 255, 128]]
        if mode == "P"
        else [int(word) for word in text.split(",")]
    )
    assert_array_equal(pixels, np.array(stored)[mask])
    # And can be trained on.
    assert_array_equal(decode_mask(pathlib.Path(row["mask"]), "", values), mask)
