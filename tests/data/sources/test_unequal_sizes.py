"""Images that differ in size: padded where pixels have classes, cropped or framed where images
have.
"""

import pathlib
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import pytest
from example_files import noise, opened, read, refused, write
from numpy.testing import assert_array_equal
from PIL import Image

import jaxdp
from jaxdp.config import DataConfig
from jaxdp.data.dataset import IGNORE_LABEL
from jaxdp.data.resize import Resize, pad
from jaxdp.data.sources import open_dataset
from jaxdp.reporting import outcome, pictures
from jaxdp.tasks.segmentation import Segmentation

SIZES = [(20, 30), (41, 18), (20, 33), (7, 5), (20, 30), (20, 30)]


def pairs(sizes: list[tuple[int, int]] = SIZES) -> pathlib.Path:
    files: dict[str, np.ndarray] = {}
    for split in ("train", "test"):
        for number, size in enumerate(sizes):
            files[f"{split}/images/{number}.png"] = noise(number, *size, 3)
            files[f"{split}/masks/{number}.png"] = noise(number, *size, high=3)
    return write(files)


@pytest.mark.parametrize(
    ("augment", "side"),
    [(None, 48), (("crop:6",), 48), (("flip", "crop:64"), 64), (("crop:16",), 48)],
)
def test_images_with_masks_are_padded(augment: Any, side: int) -> None:
    dataset = opened(pairs(), augment=augment)
    assert (dataset.image_shape, dataset.padded) == ((side, side, 3), True)
    found = read(dataset.train)
    for number, (height, width) in enumerate(SIZES):
        image, mask = found["images"][number], found["masks"][number]
        assert_array_equal(image[:height, :width], noise(number, height, width, 3))
        assert_array_equal(mask[:height, :width], noise(number, height, width, high=3))
        widths = [(0, side - height), (0, side - width), (0, 0)]
        assert_array_equal(image, np.pad(image[:height, :width], widths, "symmetric"))
        assert (mask == IGNORE_LABEL).sum() == side**2 - height * width
    pixels = np.concatenate(
        [noise(number, *size, 3).reshape(-1, 3) for number, size in enumerate(SIZES)]
    )
    assert dataset.mean == pytest.approx(pixels.mean(0), abs=1e-3)  # of the real pixels alone
    assert dataset.std == pytest.approx(pixels.std(0), abs=1e-3)


def test_pictures_of_predictions_show_no_padding_and_name_what_they_show(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sizes, root = [(20, 30), (41, 18), (33, 33)], pairs([(20, 30), (41, 18), (33, 33)])
    for kind in ("images", "masks"):
        path = root / "test" / kind / "1.png"
        path.rename(path.with_name("1 $\\b$ \u8a9e.png"))
    drawn: list[Any] = []

    def plot(rows: Any, path: pathlib.Path, caption: str) -> Any:
        drawn.append((rows, caption))
        return plot_rows(rows, path, caption)

    plot_rows = pictures.plot_rows
    monkeypatch.setattr(pictures, "plot_rows", plot)

    def predict(images: Iterable[np.ndarray]) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        return ((image, np.zeros((*image.shape[:2], 3), np.float32)) for image in images)

    outcome.draw(
        pathlib.Path(),
        title="",
        task=Segmentation(3),
        source=opened(root).test,
        sums={},
        predict=predict,
    )
    ((rows, caption),) = drawn
    assert caption == "folder:set test"
    names = ["0.png", "1 $\\b$ \u8a9e.png", "2.png"]
    assert [[title for title, _ in row] for row in rows] == [
        [name, "truth", "prediction"] for name in names
    ]
    for row, (height, width) in zip(rows, sizes, strict=True):
        assert {picture.shape[:2] for _, picture in row} == {(height, width)}
    assert_array_equal(rows[0][0][1], noise(0, 20, 30, 3))


def test_pictures_are_of_examples_that_can_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    root = pairs([(20, 30)] * 5)
    for name in ("0", "2", "4"):  # evenly spaced, as the pictures are
        (root / "test" / "images" / f"{name}.png").write_bytes(b"broken")
    source = opened(root, on_bad_example="skip").test
    assert source is not None
    source.read(range(5))
    shown: list[Any] = []
    blank = np.zeros((1, 1, 3), np.uint8)
    monkeypatch.setattr(pictures, "plot_rows", lambda rows, *_: shown.extend(rows) or blank)
    outcome.draw(
        pathlib.Path(),
        title="",
        task=Segmentation(3),
        source=source,
        sums={},
        predict=lambda images: ((each, np.zeros((20, 30, 3), np.float32)) for each in images),
    )
    assert [row[0][0] for row in shown] == ["1.png", "3.png"]


def test_equal_sizes_are_left_unless_a_crop_is_larger() -> None:
    root = pairs([(20, 30)] * 3)
    assert (opened(root).image_shape, opened(root).padded) == ((20, 30, 3), False)
    assert opened(root, augment=("crop:20",)).image_shape == (20, 30, 3)
    assert opened(root, augment=("crop:32",)).image_shape == (32, 32, 3)


def test_padding_that_is_wasteful_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    opened(pairs([(16, 16)] * 5 + [(80, 80)]))
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("warning: ")
    assert "padded to 80x80 pixels, 25 times the area of most of them" in line


def test_mirroring_repeats_and_changes_no_real_pixel() -> None:
    row = np.arange(3, dtype=np.uint16)[None]
    assert_array_equal(pad(row, (2, 8)), [[0, 1, 2, 2, 1, 0, 0, 1]] * 2)
    assert pad(row, (1, 2)) is row


def photo(height: int, width: int, seed: int = 0) -> np.ndarray:
    small = Image.fromarray(noise(seed, 4, 4, 3))
    return np.asarray(small.resize((width, height), Image.Resampling.BICUBIC))


@pytest.mark.parametrize("size", [(40, 30), (30, 40), (31, 77), (100, 33), (16, 16), (9, 200)])
def test_resize_crop_is_what_torchvision_does(size: tuple[int, int]) -> None:
    image, side, (height, width) = photo(*size), 16, size
    # torchvision.transforms.Resize(16) and CenterCrop(16)
    new = (
        (side, int(side * width / height))
        if height <= width
        else (int(side * height / width), side)
    )
    resized = Image.fromarray(image).resize(new[::-1], Image.Resampling.BILINEAR)
    top, left = round((new[0] - side) / 2.0), round((new[1] - side) / 2.0)
    wanted = resized.crop((left, top, left + side, top + side))
    assert_array_equal(Resize.parse("resize_crop:16").apply(image), np.asarray(wanted))


@pytest.mark.parametrize("size", [(40, 30), (30, 40), (9, 200)])
def test_letterbox_shows_all_of_the_image_between_black_bars(size: tuple[int, int]) -> None:
    framed = Resize.parse("letterbox:20").apply(np.full((*size, 3), 90, np.uint8))
    height, width = (max(round(20 * side / max(size)), 1) for side in size)
    top, left = (20 - height) // 2, (20 - width) // 2
    wanted = np.zeros((20, 20, 3), np.uint8)
    wanted[top : top + height, left : left + width] = 90
    assert_array_equal(framed, wanted)


@pytest.mark.parametrize(
    "text",
    ["resize_crop", "resize_crop:0", "letterbox:1.5", "letterbox:10x10", "crop:3", "0", "70000"],
)
def test_other_sizes_are_refused(text: str) -> None:
    with refused(r"image_size=.*: must be N or HxW .*, or resize_crop:N or letterbox:N"):
        Resize.parse(text)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("resize_crop:20/10", "a shorter side of 10; swap them"),
        ("letterbox:20/30", "or resize_crop:N/M"),
        ("20/30", "or resize_crop:N/M"),
        ("resize_crop:20/0", "or resize_crop:N/M"),
        ("20:lanczos", "or resize_crop:N/M"),
    ],
)
def test_sizes_before_the_crop_are_checked(text: str, problem: str) -> None:
    with refused(problem):
        Resize.parse(text)


@pytest.mark.parametrize("size", [(30, 40), (20, 20), (41, 23)])
@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.float32])
def test_the_shorter_side_is_larger_than_the_crop(size: tuple[int, int], dtype: Any) -> None:
    """Pillow's resize of each channel, then a crop by integers."""
    pixels = noise(1, *size, 3).astype(dtype) * dtype(257 if dtype == np.uint16 else 1)
    found = Resize.parse("resize_crop:20/25:bicubic").apply(pixels)
    new = (25 * size[1] // min(size), 25 * size[0] // min(size))
    kind = np.uint8 if dtype == np.uint8 else np.float32
    planes = [
        Image.fromarray(pixels[..., channel].astype(kind)).resize(new, Image.Resampling.BICUBIC)
        for channel in range(3)
    ]
    resized = np.stack([np.asarray(plane) for plane in planes], axis=-1)
    if dtype == np.uint16:
        resized = resized.round().clip(0, 65535)
    top, left = (round((have - 20) / 2) for have in resized.shape[:2])
    assert_array_equal(found, resized[top : top + 20, left : left + 20])
    assert found.dtype == dtype


def test_arrays_of_the_size_of_the_crop_are_resized() -> None:
    images = noise(2, 4, 20, 20, 3)
    dataset = jaxdp.data.from_arrays(images, np.arange(4) % 2, test=(images, np.arange(4) % 2))
    trainer = jaxdp.Trainer(
        "cnn", dataset, image_size="resize_crop:20/25", steps=1, devices=1, progress=False
    )
    expected = Resize.parse("resize_crop:20/25").apply(images[0])
    assert_array_equal(trainer.setup.dataset.train[0]["images"], expected)
    assert (expected != images[0]).any()


@pytest.mark.parametrize(
    ("sizes", "side"),
    [
        ([(300, 400), (500, 240)] * 5, 224),
        ([(100, 140), (90, 200)] * 5, 64),
        ([(10, 12), (11, 12)] * 5, 10),
    ],
)
def test_photos_of_several_sizes_are_cropped_by_default(
    capsys: pytest.CaptureFixture[str],
    sizes: list[tuple[int, int]],
    side: int,
) -> None:
    photos = {
        f"{'ab'[number % 2]}/{number:02d}.png": photo(*size, number)
        for number, size in enumerate(sizes)
    }
    dataset = opened(write(photos))
    size, crop = f"resize_crop:{side}", f"random_resized_crop:{side}"
    assert dataset.image_shape == (side, side, 3)
    assert dataset.augment == ("flip", crop)
    assert dataset.defaults["image_size"] == size
    (line,) = capsys.readouterr().err.splitlines()
    assert line.endswith(f'image_size="{size}" and augment=flip {crop} by default')
    given = opened(image_size=size)
    assert_array_equal(read(dataset.train)["images"], read(given.train)["images"])
    assert capsys.readouterr().err == ""
    assert given.augment == ()


def test_masks_keep_their_values_and_the_proportions_of_their_images() -> None:
    dataset = opened(pairs(), image_size="12x16", num_classes=3)
    found = read(dataset.train)
    assert dataset.image_shape == (12, 16, 3)
    assert set(np.unique(found["masks"])) == {0, 1, 2}
    # Antialiased noise has less contrast than the 74 it had.
    assert found["images"][1].std() < 50
    for kind in ("letterbox", "resize_crop"):
        words = f"image_size={kind}:32: is for classification, not for segmentation; give N or"
        with refused(words):
            opened(image_size=f"{kind}:32")
        with refused(words):
            open_dataset(DataConfig(dataset="cells", image_size=f"{kind}:32"))


@pytest.mark.parametrize("text", ["resize_crop:20/25:bicubic", "letterbox:20", "20:bicubic"])
def test_an_object_predicts_on_the_pixels_that_it_was_trained_on(text: str) -> None:
    names = [f"{label}/{number}.png" for label in "ab" for number in range(12)]
    files = {name: noise(seed, 30, 44, 3) for seed, name in enumerate(names)}
    dataset = jaxdp.data.from_folder(write(files), image_size=text)
    trainer = jaxdp.Trainer("cnn", dataset, steps=1, devices=1, progress=False)
    result = trainer.fit()
    source = trainer.setup.dataset.train
    trained = [source[index]["images"] for index in range(len(source))]
    predictor = result.predictor(devices=1)
    prepared = [predictor._prepared(raw, None) for raw in files.values()]
    found = [any((pixels == each).all() for each in prepared) for pixels in trained]
    assert all(found)
    assert str(Resize.parse(text)) == text.replace("20:bicubic", "20x20:bicubic")


def test_masks_are_predicted_on_bicubic_images_as_in_training() -> None:
    dataset = f"folder:{pairs([(20, 30)] * 4)}"
    trainer = jaxdp.Trainer(
        "unet",
        dataset,
        model_kwargs={"base_channels": 2, "levels": 1},
        image_size="16:bicubic",
        steps=1,
        devices=1,
        progress=False,
    )
    raw = noise(0, 20, 30, 3)
    prepared = trainer.fit().predictor(devices=1)._prepared(raw, None)
    assert_array_equal(prepared, Resize.parse("16:bicubic").apply(raw))
