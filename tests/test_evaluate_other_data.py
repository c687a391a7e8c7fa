"""A model is evaluated on whatever data has its classes: what belongs to the run, its classes and
the values of its masks, holds there, and nothing needs to be left to train on.
"""

import dataclasses
import json
import pathlib
from typing import Any

import numpy as np
import pytest
from example_files import noise, opened, read, read_splits, refused, sizes, with_masks, write
from PIL import Image
from shared_run import copy_here, make_once

import jaxdp
from jaxdp import evaluate
from jaxdp.config import DataConfig
from jaxdp.data.dataset import Description
from jaxdp.data.opening import with_classes
from jaxdp.data.sources import Dataset, open_dataset

CNN: dict[str, Any] = {"model_kwargs": {"width": 4, "hidden": 16}, "devices": 1, "progress": False}
UNET = CNN | {"model_kwargs": {"base_channels": 4, "levels": 2}}


def folders(root: str, *names: str, count: int = 3, split: str = "") -> pathlib.Path:
    """Writes class folders; the first pixel of an image is the position of its class's name."""
    files: dict[str, Any] = {}
    for name in names:
        for number in range(count):
            pixels = noise(number, 8, 8)
            pixels[0, 0] = sum(map(ord, name)) % 256
            files[f"{split}{name}/{number}.png"] = pixels
    return write(files, pathlib.Path(root))


def known(*names: str) -> Description:
    """Returns what a model of these classes knows; a number stands for classes without names."""
    if names[0].startswith("unnamed"):
        count = int(names[0].split()[1])
        dataset = jaxdp.data.from_arrays(noise(0, 40, 8, 8), np.arange(40) % count)
        return dataset.describe()
    return opened(folders("ours " + " ".join(names), *names, count=10)).describe()


def matched(root: pathlib.Path, model: Description) -> dict[str, int]:
    """Returns the class number that a model's evaluation gives to each class folder."""
    config = DataConfig(dataset=f"folder:{root}", channels=1)
    found = with_classes(open_dataset(config, ("classification",), known=model), model)
    assert found.num_classes == model.num_classes
    names = {sum(map(ord, path.name)) % 256: path.name for path in root.rglob("*") if path.is_dir()}
    labels: dict[str, int] = {}
    for split in found.splits().values():
        each = read(split)
        for image, label in zip(each["images"], each["labels"], strict=True):
            assert labels.setdefault(names[int(image[0, 0, 0])], int(label)) == label
    return labels


@pytest.mark.parametrize(
    ("ours", "theirs", "expected"),
    [
        ("01234", "0134", {"0": 0, "1": 1, "3": 3, "4": 4}),
        ("12345", "12345", {"1": 0, "2": 1, "3": 2, "4": 3, "5": 4}),
        ("12345", "24", {"2": 1, "4": 3}),
        ("abc", "c", {"c": 2}),
        (["unnamed 5"], "0134", {"0": 0, "1": 1, "3": 3, "4": 4}),
        (["unnamed 2"], ["cat", "dog"], {"cat": 0, "dog": 1}),
        (["2", "10", "1"], ["10", "2"], {"2": 2, "10": 1}),
        (["0", "90", "180"], ["0", "90"], {"0": 0, "90": 2}),
        (["007", "7"], ["7"], {"7": 1}),
    ],
)
def test_classes_match_by_name_whatever_the_names_look_like(
    ours: Any, theirs: Any, expected: dict[str, int]
) -> None:
    assert matched(folders("theirs", *theirs), known(*ours)) == expected


@pytest.mark.parametrize(
    ("ours", "theirs", "unknown"),
    [
        ("01234", "12345", "5"),
        ("12345", "01234", "0"),
        ("01", "02", "2"),
        ("01", ["cat", "dog"], "cat, dog"),
        (["unnamed 5"], "12345", "5"),
        (["unnamed 2"], "02", "2"),
        (["cat", "dog"], "01", "0, 1"),
        (["unnamed 2"], ["cat", "dog", "owl"], None),
    ],
)
def test_a_number_that_the_model_does_not_know_is_one_line(
    ours: Any, theirs: Any, unknown: str | None
) -> None:
    message = f"has classes that the model does not know: {unknown}; it knows "
    with refused(message if unknown else "its num_classes is 3, and the model's 2"):
        matched(folders("theirs", *theirs), known(*ours))


def test_what_is_matched_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    matched(folders("some", "3", "1"), known(*"01234"))
    assert (
        "note: folder:some: its classes are the model's by name: 1, 3\n" in capsys.readouterr().err
    )
    matched(folders("pets", "cat", "dog"), known("unnamed 2"))
    line = "note: folder:pets: its classes are the model's by number: cat is 0, dog is 1\n"
    assert line in capsys.readouterr().err
    stars, labels = known(*"12345"), np.arange(5)
    with_classes(jaxdp.data.from_arrays(noise(0, 5, 8, 8), labels, test=None), stars)
    line = "note: arrays: its classes are the model's by number: 0 is 1, 1 is 2, 2 is 3, 3 is 4"
    assert line in capsys.readouterr().err
    with_classes(jaxdp.data.from_arrays(noise(0, 5, 8, 8), labels % 2), known("cat", "dog"))
    assert not capsys.readouterr().err


def test_runs_of_old_versions_say_nothing_of_their_names() -> None:
    """Names that only count are none there, others are names."""
    for names, expected in (("abc", tuple("abc")), ("012", ()), ("123", tuple("123"))):
        old = dataclasses.replace(known(*names), named=None)
        assert old.names == expected
    assert known(*"012").names == tuple("012")
    assert known("unnamed 3").names == ()


@pytest.mark.parametrize("names", [("cat", "dog"), ("0", "1"), ("class 2", "dog")])
def test_more_classes_than_folders_keep_their_names(names: tuple[str, ...]) -> None:
    folders("set", *names, count=20)
    third = "class 2 (unnamed)" if "class 2" in names else "class 2"
    assert opened(num_classes=3).class_names == (*names, third)
    assert opened(num_classes=3, class_names=[*names, "owl"]).class_names == (*names, "owl")
    assert opened(num_classes=2).class_names == names
    with refused(rf"--class-names owl,x,y: .* have names already \({names[0]}, {names[1]}\)"):
        opened(num_classes=3, class_names=["owl", "x", "y"])
    with refused("--class-names .*: has 2 names for the 3 classes"):
        opened(num_classes=3, class_names=names)


def test_names_of_an_npz_file_are_kept_or_asked_for() -> None:
    arrays = {"images": noise(0, 24, 8, 8), "labels": np.arange(24) % 2}

    def names(*given: str, **settings: Any) -> tuple[str, ...]:
        np.savez("n.npz", **arrays, class_names=np.array(given))
        return open_dataset(DataConfig(dataset="npz:n.npz", **settings)).class_names

    assert names("cat", "dog", num_classes=3) == ("cat", "dog", "class 2")
    assert names("cat", "dog", "owl") == ("cat", "dog", "owl")  # which does not occur
    with refused("has 2 classes, but names for 1: cat; give a name to each"):
        names("cat")


# Masks: the first image holds the stored values, and the class numbers are read from there.


def masks(*values: int, count: int = 3) -> list[np.ndarray]:
    return [np.resize(np.array(values, np.uint8), (16, 16)) for _ in range(count)]


def model_of(*values: int, name: str = "ours", **settings: Any) -> tuple[Dataset, Description]:
    dataset = opened(write(with_masks(masks(*values, count=12)), pathlib.Path(name)), **settings)
    return dataset, dataset.describe()


def evaluated(root: str, model: Description, **settings: Any) -> Dataset:
    config = DataConfig.of(dataset=f"folder:{root}", **settings)
    return with_classes(open_dataset(config, ("segmentation",), known=model), model)


def classes_in(dataset: Dataset) -> set[int]:
    return {value for text in read_splits(dataset, "masks") for value in text}


@pytest.mark.parametrize(
    ("ours", "theirs", "expected"),
    [
        ((0, 1, 2), (0, 1), {0, 1}),
        ((0, 1, 2), (0,), {0}),
        ((0, 1, 2), (1, 2), {1, 2}),
        ((0, 1, 2), (0, 255), {0, 255}),
        ((0, 255), (0, 255), {0, 1}),
        ((0, 255), (255,), {1}),
        ((0, 255), (0, 1), {0, 1}),
        ((0, 1), (0, 1, 255), {0, 1, 255}),
        ((0, 1, 255), (0, 255), {0, 255}),
    ],
)
@pytest.mark.parametrize("count", [1, 4])
def test_masks_of_other_data_mean_what_they_meant_in_training(
    ours: tuple[int, ...], theirs: tuple[int, ...], expected: set[int], count: int
) -> None:
    _, model = model_of(*ours)
    write(with_masks(masks(*theirs, count=count)), pathlib.Path("theirs"))
    found = evaluated("theirs", model)
    assert classes_in(found) == expected
    assert (found.num_classes, sizes(found)) == (model.num_classes, [count])
    # And as arrays.
    images, stored = noise(0, count, 16, 16), np.stack(masks(*theirs, count=count))
    from jaxdp.data.arrays import arrays_for

    assert classes_in(with_classes(arrays_for(model, None, (images, stored)), model)) == expected


@pytest.mark.parametrize(
    ("ours", "theirs", "message"),
    [
        ((0, 1), (0, 255), "its mask has 255 but not 1, and the training masks 0 and 1; --mask-"),
        ((0, 1), (255,), "its mask has 255 but not 1"),
        ((0, 255), (0, 128, 255), "its mask has the value 128, and the training masks 0 and 255"),
        ((0, 255), (0, 1, 255), "its mask has the value 1, and the training masks 0 and 255"),
        ((0, 1, 2), (0, 128, 255), "its mask has the value 128, not one of 0 to 2, or 255"),
        ((0, 1), (0, 1, 2), "its mask has the value 2, not one of 0 to 1"),
    ],
)
@pytest.mark.parametrize("split", ["val", "test"])
def test_a_value_outside_the_table_of_the_run_is_one_line(
    ours: tuple[int, ...], theirs: tuple[int, ...], message: str, split: str
) -> None:
    _, model = model_of(*ours)
    write(with_masks(masks(*theirs)), pathlib.Path("theirs"))
    with refused(rf"^theirs/masks/00\.png|^theirs/images/00\.png: {message}"):
        read_splits(evaluated("theirs", model), "masks")
    # Before training, where they are held out.
    write(with_masks(masks(*ours, count=8), "train/") | with_masks(masks(*ours), "val/"))
    write(with_masks(masks(*theirs), f"{split}/"))
    with refused(message):
        read_splits(opened(), "masks")


def test_two_ways_to_store_one_class_in_a_training_set_are_asked_for() -> None:
    write(with_masks([*masks(0, 1), *masks(0, 255)]))
    message = (
        r"--mask-values \(not given\): the training masks of folder:set hold 0 and 1"
        r" \(e\.g\. set/masks/00\.png\) or 0 and 255 \(e\.g\. set/masks/0[34]\.png\); give"
        r" --mask-values binary if both are class 1, or --mask-values 0,1 to ignore 255"
    )
    tried: list[dict[str, Any]] = [{}, {"num_classes": 2}]
    for settings in tried:
        with refused(message):
            opened(**settings)
    assert classes_in(opened(mask_values="binary")) == {0, 1}
    assert classes_in(opened(mask_values="0,1")) == {0, 1, 255}
    write(with_masks([*masks(0, 1), *masks(0, 255), *masks(0, 1, 255)]))  # where 255 is no class
    assert classes_in(opened()) == {0, 1, 255}


def test_declared_values_hold_for_other_data_too() -> None:
    _, model = model_of(0, 128, 200, mask_values="0,128,200")
    assert model.mask_values == ()
    write(with_masks(masks(0, 200)), pathlib.Path("theirs"))
    assert classes_in(evaluated("theirs", model, mask_values="0,128,200")) == {0, 2}
    with refused("its mask has the value 7, not one of --mask-values 0,128,200"):
        write(with_masks(masks(0, 7)), pathlib.Path("theirs"))
        read_splits(evaluated("theirs", model, mask_values="0,128,200"), "masks")


def test_old_runs_know_no_values_of_masks() -> None:
    old = dataclasses.replace(model_of(0, 255)[1], mask_values=())
    write(with_masks(masks(0, 255)), pathlib.Path("theirs"))
    assert classes_in(evaluated("theirs", old)) == {0, 1}
    write(with_masks(masks(0, 1)), pathlib.Path("theirs"))
    assert classes_in(evaluated("theirs", old)) == {0, 1}


# Whole runs.


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[pathlib.Path, dict[str, jaxdp.Result]]:
    def make() -> dict[str, jaxdp.Result]:
        folders("photos", "0", "1", "2", count=20)
        write(with_masks(masks(0, 9, count=12)), pathlib.Path("slides"))
        settings: dict[str, Any] = {"steps": 1, "global_batch_size": 8}
        return {
            "photos": jaxdp.Trainer("cnn", "folder:photos", **CNN, **settings, run_dir="c").fit(),
            "slides": jaxdp.Trainer(
                "unet", "folder:slides", mask_values="0,9", **UNET, **settings, run_dir="s"
            ).fit(),
        }

    return make_once(tmp_path_factory, make)


@pytest.fixture
def results(made: tuple[pathlib.Path, dict[str, jaxdp.Result]]) -> dict[str, jaxdp.Result]:
    copy_here(made[0])
    return made[1]


@pytest.mark.parametrize(
    ("names", "count", "split", "examples"),
    [
        ("012", 1, "", 3),
        ("1", 5, "", 5),
        ("1", 1, "", 1),
        ("02", 3, "", 6),
        ("012", 2, "test/", 6),
        ("012", 2, "val/", 6),
        ("12", 1, "train/", 2),
    ],
)
def test_a_classifier_counts_all_labelled_images_that_there_are(
    results: dict[str, jaxdp.Result],
    capsys: pytest.CaptureFixture[str],
    names: str,
    count: int,
    split: str,
    examples: int,
) -> None:
    folders("other", *names, count=count, split=split)
    assert evaluate.main(["c", "--dataset", "folder:other", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["split"], found["examples"]) == ("all", examples)
    files = sorted(pathlib.Path("other").rglob("*.png"))
    labels = [int(file.parent.name) for file in files]
    answers = results["photos"].predict([*map(str, files)])
    assert found["accuracy"] == pytest.approx(np.mean(answers.argmax(-1) == labels))
    again = results["photos"].evaluate("folder:other", split="all")
    assert again == pytest.approx({name: found[name] for name in again})
    if split and split != "train/":
        name = {"test/": "test", "val/": "validation"}[split]
        assert evaluate.main(["c", "--dataset", "folder:other", "--split", name]) == 0


@pytest.mark.parametrize("count", [1, 7, 8, 100])
def test_fewer_examples_than_the_batch_of_the_run_are_evaluated(
    results: dict[str, jaxdp.Result], count: int
) -> None:
    images, labels = noise(1, count, 8, 8), np.ones(count, int)
    for result in (results["photos"], jaxdp.load("c")):
        found = result.evaluate(images, labels)
        probabilities = result.predict(images)
        assert found["examples"] == count
        assert found["loss"] == pytest.approx(-np.log(probabilities[:, 1]).mean(), rel=1e-5)


def test_arrays_are_read_by_the_values_of_the_masks_of_the_run(
    results: dict[str, jaxdp.Result],
) -> None:
    stored = np.stack(masks(0, 9, 9, count=3))
    images = noise(2, 3, 16, 16)
    for result in (results["slides"], jaxdp.load("s")):
        found = result.evaluate(images, stored)
        answers = result.predict(images)
        assert found["pixel_accuracy"] == pytest.approx(np.mean(answers == (stored == 9)))
        with refused("its mask has the value 1, not one of --mask-values 0,9"):
            result.evaluate(images, stored // 9)
        with refused("train: its 3 masks hold no pixel that counts, but ignored ones alone"):
            result.evaluate(images, np.full_like(stored, 255))
        padded = np.concatenate([stored[:1], np.full_like(stored[1:], 255)])
        first = result.evaluate(images[:1], stored[:1])
        assert result.evaluate(images, padded) == pytest.approx(first | {"examples": 3})


def test_the_remedies_of_evaluate_are_flags_of_evaluate(
    results: dict[str, jaxdp.Result], capsys: pytest.CaptureFixture[str]
) -> None:
    write(with_masks(masks(0, 1, count=2)), pathlib.Path("other"))
    assert evaluate.main(["s", "--dataset", "folder:other"]) == 2
    line = capsys.readouterr().err
    assert "its mask has the value 1, not one of --mask-values 0,9" in line
    assert "--on-bad-example skip" in line
    command = ["s", "--dataset", "folder:other", "--json"]
    assert evaluate.main([*command, "--mask-values", "binary"]) == 0
    assert json.loads(capsys.readouterr().out)["examples"] == 2
    write(with_masks(masks(0, 9, count=1)), pathlib.Path("other"))
    assert evaluate.main([*command, "--on-bad-example", "skip"]) == 0
    assert json.loads(capsys.readouterr().out)["examples"] == 1


def test_a_run_says_if_its_own_data_have_changed(
    results: dict[str, jaxdp.Result], capsys: pytest.CaptureFixture[str]
) -> None:
    folders("photos", "0", "1", "2", count=30)
    jaxdp.load("c").evaluate()
    line = (
        "warning: folder:photos has 81 train, 9 test examples, and had 54 train, 6 test when the"
        " model was trained"
    )
    assert line in capsys.readouterr().err


def test_a_split_of_ignored_pixels_alone_is_found_before_training() -> None:
    write(with_masks(masks(0, 1, 2, count=8), "train/") | with_masks(masks(255), "val/"))
    with refused("folder:set: no pixel of its validation masks counts: all are 255, which is"):
        opened()


def test_padding_does_not_count_where_another_label_is_ignored(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Images are padded with 255, which is neither a class nor the label that is ignored."""
    sizes = [(16, 16), (16, 9), (10, 16)] * 4
    write(with_masks([noise(n, *size, high=3) for n, size in enumerate(sizes)]))
    settings: dict[str, Any] = {"steps": 2, "task_kwargs": {"ignore_label": 0}}
    for weights in (None, "balanced"):
        trainer = jaxdp.Trainer("unet", "folder:set", **UNET, **settings, class_weights=weights)
        result = trainer.fit()
        assert result.status == "done"
        assert np.isfinite([row["loss"] for row in result.history]).all()


def test_a_dataset_opened_at_another_size_is_predicted_and_evaluated_at_that_size(
    no_pictures: None,
) -> None:
    rng = np.random.default_rng(0)
    for part, highest in (("images", 256), ("masks", 2)):
        pathlib.Path("set", part).mkdir(parents=True)
        for number in range(12):
            pixels = rng.integers(0, highest, (24, 32), np.uint8)
            Image.fromarray(pixels).save(f"set/{part}/{number}.png")
    data = jaxdp.data.from_folder("set", image_size=8)
    small: dict[str, Any] = {"model_kwargs": {"base_channels": 4, "levels": 1}, "devices": 1}
    result = jaxdp.Trainer("unet", data, progress=False, **small).fit(steps=1, run_dir="run")
    loaded = jaxdp.load("run")
    assert loaded.config.image_size == "8x8"
    assert loaded.predictor().resized
    assert loaded.evaluate(split="test")["loss"] == pytest.approx(result.metrics["test"]["loss"])
    assert loaded.trainer().fit(steps=2, resume="run").step == 2
