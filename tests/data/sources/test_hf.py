"""Datasets of the Hugging Face hub are read as its own library reads them, with jaxdp's decoder."""

import concurrent.futures
import hashlib
import http.server
import io
import json
import logging
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
import types
import urllib.parse
from collections.abc import Iterator, Sequence
from typing import Any

import datasets
import huggingface_hub
import numpy as np
import pyarrow.parquet
import pytest
import tifffile
from datasets import ClassLabel, Features, List, Value
from datasets import Image as ImageColumn
from example_files import bad_example, noise, png, read, refused, sizes, skipped
from numpy.testing import assert_array_equal
from PIL import Image
from runs import assert_same_run, run_train, summary

import jaxdp
from jaxdp import evaluate
from jaxdp.callbacks.progress import Progress
from jaxdp.config import DataConfig
from jaxdp.config.values import Columns
from jaxdp.data import hub_tables
from jaxdp.data.hub_columns import find_columns
from jaxdp.data.request import Request
from jaxdp.data.sources import Dataset, hf, open_dataset

CLASSES = Features({"image": ImageColumn(), "label": ClassLabel(names=["cat", "dog"])})
NUMBERS = Features({"image": ImageColumn(), "label": Value("int64")})
MASKS = Features({"image": ImageColumn(), "annotation": ImageColumn()})
TASKS = ("classification", "multilabel", "segmentation")


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")


def encoded(pixels: np.ndarray, kind: str = "PNG") -> dict[str, Any]:
    # The hub's tables have names of files that lie nowhere.
    return {"bytes": png(pixels, kind).getvalue(), "path": f"1.{kind.lower()}"}


def examples(count: int, seed: int = 0, channels: int = 3) -> list[dict[str, Any]]:
    return [
        {"image": encoded(noise(seed + row, 6, 5, channels)), "label": row % 2}
        for row in range(count)
    ]


def table(rows: Sequence[dict[str, Any]], features: Features = CLASSES) -> datasets.Dataset:
    columns = {name: [row.get(name) for row in rows] for name in features}
    return datasets.Dataset(pyarrow.table(columns, schema=features.arrow_schema))


def write(
    splits: dict[str, Sequence[dict[str, Any]]],
    features: Features = CLASSES,
    folder: str = "set",
    data: str = "data",
    parts: int = 1,
) -> str:
    """Writes Parquet files in the layout of the hub, and returns the dataset's name."""
    place = pathlib.Path(folder, data)
    place.mkdir(parents=True, exist_ok=True)
    for split, rows in splits.items():
        whole = table(rows, features)
        for part in range(parts):
            stored = whole.shard(parts, part, contiguous=True).with_format("arrow")[:]
            file = place / f"{split}-{part:05d}-of-{parts:05d}.parquet"
            # Many groups, so that rows of a batch come from several pieces.
            pyarrow.parquet.write_table(stored, file, row_group_size=3)
    return f"hf:./{folder}"


def opened(dataset: str, tasks: tuple[str, ...] = TASKS, **settings: Any) -> Dataset:
    return open_dataset(DataConfig.of(dataset=dataset, **settings), tasks)


def expected(rows: datasets.Dataset, image: str = "image") -> list[np.ndarray]:
    """The pixels as the library decodes them."""
    return [np.atleast_3d(np.asarray(row[image])) for row in rows]


def test_the_library_is_imported_only_for_its_datasets() -> None:
    name = write({"train": examples(4), "test": examples(2)})
    script = f"""
import sys
from jaxdp.data.sources import names, open_dataset
assert "hf" in names()
assert not {{"datasets", "huggingface_hub", "pyarrow"}} & set(sys.modules)
dataset = open_dataset({name!r})
assert len(dataset.train.read([0, 1])["labels"]) == 2
assert not {{"torch", "tensorflow"}} & set(sys.modules)
"""
    run = subprocess.run(
        [sys.executable, "-W", "error", "-c", script],
        capture_output=True,
        text=True,
        env={"PATH": "", "HF_HOME": "home", "PYTHONPATH": ":".join(sys.path)},
    )
    assert (run.returncode, run.stdout) == (0, ""), run.stderr


def test_examples_are_those_of_the_library_one_by_one_or_many_at_once_from_any_thread() -> None:
    features = Features(dict(CLASSES) | {"text": Value("string"), "other": Value("float32")})
    rows = [row | {"text": "unused", "other": 0.5} for row in examples(40)]
    name = write({"train": rows, "test": examples(3, 100)}, features, parts=3)
    dataset = opened(name)
    assert (dataset.task, dataset.class_names, dataset.num_classes, dataset.image_shape) == (
        "classification",
        ("cat", "dog"),
        2,
        (6, 5, 3),
    )
    theirs = datasets.load_dataset("./set", cache_dir="other")
    for split, source in (("train", dataset.train), ("test", dataset.test)):
        found = read(source)
        assert_array_equal(found["images"], expected(theirs[split]))
        assert_array_equal(found["labels"], theirs[split]["label"][:])
        assert_array_equal(source.labels(), theirs[split]["label"][:])
    assert sizes(dataset) == [40, 3]
    assert dataset.train[0].keys() == {"images", "labels", "weights"}
    found = read(dataset.train)
    order = np.random.default_rng(0).permutation(40)
    parts = [order[first : first + 7].tolist() for first in range(0, 40, 7)] * 8
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        for part, batch in zip(parts, pool.map(dataset.train.read, parts), strict=True):
            assert_array_equal(batch["images"], found["images"][part])
            assert_array_equal(batch["labels"], found["labels"][part])
        for index, example in enumerate(pool.map(dataset.train.__getitem__, range(40))):
            assert_array_equal(example["images"], found["images"][index])


def test_only_two_columns_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    features = Features(dict(CLASSES) | {"depth": ImageColumn(), "text": Value("string")})
    rows = [row | {"depth": encoded(noise(9, 4, 4)), "text": "unused"} for row in examples(4)]
    name = write({"train": rows, "test": rows}, features)

    def decode(*_: Any, **__: Any) -> None:
        raise AssertionError("the library decodes")

    monkeypatch.setattr(ImageColumn, "decode_example", decode)
    dataset = opened(name, columns={"image": "image"})
    read(dataset.train)
    assert dataset.train.source.table.column_names == ["image", "label"]


def test_an_image_is_turned_as_by_the_library_and_a_palette_keeps_its_colours() -> None:
    turned, flat = io.BytesIO(), io.BytesIO()
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.fromarray(noise(0, 6, 5, 3)).save(turned, "JPEG", exif=exif)
    Image.fromarray(noise(1, 5, 6, 3)).convert("P").save(flat, "PNG")
    rows = [
        {"image": {"bytes": file.getvalue(), "path": None}, "label": number}
        for number, file in enumerate((turned, flat))
    ]
    dataset = opened(write({"train": rows, "test": rows}))
    theirs = [row["image"].convert("RGB") for row in table(rows)]
    assert_array_equal(read(dataset.train)["images"], np.stack(theirs))
    assert dataset.image_shape == (5, 6, 3)


def test_masks_are_class_numbers_as_stored() -> None:
    palette = Image.fromarray(noise(7, 6, 5, high=3)).convert("P")
    palette.putdata(list(noise(7, 6, 5, high=3).ravel()))
    palette.putpalette([255, 0, 0, 0, 255, 0, 0, 0, 255])
    file = io.BytesIO()
    palette.save(file, "PNG")
    rows = [
        {"image": encoded(noise(row, 6, 5, 3)), "annotation": encoded(noise(row + 9, 6, 5, high=3))}
        for row in range(4)
    ]
    rows.append({"image": rows[0]["image"], "annotation": {"bytes": file.getvalue(), "path": None}})
    dataset = opened(write({"train": rows, "val": rows[:2]}, MASKS))
    assert (dataset.task, dataset.num_classes) == ("segmentation", 3)
    assert dataset.augment == ("flip", "flip_vertical")
    found = read(dataset.train)
    assert_array_equal(
        found["masks"], [np.asarray(row["annotation"]) for row in table(rows, MASKS)]
    )
    assert_array_equal(found["images"], expected(table(rows, MASKS)))
    named = opened("hf:./set", columns="image=image,mask=annotation", mask_values="2,1,0")
    assert_array_equal(read(named.train)["masks"], 2 - found["masks"])
    objects = opened("hf:./set", ("segmentation",), instances=True)
    assert objects.instances
    assert_array_equal(objects.train.source[0]["masks"], found["masks"][0])


def test_lists_of_classes_are_for_multilabel() -> None:
    features = Features({"image": ImageColumn(), "tags": List(ClassLabel(names=["a", "b", "c"]))})
    tags = [[0, 2], [], [1], [2, 2]]
    rows = [{"image": encoded(noise(row, 6, 5, 3)), "tags": each} for row, each in enumerate(tags)]
    dataset = opened(write({"train": rows, "test": rows}, features))
    assert (dataset.task, dataset.class_names) == ("multilabel", ("a", "b", "c"))
    assert_array_equal(read(dataset.train)["present"], [[1, 0, 1], [0, 0, 0], [0, 1, 0], [0, 0, 1]])
    rows[1]["tags"] = [-1]
    with bad_example(r"hf \./bad train\[1\]: its label -1 is no class number of 0 to 2"):
        read(opened(write({"train": rows, "test": rows[:1]}, features, "bad")).train)


PAIR = {"image": ImageColumn(), "label": ClassLabel(names=["a", "b"])}
TWO = {"a": ImageColumn(), "b": ImageColumn()}


@pytest.mark.parametrize(
    ("features", "settings", "found"),
    [
        (PAIR, {}, ("classification", "image", "label")),
        (PAIR | {"id": Value("int64")}, {}, ("classification", "image", "label")),
        ({"img": ImageColumn(), "labels": Value("bool")}, {}, ("classification", "img", "labels")),
        ({"mask": ImageColumn(), "class": Value("uint8")}, {}, ("classification", "mask", "class")),
        ({"x": ImageColumn(), "y": ClassLabel(num_classes=2)}, {}, ("classification", "x", "y")),
        (
            {"image": {"bytes": Value("binary"), "path": Value("null")}, "label": Value("int8")},
            {},
            ("classification", "image", "label"),
        ),
        *(
            ({"photo": ImageColumn(), name: ImageColumn()}, {}, ("segmentation", "photo", name))
            for name in ("mask", "masks", "label", "Annotation", "segmentation_mask", "gt")
        ),
        (PAIR | {"mask": ImageColumn()}, {}, ("classification", "image", "label")),
        (
            PAIR | {"mask": ImageColumn()},
            {"tasks": ("segmentation",)},
            ("segmentation", "image", "mask"),
        ),
        (
            PAIR | {"mask": ImageColumn()},
            {"columns": "mask=mask"},
            ("segmentation", "image", "mask"),
        ),
        (TWO, {"columns": "image=b,mask=a"}, ("segmentation", "b", "a")),
        (TWO, {"columns": "mask=a"}, ("segmentation", "b", "a")),
        (TWO | PAIR, {"columns": "image=b"}, ("classification", "b", "label")),
        (
            PAIR | {"coarse": ClassLabel(num_classes=3)},
            {"columns": "label=coarse"},
            ("classification", "image", "coarse"),
        ),
        (PAIR | {"id": Value("int64")}, {"columns": "label=id"}, ("classification", "image", "id")),
        (
            PAIR | {"tags": List(ClassLabel(num_classes=3))},
            {"columns": "label=tags"},
            ("multilabel", "image", "tags"),
        ),
    ],
)
def test_columns_are_found_by_type_and_name(
    features: dict[str, Any], settings: dict[str, Any], found: tuple[str, str, str]
) -> None:
    tasks = settings.pop("tasks", ())
    request = Request(DataConfig.of(dataset="hf:x", **settings), "x", tasks)
    assert find_columns(request, Features(features)) == found


@pytest.mark.parametrize(
    ("features", "settings", "message"),
    [
        (
            PAIR | {"coarse": ClassLabel(num_classes=3)},
            {},
            r"--columns \(not given\): hf:x has the columns image \(Image\), label \(ClassLabel of"
            r" 2\), coarse \(ClassLabel of 3\); give e\.g\. --columns image=image,label=label",
        ),
        (PAIR | TWO, {}, r"give e\.g\. --columns image=image,label=label"),
        (
            {"image": ImageColumn(), "image_id": Value("int64")},
            {},
            r"no column is known to be the label; .* --columns image=image,label=image_id",
        ),
        (TWO, {}, r"no column is known to be the mask; .* --columns image=a,mask=b"),
        (
            {"photo": ImageColumn(), "mask": ImageColumn(), "label": ImageColumn()},
            {},
            r"give e\.g\. --columns image=photo,mask=mask",
        ),
        ({"label": Value("int64")}, {}, "no images with labels or masks; its columns: label"),
        (
            {"image": ImageColumn(), "label": Value("string")},
            {},
            r"label \(string\): number them by \.class_encode_column\('label'\)\.save_to_disk",
        ),
        (
            {"image": ImageColumn(), "label": Value("float32")},
            {},
            r"its columns: image \(Image\), label \(float32\)$",
        ),
        (
            {"image": ImageColumn(), "label": List(Value("int64"))},
            {},
            r"its columns: image \(Image\), label \(List of int64\)$",
        ),
        (PAIR, {"columns": "label=nothing"}, "--columns label=nothing: there is no column nothing"),
        (PAIR, {"columns": "image=label"}, "label holds no images"),
        (PAIR, {"columns": "label=image"}, "labels are ClassLabel, integers or a list"),
        (PAIR, {"columns": "mask=image"}, r"--columns mask=image: hf:x has the columns"),
        (
            PAIR | {"name": Value("string")},
            {"columns": "label=name"},
            r"not name: number them by \.class_encode_column\('name'\)",
        ),
        (PAIR, {"tasks": ("segmentation",)}, "is for classification, but"),
    ],
)
def test_ambiguous_columns_are_refused_with_what_to_give(
    features: dict[str, Any], settings: dict[str, Any], message: str
) -> None:
    tasks = settings.pop("tasks", ())
    request = Request(DataConfig.of(dataset="hf:x", **settings), "x", tasks)
    with refused(message):
        find_columns(request, Features(features))


@pytest.mark.parametrize("text", ["", "image", "image=", "picture=a", "image=a,image=b"])
def test_columns_are_given_by_what_they_hold(text: str) -> None:
    with refused("--columns.*: must name the columns image, label or mask once each"):
        DataConfig.of(columns=text)


def test_columns_have_the_same_form_in_a_file_and_a_program() -> None:
    by_text = DataConfig.of(columns=" image=a b , label=c=d ")
    assert by_text.columns == Columns(image="a b", label="c=d")
    assert DataConfig.of(columns={"image": "a b", "label": "c=d"}) == by_text
    assert DataConfig.of(**by_text.plain()) == by_text


@pytest.mark.parametrize("dataset", ["digits", "cells", "folder:set", "npz:set.npz", "tfds:set"])
def test_other_datasets_have_no_columns(dataset: str) -> None:
    with refused(f"--columns label=a: {dataset} does not take it"):
        opened(dataset, columns="label=a")


def test_splits_are_written_in_the_librarys_own_language() -> None:
    name = write({"train": examples(10), "validation": examples(3, 100)})
    whole = opened(name)
    assert (sizes(whole), whole.test) == ([10, 3], None)
    assert sizes(opened(name, test_split="validation", validation="0.4")) == [6, 4, 3]
    named = opened(name, validation="train[8:]", train_split="train[:8]")
    assert sizes(named) == [8, 2]
    parts = opened(name, train_split="train[:80%]", test_split="train[80%:]")
    assert sizes(parts) == [8, 3, 2]
    together = np.concatenate([read(parts.train)["images"], read(parts.test)["images"]])
    assert_array_equal(together, read(whole.train)["images"])
    both = opened(name, train_split="validation+train[-2:]", test_split="train")
    theirs = datasets.load_dataset("./set", split="validation+train[-2:]", cache_dir="other")
    assert_array_equal(read(both.train)["images"], expected(theirs))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({}, r"--test-split \(not given\): .* or give --validation 0\.1"),
        ({"test_split": "testing"}, "--test-split testing: hf:./set has the splits train"),
        ({"test_split": "train[:9"}, r"--test-split train\[:9: hf:\./set has the splits train"),
        (
            {"train_split": "train[:0]", "test_split": "train"},
            r"--train-split train\[:0\]: .* has no example there",
        ),
        (
            {"train_split": "train", "test_split": "train[3:1]"},
            r"--test-split train\[3:1\]: a slice of it ends before it begins",
        ),
        (
            {"train_split": "train[:3]+train[3:2]", "test_split": "train"},
            r"--train-split train\[:3\][+]train\[3:2\]: a slice of it ends before it begins",
        ),
        ({"test_split": "train", "num_classes": 1}, "--num-classes 1: hf:./set has 2"),
        ({"test_split": "train", "tiff": "pages"}, "--tiff pages: hf:./set does not take it"),
        ({"test_split": "train", "instances": True}, "--instances: takes masks of object numbers"),
    ],
)
def test_what_cannot_be_is_said_in_one_line(settings: dict[str, Any], message: str) -> None:
    write({"train": examples(4)})
    with refused(message):
        opened("hf:./set", **settings)


def test_classes_without_names_are_counted(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [row | {"label": number + 1} for number, row in enumerate(examples(3))]
    dataset = opened(write({"train": rows, "test": rows}, NUMBERS))
    assert (dataset.num_classes, dataset.class_names) == (4, ())
    assert_array_equal(read(dataset.train)["labels"], [1, 2, 3])
    assert "no training label is 0" in capsys.readouterr().err
    rows[1]["label"] = 10**12
    with refused("its highest class number is 1000000000000; number the classes from 0 on"):
        opened(write({"train": rows, "test": rows}, NUMBERS, "huge"))


@pytest.mark.parametrize("features", [CLASSES, NUMBERS])
def test_a_split_without_labels_is_left_out_or_refused(
    features: Features, capsys: pytest.CaptureFixture[str]
) -> None:
    secret = [
        row | {"label": label} for row, label in zip(examples(3), (-1, None, -1), strict=True)
    ]
    name = write({"train": examples(4), "val": examples(2), "test": secret}, features)
    dataset = opened(name)
    assert (sizes(dataset), dataset.test) == ([4, 2], None)
    assert (
        "test has no labels (its labels are -1 or empty); it is not read" in capsys.readouterr().err
    )
    with refused("--test-split test: no example of it has a label"):
        opened(name, test_split="test")
    with refused("--train-split test: no example of it has a label"):
        opened(name, train_split="test", test_split="train")
    only = write({"train": examples(4), "test": secret}, features, "only")
    with refused("--test-split test: no example of it has a label"):
        opened(only, test_split="test")
    assert "is not read" not in capsys.readouterr().err
    with refused(r"--test-split \(not given\): .* has no test data"):
        opened(only)


@pytest.mark.parametrize(
    ("label", "features", "problem"),
    [
        (-1, CLASSES, "its label -1 is no class number of 0 to 1"),
        (-7, NUMBERS, "its label -7 is no class number"),
        (None, CLASSES, "has no label"),
    ],
)
def test_an_example_without_a_class_is_named_before_training_or_left_out(
    label: Any, features: Features, problem: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hf, "_SAMPLE", 1)
    monkeypatch.setattr("jaxdp.data.measure._SAMPLE", 1)
    rows = examples(5)
    rows[3]["label"] = label
    name = write({"train": rows, "test": examples(2)}, features)
    with bad_example(rf"hf \./set train\[3\]: {problem}"):
        opened(name)
    dataset = opened(name, on_bad_example="skip")
    assert_array_equal(read(dataset.train)["weights"], [1, 1, 1, 0, 1])
    assert skipped(dataset.train)[3].startswith(f"hf ./set train[3]: {problem}")
    assert dataset.num_classes == 2


def test_a_bad_row_is_named_and_left_out_if_asked() -> None:
    rows = examples(6)
    rows[1]["image"] = None
    rows[2]["image"] = {"bytes": None, "path": None}
    rows[3]["image"] = {"bytes": b"no image", "path": None}
    rows[4]["image"] = {"bytes": None, "path": "https://u:pw@hub.co/1.png?Signature=secret"}
    rows[5]["image"] = {"bytes": None, "path": "/nowhere/1.png"}
    name = write({"train": rows, "test": examples(2)})
    with bad_example(r"hf \./set train\[1\]: has no image"):
        opened(name)
    dataset = opened(name, on_bad_example="skip")
    assert_array_equal(read(dataset.train)["weights"], [1, 0, 0, 0, 0, 0])
    problems = skipped(dataset.train)
    assert problems[2] == "hf ./set train[2]: has no image"
    assert problems[3].startswith("hf ./set train[3]: cannot be read as an image (no known format")
    assert problems[4].endswith("its image is not in a file, but at https://hub.co/1.png")
    assert problems[5].startswith("/nowhere/1.png: cannot be read as an image (No such file")


def test_a_colour_that_was_not_seen_is_no_grey(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hf, "_SAMPLE", 2)
    rows = examples(6, channels=1)
    grey = opened(write({"train": rows, "test": rows}, folder="grey"))
    assert (grey.image_shape, read(grey.train)["images"].shape) == ((6, 5, 1), (6, 6, 5, 1))
    rows[1] = examples(2)[1]
    name = write({"train": rows, "test": rows[:1]})
    monkeypatch.setattr("jaxdp.data.measure._SAMPLE", 2)
    with bad_example(
        r"hf \./set train\[1\]: is in colour, .*; give --channels 3, or --channels 1 to make"
    ):
        read(opened(name).train)
    for channels, mode in ((1, "L"), (3, "RGB")):
        found = read(opened(name, channels=channels).train)["images"]
        theirs = [np.asarray(row["image"].convert(mode)) for row in table(rows)]
        assert_array_equal(found, np.reshape(theirs, found.shape))


def test_the_mode_of_a_column_is_that_of_its_images() -> None:
    features = Features({"image": ImageColumn(mode="RGB"), "label": CLASSES["label"]})
    rows = examples(2, channels=1)
    dataset = opened(write({"train": rows, "test": rows}, features))
    assert_array_equal(read(dataset.train)["images"], expected(table(rows, features)))
    assert opened("hf:./set", channels=1).image_shape == (6, 5, 1)


def test_transparent_and_moving_images_are_noted(capsys: pytest.CaptureFixture[str]) -> None:
    rows, moving = examples(3), io.BytesIO()
    clear = noise(5, 6, 5, 4)
    rows[0]["image"] = encoded(clear)
    frames = [Image.fromarray(noise(number, 6, 5, 3)) for number in range(2)]
    frames[0].save(moving, "GIF", save_all=True, append_images=frames[1:])
    rows[1]["image"] = {"bytes": moving.getvalue(), "path": None}
    name = write({"train": rows, "test": rows})
    kept = opened(name, channels=4)
    assert_array_equal(read(kept.train)["images"][0], clear)
    said = capsys.readouterr().err
    assert "1 of the 3 images looked at hold several pictures" in said
    assert "opacity" not in said
    opened(name)
    assert "1 of the 3 images looked at have opacity" in capsys.readouterr().err


def test_deep_images_keep_their_depth() -> None:
    deep = np.random.default_rng(0).integers(0, 2**16, (4, 6, 5), np.uint16)
    rows = [{"image": encoded(image), "label": row % 2} for row, image in enumerate(deep)]
    dataset = opened(write({"train": rows, "test": rows}))
    assert (dataset.dtype, dataset.image_shape) == ("uint16", (6, 5, 1))
    found = read(dataset.train)["images"]
    assert_array_equal(found[..., 0], deep)
    assert_array_equal(found[..., 0], [np.asarray(row["image"]) for row in table(rows)])


def test_photos_of_several_sizes_get_one(capsys: pytest.CaptureFixture[str]) -> None:
    shapes = [(70, 60, 3), (80, 66, 3), (64, 90, 3)]
    rows = [
        {"image": encoded(noise(1, *shape)), "label": row % 2} for row, shape in enumerate(shapes)
    ]
    dataset = opened(write({"train": rows, "test": rows}))
    assert dataset.image_shape == (64, 64, 3)
    assert "images differ in size: image_size=" in capsys.readouterr().err


def test_what_save_to_disk_wrote_is_read() -> None:
    train, test = table(examples(5)), table(examples(3, 100))
    datasets.DatasetDict({"train": train, "test": test}).save_to_disk("both")
    dataset = opened("hf:both")
    assert (sizes(dataset), dataset.class_names) == ([5, 3], ("cat", "dog"))
    assert_array_equal(read(dataset.train)["images"], expected(train))
    train.shuffle(seed=1).save_to_disk("one")
    one = opened("hf:./one", validation="train[3:]", train_split="train[:3]")
    together = np.concatenate([read(one.train)["images"], read(one.validation)["images"]])
    assert_array_equal(together, expected(train.shuffle(seed=1)))
    with refused("--data-dir cache: hf:both does not take it"):
        opened("hf:both", data_dir="cache")
    with refused("both was written by save_to_disk, and has no configurations"):
        opened("hf:both:small")
    file = next(pathlib.Path("both/test").glob("*.arrow"))
    file.write_bytes(file.read_bytes()[:100])
    with refused(r"hf:both: both cannot be read \(.*\); save it again"):
        opened("hf:both")


def test_splits_that_differ_are_refused_or_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    other = Features(dict(CLASSES) | {"label": ClassLabel(names=["dog", "cat"])})
    bare = Features({"image": ImageColumn()})
    splits = {"test": table(examples(2), bare), "val": table(examples(3), other)}
    datasets.DatasetDict(splits | {"train": table(examples(4))}).save_to_disk("saved")
    with refused(r"the column label \(ClassLabel of 2\) differs in val: label \(ClassLabel of 2\)"):
        opened("hf:./saved")
    assert "test has no labels (it has no column label)" in capsys.readouterr().err
    assert sizes(opened("hf:./saved", validation="0.5", test_split="train[:2]")) == [2, 2, 2]
    with refused("the column label .* differs in test: no such column"):
        opened("hf:./saved", validation="0.5", test_split="test")


def test_folders_of_pictures_in_the_hubs_layout_are_read_from_their_files() -> None:
    for split in ("train", "test"):
        for number in range(4):
            place = pathlib.Path("photos", split, "ab"[number % 2])
            place.mkdir(parents=True, exist_ok=True)
            tifffile.imwrite(place / f"{number}.tif", noise(number, 6, 5).astype(np.float32) / 7)
    dataset = opened("hf:./photos")
    assert (dataset.class_names, dataset.dtype) == (("a", "b"), "float32")
    found = {image.tobytes() for image in read(dataset.train)["images"][..., 0]}
    assert found == {(noise(each, 6, 5).astype(np.float32) / 7).tobytes() for each in range(4)}
    pathlib.Path("photos/train/a/0.tif").write_bytes(b"II*\0")
    with bad_example(r"photos/train/a/0\.tif: cannot be read as an image"):
        opened("hf:./photos", data_dir="again")


def test_a_configuration_is_named_after_a_colon() -> None:
    for name, count in (("small", 4), ("large", 8)):
        write({"train": examples(count), "test": examples(2)}, data=name)
    parts = "".join(
        f"- config_name: {name}\n  data_files:\n"
        + "".join(
            f"  - split: {split}\n    path: {name}/{split}-*.parquet\n"
            for split in ("train", "test")
        )
        for name in ("small", "large")
    )
    pathlib.Path("set/README.md").write_text(f"---\nconfigs:\n{parts}---\n")
    assert sizes(opened("hf:./set:large")) == [8, 2]
    with refused(
        r"has the configurations small, large; write one after a colon, e\.g\. hf:\./set:s"
    ):
        opened("hf:./set")
    with refused(r"hf:\./set:huge: has the configurations small, large; write one after a colon"):
        opened("hf:./set:huge")


def test_features_of_the_card_are_checked_before_anything_is_read() -> None:
    write({"train": examples(4)})
    next(pathlib.Path("set/data").iterdir()).write_bytes(b"broken")
    pathlib.Path("set/README.md").write_text(
        "---\ndataset_info:\n  features:\n  - name: text\n    dtype: string\n---\n"
    )
    with refused(r"has no images with labels or masks; its columns: text \(string\)"):
        opened("hf:./set")


def test_what_is_not_there_or_broken_is_said_in_one_line() -> None:
    pathlib.Path("empty").mkdir()
    write({"train": examples(4)}, folder="broken")
    next(pathlib.Path("broken/data").iterdir()).write_bytes(b"PAR1 but no table PAR1")
    write({"train": examples(4)}, folder="script")
    pathlib.Path("script/script.py").write_text("raise AssertionError('it is run')")
    for name, message in (
        ("hf:", "--dataset hf:: write hf:NAME or hf:NAME:CONFIG"),
        ("hf:./nowhere", r"--dataset hf:\./nowhere: there is no such folder"),
        ("hf:a/b/c", r"Couldn't find any data file at .*; write hf:OWNER/NAME, or hf:\./FOLDER"),
        (
            "hf:./empty",
            r"doesn't contain any data files; write hf:OWNER/NAME, or hf:\./FOLDER with",
        ),
        (
            "hf:./broken",
            r"cannot be read \(Parquet .*\); if a file of it is broken, fetch or write",
        ),
        ("hf:./script", "a script of its own, which is not run; take the hub's copy in Parquet"),
    ):
        with refused(message):
            opened(name)


COMMIT = "c" * 40
SECRET = "401 at https://me:pass@cdn.co/file?Signature=abc&Key=d; hf_abcdefgh; Bearer xyz"


class FakeHub(http.server.BaseHTTPRequestHandler):
    """Serves each folder in `hub/owner` as a dataset of the hub, by the hub's protocol."""

    refused = (
        ("owner/gated", 403, "GatedRepo"),
        ("owner/private", 401, "RepoNotFound"),
        ("owner/odd", 400, "Odd"),
    )
    requests: list[str]

    def do_GET(self) -> None:
        url = urllib.parse.urlsplit(urllib.parse.unquote(self.path))
        self.requests.append(url.path)
        match = re.fullmatch(r"(/api)?/datasets/(owner/\w+)(?:/(\w+)/\w+)?/?(.*)", url.path)
        is_api, name, what, rest = match.groups() if match else ("", "", "", "")
        root = pathlib.Path("hub", name)
        for known, status, code in self.refused:
            if name == known and (is_api or status != 400):
                self.answer(status, b"", {"X-Error-Code": code, "X-Error-Message": SECRET})
                return
        place = root / rest
        if not name or not root.is_dir():
            self.answer(404, b"", {"X-Error-Code": "RepoNotFound"})
        elif not place.exists():
            self.answer(404, b"", {"X-Error-Code": "EntryNotFound"})
        elif is_api:
            found: Any = {"id": name, "sha": COMMIT, "siblings": []}
            if what == "tree":
                paths = place.rglob("*") if "recursive=true" in url.query else place.iterdir()
                found = [
                    {
                        "type": "directory" if path.is_dir() else "file",
                        "path": path.relative_to(root).as_posix(),
                        "size": path.stat().st_size,
                        "oid": "0" * 40,
                    }
                    for path in sorted(paths)
                ]
            self.answer(200, json.dumps(found).encode(), {"Content-Type": "application/json"})
        else:
            data = place.read_bytes()
            etag = hashlib.sha256(data).hexdigest()
            self.answer(200, data, {"ETag": f'"{etag}"', "X-Repo-Commit": COMMIT})

    do_HEAD = do_GET

    def answer(self, status: int, data: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for header, value in (headers | {"Content-Length": str(len(data))}).items():
            self.send_header(header, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def log_message(self, *_: Any) -> None:
        """Keeps requests out of the output of the tests."""


@pytest.fixture
def hub(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Starts a hub with the dataset `owner/pets`, and returns the requests that it has got."""
    write({"train": examples(6), "test": examples(3, 100)}, folder="hub/owner/pets", parts=2)
    requests = list[str]()
    handler: Any = type("Handler", (FakeHub,), {"requests": requests})
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    url = f"http://127.0.0.1:{server.server_port}"
    constants: Any = huggingface_hub.constants
    monkeypatch.setattr(datasets.config, "HF_ENDPOINT", url)
    monkeypatch.setattr(datasets.config, "USE_PARQUET_EXPORT", False)
    monkeypatch.setattr(datasets.config, "HF_UPDATE_DOWNLOAD_COUNTS", False)
    monkeypatch.setattr(constants, "ENDPOINT", url)
    monkeypatch.setattr(
        constants, "HUGGINGFACE_CO_URL_TEMPLATE", url + "/{repo_id}/resolve/{revision}/{filename}"
    )
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub_cache"))
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield requests
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_dataset_of_the_hub_is_downloaded_once_and_then_read_without_a_network(
    hub: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset = opened("hf:owner/pets")
    assert dataset.train.source.name(2) == "hf owner/pets train[2]"
    pixels = expected(table(examples(6)))
    assert_array_equal(read(dataset.train)["images"], pixels)
    count = len(hub)
    assert any(path.endswith("train-00001-of-00002.parquet") for path in hub)
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    again = opened("hf:owner/pets")
    assert_array_equal(read(again.train)["images"], pixels)
    assert len(hub) == count
    with refused(
        r"is not in the cache, and the hub cannot be reached \(.*\); where there is a network, run"
        r" hf download --repo-type dataset owner/pets, or give a folder as hf:\./FOLDER"
    ):
        opened("hf:owner/pets", data_dir="elsewhere")


def test_a_revision_is_never_another_one(hub: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a network, datasets 5.2 itself would take the tables that were prepared last."""
    dataset = opened(f"hf:owner/pets@{COMMIT}")
    assert any(f"/resolve/{COMMIT}/" in path for path in hub)
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    again = opened(f"hf:owner/pets@{COMMIT}:default")
    assert_array_equal(read(again.train)["images"], read(dataset.train)["images"])
    for other in ("d" * 40, "v1"):
        with refused(
            rf"its tables are of revision {COMMIT}, not {other}\); where there is a network, run hf"
            rf" download --repo-type dataset owner/pets --revision {other}"
        ):
            opened(f"hf:owner/pets@{other}")


def test_a_folder_may_have_an_at_sign_in_its_name() -> None:
    name = write({"train": examples(6), "test": examples(3, 100)}, folder="set@2")
    for argument in (name, f"{name}:default"):
        assert len(opened(argument).train) == 6


def test_what_hf_download_has_fetched_is_read_without_a_network(
    hub: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = pathlib.Path(huggingface_hub.snapshot_download("owner/pets", repo_type="dataset"))
    count = len(hub)
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    dataset = opened("hf:owner/pets")
    assert_array_equal(read(dataset.train)["images"], expected(table(examples(6))))
    assert f"the hub cannot be reached; read from {folder}" in capsys.readouterr().err
    shutil.rmtree("cache")
    part = folder / "data" / "train-00001-of-00002.parquet"
    data = part.read_bytes()
    part.unlink()
    with refused("the hub cannot be reached"):  # rather than trained on a half of it
        opened("hf:owner/pets")
    part.write_bytes(data)
    shutil.rmtree(folder.parents[1] / "trees")
    folder.parents[2].rename("moved")  # because a process keeps the list of a folder
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", "moved")
    with refused("the hub cannot be reached"):  # nobody knows whether it is whole
        opened("hf:owner/pets")
    assert len(hub) == count


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("owner/nobody", "doesn't exist on the Hub .*; check the name, or run hf auth login"),
        ("owner/private", "or cannot be accessed.*; check the name, or run hf auth login if it is"),
        ("owner/gated", "is a gated dataset .*; ask for access on its page, and run hf auth login"),
        ("owner/odd", r"401 at https://cdn\.co/file hf_\.\.\.; Bearer \.\.\."),
        (
            "owner/script",
            "a script of its own, which is not run; .* hf download --repo-type dataset owner/script"
            " --revision refs/convert/parquet --local-dir FOLDER, and give hf:FOLDER/CONFIG",
        ),
        ("owner/pets:small", r"has the configurations default; .* hf:owner/pets:default"),
        ("two words", "cannot be read .*"),
    ],
)
@pytest.mark.usefixtures("hub")
def test_what_the_hub_refuses_is_one_line_without_secrets(name: str, message: str) -> None:
    script = pathlib.Path("hub/owner/script/script.py")
    script.parent.mkdir()
    pathlib.Path("hub/owner/odd").mkdir()
    script.write_text("raise AssertionError('it is run')")
    with refused(message) as caught:
        opened(f"hf:{name}")
    assert caught.value.__cause__ is None
    assert not re.search("me:pass|Signature|abcdefgh|xyz", str(caught.value))


def test_without_the_library_one_line_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path
) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with refused(r"needs Hugging Face's datasets: pip install '\.\[hub\]'$"):
        opened("hf:x")
    mine: Any = types.ModuleType("datasets")
    mine.__path__ = [str(tmp_path / "datasets")]  # a folder of the user
    monkeypatch.setitem(sys.modules, "datasets", mine)
    with refused(r"pip install '\.\[hub\]'; .*/datasets is imported as datasets; rename it"):
        opened("hf:x")


@pytest.mark.usefixtures("no_pictures")
def test_a_run_continues_bitwise_and_is_evaluated_on_other_data(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    name = write({"train": examples(24), "test": examples(6, 100)})
    flags = (
        f"--model cnn --model-kwargs width=4 hidden=8 --dataset {name} --devices 1 --epochs 2"
        " --global-batch-size 8 --data-placement host --log-every 1"
    )
    assert run_train(f"{flags} --run-dir whole") == 0

    def advance(self: Progress, run: Any, event: Any) -> None:
        if event.step == 4:
            signal.raise_signal(signal.SIGTERM)

    with monkeypatch.context() as patch:
        patch.setattr(Progress, "on_step_end", advance)
        assert run_train(f"{flags} --run-dir parts") == 75
    assert summary("parts")["steps"] == 4
    assert run_train(f"{flags} --run-dir parts") == 0
    assert_same_run("whole", "parts", 6)
    grey = write({"test": examples(4, channels=1)}, folder="grey")
    result = jaxdp.load("whole", devices=1)
    assert result.evaluate(grey, split="all").keys() == result.evaluate().keys()


def test_a_program_trains_by_name() -> None:
    name = write({"train": examples(8), "test": examples(4, 100)})
    small = {"width": 4, "hidden": 8}
    trainer = jaxdp.Trainer(
        "cnn", data=name, steps=2, devices=1, progress=False, model_kwargs=small
    )
    assert trainer.fit().step == 2


def test_a_loaded_run_evaluates_the_columns_of_its_dataset_object() -> None:
    features = datasets.Features({**CLASSES, "n": datasets.Value("int64")})
    rows = [{**row, "n": index // 2 % 2} for index, row in enumerate(examples(12))]
    name = write({"train": rows, "test": rows[:6]}, features)
    dataset = jaxdp.data.load(name, columns="label=n")
    result = jaxdp.Trainer("cnn", dataset, steps=1, devices=1, progress=False).fit()
    assert str(result.config.columns) == "label=n"
    result.save("run")
    assert jaxdp.load("run").evaluate(split="test") == result.evaluate(split="test")


def test_other_data_have_columns_of_their_own(capsys: pytest.CaptureFixture[str]) -> None:
    features = datasets.Features({**CLASSES, "n": datasets.Value("int64")})
    rows = [{**row, "n": index // 2 % 2} for index, row in enumerate(examples(12, channels=1))]
    first = write({"train": rows, "test": rows[:6]}, features)
    small: dict[str, Any] = {"steps": 1, "devices": 1, "progress": False, "run_dir": "run"}
    result = jaxdp.Trainer("cnn", data=first, columns="label=n", channels=3, **small).fit()

    def found(*words: str) -> dict[str, float]:
        assert evaluate.main(["run", "--json", *words]) == 0
        return json.loads(capsys.readouterr().out)

    renamed = [{"photo": row["image"], "label": row["label"], "kind": row["n"]} for row in rows]
    others = Features({"photo": ImageColumn(), "label": CLASSES["label"], "kind": Value("int64")})
    second = write({"test": renamed}, others, folder="second")
    expected = found("--dataset", first, "--split", "train")
    answer = found("--dataset", second, "--columns", "image=photo,label=kind")
    assert answer["loss"] == pytest.approx(expected["loss"])
    # Other sources have neither columns nor a choice of channels.
    images, labels = noise(5, 4, 6, 5, 3), np.arange(4) % 2
    np.savez("x.npz", images=images, labels=labels)
    arrays = result.evaluate(images, labels, split="all")
    assert found("--dataset", "npz:x.npz")["loss"] == pytest.approx(arrays["loss"])


def test_waiting_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Instead of the library's two lines for each of six tries."""
    logger = huggingface_hub.utils.logging.get_logger("huggingface_hub.tries")
    monkeypatch.setattr(hub_tables, "_PATIENCE", 0.01)
    with hub_tables.waiting_for_hub("hf:owner/pets"):
        assert not logger.isEnabledFor(logging.WARNING)
        time.sleep(0.2)
    monkeypatch.setattr(hub_tables, "_PATIENCE", 60)
    with hub_tables.waiting_for_hub("hf:owner/dogs"):
        pass
    assert capsys.readouterr().err == "note: hf:owner/pets: waiting for the hub\n"
    assert logger.isEnabledFor(logging.WARNING)
