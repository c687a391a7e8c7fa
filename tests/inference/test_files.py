"""Pictures of any kind become what a model takes, or one line says why not."""

import dataclasses
import pathlib
import types
import warnings
from typing import Any

import numpy as np
import pytest
import tifffile
from PIL import Image
from runs import answers

import jaxdp
from jaxdp import predict, train
from jaxdp.config import DataConfig, TrainConfig
from jaxdp.data import from_arrays, image_file
from jaxdp.data.dataset import Description
from jaxdp.data.sources import BadExample, open_dataset, tfds
from jaxdp.errors import ConfigError
from jaxdp.inference import files
from jaxdp.inference.predictor import Predictor
from jaxdp.text import console

RNG = np.random.default_rng(0)
COLOUR = RNG.integers(0, 256, (5, 7, 3)).astype(np.uint8)
GREY = RNG.integers(0, 256, (5, 7)).astype(np.uint8)


def read(path: pathlib.Path, channels: int) -> tuple[np.ndarray, tuple[str, ...]]:
    return image_file.read_image(path, path, channels, "uint8")


def survey(folder: str) -> tuple[list[files.SurveyedImage], list[BadExample]]:
    return files.survey(
        files.find([folder]), lambda each: image_file.read_image(each, each, 3, "uint8")
    )


def save(name: str, pixels: np.ndarray, **options: object) -> pathlib.Path:
    path = pathlib.Path(name)
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path, **options)
    return path


def test_files_are_found_once_sorted_and_below_folders() -> None:
    for name in (
        "b/2.png",
        "b/1.PNG",
        "b/deep/1.png",
        "b/.hidden.png",
        "a.png",
        "out/x-mask.png",
        "b/out/y.png",
    ):
        save(name, GREY, format="PNG")
    pathlib.Path("b/notes.txt").write_text("no picture")
    found = files.find(["b", "a.png", "b/1.PNG", "b/../a.png"], leave_out=pathlib.Path("b/out"))
    assert [str(file) for file in found] == ["b/1.PNG", "b/2.png", "b/deep/1.png", "a.png"]
    assert [str(file.name) for file in found] == ["1", "2", "deep/1", "a"]
    assert len(files.find(["b"], leave_out=pathlib.Path("."))) == 4
    assert files.find(["b/notes.txt"])  # a person knows best


def test_each_link_to_one_file_is_an_image() -> None:
    blob = save("blobs/123", GREY, format="PNG").absolute()
    pathlib.Path("a/deep").mkdir(parents=True)
    links = ["a/1.png", "a/2.png", "a/deep/3.png"]
    for link in links:
        pathlib.Path(link).symlink_to(blob)
    assert [str(file) for file in files.find(["a"])] == links
    assert [str(file) for file in files.find(links)] == links
    # A folder that is found in two ways counts once.
    pathlib.Path("b").symlink_to("a")
    assert [str(file) for file in files.find(["a", "b", "a/../a/1.png", "b/2.png"])] == links


def test_pixels_are_kept_as_far_as_there_is_room(monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(4):
        save(f"b/{number}.png", COLOUR)
    monkeypatch.setattr(files, "_KEPT_BYTES", 2 * COLOUR.nbytes)
    kept = [each.pixels for each in survey("b")[0] if each.pixels is not None]
    assert len(kept) == 2
    for pixels in kept:
        np.testing.assert_array_equal(pixels, COLOUR)


def test_names_that_would_meet_are_refused() -> None:
    for name in ("a/x.png", "b/x.png", "b/x.bmp", "b/y/x.png"):
        save(name, GREY)
    files.check_names(files.find(["a/x.png", "b/y"])[:1])
    for paths, names in ((["a", "b/x.png"], "a/x.png and b/x.png"), (["b"], "x.bmp and b/x.png")):
        with pytest.raises(ConfigError, match=f"{names} would both be written as x-"):
            files.check_names(files.find(paths))
    tifffile.imwrite("b/y/x.tif", np.zeros((2, 8, 8), np.uint8), photometric="minisblack")
    files.check_names(files.find(["b/y"]))  # x, x-page0 and x-page1
    with pytest.raises(
        ConfigError, match=r"x\.png and b/y/x\.tif\[0\] would both be written as x-"
    ):
        files.check_names(files.find(["b/y"]), whole=True)
    assert [str(file.name) for file in files.find(["b/y"])] == ["x", "x-page0", "x-page1"]
    save("b/y/x-page1.png", GREY)
    with pytest.raises(ConfigError, match=r"x-page1\.png and b/y/x\.tif\[1\] would both be"):
        files.check_names(files.find(["b/y"]))


def test_grey_and_colour_are_converted_and_said() -> None:
    thrice = np.repeat(GREY[..., None], 3, -1)
    luma = (COLOUR @ [0.299, 0.587, 0.114])[..., None]
    for stored, channels, expected, changes in [
        (GREY, 1, GREY[..., None], ()),
        (GREY, 3, thrice, (image_file.COLOURED,)),
        (COLOUR, 1, luma, (image_file.GREYED,)),
        (thrice, 1, GREY[..., None], (image_file.GREYED,)),
    ]:
        pixels, found = read(save("a.png", stored), channels)
        assert found == changes
        assert pixels.shape == (5, 7, channels)
        np.testing.assert_allclose(pixels, expected, atol=0 if expected is not luma else 1)


@pytest.mark.parametrize("channels", [1, 3])
def test_transparent_pixels_are_black_whatever_hides_in_them(channels: int) -> None:
    alpha = np.zeros((5, 7, 1), np.uint8)
    alpha[2:] = 255
    for name, base in (("colour.png", COLOUR), ("grey.png", GREY[..., None])):
        path = save(name, np.concatenate([base, alpha], -1))
        pixels, changes = read(path, channels)
        assert image_file.FLATTENED in changes
        assert not pixels[:2].any()
        if base.shape[-1] == channels:
            np.testing.assert_array_equal(pixels[2:], base[2:])


@pytest.mark.parametrize("axis", [0, 2])
def test_predict_of_an_unclear_opacity_is_a_bad_example(
    axis: int, capsys: pytest.CaptureFixture[str]
) -> None:
    images = np.random.default_rng(0).integers(0, 60_000, (12, 8, 8, 4), np.uint16)
    pathlib.Path("x").mkdir()
    with warnings.catch_warnings(action="ignore"):  # of another default to come
        tifffile.imwrite("x/four.tif", np.moveaxis(images[0], 2, axis))
    tifffile.imwrite("x/three.tif", images[1, :, :, :3], photometric="rgb")
    settings: dict[str, Any] = {"model_kwargs": {"width": 2, "hidden": 8}, "progress": False}
    dataset = from_arrays(images[..., :3], np.arange(12) % 2)
    result = jaxdp.Trainer("cnn", dataset, devices=1, **settings).fit(steps=1)
    with pytest.raises(BadExample) as caught:
        result.predict("x/four.tif")
    said = "x/four.tif: its last plane is tagged as opacity; save it without; fix or remove it"
    assert str(caught.value) == said
    result.save("run")
    command = ["run", "x", "--csv", "x.csv"]
    assert predict.main([*command, "--on-bad-example", "error"]) == 2
    assert (
        "x/four.tif: its last plane is tagged as opacity; save it without"
        in capsys.readouterr().err
    )
    assert predict.main(command) == 0
    rows = pathlib.Path("x.csv").read_text().splitlines()
    assert [row.partition(",")[0] for row in rows[1:]] == ["x/three.tif", "x/four.tif"]
    assert rows[2] == "x/four.tif,,,,"  # without an answer


def test_a_palette_is_its_colours() -> None:
    picture = Image.fromarray(GREY % 3)
    picture.putpalette([10, 20, 30, 40, 50, 60, 70, 80, 90])
    picture.save("palette.png")
    np.testing.assert_array_equal(
        read(pathlib.Path("palette.png"), 3)[0][..., 0], (GREY % 3) * 30 + 10
    )
    picture.save("clear.png", transparency=0)
    pixels, changes = read(pathlib.Path("clear.png"), 3)
    assert image_file.FLATTENED in changes
    assert not pixels[GREY % 3 == 0].any()


def test_of_several_pictures_the_first_is_taken_and_said() -> None:
    pages = [Image.fromarray(GREY), Image.fromarray(255 - GREY)]
    pages[0].save("stack.tif", save_all=True, append_images=pages[1:])
    pixels, changes = read(pathlib.Path("stack.tif"), 1)
    np.testing.assert_array_equal(pixels[..., 0], GREY)
    assert changes == (image_file.FIRST,)


def test_broken_files_are_one_line_each_or_left_out() -> None:
    good = save("good.png", COLOUR)
    pathlib.Path("broken.png").write_bytes(good.read_bytes()[:80])
    pathlib.Path("text.png").write_text("no picture")
    save("deep.png", GREY.astype(np.uint16) * 257)
    names = ("broken.png", "text.png", "deep.png")
    for name, word in zip(names, ("truncated", "no known format", "16 bits"), strict=True):
        with pytest.raises(BadExample, match=word) as caught:
            read(pathlib.Path(name), 1)
        assert name in str(caught.value)
        assert "\n" not in str(caught.value)
    (known,), left_out = survey(".")
    assert (str(known.file), known.size) == ("good.png", (5, 7))
    assert (known.mean, known.std) == (pytest.approx(COLOUR.mean()), pytest.approx(COLOUR.std()))
    assert sorted(error.where for error in left_out) == sorted(names)


def test_names_that_are_no_text_can_be_shown() -> None:
    picture, name = image_file.Picture(pathlib.Path("caf\udce9.png")), pathlib.PurePath("x")
    file = files.ImageFile(picture, name, name)
    assert str(file) == r"caf\udce9.png"


def test_a_large_photo_is_decoded_as_in_training() -> None:
    for number in range(12):
        waves = np.sin(np.mgrid[:600, :800] / (3 + number)) * 100 + 128
        pixels = np.stack([waves[0], waves[1], waves[0]], -1).astype(np.uint8)
        path = pathlib.Path("photos", "ab"[number % 2], f"{number}.jpg")
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(path, quality=90)
    command = "--dataset folder:photos --image-size 64 --validation 0.5 --model cnn --steps 1 --strategy single"
    assert train.main(f"{command} --global-batch-size 2 --run-dir run".split()) == 0
    dataset = open_dataset(DataConfig(dataset="folder:photos", image_size="64"))
    names = [dataset.train.name(index) for index in range(len(dataset.train))]  # pyright: ignore
    examples = [dataset.train[index]["images"] for index in range(len(names))]
    for paths, images in ((names, examples), (names[:1], examples[:1])):
        from_files, from_arrays = (answers("run", each) for each in (paths, images))
        np.testing.assert_array_equal(from_files, from_arrays)
    assert predict.main(["run", *names, "--csv", "classes.csv"]) == 0
    written = pathlib.Path("classes.csv").read_text()
    np.testing.assert_allclose(
        [[float(cell) for cell in line.split(",")[-2:]] for line in written.splitlines()[1:]],
        answers("run", examples),
        atol=1e-4,
    )


def field(values: tuple[int, int], dtype: str) -> np.ndarray:
    """Bright cells on a tenth of a dark ground."""
    cells = np.where(RNG.random((64, 64, 1)) < 0.1, *values[::-1])
    return (cells + RNG.normal(0, 5, cells.shape)).clip(0).astype(dtype)


@pytest.mark.parametrize(("values", "dtype"), [((200, 2000), "uint16"), ((20, 200), "uint8")])
def test_images_of_other_intensities_are_warned_of_once(
    values: tuple[int, int], dtype: str, capsys: pytest.CaptureFixture[str]
) -> None:
    images = [field(values, dtype) for _ in range(8)]
    masks = [(image[..., 0] > sum(values) / 2).astype(np.uint8) for image in images]
    dataset = from_arrays(np.stack(images), np.stack(masks), test=(images[:2], masks[:2]))
    description = dataset.describe()
    high = int(description.pixel_range[1]) if description.pixel_range else 255

    def said(new: list[np.ndarray], *, resized: bool = False, **settings: Any) -> list[str]:
        config = TrainConfig(model="unet", **settings)
        predictor: Any = object.__new__(Predictor)
        predictor.description, predictor.config = description, config
        predictor.resized, predictor._plain = resized, types.SimpleNamespace(tile=512)
        facts = [files.SurveyedImage.of(f"{number}.tif", each) for number, each in enumerate(new)]
        with console.for_commands():
            files.say_notes(facts, predictor)
        return capsys.readouterr().err.splitlines()

    assert said([*images, field(values, dtype)]) == []
    dark = [images[0], images[1] // 8, images[2] // 8]
    (line,) = said(dark)
    start = "warning: other intensities than in training may change the results of"
    assert line.startswith(f"{start} 2 of 3 images: 1.tif (")
    assert line.endswith("scale them alike, or train with --normalize image")
    assert said(dark, normalize="image") == []
    inverted = [(high - image.astype(int)).clip(0).astype(dtype) for image in images]
    (line,) = said(inverted)
    assert line.startswith(f"{start} 8 of 8 images: 0.tif (mean ")
    assert line.count(".tif (") == 5
    assert "4.tif (" in line
    assert " and 3 more; " in line
    hot = images[0].astype(float)
    hot[::16, ::16] += 20 * high
    hot += images[0].mean() - hot.mean()
    (line,) = said([hot])
    assert "0.tif (standard deviation " in line
    assert said([hot], resized=True) == []


def test_photos_differ_more_than_frames_and_inverted_digits_are_warned_of() -> None:
    """The means and standard deviations of images of the test sets of CIFAR-10 and MNIST."""

    def warns(name: str, mean: float, std: float) -> bool:
        known = {key: tfds.KNOWN[name][key] for key in ("mean", "std", "spread")}
        predictor: Any = object.__new__(Predictor)
        predictor.description = Description(examples={}, **known)
        predictor.config, predictor.resized = TrainConfig(), False
        image = np.asarray([mean - std, mean + std]).reshape(1, 2, 1)
        return bool(files.difference(files.SurveyedImage.of("a.png", image), predictor))

    for mean, std in ((252.0, 12.2), (24.0, 23.5), (121.5, 61.8)):
        assert not warns("cifar10", mean, std)
    assert not warns("mnist", 33.8, 79.2)
    assert warns("mnist", 255 - 33.8, 79.2)
    assert warns("cifar10", 0.5, 0.25)  # fractions of 1


@pytest.mark.parametrize("is_recorded", [True, False])
def test_frames_of_a_film_are_not_warned_of_and_a_few_counts_more_are(is_recorded: bool) -> None:
    """Cells of a thousand counts on a ground of 33,000, more in each frame."""

    def frame(share: float) -> np.ndarray:
        cells = np.where(RNG.random((128, 128, 1)) < share, 34_000, 33_000)
        return (cells + RNG.normal(0, 20, cells.shape)).round().astype(np.uint16)

    frames = [frame(0.02 + 0.002 * number) for number in range(12)]
    masks = [(image[..., 0] > 33_500).astype(np.uint8) for image in frames]
    description = from_arrays(np.stack(frames), np.stack(masks)).describe()
    if not is_recorded:  # by a run of version 0.3
        description = dataclasses.replace(description, spread=())
    predictor: Any = object.__new__(Predictor)
    predictor.description, predictor.resized = description, False
    predictor.config = TrainConfig(model="unet")

    def warns(pixels: Any) -> bool:
        image = files.SurveyedImage.of("a.tif", np.asarray(pixels).astype(np.uint16))
        return bool(files.difference(image, predictor))

    later = frame(0.05)
    assert not any(map(warns, [*frames, later]))
    tilt = np.linspace(-1, 1, 128)[None, :, None]
    hot = np.where(RNG.random(later.shape) < 0.01, 65_535, later)
    for changed in (later + 500, later + 500 * (1 + tilt), hot, later / 257):
        assert warns(changed)
    assert warns(later + 500 * tilt) == is_recorded


def test_arrays_that_are_unlike_training_are_warned_of_in_python(
    capsys: pytest.CaptureFixture[str],
) -> None:
    images, labels = RNG.random((40, 8, 8, 1), np.float32), np.arange(40) % 2
    data = from_arrays(images, labels, validation=(images, labels), name="floats")
    result = jaxdp.Trainer("cnn", data, strategy="single").fit(steps=1)
    capsys.readouterr()
    result.evaluate(split="validation")
    assert capsys.readouterr().err == ""
    result.evaluate()
    said = capsys.readouterr().err
    assert said == "note: floats is evaluated on validation; it has: train, validation, all\n"
    result.predict(images)
    assert capsys.readouterr().err == ""
    result.predict(255 * images)
    result.predict(RNG.random((3, 28, 28, 1), np.float32))
    note, scale = sorted(capsys.readouterr().err.splitlines())
    assert note.startswith("note: 3 of 3 images are not 8x8 pixels: resized")
    assert scale.startswith("warning: other intensities than in training may change the results")
    assert " of 40 of 40 images: images[0] (mean " in scale
