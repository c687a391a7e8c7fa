"""Channels, masks and labels of arrays are where they certainly are, or one line asks."""

from typing import Any

import numpy as np
import pytest
from example_files import bad_example, noise, read, refused
from numpy.testing import assert_array_equal
from PIL import Image

import jaxdp
from jaxdp import data
from jaxdp.config import DataConfig
from jaxdp.data.sources import open_dataset

LABELS = np.arange(20) % 2
MASKS = noise(9, 20, 12, 16, high=3)


class Tensor(np.ndarray):
    """What PyTorch's tensors have of arrays; `numpy()` of one with gradients raises."""

    __module__ = "torch"

    def __array__(self, *args: Any, **options: Any) -> np.ndarray:
        raise RuntimeError("Can't call numpy() on Tensor that requires grad.")

    def numpy(self, *, force: bool = False) -> np.ndarray:
        assert force
        return self.view(np.ndarray)


class MetaTensor(Tensor):
    __module__ = "monai.data.meta_tensor"


def tensor(array: np.ndarray, kind: type[Any] = MetaTensor) -> Any:
    return np.ascontiguousarray(array).view(kind)


@pytest.mark.parametrize("channels", [1, 2, 3, 4, 7])
@pytest.mark.parametrize("kind", [Tensor, MetaTensor])
def test_tensors_of_every_class_have_the_channels_first(channels: int, kind: type[Any]) -> None:
    images = noise(0, 20, 12, 16, channels)
    first = images.transpose(0, 3, 1, 2)
    items = [(tensor(image, kind), label) for image, label in zip(first, LABELS, strict=True)]
    for made in (data.from_dataset(items), data.from_arrays(tensor(first, kind), LABELS)):
        assert made.image_shape == (12, 16, channels)
        assert_array_equal(read(made.train)["images"], images)
    grey = data.from_dataset([(tensor(noise(0, 12, 16), kind), label) for label in LABELS])
    assert grey.image_shape == (12, 16, 1)


@pytest.mark.parametrize("channels", [1, 2, 3, 4])
@pytest.mark.parametrize("size", [(12, 12), (12, 16)])
def test_arrays_with_the_channels_first_are_asked_about(
    channels: int, size: tuple[int, int]
) -> None:
    images = noise(0, 20, channels, *size)
    wanted = r"channels come last: use {}\.transpose\({}\)"
    with refused(f"{images.shape}".replace("(", r"\(").replace(")", r"\), and ")):
        data.from_arrays(images, LABELS)
    with refused(wanted.format("images", "0, 2, 3, 1")):
        data.from_arrays(images, LABELS)
    with refused(wanted.format(r"test\[0\]", "0, 2, 3, 1")):
        data.from_arrays(images.transpose(0, 2, 3, 1), LABELS, test=(images, LABELS))
    np.savez("set.npz", images=images, labels=LABELS)
    with refused(wanted.format("images", "0, 2, 3, 1")):
        open_dataset(DataConfig(dataset="npz:set.npz"))
    with bad_example(wanted.format("image", "1, 2, 0")):
        data.from_dataset(list(zip(images, LABELS, strict=True)))
    with bad_example(r"channels come first in tensors of PyTorch: use image\.permute\(2, 0, 1\)"):
        data.from_dataset([(tensor(image.transpose(1, 2, 0)), 0) for image in images])
    with refused(r"channels come first .*: use images\.permute\(0, 3, 1, 2\)"):
        data.from_arrays(tensor(images.transpose(0, 2, 3, 1)), LABELS)


@pytest.mark.parametrize("shape", [(12, 16, 3), (3, 12, 3), (9, 9, 200), (3, 4, 64), (12, 16, 7)])
def test_other_shapes_are_as_they_say(shape: tuple[int, ...]) -> None:
    images = noise(0, 20, *shape)
    assert data.from_arrays(images, LABELS).image_shape == shape
    items = list(zip(images, LABELS, strict=True))
    assert data.from_dataset(items).image_shape == shape


@pytest.mark.parametrize("dtype", [np.uint8, np.int64, bool])
@pytest.mark.parametrize("first", [False, True])
def test_masks_may_have_a_channel(dtype: type, first: bool) -> None:
    images, masks = noise(0, 20, 12, 16), (MASKS if dtype is not bool else MASKS > 0).astype(dtype)
    shown = masks[:, None] if first else masks[..., None]
    arrays = data.from_arrays(images, shown, test=(images[:3], shown[:3] * 0))
    items = list(zip(images, shown, strict=True))
    for made in (arrays, data.from_dataset(items, task="segmentation")):
        assert (made.task, made.num_classes) == ("segmentation", 2 if dtype is bool else 3)
        assert_array_equal(read(made.train)["masks"], masks)
    tensors = [
        (tensor(image), tensor(mask[None])) for image, mask in zip(images, masks, strict=True)
    ]
    made = data.from_dataset(tensors, task="segmentation")
    assert_array_equal(read(made.train)["masks"], masks)
    floats = [
        (image, tensor(mask[None].astype(np.float32)))
        for image, mask in zip(images, masks, strict=True)
    ]
    made = data.from_dataset(floats, task="segmentation")
    assert_array_equal(read(made.train)["masks"], masks)


def test_targets_of_one_channel_are_masks_or_images_by_what_is_known_or_asked_about() -> None:
    images = noise(0, 20, 12, 16)
    black_white = (MASKS > 0)[..., None].astype(np.uint8) * np.uint8(255)
    both = 'give task="segmentation" if they are masks, or task="regression" if they are images'
    with refused(f"targets holds the values 0, 255 only; {both}"):
        data.from_arrays(images, black_white)
    with refused(f"targets holds the values 0, 100, 200 only; {both}"):
        data.from_arrays(images, MASKS[..., None] * np.uint8(100))
    settings: Any
    for settings in ({"task": "segmentation"}, {"num_classes": 2}, {"mask_values": "0,255"}):
        made = data.from_arrays(images, black_white, **settings)
        assert (made.task, made.num_classes) == ("segmentation", 2)
        assert_array_equal(read(made.train)["masks"], MASKS > 0)
    learned = data.from_arrays(images, black_white, task="regression", test=(images, black_white))
    assert (learned.task, learned.num_classes) == ("regression", 1)
    assert_array_equal(read(learned.train)["targets"], black_white)
    assert data.from_arrays(images, noise(1, 20, 12, 16, 1)).task == "regression"
    ignored = np.where(MASKS == 2, 255, MASKS)[..., None].astype(np.uint8)
    assert data.from_arrays(images, ignored).num_classes == 2
    with refused("task=masks: must be one of classification, segmentation, regression"):
        data.from_arrays(images, black_white, task="masks")


def test_a_model_says_what_masks_with_a_channel_are() -> None:
    images = noise(0, 20, 16, 16)
    masks = noise(1, 20, 16, 16, high=2) * np.uint8(255)
    result = jaxdp.Trainer(
        "unet",
        data.from_arrays(images, masks),
        model_kwargs={"base_channels": 4, "levels": 2},
        devices=1,
        progress=False,
    ).fit(epochs=1)
    expected = result.evaluate(images, masks)
    assert result.evaluate(images, masks[..., None]) == expected
    assert result.evaluate(tensor(images[:, None]), tensor(masks[:, None])) == expected


LABEL_KINDS: dict[str, Any] = {
    "a number": int,
    "bool": bool,
    "an array without dimensions": np.array,
    "one element": lambda k: np.array([k]),
    "a column": lambda k: np.array([[k]], np.uint8),
    "a list": lambda k: [k],
    "NumPy's bool": np.bool_,
    "a tensor": lambda k: tensor(np.array([k])),
}


@pytest.mark.parametrize("kind", LABEL_KINDS)
def test_labels_of_one_element_are_labels(kind: str) -> None:
    items = [
        (image, LABEL_KINDS[kind](int(k)))
        for image, k in zip(noise(0, 20, 8, 8), LABELS, strict=True)
    ]
    assert_array_equal(read(data.from_dataset(items).train)["labels"], LABELS)


@pytest.mark.parametrize(
    ("label", "message"),
    [
        (1.0, "its label is 1.0, not a class number: an integer from 0 on"),
        ("cat", "its label is 'cat', not a class number"),
        (np.array([1, 0]), r"its label is int64 of the shape \(2,\), not a class number"),
        (np.array([1.0]), r"its label is float64 of the shape \(1,\), not a class number"),
    ],
)
def test_other_labels_are_one_line(label: Any, message: str) -> None:
    with bad_example(message):
        data.from_dataset([(noise(0, 8, 8), label)] * 4)


def test_predict_takes_tensors_as_training_does() -> None:
    images = noise(0, 20, 12, 16, 3)
    result = jaxdp.Trainer(
        "cnn",
        data.from_arrays(images, LABELS),
        model_kwargs={"width": 4, "hidden": 8},
        devices=1,
        progress=False,
    ).fit(epochs=1)
    expected, first = result.predict(images), images.transpose(0, 3, 1, 2)
    assert_array_equal(result.predict(tensor(first)), expected)
    assert_array_equal(result.predict([tensor(image) for image in first]), expected)
    assert_array_equal(result.predict(tensor(first[0])), expected[0])
    with refused(r"an image is uint8 \(3, 12, 16\); give uint8 \(height, width, 3\)"):
        result.predict(first)


def test_remedies_of_items_are_arguments() -> None:
    masks, images = noise(0, 20, 8, 8, high=3) * np.uint8(50), noise(1, 20, 8, 8)

    def made(masks: Any, **settings: Any) -> data.Dataset:
        items = list(zip(images, masks, strict=True))
        return data.from_dataset(items, task="segmentation", **settings)

    for settings, classes, most in (
        ({"mask_values": "0,50,100"}, 3, 2),
        ({"mask_values": "binary"}, 2, 1),
        ({"num_classes": 101}, 101, 100),
        ({"instances": True}, 3, 100),
    ):
        with refused("|".join(settings)):
            made(masks)
        dataset = made(masks, **settings)
        assert dataset.num_classes == classes
        assert read(dataset.train)["masks"].max() == most
    colours = [Image.fromarray(np.stack([mask, mask, mask], -1)) for mask in masks]
    dataset = made(colours, mask_values="000000,323232,646464")
    assert_array_equal(read(dataset.train)["masks"], masks // 50)
    wrong = [*masks[:-1] // 50, masks[-1] - 0.5]
    with bad_example('on_bad_example="skip"'):
        made(wrong)
    assert made(wrong, on_bad_example="skip").num_classes == 3
    unequal = [(image[: 6 + number % 2], number % 2) for number, image in enumerate(images)]
    with refused("image_size=6"):
        data.from_dataset(unequal)
    assert data.from_dataset(unequal, image_size=6).image_shape == (6, 6, 1)
