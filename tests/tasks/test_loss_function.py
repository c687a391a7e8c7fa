"""A plain loss function makes a task that counts as the built-in ones do.

Tasks are there as classes, too.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jaxdp import tasks
from jaxdp.errors import ConfigError
from jaxdp.step import metrics

RNG = np.random.default_rng(0)
CROSS_ENTROPY = optax.softmax_cross_entropy_with_integer_labels
LOGITS = jnp.asarray(RNG.normal(size=(12, 7)), jnp.float32)
BATCH = {
    "labels": jnp.asarray(RNG.integers(0, 7, 12)),
    "weights": jnp.asarray([1.0] * 9 + [0.0] * 3),
}


def test_cross_entropy_is_that_of_classification() -> None:
    task, built_in = tasks.from_loss(CROSS_ENTROPY, num_classes=7), tasks.Classification(7)
    assert isinstance(task, tasks.Task)
    assert (task.name, task.best_metric) == (
        "softmax_cross_entropy_with_integer_labels",
        ("loss", False),
    )
    np.testing.assert_allclose(
        task.losses(LOGITS, BATCH), built_in.losses(LOGITS, BATCH), rtol=1e-5
    )
    found, expected = (
        metrics.compute(each, each.sums(LOGITS, BATCH, training=False)) for each in (task, built_in)
    )
    assert found == pytest.approx(
        {name: expected[name] for name in ("loss", "accuracy", "examples")}
    )
    mixed = BATCH | {
        "partner_labels": BATCH["labels"][::-1],
        "partner_share": jnp.linspace(0, 1, 12),
    }
    np.testing.assert_allclose(
        task.losses(LOGITS, mixed), built_in.losses(LOGITS, mixed), rtol=1e-5
    )


def test_losses_per_pixel_are_averaged_per_example() -> None:
    logits, masks = (
        jnp.asarray(RNG.normal(size=(4, 5, 6, 3)), jnp.float32),
        jnp.asarray(RNG.integers(0, 3, (4, 7, 8))),
    )
    task = tasks.from_loss(
        CROSS_ENTROPY,
        kind="segmentation",
        num_classes=3,
        class_names=("a", "b", "c"),
        name="pixels",
    )
    batch = {"masks": masks, "weights": jnp.ones(4)}
    expected = tasks.Segmentation(3).losses(logits, batch)  # crops the masks, too
    np.testing.assert_allclose(jax.jit(task.losses)(logits, batch), expected, rtol=1e-5)
    assert metrics.compute(task, task.sums(logits, batch, training=True)) == pytest.approx(
        {"loss": float(np.mean(expected)), "examples": 4}
    )
    assert (task.name, getattr(task, "kind", ""), getattr(task, "class_names", ())) == (
        "pixels",
        "segmentation",
        ("a", "b", "c"),
    )


def test_regression_has_images_for_targets() -> None:
    outputs, targets = (jnp.asarray(RNG.uniform(size=(2, 4, 4, 2)), jnp.float32) for _ in range(2))
    task = tasks.from_loss(
        functools.partial(optax.huber_loss, delta=0.1), kind="regression", num_classes=2
    )
    assert task.name == "huber_loss"
    expected = tasks.Regression(2, loss="huber").losses(outputs, {"targets": targets})
    np.testing.assert_allclose(task.losses(outputs, {"targets": targets}), expected, rtol=1e-5)


def mean_loss(outputs: jax.Array, targets: jax.Array) -> jax.Array:
    return jnp.mean(CROSS_ENTROPY(outputs, targets))


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (
            lambda: tasks.from_loss(mean_loss, num_classes=7),
            "mean_loss: returns a single number; it must return one loss per example",
        ),
        (
            lambda: tasks.from_loss(lambda outputs, targets: outputs.T, num_classes=7),
            r"losses of shape \(7, 12\); it must return",
        ),
        (
            lambda: tasks.from_loss(mean_loss, kind="clasification", num_classes=7),
            "did you mean classification",
        ),
        (lambda: tasks.from_loss(mean_loss, num_classes=0), "must be a whole number of at least 1"),
    ],
)
def test_what_is_no_loss_per_example_is_one_line(make: Any, text: str) -> None:
    with pytest.raises(ConfigError, match=text) as error:
        make().losses(LOGITS, BATCH)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("name", ["Classification", "Segmentation", "Regression"])
def test_classes_count_their_names(name: str) -> None:
    task = getattr(tasks, name)(3)
    assert task.class_names == ("0", "1", "2")
    assert getattr(tasks, name)(2, ("no", "yes")).class_names == ("no", "yes")
    assert tasks.create(name.lower(), num_classes=3) == task
    with pytest.raises(ConfigError, match="num_classes=0: must be a whole number"):
        getattr(tasks, name)(0)
