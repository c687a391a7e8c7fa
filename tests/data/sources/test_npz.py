"""Arrays in a file: which names mean what, and what is said of a file that cannot be used."""

import pathlib
import warnings
from typing import Any

import numpy as np
import pytest
from example_files import noise, read, read_splits, refused, sizes
from numpy.testing import assert_array_equal

from jaxdp.config import DataConfig
from jaxdp.data.sources import Dataset, open_dataset

IMAGES, LABELS = noise(0, 20, 5, 4, 3), np.arange(20) % 2


def opened(arrays: dict[str, Any], **settings: Any) -> Dataset:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # NumPy's own, of objects that have to be pickled
        np.savez("set.npz", **arrays)
    return open_dataset(DataConfig(dataset="npz:set.npz", **settings))


def split(images: np.ndarray, targets: np.ndarray, field: str = "labels") -> dict[str, np.ndarray]:
    pair = {"images": images, field: targets}
    tests = {f"test_{name}": values[:3] for name, values in pair.items()}
    return {f"train_{name}": values for name, values in pair.items()} | tests


WHOLE = split(IMAGES, LABELS)


@pytest.mark.parametrize("dtype", [np.uint8, np.int64])
@pytest.mark.parametrize("column", [False, True])
def test_images_and_labels(dtype: type, column: bool) -> None:
    labels = LABELS.astype(dtype)
    names = {"class_names": np.array(["cat", "dog"])}
    dataset = opened(split(IMAGES, labels[:, None] if column else labels) | names)
    assert (dataset.task, dataset.num_classes) == ("classification", 2)
    assert dataset.class_names == ("cat", "dog")
    train, test = read(dataset.train), read(dataset.test)
    assert_array_equal(train["images"], IMAGES)
    assert_array_equal(train["labels"], labels)
    assert_array_equal(test["labels"], labels[:3])
    assert train["labels"].dtype == np.int32
    assert dataset.mean == pytest.approx(IMAGES.mean((0, 1, 2)), abs=1e-3)
    assert dataset.std == pytest.approx(IMAGES.std((0, 1, 2)), abs=1e-3)


def test_grey_images_get_a_channel_and_the_spelling_of_keras_will_do() -> None:
    images, labels = noise(0, 20, 5, 4), LABELS[:, None]
    arrays = {"x_train": images, "y_train": labels, "x_test": images[:3], "y_test": labels[:3]}
    dataset = opened(arrays)
    assert dataset.image_shape == (5, 4, 1)
    assert_array_equal(read(dataset.train)["images"][..., 0], images)


def test_a_tenth_is_held_out_of_a_file_that_is_not_split() -> None:
    dataset = opened({"images": IMAGES, "labels": LABELS})
    assert (sizes(dataset), list(read(dataset.test)["labels"])) == ([18, 2], [0, 1])
    assert read_splits(dataset, "images") == {image.tobytes() for image in IMAGES}


def test_other_splits_go_by_their_names() -> None:
    arrays = WHOLE | {"val_images": IMAGES[:7], "val_labels": LABELS[:7]}
    assert sizes(opened(arrays)) == [20, 7, 3]
    assert sizes(opened(arrays, test_split="val")) == [20, 7]
    assert sizes(opened(arrays, validation="test", test_split="val")) == [20, 3, 7]
    del arrays["test_images"]
    dataset = opened(arrays)
    assert (sizes(dataset), dataset.test) == ([20, 7], None)
    with refused("dev_images or what belongs to it is missing; it holds"):
        opened(arrays, test_split="dev")


@pytest.mark.parametrize("channel", [False, True])
def test_masks(channel: bool) -> None:
    masks = noise(1, 20, 6, 8, high=2) * 255
    dataset = opened(split(noise(0, 20, 6, 8), masks[..., None] if channel else masks, "masks"))
    assert (dataset.task, dataset.num_classes) == ("segmentation", 2)
    assert_array_equal(read(dataset.train)["masks"], masks // 255)


def test_targets_are_images_and_resized_as_such() -> None:
    targets = noise(1, 20, 6, 8, 2)
    arrays = split(noise(0, 20, 6, 8), targets, "targets")
    dataset = opened(arrays)
    assert (dataset.task, dataset.num_classes) == ("regression", 2)
    assert_array_equal(read(dataset.train)["targets"], targets)
    resized = read(opened(arrays, image_size="3x4").train)
    assert (resized["images"].shape, resized["targets"].shape) == ((20, 3, 4, 1), (20, 3, 4, 2))
    blocks = targets.reshape(20, 3, 2, 4, 2, 2).mean((2, 4))
    assert np.corrcoef(resized["targets"].ravel(), blocks.ravel())[0, 1] > 0.9


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"train_labels": LABELS[:19]}, "train_images has 20 examples, but train_labels 19"),
        ({"train_labels": LABELS * 0, "test_labels": LABELS[:3] * 0}, "has one class only"),
        (
            {"train_labels": LABELS.astype(object)},
            "train_labels cannot be read: it holds Python objects, which are not read",
        ),
        (
            {"train_images": IMAGES[:0], "train_labels": LABELS[:0]},
            "--train-split train: npz:set.npz has no example there",
        ),
        (
            {"test_images": IMAGES[:0], "test_labels": LABELS[:0]},
            "--test-split test: .* has no example",
        ),
        (
            {"test_images": noise(0, 3, 9, 9, 3)},
            r"test_images has examples of the shape \(9, 9, 3\), the training set \(5, 4, 3\);"
            " .*--image-size",
        ),
        ({"class_names": np.array([1, 2])}, "class_names must be one row of text"),
    ],
)
def test_arrays_that_do_not_fit_are_one_line(changed: dict[str, Any], message: str) -> None:
    with refused(message):
        opened(WHOLE | changed)


@pytest.mark.parametrize(
    ("arrays", "settings", "message"),
    [
        (
            {"pictures": IMAGES},
            {},
            "train_images or what belongs to it is missing; it holds pictures, but should hold"
            " train_images,",
        ),
        (
            {"train_images": IMAGES, "train_labels": LABELS},
            {},
            r"--test-split \(not given\): .* has no test data \(its splits: train\)",
        ),
        (
            split(IMAGES, noise(0, 20, 5, 5), "masks"),
            {},
            r"train_masks has the shape \(20, 5, 5\); .* must be N x 5 x 4",
        ),
        (
            split(IMAGES, noise(0, 20, 5, 4, 3, high=2), "masks"),
            {},
            r"must be N x 5 x 4: of one-hot rows, train_masks\.argmax\(3\)",
        ),
        (
            split(IMAGES, np.eye(4)[LABELS], "labels"),
            {},
            r"must be N: of one-hot rows, train_labels\.argmax\(1\)",
        ),
        (
            split(IMAGES, noise(0, 20, 5, 4), "targets"),
            {"num_classes": 3},
            "--num-classes 3: .* have 1 channels",
        ),
        (
            {"images": IMAGES, "labels": LABELS},
            {"train_split": "train"},
            r"npz:set.npz has no test data \(its splits: none\)",
        ),
    ],
)
def test_what_does_not_fit_is_said_in_one_line(
    arrays: dict[str, Any], settings: dict[str, Any], message: str
) -> None:
    with refused(message):
        opened(arrays, **settings)


def test_a_file_of_another_kind_is_not_opened() -> None:
    with refused("write npz:PATH"):
        open_dataset("npz")
    with refused(r"--dataset npz:none\.npz: there is no such file"):
        open_dataset("npz:none.npz")
    np.save("set.npy", np.array([{"a": 1}], object), allow_pickle=True)
    pathlib.Path("set.npy").rename("set.npz")
    with refused("is not an npz file"):
        open_dataset("npz:set.npz")


def test_a_damaged_file_says_which_array() -> None:
    opened(split(noise(0, 200, 5, 4, 3), np.arange(200) % 2))
    path = pathlib.Path("set.npz")
    data = bytearray(path.read_bytes())
    data[2000] ^= 0xFF
    path.write_bytes(bytes(data))
    with refused("train_images cannot be read: Bad CRC-32"):
        open_dataset("npz:set.npz")
    path.write_bytes(bytes(data[: len(data) // 2]))
    with refused("is not an npz file"):
        open_dataset("npz:set.npz")
