"""Files with another pixel size than the training images are predicted at the size of those."""

import pathlib
from typing import Any

import numpy as np
import pytest
import tifffile
from shared_run import make_once

import jaxdp
from jaxdp import predict, train
from jaxdp.config import DataConfig
from jaxdp.data.resize import resize_to
from jaxdp.data.sources import open_dataset

RNG = np.random.default_rng(0)


def save(path: str, pixels: np.ndarray, *sizes: float) -> None:
    """Saves an image with height and width of a pixel in micrometres."""
    pathlib.Path(path).parent.mkdir(parents=True, exist_ok=True)
    own: dict[str, Any] = {"metadata": {"unit": "um"}, "resolution": [1 / each for each in sizes]}
    own["resolution"].reverse()  # tifffile wants the width first
    tifffile.imwrite(path, pixels, imagej=True, **(own if sizes else {}))


def image(side: int = 32) -> np.ndarray:
    return RNG.integers(1000, 5000, (side, side)).astype(np.uint16)


def slides(sizes: list[tuple[float, ...]]) -> None:
    for number, size in enumerate(sizes):
        save(f"slides/images/{number}.tif", image(), *size)
        mask = np.zeros((32, 32), np.uint8)
        mask[4:12, 4:12], mask[16:28, 16:28] = 1, 2
        save(f"slides/masks/{number}.tif", mask)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    def make() -> int:
        slides([(0.5, 0.5)] * 12)
        flags = "--dataset folder:slides --instances --model unet --steps 2 --strategy single"
        own = "--model-kwargs base_channels=2 levels=2 --global-batch-size 4 --run-dir run"
        return train.main(f"{flags} {own}".split())

    folder, code = make_once(tmp_path_factory, make)
    assert code == 0
    return folder / "run"


@pytest.mark.parametrize(
    ("sizes", "size", "known"),
    [
        ([(0.5, 0.25)] * 6 + [(0.502, 0.25)] * 6, None, (0.501, 0.25)),
        ([(0.5, 0.5)] * 12, "16", ()),
        ([(0.5, 0.5)] * 6 + [(0.52, 0.5)] * 6, None, ()),
        ([(0.5, 0.5)] * 6 + [()] * 6, None, ()),
        ([()] * 12, None, ()),
    ],
)
def test_the_training_images_have_one_pixel_size_or_none(
    sizes: list[tuple[float, ...]], size: str | None, known: tuple[float, ...]
) -> None:
    slides(sizes)
    config = DataConfig(dataset="folder:slides", instances=True, image_size=size)
    assert open_dataset(config).describe().pixel_size == pytest.approx(known, rel=0.003)


@pytest.mark.parametrize(
    ("size", "scale", "said"),
    [
        ((0.25, 0.25), (0.5, 0.5), "resampled from 0.25 to 0.5 \N{MICRO SIGN}m per pixel"),
        ((0.5, 0.75), (1, 1.5), "resampled from 0.5x0.75 to 0.5 \N{MICRO SIGN}m per pixel"),
        ((0.52, 0.5), (1, 1), ""),
        ((0.1, 0.1), (1, 1), "of 0.1 \N{MICRO SIGN}m per pixel, too far from 0.5 in training"),
        ((), (1, 1), "without a pixel size: taken for 0.5 \N{MICRO SIGN}m, as in training"),
    ],
)
def test_a_prediction_is_made_at_the_training_size_and_brought_back(
    size: tuple[float, ...],
    scale: tuple[float, float],
    said: str,
    trained: pathlib.Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    pixels, result = image(64), jaxdp.load(trained)
    assert result.description.pixel_size == (0.5, 0.5)
    save("a.tif", pixels, *size)
    small = resize_to(pixels[..., None], (int(64 * scale[0]), int(64 * scale[1])))
    expected = resize_to(result.predict(small, probabilities=True), (64, 64))
    capsys.readouterr()
    np.testing.assert_array_equal(result.predict("a.tif", probabilities=True), expected)
    note = f"note: 1 of 1 images is {said}" if said else ""
    assert capsys.readouterr().err.startswith(note)
    assert predict.main([str(trained), "a.tif", "--csv", "cells.csv"]) == 0
    assert capsys.readouterr().err.startswith(note)
    labels, [line] = (
        result.predict("a.tif"),
        pathlib.Path("cells-images.csv").read_text().split()[1:],
    )
    cells = line.split(",")
    assert (cells[0], cells[4], cells[6]) == ("a.tif", str(labels.max()), str((labels > 0).sum()))


@pytest.mark.parametrize("size", [(0.25, 0.25), (0.51, 0.5), ()])
def test_an_evaluation_warns_of_another_pixel_size(
    size: tuple[float, ...], trained: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    slides([size] * 4)
    jaxdp.load(trained).evaluate(data="folder:slides")
    said = "warning: folder:slides: pixels of 0.25 x 0.25 micrometres, and 0.5 x 0.5 in training"
    assert (said in capsys.readouterr().err.replace("\n", " ")) == (size == (0.25, 0.25))
