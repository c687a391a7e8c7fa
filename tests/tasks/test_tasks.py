"""Figures agree with scikit-learn's, over any division into batches.

Losses agree with their formulas.
"""

import functools
import json
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sklearn import metrics as sklearn_metrics

from jaxdp import tasks
from jaxdp.errors import ConfigError
from jaxdp.step import metrics

CLASSES, EXAMPLES = 7, 24
RNG = np.random.default_rng(0)
LOGITS = RNG.normal(size=(EXAMPLES, CLASSES)).astype(np.float32)
LABELS = RNG.integers(0, CLASSES, EXAMPLES).astype(np.int32)
MAP_LOGITS = RNG.normal(size=(6, 5, 4, 3)).astype(np.float32)
CLASSIFICATION = tasks.create("classification", num_classes=CLASSES)
SEGMENTATION = tasks.create("segmentation", num_classes=3, class_names=("a", "b", "c"))
MASKS = RNG.choice([0, 1, 2, 255], (6, 5, 4), p=[0.5, 0.3, 0.1, 0.1]).astype(np.int32)


def figures(
    task: Any, outputs: np.ndarray, batch: dict[str, np.ndarray], parts: int, training: bool = False
) -> dict[str, Any]:
    """Sums over parts, as batches, devices and processes do."""
    batch = {"weights": np.ones(len(outputs), np.float32)} | batch
    sums: dict[str, Any] = {}
    sums_of = jax.jit(functools.partial(task.sums, training=training))
    for numbers in np.array_split(np.arange(len(outputs)), parts):
        part = {name: array[numbers] for name, array in batch.items()}
        sums = metrics.add(sums, sums_of(outputs[numbers], part))
    return metrics.compute(task, sums) | {
        name: sums[name] for name in ("confusion",) if name in sums
    }


@pytest.mark.parametrize("parts", [1, 5])
def test_classification_figures_are_those_of_scikit_learn(parts: int) -> None:
    ours = figures(CLASSIFICATION, LOGITS, {"labels": LABELS}, parts)
    predicted = LOGITS.argmax(-1)
    assert ours["accuracy"] == pytest.approx(sklearn_metrics.accuracy_score(LABELS, predicted))
    every = np.arange(CLASSES)
    assert ours["top5_accuracy"] == pytest.approx(
        sklearn_metrics.top_k_accuracy_score(LABELS, LOGITS, k=5, labels=every)
    )
    probabilities = np.asarray(jax.nn.softmax(LOGITS), np.float64)
    assert ours["loss"] == pytest.approx(
        sklearn_metrics.log_loss(LABELS, probabilities / probabilities.sum(1, keepdims=True)),
        rel=1e-5,
    )
    np.testing.assert_array_equal(
        ours["confusion"], sklearn_metrics.confusion_matrix(LABELS, predicted, labels=every)
    )
    assert ours["examples"] == EXAMPLES


def test_padding_and_bad_examples_count_nowhere() -> None:
    weights = (np.arange(EXAMPLES) % 3 > 0).astype(np.float32)
    kept = weights > 0
    masked = figures(CLASSIFICATION, LOGITS, {"labels": LABELS, "weights": weights}, 4)
    only = figures(CLASSIFICATION, LOGITS[kept], {"labels": LABELS[kept]}, 1)
    np.testing.assert_array_equal(masked.pop("confusion"), only.pop("confusion"))
    assert masked == pytest.approx(only)
    weights = np.array([1, 0, 1, 1, 0, 1], np.float32)
    kept = weights > 0
    masked = figures(SEGMENTATION, MAP_LOGITS, {"masks": MASKS, "weights": weights}, 3)
    only = figures(SEGMENTATION, MAP_LOGITS[kept], {"masks": MASKS[kept]}, 1)
    assert masked == pytest.approx(only)


def test_ties_and_infinite_logits_do_not_pass_for_hits() -> None:
    """A network that says the same of all classes, or nothing, is not among the best."""
    for value, expected in ((0.0, np.mean(LABELS < 5)), (np.nan, 0)):
        logits = np.full_like(LOGITS, value)
        found = figures(CLASSIFICATION, logits, {"labels": LABELS}, 1)
        assert found["top5_accuracy"] == pytest.approx(expected)


def test_mixed_labels_enter_the_loss_by_their_shares() -> None:
    share = RNG.uniform(size=EXAMPLES).astype(np.float32)
    partners, logits = RNG.permutation(LABELS), jnp.asarray(LOGITS)
    batch = {"labels": LABELS, "partner_labels": partners, "partner_share": share}
    mixed = CLASSIFICATION.losses(logits, jax.tree.map(jnp.asarray, batch))
    own, other = (
        np.asarray(CLASSIFICATION.losses(logits, {"labels": jnp.asarray(labels)}))
        for labels in (LABELS, partners)
    )
    np.testing.assert_allclose(mixed, (1 - share) * own + share * other, rtol=1e-5)


@pytest.mark.parametrize("parts", [1, 4])
def test_segmentation_figures_are_those_of_scikit_learn(parts: int) -> None:
    ours = figures(SEGMENTATION, MAP_LOGITS, {"masks": MASKS}, parts)
    counted = MASKS != 255
    actual, predicted = MASKS[counted], MAP_LOGITS.argmax(-1)[counted]
    iou = sklearn_metrics.jaccard_score(actual, predicted, average=None)
    dice = sklearn_metrics.f1_score(actual, predicted, average=None)
    assert [ours[f"iou/{name}"] for name in "abc"] == pytest.approx(list(iou))
    assert [ours[f"dice/{name}"] for name in "abc"] == pytest.approx(list(dice))
    assert (ours["iou"], ours["dice"]) == pytest.approx((iou.mean(), dice.mean()))
    assert ours["pixel_accuracy"] == pytest.approx(np.mean(actual == predicted))


def test_a_class_that_never_occurs_is_left_out_of_the_mean() -> None:
    task = tasks.create("segmentation", num_classes=4)
    logits = np.concatenate([MAP_LOGITS, np.full((6, 5, 4, 1), -9, np.float32)], -1)
    three = figures(SEGMENTATION, MAP_LOGITS, {"masks": MASKS}, 1)
    four = figures(task, logits, {"masks": MASKS}, 1)
    assert four["iou"] == pytest.approx(three["iou"])
    assert "iou/3" not in four


def test_segmentation_losses_follow_their_formulas() -> None:
    weights, logits = [0.5, 2.0, 1.0], jnp.asarray(MAP_LOGITS)

    def losses(**kwargs: Any) -> Any:
        task = tasks.create("segmentation", num_classes=3, **kwargs)
        return task.losses(logits, {"masks": jnp.asarray(MASKS)})

    log_probabilities = np.asarray(jax.nn.log_softmax(MAP_LOGITS))
    counted = MASKS != 255
    expected = []
    for one, mask, count in zip(log_probabilities, MASKS, counted, strict=True):
        pixels = np.argwhere(count)
        factors = np.array([weights[mask[y, x]] for y, x in pixels])
        expected.append(
            -np.sum(factors * [one[y, x, mask[y, x]] for y, x in pixels]) / factors.sum()
        )
    cross_entropy = losses(class_weights=weights)
    np.testing.assert_allclose(cross_entropy, expected, rtol=1e-5)
    dice = losses(loss="dice")
    probabilities = np.exp(log_probabilities) * counted[..., None]
    actual = (MASKS[..., None] == np.arange(3)).astype(float)
    ratio = (2 * (probabilities * actual).sum((1, 2)) + 1) / (
        probabilities.sum((1, 2)) + actual.sum((1, 2)) + 1
    )
    np.testing.assert_allclose(dice, 1 - ratio.mean(-1), rtol=1e-5)
    both = losses(loss="cross_entropy+dice", class_weights=weights)
    np.testing.assert_allclose(both, cross_entropy + dice, rtol=1e-5)


def test_an_image_without_a_counted_pixel_has_no_loss_and_a_finite_gradient() -> None:
    masks = jnp.full((2, 5, 4), 255)
    for loss in ("cross_entropy", "cross_entropy+dice"):
        task = tasks.create("segmentation", num_classes=3, loss=loss)
        grads = jax.jit(
            jax.grad(lambda outputs, task=task: jnp.sum(task.losses(outputs, {"masks": masks})))
        )(MAP_LOGITS[:2])
        np.testing.assert_array_equal(grads, 0)


def test_masks_are_cut_to_smaller_outputs() -> None:
    whole, cut = (
        figures(SEGMENTATION, MAP_LOGITS[:, :3, :2], {"masks": masks}, 1)
        for masks in (MASKS, MASKS[:, 1:4, 1:3])
    )
    assert whole == pytest.approx(cut)


@pytest.mark.parametrize(("loss", "formula"), [("l2", np.square), ("l1", np.abs), ("huber", None)])
def test_regression(loss: str, formula: Any) -> None:
    outputs, targets = (RNG.uniform(size=(6, 5, 4, 2)).astype(np.float32) for _ in range(2))
    task = tasks.create(
        "regression", num_classes=2, loss=loss, **({"delta": 0.2} if loss == "huber" else {})
    )
    errors = outputs - targets
    if formula is None:
        size = np.abs(errors)
        expected = np.where(size < 0.2, 0.5 * size**2, 0.2 * (size - 0.1))
    else:
        expected = formula(errors)
    losses = task.losses(jnp.asarray(outputs), {"targets": jnp.asarray(targets)})
    np.testing.assert_allclose(losses, expected.mean((1, 2, 3)), rtol=1e-5)
    ours = figures(task, outputs, {"targets": targets}, 4)
    mse = sklearn_metrics.mean_squared_error(targets.ravel(), outputs.ravel())
    assert ours["mse"] == pytest.approx(mse, rel=1e-5)
    assert ours["mae"] == pytest.approx(
        sklearn_metrics.mean_absolute_error(targets.ravel(), outputs.ravel()), rel=1e-5
    )
    assert ours["psnr"] == pytest.approx(10 * np.log10(1 / mse), rel=1e-5)


MISTAKES = """\
clasification | {} | did you mean classification
segmentation | {"loss": "dize"} | did you mean dice
segmentation | {"class_weights": [1, 2]} | must be 3 numbers
segmentation | {"class_weights": [0, 0, 0]} | not all 0
segmentation | {"class_weights": [1, -2, 3]} | at least 0
segmentation | {"class_weight": [1, 1, 1]} | did you mean class_weights
regression | {"loss": "mse"} | known: huber, l1, l2
regression | {"delta": 0} | greater than 0
classification | {"label_smoothing": 1} | below 1
classification | {"loss": "dice"} | unknown keyword
"""


@pytest.mark.parametrize("row", MISTAKES.splitlines())
def test_keywords_that_a_task_does_not_have(row: str) -> None:
    name, kwargs, text = row.split(" | ")
    with pytest.raises(ConfigError, match=text):
        tasks.create(name, num_classes=3, **json.loads(kwargs))


@pytest.mark.parametrize("ignored", [255, 0])
@pytest.mark.parametrize("parts", [1, 3])
def test_ignored_pixels_and_images_of_them_alone_count_nowhere(ignored: int, parts: int) -> None:
    """Against float64 NumPy; of one image the loss is PyTorch's `CrossEntropyLoss(ignore_index)`,
    the sum over the pixels that count, divided by their number.
    """
    rng = np.random.default_rng(0)
    outputs = rng.normal(size=(6, 4, 5, 3)).astype(np.float32)
    masks = rng.integers(0, 3, (6, 4, 5)).astype(np.uint8)
    masks[:, 3] = 255  # as padding is, whatever the label
    masks[1:3] = ignored
    masks[4, 0] = ignored
    weights = np.array([1, 1, 1, 1, 1, 0], np.float32)
    task = tasks.Segmentation(3, ignore_label=ignored)
    batches = [
        {"masks": jnp.asarray(masks[part]), "weights": jnp.asarray(weights[part])}
        for part in np.array_split(np.arange(6), parts)
    ]
    several = [
        task.sums(jnp.asarray(outputs[part]), batch, training=False)
        for part, batch in zip(np.array_split(np.arange(6), parts), batches, strict=True)
    ]
    found = metrics.compute(task, metrics.add(*several))

    logits = outputs.astype(np.float64)
    logs = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    counted = (masks != ignored) & (masks != 255)
    safe = np.where(counted, masks, 0)
    each = -np.take_along_axis(logs, safe[..., None].astype(int), -1)[..., 0]
    losses = [each[n][counted[n]].mean() for n in range(5) if counted[n].any()]
    assert len(losses) == 3
    assert found["loss"] == pytest.approx(np.mean(losses), rel=1e-6)
    assert found["examples"] == 5
    actual, predicted = masks[:5][counted[:5]], logits.argmax(-1)[:5][counted[:5]]
    assert found["pixel_accuracy"] == pytest.approx((actual == predicted).mean())
    ious = [
        ((actual == n) & (predicted == n)).sum() / ((actual == n) | (predicted == n)).sum()
        for n in range(3)
    ]
    assert found["iou"] == pytest.approx(np.mean(ious))

    def objective(outputs: Any) -> Any:
        batch = {"masks": jnp.asarray(masks)}
        losses, divisors = task.losses(outputs, batch), task.divisors(outputs, batch)
        return jnp.sum(weights * losses) / jnp.sum(weights * divisors)

    assert objective(jnp.asarray(outputs)) == pytest.approx(np.mean(losses), rel=1e-5)
    assert np.isfinite(jax.grad(objective)(jnp.asarray(outputs))).all()


def test_where_no_pixel_counts_there_are_no_metrics() -> None:
    masks = np.full((2, 4, 4), 255, np.uint8)
    batch = {"masks": jnp.asarray(masks), "weights": jnp.ones(2)}
    task = tasks.Segmentation(3)
    sums = metrics.add(task.sums(jnp.zeros((2, 4, 4, 3)), batch, training=False))
    assert metrics.compute(task, sums) == {"examples": 2}
