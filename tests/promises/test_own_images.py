"""The files that people have, from training over evaluation to prediction, by the commands."""

import csv
import json
import pathlib
from typing import Any

import jax
import jax.export
import numpy as np
import pytest
from example_files import refused, write
from PIL import Image
from runs import answers, evaluated
from shared_run import copy_here, make_once

import jaxdp
from jaxdp import convert, predict, train
from jaxdp.build import saved_model
from jaxdp.reporting import outcome
from jaxdp.rundir.layout import RunDirectory

SIZES = [(40, 60), (33, 70), (52, 47), (64, 64), (38, 41), (45, 50), (57, 36), (60, 61), (44, 44)]
COUNT = sum(1 + number % 2 for number in range(len(SIZES)))


def field(height: int, width: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Bright cells on a dark ground, uint16 around 2000 and 11000, and which pixels are cells."""
    rng, (rows, columns) = np.random.default_rng(seed), np.mgrid[:height, :width]
    mask = np.zeros((height, width), np.uint8)
    for _ in range(6):
        row, column, radius = rng.integers(0, height), rng.integers(0, width), rng.integers(4, 9)
        mask[(rows - row) ** 2 + (columns - column) ** 2 < radius**2] = 1
    return (2000 + 9000.0 * mask + rng.normal(0, 500, mask.shape)).astype(np.uint16), mask


def pages_of(number: int) -> list[tuple[np.ndarray, np.ndarray]]:
    return [field(*SIZES[number], 10 * number + page) for page in range(1 + number % 2)]


def microscopy(root: pathlib.Path, values: tuple[int, int] = (0, 255)) -> None:
    """Writes 16-bit PNG files and TIFF stacks of two pages, with masks of two values."""
    for number in range(len(SIZES)):
        images, masks = zip(*pages_of(number), strict=True)
        images, masks = np.stack(images), np.array(values, np.uint8)[np.stack(masks)]
        for part, stack in (("images", images), ("masks", masks)):
            if number % 2:
                options = {"imagej": number % 4 == 1, "metadata": {"axes": "ZYX"}}
                write({f"{part}/{number:02d}.tif": stack}, root, **options)
            else:
                write({f"{part}/{number:02d}.png": stack[0]}, root)


FLAGS = (
    "--model unet --model-kwargs base_channels=8 levels=1 --global-batch-size 4 --strategy single"
    " --optimizer adam --learning-rate 0.01 --run-dir run --dataset folder:slides"
).split()


def dataset_json() -> dict[str, Any]:
    return json.loads(pathlib.Path("run/dataset.json").read_text())


@pytest.mark.slow
def test_deep_stacks_of_unequal_size_from_training_to_masks(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    microscopy(pathlib.Path("slides/train"))
    microscopy(pathlib.Path("slides/test"))
    seen: list[float] = []
    monkeypatch.setattr(
        outcome, "draw", lambda *_, sums, **__: seen.append(float(np.sum(sums["actual"]))) or {}
    )
    assert train.main([*FLAGS, "--steps", "40", "--augment", "flip", "crop:32"]) == 0
    # The pixels that are there, and none that was padded.
    assert seen == [sum(mask.size for number in range(len(SIZES)) for _, mask in pages_of(number))]
    content = dataset_json()
    assert (content["dtype"], content["image_shape"]) == ("uint16", [64, 80, 1])
    assert content["examples"] == {"train": COUNT, "test": COUNT}
    assert 0 < content["pixel_range"][0] < 2000 < 11000 < content["pixel_range"][1] < 14000
    capsys.readouterr()

    _, metrics = evaluated("run")
    assert metrics["iou"] > 0.9
    summary = json.loads(pathlib.Path("run/summary.json").read_text())
    assert metrics == pytest.approx(summary["metrics"]["test"], rel=1e-4)

    assert predict.main(["run", "slides/test/images", "--output-dir", "out"]) == 0
    assert capsys.readouterr().err == ""
    for number in range(len(SIZES)):
        for page, (_, truth) in enumerate(pages_of(number)):
            name = f"{number:02d}[{page}]" if number % 2 else f"{number:02d}"
            mask = np.asarray(Image.open(f"out/{name}-mask.png"))
            assert mask.shape == truth.shape
            assert (mask == truth).mean() > 0.95
    overlay = np.asarray(Image.open("out/00-overlay.png"))
    assert overlay.max() > 150  # shown on the scale of the training set

    found = answers("run", ["slides/test/images/01.tif", field(*SIZES[0], 0)[0][..., None]])
    assert [answer.shape for answer in found] == [(33, 70, 2), (33, 70, 2), (40, 60, 2)]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    def make() -> int:
        microscopy(pathlib.Path("slides"))
        return train.main([*FLAGS, "--steps", "2"])

    folder, code = make_once(tmp_path_factory, make)
    assert code == 0
    return folder


@pytest.fixture
def trained(made: pathlib.Path) -> str:
    copy_here(made)
    return "run"


def test_pixels_on_another_scale_are_warned_of_or_refused(
    trained: str, capsys: pytest.CaptureFixture[str]
) -> None:
    image, _ = field(40, 44, 3)
    pathlib.Path("new").mkdir()
    Image.fromarray(image).save("new/same.png")
    capsys.readouterr()
    assert predict.main([trained, "new", "--output-dir", "out"]) == 0
    assert capsys.readouterr().err == ""
    Image.fromarray(image * np.uint16(4)).save("new/bright.png")
    assert predict.main([trained, "new", "--output-dir", "out"]) == 0
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("warning: other intensities than in training ")
    assert "of 1 of 2 images: new/bright.png (mean " in line
    Image.fromarray((image >> 8).astype(np.uint8)).save("new/shallow.png")
    flags = ["--output-dir", "out", "--on-bad-example", "error"]
    assert predict.main([trained, "new", *flags]) == 2
    assert (
        "new/shallow.png: has 8 bits a channel (uint8), not 16 (uint16)" in capsys.readouterr().err
    )
    with refused(r"give uint16 \(height, width, 1\)"):
        answers(trained, [np.zeros((40, 40, 1), np.uint8)])
    with refused(r"give uint16 \(height, width, 1\)"):
        jaxdp.load(trained).predict(np.zeros((1, 40, 40, 1), np.uint8))


def test_an_exported_program_takes_stored_pixels(trained: str) -> None:
    assert convert.main(["export", trained, "--output", "program.stablehlo"]) == 0
    program = jax.export.deserialize(bytearray(pathlib.Path("program.stablehlo").read_bytes()))
    description = saved_model.read_description(RunDirectory(pathlib.Path(trained)))
    height, width, _ = description.image_shape
    image = np.resize(field(64, 64, 5)[0], (height, width, 1))
    (expected,) = jaxdp.load(trained).predict([image], probabilities=True)
    outputs = program.call(image[None])
    np.testing.assert_allclose(jax.nn.softmax(outputs)[0], expected, atol=1e-5)


def test_a_folder_from_before_there_was_depth_is_read(trained: str) -> None:
    directory = RunDirectory(pathlib.Path(trained))
    content = directory.read("dataset.json")
    directory.write(
        "dataset.json",
        {name: value for name, value in content.items() if name not in ("dtype", "pixel_range")},
    )
    description = saved_model.read_description(directory)
    assert (description.dtype, description.pixel_range) == ("uint8", None)


def test_photos_of_any_kind_and_size_are_trained_on_as_they_are_predicted(
    capsys: pytest.CaptureFixture[str], no_pictures: None
) -> None:
    rng = np.random.default_rng(0)
    modes = ["L", "CMYK", "RGB", "RGBA", "P", "RGB"]
    for number in range(24):
        label, mode = number % 2, modes[number % 6]
        size = (*rng.integers(40, 70, 2), 3)
        pixels = rng.normal(70 + 110 * label, 20, size).clip(0, 255).astype(np.uint8)
        suffix = "png" if mode in ("RGBA", "P") else "jpg"
        name = f"photos/{['dark', 'light'][label]}/{number:02d}.{suffix}"
        write({name: Image.fromarray(pixels).convert(mode)}, pathlib.Path())
    flags = (
        "--model cnn --dataset folder:photos --global-batch-size 8 --steps 6 --strategy single"
        " --run-dir run".split()
    )
    assert train.main(flags) == 0
    said = capsys.readouterr().err
    assert (
        "note: folder:photos: images differ in size: --image-size resize_crop:48 and --augment flip"
        " random_resized_crop:48" in said
    )
    assert dataset_json()["image_shape"] == [48, 48, 3]
    settings = RunDirectory(pathlib.Path("run")).load_config()
    assert (settings.image_size, settings.augment) == (
        "resize_crop:48",
        ("flip", "random_resized_crop:48"),
    )
    summary = json.loads(pathlib.Path("run/summary.json").read_text())
    assert (summary["metrics"]["test"]["examples"], summary["skipped_examples"]) == (2, {})
    _, metrics = evaluated("run")
    assert metrics == pytest.approx(summary["metrics"]["test"], rel=1e-4)
    assert "note" not in capsys.readouterr().err

    dataset = jaxdp.data.from_folder("photos", image_size="resize_crop:48")
    path = pathlib.Path(dataset.test.name(0))
    (from_file,) = answers("run", [path])
    (from_data,) = jaxdp.load("run").predict([dataset.test[0]["images"]])
    np.testing.assert_allclose(from_file, from_data, atol=1e-6)


def test_masks_unlike_the_training_masks_are_found_before_training(
    capsys: pytest.CaptureFixture[str], no_pictures: None
) -> None:
    microscopy(pathlib.Path("slides/train"))
    microscopy(pathlib.Path("slides/test"), (7, 8))
    assert train.main([*FLAGS, "--steps", "2", "--on-bad-example", "skip"]) == 2
    error = capsys.readouterr().err.splitlines()[-1]
    assert "--dataset folder:slides: nothing of it can be used; slides/test/masks/00.png: " in error
    assert ": its mask has the value 7, and the training masks 0 and 255; --mask-values " in error
    assert error.endswith(", and all other test examples are also bad")


@pytest.mark.parametrize("placement", ["device", "host"])
def test_a_run_does_not_end_on_no_examples(
    placement: str, capsys: pytest.CaptureFixture[str], no_pictures: None
) -> None:
    microscopy(pathlib.Path("slides/train"), (0, 1))
    microscopy(pathlib.Path("slides/test"), (7, 8))
    flags = ["--steps", "2", "--on-bad-example", "skip", "--data-placement", placement]
    assert train.main([*FLAGS, *flags]) == 2
    error = capsys.readouterr().err.splitlines()[-1]
    assert (
        f"--on-bad-example skip: nothing is left of folder:slides test: none of its {COUNT} examples can"
        " be used, e.g. " in error
    )
    assert ": its mask has the value 7, not one of 0 to 1" in error


@pytest.mark.slow
@pytest.mark.parametrize("placement", ["device", "host"])
def test_what_is_left_out_is_listed_and_counted_by_reason(
    placement: str, capsys: pytest.CaptureFixture[str], no_pictures: None
) -> None:
    for split in ("train", "test"):
        microscopy(pathlib.Path("slides", split))
    cut = pathlib.Path("slides/train/images/00.png")
    cut.write_bytes(cut.read_bytes()[:300])
    odd = pathlib.Path('slides/train/masks/a, "b".png')
    pathlib.Path("slides/train/masks/02.png").rename(odd)
    pathlib.Path("slides/train/images/02.png").rename(odd.parent.parent / "images" / odd.name)
    for path, size in ((odd, (7, 9)), (pathlib.Path("slides/train/masks/04.png"), (5, 6))):
        Image.new("L", size).save(path)
    flags = [*FLAGS, "--on-bad-example", "skip", "--data-placement", placement]
    assert train.main([*flags, "--steps", "8"]) == 0
    said = capsys.readouterr().err
    assert "warning: 3 bad train examples were left out, e.g. slides/train/" in said
    assert "run/skipped.csv lists" in said
    with pathlib.Path("run/skipped.csv").open(newline="") as file:
        rows = {row["example"]: row for row in csv.DictReader(file)}
    assert rows.keys() == {
        "slides/train/images/00.png",
        f"slides/train/images/{odd.name}",
        "slides/train/images/04.png",
    }
    assert {row["split"] for row in rows.values()} == {"train"}
    assert rows[f"slides/train/images/{odd.name}"]["reason"].startswith("its mask has 9x7 pixels")
    summary = json.loads(pathlib.Path("run/summary.json").read_text())
    assert summary["skipped_examples"] == {"train": 3}
    sizes, cuts = summary["skipped_reasons"]["train"].items()
    assert (sizes[1], cuts[1]) == (2, 1)
    assert sizes[0].startswith("its mask has NxN pixels")
    assert cuts[0] == rows["slides/train/images/00.png"]["reason"]

    # Resumed: it need not come upon each of them again.
    assert train.main([*flags, "--steps", "9"]) == 0
    with pathlib.Path("run/skipped.csv").open(newline="") as file:
        assert {row["example"]: row for row in csv.DictReader(file)} == rows
