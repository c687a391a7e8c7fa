"""Objects told apart: from masks of object numbers to directions, and back to objects."""

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
from drawn_cells import arrays, cells, image_of, perfect
from PIL import Image
from test_instance_scores import iou_by_hand

import jaxdp
from jaxdp import data, evaluate, predict, train
from jaxdp.build.saved_model import read_description
from jaxdp.config import DataConfig, TrainConfig, run_hash
from jaxdp.config.files import defining
from jaxdp.data import instances as targets_of
from jaxdp.data.dataset import IGNORE_LABEL, PAD_LABEL
from jaxdp.data.sources import BadExample, Split, open_dataset
from jaxdp.data.sources import cells as drawn
from jaxdp.errors import ConfigError
from jaxdp.inference import instances
from jaxdp.reporting import outcome, pictures
from jaxdp.rundir.layout import RunDirectory
from jaxdp.step import metrics
from jaxdp.tasks import InstanceSegmentation, labelling
from jaxdp.tasks import instance_segmentation as task_file
from jaxdp.tasks import instances as scores
from jaxdp.tasks.three_classes import ThreeClasses

RNG = np.random.default_rng(0)
TINY: dict[str, Any] = {"model_kwargs": {"base_channels": 2, "levels": 1}, "progress": False}


def distances_by_hand(objects: np.ndarray) -> np.ndarray:
    """Distance of each pixel to the nearest pixel with another number, pixel by pixel."""
    known = np.argwhere(objects != IGNORE_LABEL)
    found = np.full(objects.shape, 16.0)
    for row, column in np.ndindex(objects.shape):
        others = known[objects[tuple(known.T)] != objects[row, column]]
        if objects[row, column] != IGNORE_LABEL and len(others):
            nearest = np.hypot(*(others - [row, column]).T).min()
            found[row, column] = min(nearest, 16.0)
    return found


@pytest.mark.parametrize("number", [1, 2, 3])
def test_distances_are_those_to_the_nearest_pixel_of_another_number(number: int) -> None:
    objects = cells(number, 40, 36).astype(np.int32)
    objects[30:] = objects[:, 31:] = IGNORE_LABEL
    found = np.asarray(jax.jit(task_file.distances)(jnp.asarray(objects)))
    real = objects != IGNORE_LABEL
    np.testing.assert_allclose(found[real], distances_by_hand(objects)[real], rtol=1e-6)
    assert found.max() == 16


def test_directions_lead_away_from_the_edge_and_part_where_objects_touch() -> None:
    objects = np.zeros((30, 30), np.int32)
    objects[5:25, 5:15], objects[5:25, 15:25] = 300, 7
    found = np.asarray(task_file.directions(jnp.asarray(objects)))
    assert not found[objects == 0].any()
    assert np.hypot(*found[objects > 0].T).max() == pytest.approx(1)
    np.testing.assert_allclose(found[8:22, 14], [[0, -1]] * 14, atol=1e-6)
    np.testing.assert_allclose(found[8:22, 15], [[0, 1]] * 14, atol=1e-6)
    np.testing.assert_allclose(found[5, 8:12], [[1, 0]] * 4, atol=1e-6)
    # As seen from the other side.
    flipped = np.asarray(task_file.directions(jnp.asarray(objects[:, ::-1])))
    np.testing.assert_allclose(flipped[:, ::-1] * [1, -1], found, atol=1e-6)


def rods(number: int) -> np.ndarray:
    """Numbers of long cells of 8 x 60 pixels side by side, turned by any angle."""
    rng = np.random.default_rng(number)
    angle = rng.uniform(0, np.pi)
    rows, columns = np.mgrid[:128, :128] - 64.0
    along = np.cos(angle) * rows + np.sin(angle) * columns
    across = np.cos(angle) * columns - np.sin(angle) * rows + rng.uniform(0, 8)
    lanes, ends = np.floor(across / 8), along + 17 * np.floor(across / 8)
    objects = (lanes + 20) * 50 + np.floor(ends / 60) + 20
    inside = (np.abs(along) < 60) & (np.abs(across) < 44)
    return np.unique(np.where(inside, objects, 0), return_inverse=True)[1].reshape(objects.shape)


SETS = {
    "cells": lambda: [draw_numbered(256 + number, sparse=False) for number in range(64)],
    "cells:sparse": lambda: [draw_numbered(256 + number, sparse=True) for number in range(64)],
    "rods": lambda: [rods(number) for number in range(6)],
}


def draw_numbered(number: int, *, sparse: bool) -> np.ndarray:
    return drawn.numbered(drawn.draw(number, sparse=sparse)[1])


@pytest.mark.parametrize("name", SETS)
def test_a_perfect_network_finds_nearly_every_object(name: str) -> None:
    """Three classes could not: a pixel of the class border belongs to no object in particular.

    The settings are those that the data choose, as in a run.
    """
    objects = SETS[name]()
    counts = {}
    for task in InstanceSegmentation(3).choices("splitting"):
        parts = [scores.sums(each, task.label(perfect(each))) for each in objects]
        counts[task.splitting] = scores.metrics(metrics.add(*parts))
    best = max(counts.values(), key=lambda each: each["average_precision"])
    assert best["ap50"] >= 0.98, counts
    assert best["area_ratio"] == pytest.approx(1, abs=0.01)
    assert abs(best["count_error"]) <= 0.02


def test_the_loss_is_what_its_docstring_says() -> None:
    outputs = RNG.normal(size=(2, 20, 18, 3)).astype(np.float32)
    masks = np.stack([cells(number, 20, 18) for number in (1, 2)]).astype(np.int32)
    masks[1, 15:] = IGNORE_LABEL
    task, batch = InstanceSegmentation(3), {"masks": jnp.asarray(masks)}
    losses, divisors = (each(jnp.asarray(outputs), batch) for each in (task.losses, task.divisors))
    for loss, output, mask in zip(losses, outputs.astype(np.float64), masks, strict=True):
        cell, real = mask > 0, mask != IGNORE_LABEL
        wanted = perfect(mask)[..., 1:]
        each = np.log1p(np.exp(output[..., 0])) - output[..., 0] * cell
        each += 12.5 * np.square(output[..., 1:] - wanted).mean(-1)
        assert float(loss) == pytest.approx(each[real].mean(), rel=1e-5)
    assert divisors.tolist() == [1, 1]
    empty = {"masks": jnp.full_like(batch["masks"], IGNORE_LABEL)}
    assert task.losses(jnp.asarray(outputs), empty).tolist() == [0, 0]
    assert task.divisors(jnp.asarray(outputs), empty).tolist() == [0, 0]
    # As unpadded convolutions need it: directions are those of the whole mask.
    inner = task.losses(jnp.asarray(outputs[:, 4:-4, 4:-4]), batch)
    assert inner.shape == (2,)


def test_padding_is_ignored_and_no_object_looks_like_it() -> None:
    stored = np.array([[0, 3, 255], [256, 70000, PAD_LABEL]], np.int32)
    expected = [[0, 3, 256], [257, 70001, IGNORE_LABEL]]
    np.testing.assert_array_equal(targets_of.as_masks(stored), expected)


def setup_of(dataset: Any, devices: int = 1, **settings: Any) -> Any:
    return jaxdp.Trainer(
        "unet", dataset, devices=devices, **(TINY | {"global_batch_size": 8} | settings)
    ).setup


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
    monkeypatch.setattr(task_file, "_DIRECTIONS", 0.0)
    assert distance(expected, trained(devices, strategy)[0]) > 1e-4


def test_small_objects_are_left_out_and_those_that_touch_part() -> None:
    objects = np.zeros((20, 20), int)
    objects[2:8, 2:8], objects[12:15, 12:17], objects[18, 2:6] = 1, 2, 3
    objects[2:8, 8:12] = 9
    found = InstanceSegmentation(3).label(perfect(objects))
    assert found.dtype == np.uint16
    np.testing.assert_array_equal(found, np.select([objects == 1, objects == 9], [1, 2]))
    found = InstanceSegmentation(3, smallest_area=15).label(perfect(objects))
    assert np.unique(found).tolist() == [0, 1, 2, 3]
    assert not InstanceSegmentation(3).label(np.zeros((20, 20, 3), np.float32)).any()
    whole = np.ones((20, 20), int)
    np.testing.assert_array_equal(InstanceSegmentation(3).label(perfect(whole)), whole)


def test_holes_are_filled_unless_another_object_is_in_them() -> None:
    rows, columns = np.mgrid[:60, :60]
    away = np.hypot(rows - 30, columns - 30)
    prediction = perfect((away < 25).astype(int))
    assert (away < 4).sum() > 40
    prediction[away < 4, 0] = 0
    found = InstanceSegmentation(3, splitting=0.1).label(prediction)
    np.testing.assert_array_equal(found, away < 25)
    ring = np.select([away < 8, (away > 12) & (away < 25)], [1, 2])
    labels = labelling.fill_holes(ring.astype(np.uint16))
    np.testing.assert_array_equal(labels, np.select([away < 8, away < 25], [1, 2]))


def test_a_neck_parts_an_object_only_if_it_is_narrow_enough() -> None:
    rows, columns = np.mgrid[:40, :60]
    discs = np.hypot(rows - 20, columns - 18) < 12, np.hypot(rows - 20, columns - 40) < 12
    objects = (discs[0] | discs[1]).astype(int)  # the neck is about a third as wide
    found = [InstanceSegmentation(3, splitting=each).label(perfect(objects)) for each in (0.2, 0.8)]
    assert [each.max() for each in found] == [1, 2]


class OneBad:
    """The examples of a split, but for the second, which cannot be read."""

    def __init__(self, split: Any) -> None:
        self.split = split

    def __len__(self) -> int:
        return len(self.split)

    def __getitem__(self, index: int) -> Any:
        if index == 1:
            raise BadExample("example 1", "is broken")
        return self.split.unchecked(index)


def test_validation_data_choose_the_settings_and_the_run_keeps_them() -> None:
    dataset = arrays(validation=0.25)
    result = jaxdp.Trainer(
        "unet", dataset, **TINY, global_batch_size=4, devices=1, run_dir="run"
    ).fit(steps=2)
    chosen = result.metrics["validation"]
    settings = {name: chosen[f"setting/{name}"] for name in ("splitting", "smallest_area")}
    for loaded in (result, jaxdp.load("run")):
        task = loaded.predictor().task
        assert {name: getattr(task, name) for name in settings} == settings
    assert result.metrics["test"]["setting/splitting"] == settings["splitting"]
    given = {"splitting": 0.3, "smallest_area": 5}
    setup = setup_of(dataset, task_kwargs=given)
    task = instances.choose(result.predictor(), dataset.validation, setup.step_config.task)
    assert task == InstanceSegmentation(3, targets_of.OUTPUT_NAMES, **given)
    # A bad example that this process has not read yet is passed over.
    split = Split(OneBad(dataset.validation), dataset, where="validation", skip=True)
    assert len(list(instances.count(result.predictor(), split))) == len(split) - 1 > 0
    # The mutant keeps the usual settings whatever the data say.
    calls = iter([0.1, 0.3, 0.9, 0.2, 0.3, 0.4, 0.1, 0.2, 0.8, 0.3, 0.1])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scores, "metrics", lambda sums: {"average_precision": next(calls)})
        task = instances.choose(result.predictor(), dataset.validation, InstanceSegmentation(3))
    assert (task.splitting, task.smallest_area) == (0.45, 64)


@pytest.mark.parametrize(
    ("keyword", "value"), [("splitting", 1.0), ("splitting", -0.5), ("smallest_area", 0)]
)
def test_settings_out_of_range_are_refused(keyword: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=keyword):
        InstanceSegmentation(3, **{keyword: value})


def test_runs_of_version_0_3_predict_with_their_three_classes(
    capsys: pytest.CaptureFixture[str],
) -> None:
    jaxdp.Trainer(
        "unet", arrays(validation=0.25), **TINY, global_batch_size=4, devices=1, run_dir="run"
    ).fit(steps=2)
    directory = RunDirectory(pathlib.Path("run"))
    content = directory.read("dataset.json") | {"class_names": ["background", "cell", "border"]}
    directory.write("dataset.json", content)
    image = image_of(cells(1))
    old = jaxdp.load("run")
    assert isinstance(old.predictor().task, ThreeClasses)
    probabilities = old.predict(image[..., None], probabilities=True)
    np.testing.assert_allclose(probabilities.sum(-1), 1, rtol=1e-5)
    found = old.predict(image[..., None])
    np.testing.assert_array_equal(found, ThreeClasses(3).label(probabilities))
    assert "loss" not in old.evaluate(arrays(validation=0.25))
    assert "ap50" in old.evaluate(arrays(validation=0.25))
    with pytest.raises(ConfigError, match="class_names was"):
        jaxdp.Trainer(
            "unet", arrays(validation=0.25), **TINY, global_batch_size=4, devices=1, run_dir="run"
        ).fit(steps=3)
    tifffile.imwrite("image.tif", image)
    assert predict.main(["run", "image.tif", "--csv", "counts.csv"]) == 0


def test_three_classes_become_the_labels_of_version_0_3() -> None:
    """Sizes and places as that version computed them."""
    noise = scipy.ndimage.gaussian_filter(
        np.random.default_rng(3).normal(size=(64, 64, 3)), (4, 4, 0)
    )
    exponents = np.exp(60 * noise)
    probabilities = (exponents / exponents.sum(-1, keepdims=True)).astype(np.float32)
    found = ThreeClasses(3).label(probabilities)
    assert np.bincount(found.ravel()).tolist() == [1356, 333, 352, 18, 554, 404, 713, 366]
    places = np.arange(found.size).reshape(found.shape)
    assert int((found.astype(np.int64) * places).sum()) == 29482769


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
        np.testing.assert_array_equal(example["masks"], objects[which])
        assert example["masks"].dtype == np.int32
    result = jaxdp.Trainer("unet", made, **TINY, global_batch_size=4, devices=1, run_dir="run").fit(
        steps=2
    )
    assert {"f1", "average_precision", "ap50"} <= result.metrics["validation"].keys()
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
    outputs, task = np.stack([perfect(each) for each in objects]), InstanceSegmentation(3)
    outcome.draw(
        pathlib.Path(),
        title="",
        task=task,
        source=arrays(12, test=(images, objects)).test,
        sums={},
        predict=lambda images: zip(images, outputs, strict=True),
    )
    assert len(shown) == 3
    for row, each, output in zip(shown, objects, outputs, strict=True):
        assert [title for title, _ in row][1:] == ["truth", "prediction"]
        truth, found = row[1][1], row[2][1]
        for picture, labels in ((truth, each), (found, task.label(output))):
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
        " --learning-rate 0.03 --steps 200 --eval-every 200 --run-dir run --dataset folder:slides"
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
def test_the_learning_rate_that_suits_cells_is_one_of_adamw() -> None:
    rates = [
        setup_of("cells", instances=True, **more).config.learning_rate
        for more in ({}, {"optimizer": "adam"}, {"learning_rate": 0.02})
    ]
    assert rates == [0.03, None, 0.02]
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
--model unet --instances --loss dice | --loss dice: unknown keyword argument; known: smallest_area, splitting
--model unet --instances --class-weights 1,2 | --class-weights 1,2: is for classes, and with --instances there are none; leave it out
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
