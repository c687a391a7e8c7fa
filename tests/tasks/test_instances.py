"""Objects told apart: from masks of object numbers to classes and weights of pixels, and back from
probabilities to objects.
"""

import csv
import dataclasses
import importlib.util
import itertools
import json
import pathlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.ndimage
import tifffile
from PIL import Image
from sklearn.utils.class_weight import compute_class_weight
from test_instance_scores import iou_by_hand

import jaxdp
from jaxdp import data, evaluate, predict, train
from jaxdp.build.saved_model import read_description
from jaxdp.config import DataConfig, TrainConfig, run_hash
from jaxdp.config.files import defining
from jaxdp.data import instances as targets_of
from jaxdp.data.dataset import IGNORE_LABEL, PAD_LABEL
from jaxdp.data.sources import BadExample, open_dataset
from jaxdp.errors import ConfigError
from jaxdp.inference import instances
from jaxdp.reporting import outcome, pictures
from jaxdp.rundir.layout import RunDirectory
from jaxdp.tasks import Segmentation
from jaxdp.tasks import instances as scores

RNG = np.random.default_rng(0)
TINY: dict[str, Any] = {"model_kwargs": {"base_channels": 2, "levels": 1}, "progress": False}


def cells(number: int, height: int = 24, width: int = 24, count: int = 5) -> np.ndarray:
    """Returns the numbers of discs that touch, uint16: 3, 6, 9, ..."""
    rng = np.random.default_rng(number)
    rows, columns = np.mgrid[:height, :width]
    objects = np.zeros((height, width), np.uint16)
    for index, row, column in zip(
        range(count), rng.uniform(0, height, count), rng.uniform(0, width, count), strict=True
    ):
        objects[((rows - row) ** 2 + (columns - column) ** 2 < 25) & (objects == 0)] = 3 * (
            index + 1
        )
    return objects


def image_of(objects: np.ndarray, number: int = 0) -> np.ndarray:
    rng = np.random.default_rng(number)
    return (4000 + 20000 * (objects > 0) + rng.normal(0, 800, objects.shape)).astype(np.uint16)


def arrays(count: int = 16, **settings: Any) -> data.Dataset:
    objects = np.stack([cells(number) for number in range(count)])
    images = np.stack([image_of(each) for each in objects])[..., None]
    settings = {"instances": True, "test": (images[:4], objects[:4])} | settings
    return data.from_arrays(images, objects, **settings)


def by_hand(objects: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Equation 2 pixel by pixel: the two smallest distances to borders, and from them class and
    weight.
    """
    height, width = objects.shape
    borders: dict[int, list[tuple[int, int]]] = {
        int(number): [] for number in np.unique(objects) if number
    }
    for row, column in np.argwhere(objects > 0):
        beside = [(row + 1, column), (row - 1, column), (row, column + 1), (row, column - 1)]
        inside = [
            objects[place] for place in beside if 0 <= place[0] < height and 0 <= place[1] < width
        ]
        if any(other != objects[row, column] for other in inside):
            borders[int(objects[row, column])].append((row, column))
    classes, weights = np.zeros(objects.shape, np.uint8), np.zeros(objects.shape)
    for row, column in np.ndindex(height, width):
        near = sorted(
            min(np.hypot(row - y, column - x) for y, x in places) for places in borders.values()
        )
        classes[row, column] = 2 if near[0] + near[1] <= 3 else objects[row, column] > 0
        weights[row, column] = 10 * np.exp(-((near[0] + near[1]) ** 2) / (2 * 5**2))
    return classes, weights


@pytest.mark.parametrize("number", [1, 2, 3])
def test_weights_are_those_of_equation_2(number: int) -> None:
    objects = cells(number)
    assert len(np.unique(objects)) > 4
    classes, weights = targets_of.targets(objects)
    expected_classes, expected_weights = by_hand(objects)
    np.testing.assert_array_equal(classes, expected_classes)
    np.testing.assert_allclose(weights, expected_weights, rtol=1e-3, atol=1e-3)
    assert {0, 1, 2} == set(np.unique(classes))
    assert weights.max() > 8


def test_what_fills_an_image_up_is_ignored_and_changes_nothing() -> None:
    objects = np.pad(cells(1).astype(np.int32), [(0, 8), (0, 5)], constant_values=PAD_LABEL)
    classes, weights = targets_of.targets(objects)
    alone = targets_of.targets(cells(1))
    np.testing.assert_array_equal(classes[:24, :24], alone[0])
    np.testing.assert_array_equal(weights[:24, :24], alone[1])
    assert (classes[24:] == IGNORE_LABEL).all()
    assert (classes[:, 24:] == IGNORE_LABEL).all()
    assert not weights[24:].any()


def test_one_object_has_no_neighbour() -> None:
    for objects in (
        np.ones((8, 8), np.int32),
        np.eye(8, dtype=np.int32) * 7,
        np.zeros((8, 8), np.int32),
    ):
        classes, weights = targets_of.targets(objects)
        np.testing.assert_array_equal(classes, objects > 0)
        assert not weights.any()


def test_the_loss_is_the_weighted_mean_over_the_batch() -> None:
    logits = RNG.normal(size=(3, 6, 5, 3)).astype(np.float32)
    masks = RNG.choice([0, 1, 2, 255], (3, 6, 5)).astype(np.int32)
    border = RNG.uniform(0, 10, (3, 6, 5)).astype(np.float32)
    balance = (0.4, 1.7, 7.0)
    task = Segmentation(3, class_weights=balance, weighted_over="batch")
    batch = {"masks": jnp.asarray(masks), "border_weights": jnp.asarray(border)}
    found = (
        task.losses(jnp.asarray(logits), batch).sum()
        / task.divisors(jnp.asarray(logits), batch).sum()
    )
    total, weight = 0.0, 0.0
    for place in np.argwhere(masks != 255):
        each, mine = tuple(place), logits[tuple(place)].astype(np.float64)
        w = balance[masks[each]] + border[each]
        total, weight = total + w * (np.log(np.exp(mine).sum()) - mine[masks[each]]), weight + w
    assert float(found) == pytest.approx(total / weight, rel=1e-5)
    inner = {
        "masks": batch["masks"][:, 1:5, 1:4],
        "border_weights": batch["border_weights"][:, 1:5, 1:4],
    }
    # As unpadded convolutions need it.
    cut = [task.losses(jnp.asarray(logits[:, 1:5, 1:4]), each) for each in (batch, inner)]
    np.testing.assert_array_equal(*cut)


def setup_of(dataset: Any, devices: int = 1, **settings: Any) -> Any:
    return jaxdp.Trainer(
        "unet", dataset, devices=devices, **(TINY | {"global_batch_size": 8} | settings)
    ).setup


def test_classes_weigh_alike_unless_balance_is_asked_for() -> None:
    assert setup_of(arrays()).step_config.task.class_weights == (1, 1, 1)
    setup = setup_of(arrays(), class_weights="balanced")
    batch = setup.dataset.train.read(range(len(setup.dataset.train)))
    expected = compute_class_weight("balanced", classes=np.arange(3), y=batch["masks"].ravel())
    np.testing.assert_allclose(setup.step_config.task.class_weights, expected, rtol=1e-12)
    assert setup_of(arrays(), class_weights="1,2,3").step_config.task.class_weights == (1, 2, 3)
    assert setup.step_config.task.class_names == ("background", "cell", "border")


def outlined(objects: np.ndarray, weights: Any) -> np.ndarray:
    """Probabilities of a network that has learned blurred outlines with these class weights."""
    classes = np.eye(3)[targets_of.targets(objects)[0]]
    blurred = scipy.ndimage.gaussian_filter(classes, (1, 1, 0)) * np.asarray(weights)
    return (blurred / blurred.sum(-1, keepdims=True)).astype(np.float32)


def test_sparse_objects_keep_their_area() -> None:
    """The mutant balances the classes: objects take all pixels that are only perhaps theirs."""
    objects = np.zeros((96, 96), np.int32)
    rows, columns = np.mgrid[:96, :96]
    objects[(rows - 40) ** 2 + (columns - 60) ** 2 < 100] = 1
    objects[(rows - 70) ** 2 + (columns - 20) ** 2 < 100] = 2
    dataset = data.from_arrays(
        np.stack([image_of(objects)] * 8), np.stack([objects] * 8), instances=True, validation=0.25
    )
    ratios = []
    for settings in ({}, {"class_weights": "balanced"}):
        weights = setup_of(dataset, global_batch_size=2, **settings).step_config.task.class_weights
        found = instances.label_instances(outlined(objects, weights))
        assert found.max() == 2
        ratios.append((found > 0).sum() / (objects > 0).sum())
    assert ratios[0] == pytest.approx(1, abs=0.03)
    assert ratios[1] > 1.1


def trained(devices: int, strategy: str, **settings: Any) -> tuple[Any, list[Any]]:
    """State after two steps, and their sums."""
    settings = {
        "batch_norm": "group:2",
        "learning_rate": 0.05,
        "schedule": "constant",
        "augment": ["flip", "elastic:3"],
    } | settings
    setup = setup_of(arrays(), devices, strategy=strategy, steps=2, **settings)
    state, sums = setup.strategy.init(setup.create_state), []
    for batch in itertools.islice(setup.batches.placed(0), 2):
        state, found = setup.strategy.train_step(state, batch, setup.constants)
        sums.append(setup.strategy.gather(found))
    return setup.strategy.gather(state).params, sums


def distance(left: Any, right: Any) -> float:
    return max(
        jax.tree.leaves(
            jax.tree.map(lambda a, b: float(np.abs(np.float64(a) - b).max(initial=0)), left, right)
        )
    )


@pytest.mark.parametrize(
    ("devices", "strategy", "settings"),
    [
        (4, "pmap", {}),
        (4, "shard_map", {"accumulate_steps": 2, "data_placement": "host"}),
        (4, "sharded", {}),
        (2, "central", {}),
    ],
)
def test_every_strategy_weighs_alike(
    devices: int, strategy: str, settings: dict, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The mutant divides by the weights of a device's own examples, which differ from those of the
    batch.
    """
    expected, sums = trained(1, "single")
    params, same_sums = trained(devices, strategy, **settings)
    assert distance(expected, params) <= 1e-5
    assert distance(sums, same_sums) <= 1e-3
    if strategy != "pmap":
        return
    losses, divisors = Segmentation.losses, Segmentation.divisors
    monkeypatch.setattr(
        Segmentation,
        "losses",
        lambda self, *args: losses(self, *args) / jnp.mean(divisors(self, *args)),
    )
    monkeypatch.setattr(
        Segmentation, "divisors", lambda self, outputs, batch: jnp.ones(len(outputs))
    )
    assert distance(expected, trained(devices, strategy)[0]) > 1e-4


def test_border_weights_matter() -> None:
    """Else the parity above would say nothing of them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(targets_of, "W0", 0.0)
        without = trained(1, "single")[0]
    assert distance(trained(1, "single")[0], without) > 1e-4


def certain(objects: np.ndarray) -> np.ndarray:
    classes, _ = targets_of.targets(objects)
    return (0.9 * np.eye(3)[classes] + 0.1 / 3).astype(np.float32)


@pytest.mark.parametrize("number", range(3))
def test_certain_probabilities_give_the_objects_back(number: int) -> None:
    objects = cells(number, 48, 40, count=7)
    cell = targets_of.targets(objects)[0] == 1
    for value in np.unique(objects):
        if (cell & (objects == value)).sum() < 30:  # what others hide but for a rim has no middle
            objects[objects == value] = 0
    found = instances.label_instances(certain(objects))
    assert found.dtype == np.uint16
    assert set(np.unique(found)) == set(range(len(np.unique(objects))))
    assert scores.metrics(scores.sums(objects, found))["f1"] == 1.0


def test_small_objects_are_left_out() -> None:
    objects = np.zeros((20, 20), int)
    objects[2:8, 2:8], objects[12:15, 12:17], objects[18, 2:6] = 1, 2, 3
    found = instances.label_instances(certain(objects))
    assert np.unique(found).tolist() == [0, 1]
    np.testing.assert_array_equal(found, objects == 1)


def test_without_scikit_image_one_line_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert train.main(["--model", "unet", "--instances"]) == 2
    line = capsys.readouterr().err
    assert line.strip().endswith("--instances: needs scikit-image: pip install '.[instances]'")
    assert line.count("\n") == 1


def test_the_settings_of_other_runs_keep_their_hash(tmp_path: pathlib.Path) -> None:
    assert "instances" not in defining(TrainConfig())
    assert run_hash(TrainConfig.of(instances=True)) != run_hash(TrainConfig())
    directory = RunDirectory(tmp_path)
    content = dataclasses.asdict(open_dataset("cells").describe())
    del content["instances"]  # as version 0.1 wrote it
    directory.write("dataset.json", content)
    assert read_description(directory).instances is False


def test_cells_have_numbers_and_the_same_masks() -> None:
    plain, numbered = (
        open_dataset("cells"),
        open_dataset(DataConfig(dataset="cells", instances=True)),
    )
    for split in ("train", "test"):
        one, other = (dataset.splits()[split].unchecked(3) for dataset in (plain, numbered))  # pyright: ignore[reportAttributeAccessIssue]
        np.testing.assert_array_equal(one["images"], other["images"])
        np.testing.assert_array_equal(one["masks"], other["masks"] > 0)
        assert all((other["masks"] == number).sum() >= 32 for number in np.unique(other["masks"]))
        assert len(np.unique(other["masks"])) > 5
    resized = open_dataset(DataConfig(dataset="cells", instances=True, image_size="48x64")).test
    assert {name: value.shape for name, value in resized[0].items() if name != "weights"} == {
        "images": (48, 64, 1),
        "masks": (48, 64),
        "border_weights": (48, 64),
    }


def test_sparse_cells_are_few_and_take_the_recipe_of_cells() -> None:
    plain, sparse = (
        open_dataset(DataConfig(dataset=name, instances=True)) for name in ("cells", "cells:sparse")
    )
    masks = np.stack([sparse.train.unchecked(number)["masks"] for number in range(128)])  # pyright: ignore[reportAttributeAccessIssue]
    assert 0.025 < (masks > 0).mean() < 0.035
    assert masks.max() == 2
    for field in ("defaults", "augment", "mean", "std", "num_classes", "image_shape"):
        assert getattr(plain, field) == getattr(sparse, field), field
    assert (sparse.train.unchecked(1)["images"] != sparse.test.unchecked(1)["images"]).any()  # pyright: ignore[reportAttributeAccessIssue]
    with pytest.raises(ConfigError, match="cells:dense: write cells or cells:sparse"):
        open_dataset("cells:dense")


def test_arrays_and_npz_files_have_numbers_too() -> None:
    objects = np.stack([cells(number) for number in range(12)])
    images = np.stack([image_of(each) for each in objects])
    np.savez("x.npz", images=images, masks=objects)
    opened = open_dataset(DataConfig(dataset="npz:x.npz", instances=True))
    made = data.from_arrays(images, objects.astype(np.int64), instances=True, validation=0.25)
    for dataset in (opened, made):
        assert (dataset.num_classes, dataset.instances) == (3, True)
        example = dataset.train[0]
        which = next(
            number for number in range(12) if (images[number] == example["images"][..., 0]).all()
        )
        classes, weights = targets_of.targets(objects[which])
        np.testing.assert_array_equal(example["masks"], classes)
        np.testing.assert_array_equal(example["border_weights"], weights)
    result = jaxdp.Trainer("unet", made, **TINY, global_batch_size=4, devices=1, run_dir="run").fit(
        steps=2
    )
    assert {"f1", "average_precision", "iou/border"} <= result.metrics["validation"].keys()
    found = result.predict(images[:2, ..., None])
    assert (found.dtype, found.shape) == (np.uint16, (2, 24, 24))
    assert result.predict(images[:2, ..., None], probabilities=True).shape == (2, 24, 24, 3)
    again = jaxdp.load("run")
    np.testing.assert_array_equal(again.predict(images[:2, ..., None]), found)
    assert again.evaluate("npz:x.npz", split="all").keys() >= {"f1", "average_precision"}


def test_pictures_show_objects_by_the_color_of_their_number(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shown: list[Any] = []
    blank = np.zeros((1, 1, 3), np.uint8)
    monkeypatch.setattr(pictures, "plot_rows", lambda rows, *_: shown.extend(rows) or blank)
    objects = np.stack([cells(number) for number in range(3)])
    images = np.stack([image_of(each) for each in objects])[..., None]
    outputs = np.stack([certain(each) for each in objects])
    outcome.draw(
        pathlib.Path(),
        title="",
        task=Segmentation(3),
        source=arrays(12, test=(images, objects)).test,
        sums={},
        predict=lambda images: zip(images, outputs, strict=True),
        separate=instances.label_instances,
    )
    assert len(shown) == 3
    for row, each, output in zip(shown, objects, outputs, strict=True):
        assert [title for title, _ in row][1:] == ["truth", "prediction"]
        truth, found = row[1][1], row[2][1]
        for picture, labels in ((truth, each), (found, instances.label_instances(output))):
            assert len(np.unique(picture.reshape(-1, 3), axis=0)) == len(np.unique(labels))
        assert {tuple(color) for color in truth[each == 0]} == {tuple(pictures.class_colors(1)[0])}


def page_files(root: pathlib.Path) -> None:
    """Writes 16-bit stacks whose files, and whose images, differ in size, with the objects'
    numbers.
    """
    number = 0
    for split, stacks in (
        ("train", [(3, 40, 32), (4, 28, 44)]),
        ("test", [(2, 36, 30), (1, 50, 26)]),
    ):
        for part in ("images", "masks"):
            (root / split / part).mkdir(parents=True)
        for index, (pages, height, width) in enumerate(stacks):
            objects = np.stack(
                [cells(number + page, height, width, count=4) for page in range(pages)]
            )
            number += pages
            tifffile.imwrite(
                root / split / "masks" / f"{index}.tif", objects, photometric="minisblack"
            )
            tifffile.imwrite(
                root / split / "images" / f"{index}.tif",
                image_of(objects, number),
                photometric="minisblack",
            )


def test_a_folder_of_stacks_goes_from_training_to_counted_cells_in_three_commands(
    capsys: pytest.CaptureFixture[str],
) -> None:
    page_files(pathlib.Path("slides"))
    flags = (
        "--model unet --model-kwargs base_channels=8 levels=1 --global-batch-size 4 --strategy"
        " single --optimizer adam"
    )
    flags += (
        " --learning-rate 0.01 --steps 40 --eval-every 40 --run-dir run --dataset folder:slides"
        " --augment flip crop:32"
    )
    assert train.main(flags.split()) == 2
    assert "or --instances if they are numbers of objects" in capsys.readouterr().err
    assert train.main([*flags.split(), "--instances"]) == 0
    summary = json.loads(pathlib.Path("run/summary.json").read_text())["metrics"]["test"]
    shown = capsys.readouterr().out
    assert f"f1 {summary['f1']:.4f}".split()[1] in shown

    assert evaluate.main(["run", "--json"]) == 0
    evaluated = json.loads(capsys.readouterr().out)
    assert (evaluated["f1"], evaluated["average_precision"]) == (
        summary["f1"],
        summary["average_precision"],
    )

    assert (
        predict.main(["run", "slides/test/images", "--output-dir", "out", "--csv", "counts.csv"])
        == 0
    )
    table = list(csv.DictReader(pathlib.Path("counts.csv").read_text().splitlines()))
    stacks = {file: tifffile.imread(f"out/{file}-instances.tif") for file in (0, 1)}
    assert [stack.shape for stack in stacks.values()] == [(2, 36, 30), (50, 26)]
    truths = {"0-page0": (0, 0), "0-page1": (0, 1), "1": (1, None)}
    sums: dict[str, Any] = {}
    for name, (file, page) in truths.items():
        found = stacks[file] if page is None else stacks[file][page]
        assert found.dtype == np.uint16
        place = (f"slides/test/images/{file}.tif", str(page or 0))
        rows = [row for row in table if (row["file"], row["page"]) == place]
        assert [row["objects"] for row in rows] == [str(found.max())] * found.max()
        assert [int(row["area_pixels"]) for row in rows] == np.bincount(found.ravel())[1:].tolist()
        truth = tifffile.imread(f"slides/test/masks/{file}.tif").reshape(-1, *found.shape)[
            page or 0
        ]
        overlay = np.asarray(Image.open(f"out/{name}-overlay.png"))
        assert overlay.shape == (*found.shape, 3)
        iou = iou_by_hand(truth, found)
        part = {"hits": int((iou >= 0.5).sum()), "both": sum(iou.shape)}
        sums = {key: sums.get(key, 0) + value for key, value in part.items()}
    # What was scored is what is written.
    assert summary["f1"] == pytest.approx(2 * sums["hits"] / sums["both"])
    assert summary["f1"] > 0.2
    assert "mean area in" in capsys.readouterr().out


@pytest.mark.slow
def test_the_learning_rate_that_suits_cells_is_one_of_momentum() -> None:
    rates = [
        setup_of("cells", instances=True, **more).config.learning_rate
        for more in ({}, {"optimizer": "adam"}, {"learning_rate": 0.03})
    ]
    assert rates == [0.25, None, 0.03]
    assert setup_of("cells").config.learning_rate is None


def test_masks_that_are_asked_about_name_the_flag() -> None:
    many = np.zeros((12, 24, 24), np.uint16)
    for number in range(12):
        many[number].ravel()[: 2 * (9 + number)] = np.repeat(np.arange(1, 10 + number), 2)
    with pytest.raises(ConfigError, match=r"or instances if they are numbers of objects"):
        data.from_arrays(np.zeros((12, 24, 24), np.uint8), many.astype(np.uint8))
    with pytest.raises(ConfigError, match="instances for numbers of objects"):
        data.from_arrays(np.zeros((12, 24, 24), np.uint8), many + 300)


IMPOSSIBLE = """\
--instances | --instances: takes masks of object numbers; digits is for classification and has none; choose another
--model unet --dataset digits-denoise --instances | digits-denoise is for regression and has none
--model unet --instances --mask-values binary | --mask-values binary: with --instances masks are numbers of objects
--model unet --instances --class-names a,b | --class-names a,b: with --instances masks are numbers of objects
--model unet --instances --num-classes 3 | --num-classes 3: with --instances masks are numbers of objects
--model unet --instances --loss dice | --loss dice: has no border weights, which --instances trains with
--model unet --instances --class-weights 1,2 | --class-weights 1,2: must be 3 numbers, one for each class: background
--model unet --instances --dataset npz:none.npz | --instances: the training masks of npz:none.npz hold no object
--model unet --instances --dataset npz:one.npz | npz:one.npz hold one number each but for 0; give each object of a mask
"""


@pytest.mark.parametrize("row", IMPOSSIBLE.splitlines())
def test_what_cannot_be_is_one_line(row: str, capsys: pytest.CaptureFixture[str]) -> None:
    flags, message = row.split(" | ")
    images = np.zeros((12, 16, 16), np.uint8)
    np.savez("none.npz", images=images, masks=images)
    np.savez("one.npz", images=images, masks=images + 255 * (np.arange(16) > 7).astype(np.uint8))
    assert train.main(flags.split()) == 2
    line = capsys.readouterr().err
    assert message in line
    assert line.count("\n") == 1


def test_masks_that_are_no_numbers_of_objects_are_bad_examples(tmp_path: pathlib.Path) -> None:
    for stored, problem in [
        (
            np.zeros((4, 4, 3), np.uint8),
            "has 3 channels; save the numbers of its objects as a greyscale picture",
        ),
        (np.full((4, 4), 0.5), "has fractions"),
        (np.full((4, 4), -1), "has values from -1 to 0; numbers of objects are 0 to 16777215"),
    ]:
        with pytest.raises(BadExample, match=problem):
            targets_of.instance_labels(stored, "a.png")
    with pytest.raises(ConfigError, match="leave class_names out"):
        arrays(class_names=["a", "b", "c"])
    with pytest.raises(ConfigError, match="takes masks of object numbers"):
        data.from_arrays(np.zeros((8, 4, 4), np.uint8), np.arange(8) % 2, instances=True)
    with pytest.raises(ConfigError, match="instances=True: data is an object"):
        jaxdp.Trainer("unet", arrays(), instances=True, **TINY)
