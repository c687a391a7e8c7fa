"""Sets of TensorFlow Datasets are read without TensorFlow, in its own language of splits, as they
were written.
"""

import collections
import concurrent.futures
import importlib.util
import json
import pathlib
import re
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from example_files import noise, png, read, refused, sizes, skipped
from numpy.testing import assert_array_equal

from jaxdp.config import DataConfig
from jaxdp.config.values import MaskValues
from jaxdp.data.sources import Dataset, Split, open_dataset

tfds = pytest.importorskip("tensorflow_datasets")

WriteTfds = Callable[..., pathlib.Path]
LABELED = {
    "image": tfds.features.Image(shape=(6, 5, 3)),
    "label": tfds.features.ClassLabel(names=["cat", "dog"]),
}


def labeled(count: int, seed: int = 0) -> list[dict[str, Any]]:
    return [{"image": png(noise(seed + row, 6, 5, 3)), "label": row % 2} for row in range(count)]


def opened(
    dataset: str,
    data_dir: pathlib.Path,
    tasks: tuple[str, ...] = ("classification", "segmentation"),
    **settings: Any,
) -> Dataset:
    return open_dataset(DataConfig(dataset=dataset, data_dir=str(data_dir), **settings), tasks)


def pairs(images: np.ndarray, targets: np.ndarray) -> collections.Counter[tuple[bytes, bytes]]:
    return collections.Counter(
        (image.tobytes(), target.tobytes()) for image, target in zip(images, targets, strict=True)
    )


def tiny_pets(write_tfds: WriteTfds, train: int) -> pathlib.Path:
    return write_tfds("TinyPets", LABELED, {"train": labeled(train), "test": labeled(2)})


@pytest.mark.slow
@pytest.mark.parametrize("name", ["mnist", "cifar10"])
def test_declared_means_are_those_of_the_images(
    prepare: Callable[..., pathlib.Path], name: str
) -> None:
    assert_declared(opened(name, prepare(name)))


@pytest.mark.parametrize(
    ("name", "means", "stds", "size"),
    [("Mnist", [33.3], [78.6], 28), ("Cifar10", [125.3, 123.0, 113.9], [63.0, 62.1, 66.7], 32)],
)
def test_declared_means_are_the_published_ones(
    write_tfds: WriteTfds, name: str, means: list[float], stds: list[float], size: int
) -> None:
    """As above, of a few images with the published moments: pixels are 0, or near one value."""
    rng, count = np.random.default_rng(0), 20 * size**2
    channels = []
    for mean, std in zip(means, stds, strict=True):
        share = mean**2 / (mean**2 + std**2)  # of the pixels that are not 0
        bright = np.floor(mean / share + rng.random(round(share * count)))
        channel = np.concatenate([bright, np.zeros(count - len(bright))])
        channels.append(rng.permutation(channel).astype(np.uint8))
    images = np.stack(channels, -1).reshape(20, size, size, -1)
    features = {
        "image": tfds.features.Image(shape=images.shape[1:]),
        "label": tfds.features.ClassLabel(num_classes=10),
    }
    rows = [{"image": png(image), "label": row % 10} for row, image in enumerate(images)]
    version = str(tfds.builder_cls(name.lower()).VERSION)
    data_dir = write_tfds(name, features, {"train": rows, "test": rows}, version)
    assert_declared(opened(name.lower(), data_dir))


def assert_declared(dataset: Dataset) -> None:
    pixels = read(dataset.train)["images"]
    assert dataset.mean == pytest.approx(pixels.mean((0, 1, 2)), abs=0.1)
    assert dataset.std == pytest.approx(pixels.std((0, 1, 2)), abs=0.1)
    assert dataset.defaults["optimizer"] == "nesterov"  # of a small part, too


def test_reading_imports_no_tensorflow_and_says_nothing(write_tfds: WriteTfds) -> None:
    data_dir = tiny_pets(write_tfds, 4)
    script = f"""
import sys
from jaxdp.config import DataConfig
from jaxdp.config.values import MaskValues
from jaxdp.data.sources import open_dataset
dataset = open_dataset(DataConfig(dataset="tfds:tiny_pets", data_dir={str(data_dir)!r}))
assert len(dataset.train.read([0, 1])["labels"]) == 2
assert not [name for name in sys.modules if name.split(".")[0] in ("tensorflow", "cv2")]
"""
    run = subprocess.run(
        [sys.executable, "-W", "error", "-c", script], capture_output=True, text=True
    )
    assert (run.returncode, run.stderr, run.stdout) == (0, "", "")


def test_examples_come_as_they_were_written_one_by_one_or_many_at_once_from_any_thread(
    write_tfds: WriteTfds,
) -> None:
    rows = labeled(40)
    data_dir = write_tfds(
        "TinyPets",
        LABELED | {"text": tfds.features.Text()},
        {
            "train": [row | {"text": "ignored"} for row in rows],
            "test": [row | {"text": ""} for row in labeled(2)],
        },
    )
    dataset = opened("tfds:tiny_pets", data_dir)
    assert (dataset.class_names, dataset.num_classes, dataset.image_shape) == (
        ("cat", "dog"),
        2,
        (6, 5, 3),
    )
    assert dataset.train[0].keys() == {"images", "labels", "weights"}
    found = read(dataset.train)
    expected = pairs(
        np.stack([noise(row, 6, 5, 3) for row in range(40)]), np.arange(40, dtype=np.int32) % 2
    )
    assert pairs(found["images"], found["labels"]) == expected
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        for index, example in enumerate(pool.map(dataset.train.__getitem__, range(40))):
            assert_array_equal(example["images"], found["images"][index])
            assert example["labels"] == found["labels"][index]
    assert dataset.mean == pytest.approx(found["images"].mean((0, 1, 2)), abs=1e-3)
    assert dataset.std == pytest.approx(found["images"].std((0, 1, 2)), abs=1e-3)


def test_splits_are_written_in_tfds_own_language(write_tfds: WriteTfds) -> None:
    data_dir = write_tfds(
        "TinyPets", LABELED, {"train": labeled(10), "validation": labeled(3, seed=100)}
    )
    whole = opened("tfds:tiny_pets", data_dir)
    assert (sizes(whole), whole.test) == ([10, 3], None)
    drawn = opened("tfds:tiny_pets", data_dir, test_split="validation", validation="0.4")
    assert sizes(drawn) == [6, 4, 3]
    named = opened("tfds:tiny_pets", data_dir, validation="train[8:]", train_split="train[:8]")
    assert sizes(named) == [8, 2]
    parts = opened(
        "tfds:tiny_pets:1.0.0", data_dir, train_split="train[:80%]", test_split="train[80%:]"
    )
    assert sizes(parts) == [8, 3, 2]
    together = np.concatenate([read(parts.train)["images"], read(parts.test)["images"]])
    assert_array_equal(together, read(whole.train)["images"])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({}, r"--test-split \(not given\): .* or give --validation 0\.1"),
        ({"test_split": "testing"}, "--test-split testing: tfds:tiny_pets has the splits train"),
        ({"test_split": "train[:9"}, r"--test-split train\[:9: "),
        (
            {"train_split": "train[:0]", "test_split": "train"},
            r"--train-split train\[:0\]: .* has no example there",
        ),
        (
            {"train_split": "train", "test_split": "train[:0]"},
            r"--test-split train\[:0\]: .* has no example there",
        ),
        *(
            (
                {split: text, other: "train"},
                rf"--{split.replace('_', '-')} {re.escape(text)}: a slice of it ends before it",
            )
            for text in ("train[3:1]", "train[3:2]", "train[80%:20%]", "train[-1:-3]")
            for split, other in (("train_split", "test_split"), ("test_split", "train_split"))
        ),
        (
            {"train_split": "train[:3]+train[3:2]", "test_split": "train"},
            r"--train-split train\[:3\][+]train\[3:2\]: a slice of it ends before it begins",
        ),
        (
            {"train_split": "train", "test_split": "train", "validation": "train[3:1]"},
            r"--validation train\[3:1\]: a slice of it ends before it begins",
        ),
        ({"train_split": "train[2:2]", "test_split": "train"}, "has no example there"),
        ({"train_split": "train[9:]", "test_split": "train"}, r"--train-split train\[9:\]: "),
        ({"test_split": "train", "num_classes": 1}, "--num-classes 1: tfds:tiny_pets has 2"),
        ({"test_split": "train", "image_size": "0"}, "--image-size 0: must be N or HxW"),
        ({"test_split": "train", "tasks": ("segmentation",)}, "is for classification, but"),
    ],
)
def test_what_cannot_be_is_said_in_one_line(
    write_tfds: WriteTfds, settings: dict[str, Any], message: str
) -> None:
    data_dir = write_tfds("TinyPets", LABELED, {"train": labeled(4)})
    with refused(message):
        opened("tfds:tiny_pets", data_dir, **settings)


@pytest.mark.parametrize(
    ("dataset", "message"),
    [
        ("tfds:two words", "Parsing builder name string two words failed"),
        ("cifa10", "did you mean cifar10"),
        ("tfds:tiny_pet", "TensorFlow Datasets has no tiny_pet, nor has .*tfds"),
        ("tfds:cifar10:1.0.0", "only: 3.0.2"),
        (
            "cifar10",
            (
                r"is not prepared in .*tfds, and preparing it needs TensorFlow: pip install"
                r" '\.\[prepare\]'"
            ),
        ),
    ],
)
def test_what_is_not_there_is_said_in_one_line(
    write_tfds: WriteTfds, monkeypatch: pytest.MonkeyPatch, dataset: str, message: str
) -> None:
    data_dir = tiny_pets(write_tfds, 2)
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util,
        "find_spec",
        lambda name, *rest: None if name == "tensorflow" else find_spec(name, *rest),
    )
    with refused(message):
        opened(dataset, data_dir)


def test_without_the_library_one_line_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path
) -> None:
    monkeypatch.setitem(sys.modules, "tensorflow_datasets", None)
    with refused(r"needs TensorFlow Datasets: pip install '\.\[tfds\]'"):
        opened("cifar10", tmp_path)


def test_a_set_of_another_kind_is_refused_with_its_features(write_tfds: WriteTfds) -> None:
    data_dir = write_tfds(
        "TinyWords",
        {"text": tfds.features.Text(), "label": tfds.features.ClassLabel(num_classes=2)},
        {"train": [{"text": "a", "label": 0}], "test": [{"text": "b", "label": 1}]},
    )
    with refused(
        r"no 8-bit image with a label or a mask; its features: label \(ClassLabel\), text \(Text\)"
    ):
        opened("tfds:tiny_words", data_dir)


def test_files_without_access_by_number_are_refused(write_tfds: WriteTfds) -> None:
    data_dir = tiny_pets(write_tfds, 2)
    info = data_dir / "tiny_pets" / "1.0.0" / "dataset_info.json"
    info.write_text(json.dumps(json.loads(info.read_text()) | {"fileFormat": "tfrecord"}))
    with refused(r"--data-dir .* holds no ArrayRecord files"):
        opened("tfds:tiny_pets", data_dir)


def write_pets(write_tfds: WriteTfds, sizes: list[tuple[int, int]]) -> pathlib.Path:
    features = {
        "image": tfds.features.Image(encoding_format="jpeg"),
        "label": tfds.features.ClassLabel(num_classes=37),
        "segmentation_mask": tfds.features.Image(shape=(None, None, 1), use_colormap=True),
        "head_bbox": tfds.features.BBoxFeature(),
    }
    box = tfds.features.BBox(0.0, 0.0, 1.0, 1.0)
    rows = [
        {"image": png(noise(row, *size, 3 if row else 1), "JPEG"), "label": row, "head_bbox": box,
         "segmentation_mask": png(noise(row, *size, high=3) + 1)} for row, size in enumerate(sizes)
    ]  # fmt: skip
    return write_tfds("OxfordIiitPet", features, {"train": rows, "test": rows}, "4.0.0")


def test_pets_have_labels_and_masks_from_0_on_and_a_grey_photograph_among_them(
    write_tfds: WriteTfds,
) -> None:
    data_dir = write_pets(write_tfds, [(8, 6)] * 3)
    labels = opened("oxford_iiit_pet", data_dir)
    assert (labels.task, labels.num_classes, labels.image_shape) == (
        "classification",
        37,
        (8, 6, 3),
    )
    masks = opened("oxford_iiit_pet", data_dir, tasks=("segmentation", "classification"))
    assert (masks.task, masks.class_names, masks.num_classes) == (
        "segmentation",
        ("pet", "background", "border"),
        3,
    )
    assert labels.defaults == masks.defaults == {"optimizer": "nesterov"}  # however few
    assert "optimizer" not in opened("tfds:tiny_pets", tiny_pets(write_tfds, 4)).defaults
    found = read(masks.train)["masks"]
    assert {mask.tobytes() for mask in found} == {
        noise(row, 8, 6, high=3).tobytes() for row in range(3)
    }
    listed = opened(
        "oxford_iiit_pet", data_dir, tasks=("segmentation",), mask_values=MaskValues.parse("3,2,1")
    )
    assert_array_equal(read(listed.train)["masks"], 2 - found)
    assert (listed.num_classes, listed.class_names) == (3, ())  # the names are in another order


def test_pets_of_several_sizes_need_one(write_tfds: WriteTfds) -> None:
    data_dir = write_pets(write_tfds, [(80, 60), (80, 100), (70, 60)])
    with refused(
        r"--image-size \(not given\): .* tfds oxford_iiit_pet train\[.\] is .*--image-size 32$"
    ):
        opened("oxford_iiit_pet", data_dir)
    dataset = opened("oxford_iiit_pet", data_dir, tasks=("segmentation",), image_size="16x24")
    found = read(dataset.train)
    assert found["images"].shape == (3, 16, 24, 3)
    assert found["masks"].shape == (3, 16, 24)
    assert set(np.unique(found["masks"])) <= {0, 1, 2}  # the nearest pixel, no mixture


def test_a_labeled_image_tells_its_classes(write_tfds: WriteTfds) -> None:
    names = ["road", "car", "sky", "tree"]
    features = {
        "image": tfds.features.Image(shape=(4, 4, 3)),
        "label": tfds.features.LabeledImage(labels=names, shape=(4, 4, 1)),
    }
    rows = [
        {"image": png(noise(row, 4, 4, 3)), "label": png(noise(row, 4, 4, high=2))}
        for row in range(3)
    ]
    dataset = opened(
        "tfds:tiny_streets", write_tfds("TinyStreets", features, {"train": rows, "test": rows})
    )
    assert (dataset.task, dataset.num_classes, dataset.class_names) == (
        "segmentation",
        4,
        tuple(names),
    )


def test_a_broken_record_is_named_and_left_out_if_asked(write_tfds: WriteTfds) -> None:
    data_dir = tiny_pets(write_tfds, 400)
    path = next((data_dir / "tiny_pets" / "1.0.0").glob("*train*"))
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0xFF
    path.write_bytes(bytes(data))
    with refused(r"tfds tiny_pets train\[\d+\]: cannot be read .*hash mismatch"):
        read(opened("tfds:tiny_pets", data_dir).train)
    source = opened("tfds:tiny_pets", data_dir, on_bad_example="skip").train
    found = read(source)
    assert isinstance(source, Split)
    assert found["weights"].sum() == 400 - len(skipped(source))
    assert 1 <= len(skipped(source)) <= 2
    assert all(
        re.match(r"tfds tiny_pets train\[\d+\]: cannot be read", reason)
        for reason in skipped(source).values()
    )


def test_a_missing_file_is_an_error_even_when_bad_examples_are_left_out(
    write_tfds: WriteTfds,
) -> None:
    data_dir = tiny_pets(write_tfds, 4)
    next((data_dir / "tiny_pets" / "1.0.0").glob("*test*")).unlink()
    with refused(
        r"--dataset tfds:tiny_pets: nothing of it can be used; tfds tiny_pets test\[0\]: .*No"
        r" such file"
    ):
        opened("tfds:tiny_pets", data_dir, on_bad_example="skip")
