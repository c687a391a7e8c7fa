"""The functions of `jaxdp.data`: datasets by name, of a folder and of arrays, and one line for each
mistake.
"""

import json
import pathlib
import subprocess
import sys
import tracemalloc
from typing import Any

import numpy as np
import pytest
from example_files import bad_example, noise, read, read_splits, refused, sizes, skipped, write
from numpy.testing import assert_array_equal
from sklearn.datasets import load_digits

from jaxdp import data
from jaxdp.config import DataConfig
from jaxdp.data.find_images import find_images
from jaxdp.data.fingerprint import fingerprint
from jaxdp.data.opening import check_dataset
from jaxdp.data.sources import open_dataset
from jaxdp.data.split import Split
from jaxdp.data.split_selection import stratified
from jaxdp.inference import files

IMAGES, LABELS = noise(0, 40, 5, 4, 3), np.arange(40) % 4


def test_importing_it_imports_neither_jax_nor_grain() -> None:
    code = (
        "import sys, json, jaxdp.data; print(json.dumps([name in sys.modules for name in ('jax',"
        " 'grain', 'numpy')]))"
    )
    output = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True
    ).stdout
    assert json.loads(output) == [False, False, False]
    names = {getattr(data, name).__name__.rpartition(".")[2] for name in data.__all__}
    assert names == set(data.__all__)
    assert set(data.__all__) <= set(dir(data))
    with pytest.raises(AttributeError, match=r"'jaxdp\.data' has no attribute 'nothing'"):
        _ = data.nothing


def test_digits_as_arrays_are_those_by_name() -> None:
    bunch, named = load_digits(), data.load("digits")
    images, labels = bunch.images.astype(np.uint8), bunch.target
    is_test = stratified(labels, 360)
    made = data.from_arrays(
        images[~is_test],
        labels[~is_test],
        test=(images[is_test], labels[is_test]),
        augment=named.augment,
    )
    for split in ("train", "test"):
        ours, theirs = read(made.splits()[split]), read(named.splits()[split])
        assert ours.keys() == theirs.keys()
        for field in ours:
            assert_array_equal(ours[field], theirs[field])
            assert ours[field].dtype == theirs[field].dtype
    for fact in ("num_classes", "image_shape", "task", "augment", "kind"):
        assert getattr(made, fact) == getattr(named, fact)
    assert made.describe().examples == named.describe().examples
    assert made.mean == pytest.approx(named.mean, abs=0.006)
    assert made.std == pytest.approx(named.std, abs=0.006)
    assert (made.name, named.name) == ("arrays", "digits")
    assert (made.settings, named.settings) == (None, DataConfig(dataset="digits"))


def test_a_share_is_stratified_and_drawn_by_the_seed_alone() -> None:
    labels = np.repeat([0, 1, 2], [100, 50, 10])
    images = np.arange(160, dtype=np.uint8)[:, None, None, None] * np.ones((2, 2, 1), np.uint8)

    def drawn(seed: int, pictures: np.ndarray = images) -> np.ndarray:
        dataset = data.from_arrays(pictures, labels, validation=0.2, seed=seed)
        assert dataset.validation is not None
        train, validation = read(dataset.train), read(dataset.validation)
        assert list(np.bincount(validation["labels"])) == [20, 10, 2]
        assert sorted([*train["labels"], *validation["labels"]]) == sorted(labels)
        assert np.all(np.diff(train["labels"]) >= 0)  # the order stays
        assert dataset.mean == pytest.approx(train["images"].mean((0, 1, 2)), abs=1e-3)
        assert dataset.std == pytest.approx(train["images"].std((0, 1, 2)), abs=1e-3)
        return validation["images"][:, 0, 0, 0]

    assert_array_equal(drawn(0), drawn(0))
    assert not np.array_equal(drawn(0), drawn(1))
    assert_array_equal(drawn(0), 255 - drawn(0, 255 - images))
    assert len(set(drawn(0))) == 32


def test_mean_and_standard_deviation_are_of_all_training_images() -> None:
    images = noise(0, 1300, 3, 2, 3)
    images[512:] //= 3  # beyond what a first sample would see
    dataset = data.from_arrays(images, np.arange(1300) % 2)
    assert dataset.mean == pytest.approx(images.mean((0, 1, 2)), abs=1e-3)
    assert dataset.std == pytest.approx(images.std((0, 1, 2)), abs=1e-3)


def test_as_many_other_pictures_or_labels_have_another_fingerprint() -> None:
    def found(images: np.ndarray, labels: np.ndarray) -> str:
        return fingerprint(
            data.from_arrays(images, labels, test=(IMAGES, LABELS), num_classes=4).train
        )

    known = found(IMAGES, LABELS)
    assert found(IMAGES.copy(), LABELS.astype(np.int32)) == known
    one_pixel, two_labels = IMAGES.copy(), LABELS.copy()
    one_pixel[7, 0, 0, 0] ^= 1
    two_labels[[5, 6]] = LABELS[[6, 5]]
    others = {found(one_pixel, LABELS), found(IMAGES, two_labels), found(IMAGES[::-1], LABELS)}
    assert len(others - {known}) == 3


def test_splits_are_those_that_there_are() -> None:
    whole = data.from_arrays(IMAGES, LABELS)
    assert (whole.test, whole.validation, whole.evaluation_split) == (None, None, None)
    assert (list(whole.splits()), whole.describe().examples) == (["train"], {"train": 40})
    pair = (IMAGES[:8], LABELS[:8])
    tested = data.from_arrays(IMAGES, LABELS, test=pair)
    assert tested.evaluation_split == "test"
    assert tested.describe().examples == {"train": 40, "test": 8}
    judged = data.from_arrays(IMAGES, LABELS, validation=[IMAGES[:4], LABELS[:4]], test=pair)
    assert judged.evaluation_split == "validation"
    assert judged.describe().examples == {"train": 40, "validation": 4, "test": 8}
    assert all(isinstance(source, Split) for source in judged.splits().values())
    assert_array_equal(read(judged.validation)["images"], IMAGES[:4])


@pytest.mark.parametrize("dtype", [np.uint8, np.int64, bool])
def test_integers_on_the_grid_of_the_images_are_masks(dtype: type) -> None:
    masks = noise(1, 40, 5, 4, high=2).astype(dtype)
    dataset = data.from_arrays(
        IMAGES, masks, validation=0.25, class_names=["sky", "ground"], augment=["flip"]
    )
    assert (dataset.task, dataset.kind, dataset.num_classes) == ("segmentation", "segmentation", 2)
    assert (dataset.class_names, dataset.augment) == (("sky", "ground"), ("flip",))
    assert sizes(dataset) == [30, 10]
    assert read_splits(dataset, "masks") == {mask.astype(np.uint8).tobytes() for mask in masks}
    assert read(data.from_arrays(IMAGES, masks.astype(np.uint8) * 255).train)["masks"].max() == 1


def test_images_as_targets_are_a_regression() -> None:
    targets = noise(1, 40, 5, 4, 2)
    dataset = data.from_arrays(IMAGES[..., 0], targets, test=(IMAGES[:3, ..., 0], targets[:3]))
    assert (dataset.task, dataset.num_classes, dataset.image_shape) == ("regression", 2, (5, 4, 1))
    assert_array_equal(read(dataset.train)["targets"], targets)


def test_labels_may_be_a_column_and_classes_more_than_occur() -> None:
    dataset = data.from_arrays(IMAGES, LABELS[:, None], num_classes=6, class_names=tuple("abcdef"))
    assert (dataset.num_classes, dataset.class_names) == (6, tuple("abcdef"))
    assert_array_equal(read(dataset.train)["labels"], LABELS)


FLOATS = IMAGES / np.float32(255)
WITH_NAN = FLOATS.copy()
WITH_NAN[7, 0, 0, 0] = np.nan
MASKS = noise(1, 40, 5, 4, high=3)
A_PAIR = "a pair of images and targets"


# Whatever a row does not say is as it should be.
MISTAKES: list[tuple[str, dict[str, Any]]] = [
    (
        r"images is float64; .* must be uint8, 0 to 255: use \(images \*"
        r" 255\)\.round\(\)\.astype\('uint8'\), or images\.astype\('float32'\)$",
        {"images": FLOATS.astype(float)},
    ),
    (
        r"images is float64; .*: use images\.round\(\)\.astype\('uint8'\)",
        {"images": FLOATS.astype(float) * 255},
    ),
    (r"these go from -0\.5 to 0\.5: scale them", {"images": FLOATS.astype(float) - 0.5}),
    (r"images is int64; .*: use images\.astype\('uint8'\)$", {"images": IMAGES.astype(int)}),
    (r"images is bool; .*: use \(images \* 255\)\.astype\('uint8'\)$", {"images": IMAGES > 9}),
    ("arrays: the images of train hold NaN or infinity, first in example 7$", {"images": WITH_NAN}),
    ("images must be an array of numbers, not an array of <U", {"images": ["a.png", "b.png"]}),
    ("images cannot be made an array: ", {"images": [IMAGES, None]}),
    ("images must be an array of numbers, not an array of object", {"images": np.array([None, 1])}),
    ("images must be an array of numbers, not int$", {"images": 3}),
    ("images is empty", {"images": IMAGES[:0], "targets": LABELS[:0]}),
    (r"images has the shape \(40, 3\), not", {"images": IMAGES[:, 0, 0]}),
    (r"images has the shape \(40, 0, 4, 3\), not", {"images": IMAGES[:, :0]}),
    (
        r"channels come last: use images\.transpose\(0, 2, 3, 1\)",
        {"images": noise(0, 40, 3, 8, 8)},
    ),
    ("images has 40 examples, but targets 39", {"targets": LABELS[:39]}),
    ("targets must be an array of numbers, not NoneType", {"targets": None}),
    (
        r"targets holds one-hot rows; give targets\.argmax\(1\) if each image has one class, or task=",
        {"targets": np.eye(4)[LABELS]},
    ),
    (
        r"targets is float64; class numbers must be integers, e\.g\. targets\.astype\('int32'\)",
        {"targets": LABELS * 1.0},
    ),
    (
        "targets is float64; class numbers have no fractions; numbers to predict need task=",
        {"targets": LABELS / 2, "task": "classification"},
    ),
    (
        r"targets has the shape \(40, 4\); .* must be N; several classes of an image need task=",
        {"targets": np.ones((40, 4), int), "task": "classification"},
    ),
    ("targets has values from -1 to 2; class numbers must be at least 0", {"targets": LABELS - 1}),
    ("arrays: has one class only", {"targets": LABELS * 0}),
    (
        r"targets has the shape \(40, 3, 4\); for these images it must be N x 5 x 4",
        {"targets": MASKS[:, :3]},
    ),
    (
        'targets holds the values 0, 255 only; give task="segmentation" if they are masks, or',
        {"targets": (MASKS[..., None] > 0) * np.uint8(255)},
    ),
    (
        "targets has values from 0 to 400; class numbers must be 0 to 255",
        {"targets": MASKS.astype(int) * 200},
    ),
    ("the training masks of arrays hold 3 values up to 200", {"targets": MASKS * 100}),
    (
        r"arrays train\[0\]: its mask has the value 2, not one of 0 to 1",
        {"targets": MASKS, "num_classes": 2},
    ),
    (r"targets is float32; pixels must be uint8, .*: use \(targets \* 255\)", {"targets": FLOATS}),
    ("--num-classes 3: arrays has 4; give at least that", {"num_classes": 3}),
    ("--class-names a: has 1 names for the 4 classes of arrays", {"class_names": ["a"]}),
    ("--class-names abcd: must be a list of names", {"class_names": "abcd"}),
    ("--validation nan: must be a share between 0 and 1", {"validation": float("nan")}),
    ("--validation 1.0: must be a share between 0 and 1", {"validation": 1.0}),
    (f"validation must be a share between 0 and 1, or {A_PAIR}", {"validation": (IMAGES,)}),
    (f"arrays: test must be {A_PAIR}", {"test": (IMAGES, LABELS, LABELS)}),
    (
        "validation=0.01: leaves no validation example of class 0, which has 10; choose",
        {"validation": 0.01},
    ),
    (
        "validation=0.99: leaves no training example of the 40 that there are",
        {"targets": MASKS, "validation": 0.99},
    ),
    (r"test\[0\] is float32; .*: use \(test\[0\] \* 255\)", {"test": (FLOATS, LABELS)}),
    (
        r"test\[0\] has examples of the shape \(4, 4, 3\), the training set \(5, 4, 3\)$",
        {"test": (IMAGES[:, 1:], LABELS)},
    ),
    (
        r"validation\[1\] is for segmentation, but the training targets are for class",
        {"validation": (IMAGES, MASKS)},
    ),
    (
        r"arrays test\[\d\]: its mask has the value 3, not one of 0 to 2",
        {"targets": MASKS, "test": (IMAGES, MASKS + 1)},
    ),
]


@pytest.mark.parametrize(("message", "given"), MISTAKES)
def test_each_mistake_is_one_line(message: str, given: dict[str, Any]) -> None:
    with refused(message):
        data.from_arrays(**({"images": IMAGES, "targets": LABELS} | given))


def test_settings_by_name_are_those_of_the_command_line() -> None:
    dataset = data.load("digits", image_size=12, on_bad_example="skip", augment=["shift:1"])
    expected = open_dataset(DataConfig(dataset="digits", image_size="12"))
    assert (dataset.image_shape, dataset.augment) == ((12, 12, 1), ("shift:1",))
    assert dataset.settings == DataConfig(
        dataset="digits", image_size="12", on_bad_example="skip", augment=("shift:1",)
    )
    assert_array_equal(read(dataset.train)["images"], read(expected.train)["images"])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"name": "digit"}, "dataset=digit: unknown dataset; did you mean digits"),
        (
            {"image_sizes": 8},
            r"data\.load\(\) takes no image_sizes; did you mean image_size\?",
        ),
        ({"dataset": "cells"}, r"data\.load\(\) takes no dataset; "),
        ({"seed": 1}, r"data\.load\(\) takes no seed: it is a setting of the training"),
        ({"image_size": 0}, "image_size=0: must be N or HxW"),
        ({"image_size": 1.5}, "image_size=1.5: must be a string or null, not a number"),
        ({"on_bad_example": "skp"}, "on_bad_example=skp: did you mean skip"),
        ({"num_classes": np.int64(3)}, "num_classes=3: digits does not take it"),
        ({"num_classes": -3}, "num_classes=-3: must be greater than 0"),
        (
            {"task": "segmentation"},
            "dataset=digits: is for classification, but .* asks for segmentation",
        ),
        ({"name": "folder:nowhere"}, "dataset=folder:nowhere: there is no such folder"),
    ],
)
def test_settings_that_there_are_not_are_one_line(settings: dict[str, Any], message: str) -> None:
    with refused(message):
        data.load(**({"name": "digits"} | settings))


def test_a_folder_of_pictures() -> None:
    root = write({f"{'ab'[number % 2]}/{number}.png": IMAGES[number] for number in range(40)})
    dataset = data.from_folder(root, image_size="8")
    assert (dataset.class_names, dataset.image_shape) == (("a", "b"), (8, 8, 3))
    assert dataset.describe().examples == {"train": 36, "test": 4}
    expected = open_dataset(DataConfig(dataset=f"folder:{root}", image_size="8"))
    assert_array_equal(read(dataset.train)["images"], read(expected.train)["images"])
    with refused("there is no such folder"):
        data.from_folder(root / "pictures")
    with refused("did you mean test_split"):
        data.from_folder(root, test_splits="a")


def test_training_and_prediction_ignore_the_same_files(tmp_path: pathlib.Path) -> None:
    root, elsewhere = tmp_path / "root", tmp_path / "elsewhere"
    kept = {"a/1.JFIF", "a/deep/2.pbm", "b/3.tif", "linked/4.png"}
    for name in (*kept, "a/.5.png", ".cache/6.png", "__MACOSX/7.png", "a/notes.txt"):
        path = (elsewhere if name.startswith("linked/") else root) / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    (root / "linked").symlink_to(elsewhere / "linked")
    (root / "b" / "back").symlink_to(root)
    for paths in (find_images(root), [file.picture.path for file in files.find([root])]):
        assert sorted(path.relative_to(root).as_posix() for path in paths) == sorted(kept)


class Broken(data.ArraySource):
    def __getitem__(self, index: int) -> dict[str, Any]:
        if index == 2:
            raise data.BadExample("file 2", "is truncated")
        return super().__getitem__(index)


def own(**splits: Any) -> data.Dataset:
    facts: dict[str, Any] = {"num_classes": 4, "image_shape": (5, 4, 3), "name": "mine"}
    everything = {"train": data.ArraySource(IMAGES, LABELS)} | splits
    return data.Dataset(**everything, mean=(1.0,) * 3, std=(1.0,) * 3, **facts)


def test_a_ready_dataset_is_checked_once() -> None:
    config = DataConfig(dataset="other")
    ready = own(validation=Broken(IMAGES, LABELS))
    once = check_dataset(ready, config, lambda task: "classification", ("classification",))
    again = check_dataset(once, config, lambda task: "classification")
    assert (once.name, once.kind) == ("mine", "classification")
    assert once.describe().examples == {"train": 40, "validation": 40}
    assert once.splits() == again.splits()  # the very same sources
    with bad_example(
        r'file 2: is truncated; fix or remove it, or .* on_bad_example="skip"$',
    ):
        read(once.validation)
    lenient = check_dataset(once, DataConfig(on_bad_example="skip"))
    assert isinstance(lenient.validation, Split)
    assert not isinstance(lenient.validation.source, Split)
    assert list(np.flatnonzero(read(lenient.validation)["weights"] == 0)) == [2]
    assert skipped(lenient.validation) == {2: "file 2: is truncated"}
    # What skips goes on skipping.
    assert check_dataset(lenient, config).validation is lenient.validation


def test_a_ready_dataset_is_resized_whether_it_is_checked_or_not() -> None:
    expected = data.from_arrays(IMAGES, LABELS).train
    for ready in (
        own(validation=data.ArraySource(IMAGES, LABELS)),
        check_dataset(own(), DataConfig()),
    ):
        resized = check_dataset(ready, DataConfig(image_size="10x8"))
        assert resized.image_shape == (10, 8, 3)
        assert all(
            read(source)["images"].shape == (40, 10, 8, 3) for source in resized.splits().values()
        )
        back = check_dataset(ready, DataConfig(image_size="5x4"))
        assert_array_equal(read(back.train)["images"], read(expected)["images"])


def test_a_ready_dataset_must_have_examples_and_targets_for_the_task() -> None:
    none = data.ArraySource(IMAGES[:0], LABELS[:0])
    for split in ("train", "test"):
        with refused(f"^{split}_split={split}: mine has no example there$"):
            check_dataset(own(**{split: none}), DataConfig())
    with refused("^validation=validation: mine has no example there$"):
        check_dataset(own(validation=none), DataConfig())
    words = "dataset=mine: is for classification, but model or task asks for segmentation"
    with refused(words):
        check_dataset(own(), DataConfig(), tasks=("segmentation",))


def test_arrays_that_look_wrong_are_one_line_each(capsys: pytest.CaptureFixture[str]) -> None:
    data.from_arrays(IMAGES, LABELS, name="fine")
    assert capsys.readouterr().err == ""
    images = IMAGES.copy()
    images[[3, 20]] = 0
    data.from_arrays(images, LABELS + 1, name="one")
    data.from_arrays(images.astype(np.uint16), LABELS, name="deep")
    assert capsys.readouterr().err.splitlines() == [
        "warning: one: no training label is 0: class 0 is empty; number the classes from 0 on, e.g."
        " by labels - labels.min()",
        "warning: one: 2 of 40 images have equal pixels only, e.g. one train[20]; nothing can be"
        " learned from them",
        "warning: deep: 2 of 40 images have equal pixels only, e.g. deep train[20]; nothing can be"
        " learned from them",
    ]


def test_labels_that_are_text_become_numbers_as_the_error_says() -> None:
    targets, scope = np.array(["cat", "dog", "ant", "bee"])[LABELS], dict[str, Any]()
    with refused("targets must be an array of numbers, not an array of <U3; of labels") as caught:
        data.from_arrays(IMAGES, targets)
    advice = str(caught.value).split("are text, ")[1].split(" gives")[0]
    exec(advice, {"np": np, "targets": targets}, scope)
    dataset = data.from_arrays(IMAGES, scope["numbers"], class_names=scope["texts"].tolist())
    assert dataset.class_names == ("ant", "bee", "cat", "dog")
    assert [dataset.class_names[each] for each in read(dataset.train)["labels"]] == targets.tolist()


def test_arrays_in_a_file_are_not_copied(tmp_path: pathlib.Path) -> None:
    images = np.lib.format.open_memmap(tmp_path / "a.npy", "w+", "uint8", (400, 160, 160, 3))
    images[:200] = 100
    labels = np.arange(400) % 2
    tracemalloc.start()
    try:
        dataset = data.from_arrays(images, labels, validation=0.5)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < images.nbytes / 2
    chosen = images[dataset.splits()["train"].indices]  # pyright: ignore
    np.testing.assert_allclose(dataset.mean, chosen.mean((0, 1, 2)), rtol=1e-4)
    np.testing.assert_allclose(dataset.std, chosen.std((0, 1, 2)), rtol=1e-4)
