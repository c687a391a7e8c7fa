"""Errors of functions name arguments that these functions have, as a program writes them."""

import inspect
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from example_files import noise, read, with_masks, write
from PIL import Image

import jaxdp
from jaxdp import data
from jaxdp.config import DataConfig, fields
from jaxdp.errors import ConfigError
from jaxdp.text.flags import for_command

IMAGES, LABELS = noise(0, 12, 8, 8), np.arange(12) % 2
BITS = noise(1, 12, 8, 8, high=2)
SETTINGS = {*fields(DataConfig)} | {"task", "test"}


def items(images: Any = IMAGES, targets: Any = LABELS) -> list[Any]:
    return list(zip(images, targets, strict=True))


def read_all(dataset: data.Dataset) -> None:
    for source in dataset.splits().values():
        read(source)


def named(function: Callable[..., Any], message: str) -> set[str]:
    """Asserts that a message names settings as arguments that a function has, and returns them."""
    # Most names of one word are words of other meanings, too.
    certain = {name for name in SETTINGS if "_" in name or name == "instances"}
    ends = {name: r"\b" if name in certain else "=" for name in SETTINGS}
    names = {name for name, end in ends.items() if re.search(rf"\b{name}{end}", message)}
    assert not re.search("--[a-z]", message), message
    assert names <= {*inspect.signature(function).parameters}, message
    return names


GAPS = BITS * np.uint8(200)
WITH_7 = np.where(np.arange(12)[:, None, None] == 11, BITS * np.uint8(7), BITS)
MIXED = np.where(np.arange(12)[:, None, None] < 6, BITS, BITS * np.uint8(255))
SIZES = [noise(each, 8 + each % 2, 8) for each in range(12)]
COLOURS = [Image.fromarray(each) for each in noise(2, 12, 8, 8, 3, high=2) * np.uint8(200)]
SEGMENT: dict[str, Any] = {"task": "segmentation"}
# The data, the arguments, and some of what the message names.
CASES: list[tuple[Any, Any, dict[str, Any], set[str]]] = [
    (IMAGES, GAPS, SEGMENT, {"mask_values", "instances"}),
    (IMAGES, MIXED, SEGMENT, {"mask_values"}),
    (IMAGES, BITS * 0, SEGMENT, {"num_classes"}),
    (IMAGES, BITS.astype(int) * 1000, SEGMENT, {"mask_values", "instances"}),
    (IMAGES, BITS * 0.5, SEGMENT, set()),
    (IMAGES, BITS, SEGMENT | {"mask_values": "0,7"}, set()),
    (IMAGES, BITS, SEGMENT | {"mask_values": "0,0"}, set()),
    (IMAGES, BITS, SEGMENT | {"num_classes": 1}, set()),
    (IMAGES, BITS, SEGMENT | {"instances": True}, {"instances"}),
    (IMAGES, BITS, SEGMENT | {"class_names": ["one"]}, {"class_names"}),
    (IMAGES, WITH_7[::-1], SEGMENT | {"num_classes": 2}, {"on_bad_example"}),
    (IMAGES, BITS, SEGMENT | {"test": 255}, set()),
    (IMAGES, LABELS, {"mask_values": "binary"}, {"mask_values"}),
    (IMAGES, LABELS, {"instances": True}, {"instances"}),
    (IMAGES, LABELS, {"num_classes": 1}, {"num_classes"}),
    (IMAGES, LABELS * 0, {}, set()),
    (IMAGES, LABELS * 10**6, {}, set()),
    (IMAGES, -LABELS, {}, set()),
    (IMAGES, LABELS * 1.0, {}, set()),
    (IMAGES, LABELS, {"class_names": ["a", "a"]}, {"class_names"}),
    (IMAGES, LABELS, {"validation": 0.01}, {"validation"}),
    (IMAGES, LABELS, {"validation": 7.0}, {"validation"}),
    (IMAGES, LABELS, {"seed": -1}, {"seed"}),
    (IMAGES, LABELS, {"task": "detection"}, {"task"}),
    (IMAGES, LABELS, {"on_bad_example": "stop"}, {"on_bad_example"}),
    (IMAGES, LABELS, {"test": ()}, set()),
    (IMAGES[:0], LABELS[:0], {}, set()),
    (IMAGES, IMAGES[..., None], {"task": "regression", "num_classes": 3}, {"num_classes"}),
    (SIZES, LABELS, {}, set()),
    (SIZES, SIZES, SEGMENT, set()),
    (IMAGES * 0.5 + np.nan, LABELS, {}, set()),
    (COLOURS, COLOURS, SEGMENT, {"mask_values"}),
    (IMAGES, MIXED, SEGMENT | {"test": 7}, set()),
]


@pytest.mark.parametrize("function", [data.from_arrays, data.from_dataset])
@pytest.mark.parametrize("case", range(len(CASES)))
def test_errors_name_arguments_that_there_are(function: Callable[..., Any], case: int) -> None:
    images, targets, arguments, names = CASES[case]
    pair, arguments = (images, targets), dict(arguments)
    if isinstance(value := arguments.get("test"), int):
        arguments["test"] = IMAGES, BITS * 0 + np.uint8(value)
    if function is data.from_dataset:
        pair = (items(*pair),)
        if other := arguments.get("test"):
            arguments["test"] = items(*other)
    with pytest.raises(ConfigError) as caught:
        read_all(function(*pair, **arguments))
    found = named(function, str(caught.value))
    assert function is data.from_arrays or names <= found, str(caught.value)


@pytest.mark.parametrize(
    ("masks", "arguments"),
    [
        (BITS, {"num_classes": 3, "class_names": ["a", "b", "c"]}),
        (GAPS, {"mask_values": "200,0"}),
        (BITS.astype(int) * 1000, {"mask_values": "binary"}),
        (noise(3, 12, 8, 8, high=5), {"instances": True}),
        (WITH_7, {"num_classes": 2, "on_bad_example": "skip"}),
    ],
)
def test_arguments_mean_the_same_of_arrays_and_of_items(
    masks: np.ndarray, arguments: dict[str, Any]
) -> None:
    arrays = data.from_arrays(IMAGES, masks, **arguments)
    dataset = data.from_dataset(items(IMAGES, masks), **SEGMENT, **arguments)
    theirs, ours = read(arrays.train), read(dataset.train)
    assert theirs.keys() == ours.keys()
    for field, values in theirs.items():
        np.testing.assert_array_equal(ours[field], values)
        assert ours[field].dtype == values.dtype
    for fact in ("num_classes", "class_names", "instances", "image_shape"):
        assert getattr(dataset, fact) == getattr(arrays, fact)
    assert ours["weights"].min() == (0 if "on_bad_example" in arguments else 1)


def test_items_of_colours_and_a_bad_first_item() -> None:
    listed = "000000,0000c8,00c800,00c8c8,c80000,c800c8,c8c800,c8c8c8"
    images: list[Any] = [None, *COLOURS]
    dataset = data.from_dataset(
        items(images, [COLOURS[0], *COLOURS]),
        **SEGMENT,
        mask_values=listed,
        on_bad_example="skip",
    )
    bits = np.array([np.asarray(each) > 0 for each in COLOURS]) @ np.array([4, 2, 1])
    found = read(dataset.train)
    np.testing.assert_array_equal(found["masks"][1:], bits)
    assert [*found["weights"]] == [0] + [1] * 12
    with pytest.raises(ConfigError, match="nothing of it can be used"):
        data.from_dataset(items([None] * 12), on_bad_example="skip")


TINY: dict[str, Any] = {"devices": 1, "progress": False, "steps": 1, "global_batch_size": 8}


def test_evaluate_and_predict_name_no_settings_that_they_lack() -> None:
    sizes: dict[str, Any] = {"model_kwargs": {"base_channels": 4, "levels": 2}}
    result = jaxdp.Trainer("unet", data.from_arrays(IMAGES, BITS), **sizes, **TINY).fit()
    with pytest.raises(data.BadExample, match="from_arrays takes mask_values, and") as caught:
        result.evaluate(IMAGES, MIXED[::-1])
    assert not re.search("--|on_bad_example", str(caught.value))
    other = data.from_arrays(IMAGES, MIXED, mask_values="binary")
    assert result.evaluate(other) == result.evaluate(IMAGES, (MIXED > 0).astype(np.uint8))
    with pytest.raises(ConfigError, match="from_arrays takes mask_values, and evaluate"):
        result.evaluate(IMAGES, BITS.astype(int) * 1000)
    write({"x.png": "nothing"})
    with pytest.raises(data.BadExample, match=r"; fix or remove it$"):
        result.predict("set/x.png")


def test_a_trainer_and_load_name_their_own_settings() -> None:
    write(with_masks([*GAPS]))
    with pytest.raises(ConfigError) as caught:
        data.load("folder:set")
    message = str(caught.value)
    assert 'give mask_values="0,200" if each is a class, or mask_values="binary" if' in message
    assert "--" not in message
    with pytest.raises(ConfigError) as caught:
        jaxdp.Trainer("unet", "folder:set", **TINY)
    assert str(caught.value) == message
    by_flags = for_command(caught.value)
    assert "give --mask-values 0,200 if each is a class, or --mask-values binary if" in by_flags
