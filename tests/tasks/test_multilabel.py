"""Metrics of multi-label classification agree with scikit-learn's, and thresholds come from
validation data.
"""

import functools
import pathlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from sklearn import metrics as sklearn_metrics

import jaxdp
from jaxdp import tasks
from jaxdp.errors import ConfigError
from jaxdp.step import metrics

CLASSES, EXAMPLES = 4, 200
RNG = np.random.default_rng(0)
PRESENT = (RNG.random((EXAMPLES, CLASSES)) < [0.5, 0.2, 0.05, 0.8]).astype(np.uint8)
# Logits at the lower edges of bins of 1/128, many of them equal.
LOGITS = (RNG.normal(2.0 * PRESENT - 1, 2).round(1) * 128 // 1 / 128).astype(np.float32)


def figures(task: Any, parts: int, weights: np.ndarray | None = None) -> dict[str, Any]:
    """Sums over parts, as batches, devices and processes do."""
    weights = np.ones(EXAMPLES, np.float32) if weights is None else weights
    sums: dict[str, Any] = {}
    sums_of = jax.jit(functools.partial(task.sums, training=False))
    for numbers in np.array_split(np.arange(EXAMPLES), parts):
        batch = {"weights": weights[numbers], "present": PRESENT[numbers]}
        sums = metrics.add(sums, sums_of(LOGITS[numbers], batch))
    return metrics.compute(task, sums)


@pytest.mark.parametrize("parts", [1, 7])
def test_figures_are_those_of_scikit_learn(parts: int) -> None:
    ours = figures(tasks.MultiLabel(CLASSES), parts)
    averages = sklearn_metrics.average_precision_score(PRESENT, LOGITS, average=None)
    for number in range(CLASSES):
        assert ours[f"average_precision/{number}"] == pytest.approx(averages[number], rel=1e-9)
    assert ours["mean_average_precision"] == pytest.approx(averages.mean(), rel=1e-9)
    f1 = sklearn_metrics.f1_score(PRESENT, LOGITS >= 0, average="macro")
    assert ours["f1"] == pytest.approx(f1, rel=1e-9)
    losses = optax.sigmoid_binary_cross_entropy(jnp.asarray(LOGITS), PRESENT)
    assert ours["loss"] == pytest.approx(float(losses.mean()), rel=1e-5)


def test_examples_of_weight_0_do_not_count() -> None:
    weights = (np.arange(EXAMPLES) % 3 > 0).astype(np.float32)
    ours = figures(tasks.MultiLabel(CLASSES), 3, weights)
    kept = weights > 0
    averages = sklearn_metrics.average_precision_score(PRESENT[kept], LOGITS[kept])
    assert ours["mean_average_precision"] == pytest.approx(averages, rel=1e-9)


def test_a_threshold_has_the_highest_f1() -> None:
    task = tasks.MultiLabel(CLASSES)
    found = figures(task, 2)
    calibrated = task.calibrated(found)
    scores = [
        max(
            sklearn_metrics.f1_score(PRESENT[:, number], LOGITS[:, number] >= edge)
            for edge in np.unique(LOGITS[:, number])
        )
        for number in range(CLASSES)
    ]
    assert figures(calibrated, 2)["f1"] == pytest.approx(np.mean(scores), rel=1e-9)
    assert figures(calibrated, 2)["f1"] > found["f1"]
    assert task.calibrated({}) is task
    # Thresholds of one's own stay.
    own = tasks.MultiLabel(CLASSES, thresholds=(0.3,) * CLASSES)
    assert own.calibrated(found) is own


def test_predictions_are_those_that_f1_counts() -> None:
    edges = 1 / (1 + np.exp(-np.array([0.5, -1.25, 0, 3.75])))
    task = tasks.MultiLabel(CLASSES, thresholds=tuple(edges.tolist()))
    grid = np.arange(-512, 512, dtype=np.float32)[:, None] / 128  # edges of all bins
    logits = np.broadcast_to(grid, (1024, CLASSES))
    predicted = np.zeros(logits.shape, bool)
    for row, probabilities in enumerate(np.asarray(task.probabilities(jnp.asarray(logits)))):
        predicted[row, task._predicted(probabilities)] = True
    np.testing.assert_array_equal(predicted, logits >= [0.5, -1.25, 0, 3.75])


def test_classes_that_do_not_occur_do_not_count() -> None:
    task = tasks.MultiLabel(3)
    batch = {"weights": jnp.ones(2), "present": jnp.array([[1, 0, 0], [0, 0, 1]], "uint8")}
    sums = task.sums(jnp.array([[5.0, 1, -5], [-5, 1, 5]]), batch, training=False)
    found = metrics.compute(task, metrics.add(sums))
    assert found["mean_average_precision"] == found["f1"] == 1
    assert "average_precision/1" not in found


@pytest.mark.parametrize("thresholds", [(0.5,), (0.5, 0.5, 1.5, 0.5), (float("nan"),) * CLASSES])
def test_thresholds_are_probabilities(thresholds: Any) -> None:
    with pytest.raises(ConfigError, match="must be 4 numbers between 0 and 1"):
        tasks.MultiLabel(CLASSES, thresholds=thresholds)


def pictures(count: int) -> tuple[np.ndarray, np.ndarray]:
    """Images whose quarters are bright where a class is present."""
    rng = np.random.default_rng(1)
    present = rng.integers(0, 2, (count, 4), dtype=np.uint8)
    bright = present.reshape(count, 2, 2).repeat(4, 1).repeat(4, 2)
    noise = rng.integers(0, 100, (count, 8, 8))
    return (noise + 100 * bright).astype(np.uint8)[..., None], present


@pytest.mark.usefixtures("no_pictures")
def test_a_run_is_calibrated_on_validation_data_alone(tmp_path: pathlib.Path) -> None:
    images, present = pictures(160)
    names = ("a", "b", "c", "d")
    dataset = jaxdp.data.from_arrays(
        images[:128],
        present[:128],
        validation=0.25,
        test=(images[128:], present[128:]),
        class_names=names,
    )
    assert dataset.task == "multilabel"
    settings: dict[str, Any] = {"model_kwargs": {"width": 4, "hidden": 8}, "devices": 2}
    trainer = jaxdp.Trainer(
        "cnn", data=dataset, steps=12, global_batch_size=16, run_dir=tmp_path / "run", **settings
    )
    result = trainer.fit()
    thresholds = [result.metrics["validation"][f"threshold/{name}"] for name in names]
    predicted = result.predict(images[128:])
    f1 = sklearn_metrics.f1_score(present[128:], predicted >= thresholds, average="macro")
    assert result.metrics["test"]["f1"] == pytest.approx(f1, rel=1e-6)
    # Loaded, the run has the same thresholds, on one device and on eight.
    loaded = jaxdp.load(tmp_path / "run")
    again = loaded.evaluate(images[128:], present[128:])
    for name, value in result.metrics["test"].items():
        assert again[name] == pytest.approx(value, rel=1e-5), name
    # Classes of other data are matched by name.
    order = [2, 0, 3, 1]
    other = jaxdp.data.from_arrays(
        images[128:],
        present[128:, order],
        task="multilabel",
        validation=0.5,
        class_names=[names[number] for number in order],
    )
    moved = loaded.evaluate(other, split="all")
    for name, value in again.items():
        assert moved[name] == pytest.approx(value, rel=1e-5), name
    assert loaded.show_wrong(images[128:], present[128:], count=5).size[0] > 100


@pytest.mark.parametrize(
    ("targets", "message"),
    [
        (np.eye(3)[[0, 1, 2, 0]], r"one-hot rows; give targets.argmax\(1\)"),
        (np.full((4, 3), 2), "integers in 3 columns"),
        (np.array([0.0, 1, 1, 0]), "class numbers must be integers"),
    ],
)
def test_targets_that_may_mean_two_things_are_asked_for(targets: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        jaxdp.data.from_arrays(np.zeros((4, 8, 8), np.uint8), targets, validation=0.5)
