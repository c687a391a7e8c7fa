"""What a user of Keras or PyTorch writes first: any image to predict, any dataset to train on,
nothing held out.
"""

import pathlib
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from PIL import Image

import jaxdp
from jaxdp.data import from_arrays, from_dataset
from jaxdp.reporting import pictures

TINY: dict[str, Any] = {
    "model_kwargs": {"width": 4, "hidden": 8},
    "devices": 1,
    "global_batch_size": 8,
    "progress": False,
}
LABELS = np.arange(32) % 4
RANDOM = np.random.default_rng(0).integers(0, 60, (32, 12, 12), dtype=np.uint8)
IMAGES = (RANDOM + 60 * LABELS[:, None, None]).astype(np.uint8)
ITEMS = [(Image.fromarray(image), int(label)) for image, label in zip(IMAGES, LABELS, strict=True)]


@pytest.fixture(scope="module")
def result() -> jaxdp.Result:
    data = from_arrays(IMAGES, LABELS, validation=0.25)
    return jaxdp.Trainer("cnn", data, epochs=1, **TINY).fit()


def test_without_data_held_out_only_training_is_measured(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trainer = jaxdp.Trainer("cnn", from_arrays(IMAGES, LABELS), run_dir=tmp_path / "run", **TINY)
    assert "arrays has no validation or test data" in capsys.readouterr().err
    trained = trainer.fit(epochs=1)
    assert trained.metrics.keys() == {"train"}
    assert {row["split"] for row in trained.history} == {"train"}
    assert jaxdp.load(tmp_path / "run").step == 4
    further = trainer.fit(epochs=2)
    assert (further.status, further.step) == ("done", 8)
    assert further.evaluate()["examples"] == 32  # of the training set, the only one


def test_an_image_may_be_given_in_any_form(tmp_path: pathlib.Path, result: jaxdp.Result) -> None:
    path = tmp_path / "0.png"
    Image.fromarray(IMAGES[0]).save(path)
    Image.fromarray(IMAGES[1]).save(tmp_path / "1.png")
    expected = result.predict(IMAGES[:2])
    colored = Image.fromarray(IMAGES[0]).convert("RGB")
    palette = Image.fromarray(IMAGES[0]).convert("P")
    for one in (
        path,
        str(path),
        Image.open(path),
        colored,
        palette,
        IMAGES[0],
        IMAGES[0][..., None],
    ):
        np.testing.assert_allclose(result.predict(one), expected[0], atol=1e-5)
    for several in (tmp_path, [str(path), IMAGES[1]], [Image.open(path), tmp_path / "1.png"]):
        np.testing.assert_allclose(result.predict(several), expected, atol=1e-6)
    for wrong, message in (("nothing.png", "no such file or folder"), (5, "give uint8")):
        with pytest.raises(jaxdp.ConfigError, match=message):
            result.predict(wrong)


def test_one_stack_of_several_pages_has_several_answers(
    tmp_path: pathlib.Path, result: jaxdp.Result
) -> None:
    import tifffile

    tifffile.imwrite(tmp_path / "pages.tif", IMAGES[:3], photometric="minisblack")
    answers = result.predict(tmp_path / "pages.tif")
    np.testing.assert_allclose(answers, result.predict(IMAGES[:3]), atol=1e-6)


def test_arrays_are_evaluated_like_a_dataset_of_them(result: jaxdp.Result) -> None:
    few = IMAGES[:8], LABELS[:8] % 2  # fewer classes than the model knows
    assert result.evaluate(*few) == result.evaluate(from_arrays(*few, num_classes=4))


def drawn(result: Any, monkeypatch: pytest.MonkeyPatch, **options: Any) -> list[Any]:
    """Returns what `show_wrong` draws."""
    rows: list[Any] = []
    blank = np.zeros((4, 4, 3), np.uint8)
    monkeypatch.setattr(pictures, "plot_rows", lambda given, *_: rows.extend(given) or blank)
    assert isinstance(result.show_wrong(**options), Image.Image)
    return rows


def test_the_worst_predictions_are_shown_first(
    result: jaxdp.Result, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A class that the model has not learned is wrong in every image of it.
    labels = np.where(LABELS == 3, 0, LABELS)
    assert result.show_wrong(count=2).size[0] > 100
    rows = drawn(result, monkeypatch, data=IMAGES, targets=labels, count=6)
    shown = [each for row in rows for each in row]
    answers = result.predict(IMAGES)
    worst = np.argsort(answers[np.arange(32), labels])[:6]
    for (title, picture), index in zip(shown, worst, strict=True):
        name, said = title.splitlines()
        likeliest = answers[index].argmax()
        assert name == f"arrays train[{index}]"
        assert said == f"{labels[index]}, predicted {likeliest} ({answers[index].max():.0%})"
        np.testing.assert_array_equal(picture[..., 0], IMAGES[index])
    with pytest.raises(jaxdp.ConfigError, match="there is no split 'tset' in arrays"):
        result.show_wrong(split="tset")
    with pytest.raises(jaxdp.ConfigError, match="count must be at least 1"):
        result.show_wrong(count=0)


def test_a_loaded_result_of_arrays_asks_for_them_again(
    result: jaxdp.Result, tmp_path: pathlib.Path
) -> None:
    loaded = jaxdp.load(result.save(tmp_path / "run"))
    with pytest.raises(jaxdp.ConfigError, match=r"dataset=arrays: .* give the data again"):
        loaded.evaluate()
    assert loaded.evaluate(IMAGES, LABELS) == result.evaluate(IMAGES, LABELS)


@pytest.mark.parametrize("task", ["segmentation", "regression"])
def test_the_worst_of_dense_predictions_are_shown_first(
    task: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    images = RANDOM[..., None]
    truths = {"segmentation": (RANDOM > 40).astype(np.uint8), "regression": images}[task]
    data = from_arrays(images, truths)
    settings: dict[str, Any] = TINY | {"model_kwargs": {"base_channels": 4, "levels": 2}}
    trained = jaxdp.Trainer("unet", data, **settings).fit(steps=2)
    answers = trained.predict(images)
    if task == "regression":
        answers = (answers.clip(0, 1) * 255).round()
    wrong = np.abs(answers.astype(float) - truths).mean((1, 2) if answers.ndim == 3 else (1, 2, 3))
    rows = drawn(trained, monkeypatch, count=3)
    assert [row[0][0] for row in rows] == [
        f"arrays train[{i}]" for i in np.argsort(-wrong, kind="stable")[:3]
    ]
    assert {tuple(title for title, _ in row[1:]) for row in rows} == {("truth", "prediction")}


@pytest.mark.parametrize(("strategy", "devices"), [("pmap", 1), ("pmap", 2), ("sharded", 2)])
def test_a_callback_predicts_with_the_model_as_it_is(strategy: str, devices: int) -> None:
    class Watch:
        """Keeps what the model says after each evaluation, and at the end."""

        def __init__(self) -> None:
            self.seen: list[np.ndarray] = []

        def on_evaluate(self, run: Any, event: Any) -> None:
            self.seen.append(run.predict(IMAGES))

        def on_end(self, run: Any, event: Any) -> None:
            self.seen.append(run.predict(IMAGES[0]))

    watch, data = Watch(), from_arrays(IMAGES, LABELS, validation=0.25)
    settings: dict[str, Any] = TINY | {
        "strategy": strategy,
        "devices": devices,
        "callbacks": [watch],
    }
    trained = jaxdp.Trainer("cnn", data, **settings).fit(epochs=2)
    before, after, one = watch.seen
    assert np.abs(before - after).max() > 1e-3
    np.testing.assert_array_equal(after, trained.predict(IMAGES))
    np.testing.assert_array_equal(one, trained.predict(IMAGES[0]))


class Torchlike:
    """What a map-style dataset of PyTorch has."""

    def __len__(self) -> int:
        return 32

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        return ITEMS[index]


@pytest.mark.parametrize(
    "items",
    [
        ITEMS,
        Torchlike(),
        [{"image": image, "label": label} for image, label in ITEMS],
        [{"img": np.asarray(image), "label": np.int64(label)} for image, label in ITEMS],
    ],
    ids=["list", "object", "dicts", "arrays"],
)
def test_an_object_with_a_length_and_an_index_is_a_dataset(items: Any) -> None:
    data, arrays = (
        make(*given, validation=0.25)
        for make, given in ((from_dataset, (items,)), (from_arrays, (IMAGES, LABELS)))
    )
    assert data.mean == pytest.approx(arrays.mean)
    assert data.std == pytest.approx(arrays.std)
    losses = [
        jaxdp.Trainer("cnn", each, epochs=1, **TINY).fit().metrics["validation"]["loss"]
        for each in (data, arrays)
    ]
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)


@pytest.mark.parametrize("dtype", [np.uint8, np.int64, bool])
def test_masks_and_targets_of_items(dtype: type) -> None:
    masks = [(image, (np.asarray(image) > 100).astype(dtype)) for image, _ in ITEMS]
    segmented = from_dataset(masks, task="segmentation", test=masks)
    assert (segmented.num_classes, segmented.image_shape) == (2, (12, 12, 1))
    restored = from_dataset([(image, image) for image, _ in ITEMS], task="regression")
    assert restored.train[3]["targets"].shape == (12, 12, 1)


def fails(index: int) -> Any:
    raise OSError("the network is gone")


class Broken(Torchlike):
    def __getitem__(self, index: int) -> Any:
        return fails(index) if index == 5 else ITEMS[index]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: from_dataset(iter(ITEMS)), "list_iterator has no length or no index"),
        (lambda: from_dataset([]), "has no example there"),
        (lambda: from_dataset(Broken()), r"dataset train\[5\]: OSError: the network is gone"),
        (
            lambda: from_dataset([*ITEMS, (None, 1)]),
            r"train\[32\]: ValueError: its image is a None",
        ),
        (lambda: from_dataset([{"x": 1}]), r"train\[0\]: KeyError: 'has x, but no images or image"),
        (
            lambda: from_dataset([*ITEMS[:8], (IMAGES[0], 0.5)]),
            r"train\[8\]: its label is 0.5, not a class number",
        ),
        (lambda: from_dataset(ITEMS, task="detection"), "task=detection: must be one of"),
    ],
)
def test_what_is_no_dataset_is_one_line(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(jaxdp.ConfigError, match=message) as caught:
        make()
    assert "\n" not in str(caught.value)


def test_a_trainer_says_what_it_trains_and_neither_is_pickled(result: jaxdp.Result) -> None:
    data = from_arrays(IMAGES, LABELS, validation=0.25)
    trainer = jaxdp.Trainer("cnn", data, epochs=3, learning_rate=0.02, **TINY)
    parameters = result.summary["parameters"]
    assert repr(trainer) == (
        f"Trainer(cnn ({parameters:,} parameters) on arrays (24 train, 8 validation images of"
        " 12x12x1 uint8); nesterov, learning rate 0.02, 9 steps of 8 examples)"
    )
    for each, remedy in ((trainer, "create it where it trains"), (result, "jaxdp.load")):
        with pytest.raises(TypeError, match=remedy):
            pickle.dumps(each)


def test_a_base_class_names_the_methods_of_a_callback() -> None:
    class Steps(jaxdp.callbacks.Callback):
        done = 0

        def on_step_end(self, run: Any, event: Any) -> None:
            self.done = event.step

    steps = Steps()
    data = from_arrays(IMAGES, LABELS, validation=0.25)
    jaxdp.Trainer("cnn", data, epochs=1, callbacks=[steps], **TINY).fit()
    assert steps.done == 3
    assert jaxdp.callbacks.HOOKS[0] == "on_start"
    assert len(jaxdp.callbacks.HOOKS) == 9


class Counting:
    """A dataset that counts how often its items are read."""

    def __init__(self, **attributes: Any) -> None:
        self.reads, self.shift = list[int](), 0
        vars(self).update(attributes)

    def __len__(self) -> int:
        return 200

    def __getitem__(self, index: int) -> tuple[np.ndarray, int]:
        self.reads.append(index)  # threads read
        return IMAGES[index % 32], (index + self.shift) % 4


NUMBERS = [index % 4 for index in range(200)]


@pytest.mark.parametrize("kind", [list, np.array, tuple], ids=["list", "array", "tuple"])
def test_listed_labels_are_used_without_reading_every_item(kind: Callable[..., Any]) -> None:
    items = Counting(targets=kind(NUMBERS))
    data = from_dataset(items, validation=0.25, image_size="12")
    assert np.bincount(data.train.labels()).tolist() == [37] * 4  # pyright: ignore
    listed = len(items.reads)
    items = Counting()
    other = from_dataset(items, validation=0.25, image_size="12")
    assert list(other.train.labels()) == list(data.train.labels())  # pyright: ignore
    assert len(items.reads) - listed == 200 - 16  # once, instead of a sample


@pytest.mark.parametrize(
    "attributes",
    [
        {"targets": NUMBERS, "shift": 1},  # a target_transform
        {"targets": NUMBERS[:100]},
        {"targets": [f"{number}" for number in NUMBERS]},
        {"targets": None},
    ],
    ids=["other labels", "other length", "texts", "none"],
)
def test_lists_that_are_not_the_labels_are_left_out(attributes: dict[str, Any]) -> None:
    items = Counting(**attributes)
    labels = from_dataset(items).train.labels()  # pyright: ignore
    assert list(labels) == [(number + items.shift) % 4 for number in NUMBERS]
