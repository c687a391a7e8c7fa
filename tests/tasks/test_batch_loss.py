"""Checks losses that compare the examples of a batch: the same on any devices, against PyTorch's
formula written out in NumPy, and refused where no device knows the whole batch.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jaxtyping import Array

import jaxdp
from jaxdp import tasks

RNG = np.random.default_rng(0)
LABELS = np.arange(96) % 4
IMAGES = RNG.integers(0, 256, (96, 6, 6, 1), dtype=np.uint8)
IMAGES[:, :3, :3, 0] //= (LABELS + 1).astype(np.uint8)[:, None, None]
TEMPERATURE = 0.2


class Net(nnx.Module):
    """Flattens and maps linearly, so that gradients are known exactly."""

    def __init__(self) -> None:
        self.layer = nnx.Linear(36, 4, rngs=nnx.Rngs(0))

    def __call__(self, images: Array) -> Array:
        return self.layer(images.reshape(len(images), -1))


def supervised_contrastive(outputs: Array, labels: Array) -> Array:
    """Supervised contrastive loss of each example (Khosla et al. 2020, equation 2)."""
    count = len(outputs)
    vectors = outputs / jnp.linalg.norm(outputs, axis=-1, keepdims=True)
    others = 1 - jnp.eye(count)
    logits = vectors @ vectors.T / TEMPERATURE - 1e9 * jnp.eye(count)
    positives = (labels[:, None] == labels[None]) * others
    logs = logits - jax.nn.logsumexp(logits, 1, keepdims=True)
    return -(positives * logs).sum(1) / jnp.maximum(positives.sum(1), 1)


def mean_contrastive(outputs: Array, labels: Array) -> Array:
    return supervised_contrastive(outputs, labels).mean()


def covariance(outputs: Array, labels: Array) -> tuple[Array, dict[str, Array]]:
    """A weak term over the batch beside a loss of each example (as in VICReg), and a value."""
    centered = outputs - outputs.mean(0)
    spread = jnp.sqrt((centered**2).mean(0) + 1e-4).mean()
    errors = ((outputs - jax.nn.one_hot(labels, 4)) ** 2).sum(-1)
    return errors - 1e-4 * spread, {"spread": spread}


def fit(loss: Any, **settings: Any) -> jaxdp.Result:
    data = jaxdp.data.from_arrays(IMAGES, LABELS, validation=0.25)
    defaults: dict[str, Any] = {
        "steps": 3,
        "log_every": 1,
        "global_batch_size": 16,
        "optimizer": "sgd",
        "learning_rate": 0.1,
        "progress": False,
    }
    return jaxdp.Trainer(Net(), data, loss, **defaults | settings).fit()


def losses(result: jaxdp.Result) -> list[float]:
    return [row["loss"] for row in result.history]


@pytest.mark.parametrize("loss", [supervised_contrastive, mean_contrastive, covariance])
def test_the_update_is_the_same_on_any_devices(loss: Any) -> None:
    loss = tasks.batch_loss(loss)
    one = fit(loss, devices=1)
    for strategy in ("pmap", "shard_map", "sharded"):
        others = fit(loss, devices=8, strategy=strategy)
        np.testing.assert_allclose(losses(others), losses(one), rtol=2e-5)
        for mine, theirs in zip(
            jax.tree.leaves(others.state.params), jax.tree.leaves(one.state.params), strict=True
        ):
            np.testing.assert_allclose(mine, theirs, atol=2e-6)


def test_a_number_and_losses_of_examples_are_the_same_loss() -> None:
    of_each, mean = (
        losses(fit(tasks.batch_loss(each), devices=2))
        for each in (supervised_contrastive, mean_contrastive)
    )
    np.testing.assert_allclose(of_each, mean, rtol=2e-5)


def test_an_update_is_that_of_a_plain_gradient() -> None:
    data = jaxdp.data.from_arrays(IMAGES[:16], LABELS[:16])
    data = dataclasses.replace(data, mean=(0.0,), std=(64.0,))
    result = jaxdp.Trainer(
        Net(),
        data,
        tasks.batch_loss(supervised_contrastive),
        devices=8,
        steps=1,
        global_batch_size=16,
        optimizer="sgd",
        weight_decay=0.0,
        learning_rate=0.1,
        warmup_fraction=0.0,
        schedule="constant",
        augment=(),
        progress=False,
    ).fit()
    vectors = IMAGES[:16].reshape(16, -1) / np.float32(64)
    layer = Net().layer
    kernel, bias = layer.kernel.get_value(), layer.bias.get_value()

    def loss(kernel: Array, bias: Array) -> Array:
        return supervised_contrastive(vectors @ kernel + bias, jnp.asarray(LABELS[:16])).mean()

    kernel_gradient, bias_gradient = jax.grad(loss, (0, 1))(kernel, bias)
    trained = result.state.params["layer"]
    np.testing.assert_allclose(trained["kernel"], kernel - 0.1 * kernel_gradient, atol=1e-6)
    np.testing.assert_allclose(trained["bias"], bias - 0.1 * bias_gradient, atol=1e-6)


def test_evaluation_counts_whole_batches() -> None:
    """24 validation examples are one batch of 16, and 8 that compare with no whole batch."""
    result = fit(tasks.batch_loss(covariance), devices=8, learning_rate=0.0, steps=1)
    held = next(row for row in result.history if row["split"] == "validation")
    assert held["examples"] == 24
    again = fit(tasks.batch_loss(covariance), devices=1, learning_rate=0.0, steps=1)
    expected = next(row for row in again.history if row["split"] == "validation")
    for name in ("loss", "spread", "accuracy"):
        np.testing.assert_allclose(held[name], expected[name], rtol=1e-5)


@pytest.mark.parametrize(
    ("settings", "error"),
    [
        (
            {"strategy": "central"},
            "strategy=central: the loss compares the examples of a batch, which are apart here; use"
            " strategy=pmap or shard_map or sharded or single",
        ),
        ({"accumulate_steps": 2}, "the loss compares the examples of a batch; use 1"),
        ({"augment": ["mixup:0.2"]}, 'augment=mixup:0.2: works with task="classification" only'),
        ({"on_bad_example": "skip"}, "zeros would take the place of a bad one; use error"),
        (
            {"global_batch_size": 32},
            "global_batch_size=32: the loss is over a whole batch, and the validation data have 24"
            " examples; use a smaller one",
        ),
    ],
)
def test_where_no_device_knows_the_whole_batch_is_refused(
    settings: dict[str, Any], error: str
) -> None:
    with pytest.raises(jaxdp.ConfigError) as caught:
        fit(tasks.batch_loss(supervised_contrastive), devices=2, **settings)
    assert error in str(caught.value)


def weakly(outputs: Array, labels: Array) -> Array:
    return covariance(outputs, labels)[0]


class Centered(tasks.Classification):
    """A task whose loss is of the outputs less their mean over the batch."""

    def losses(self, outputs: Array, batch: Any) -> Array:
        return super().losses(outputs - outputs.mean(0), batch)


@pytest.mark.parametrize("loss", [supervised_contrastive, weakly, Centered(4)])
def test_a_loss_that_compares_examples_without_saying_so_is_refused(loss: Any) -> None:
    with pytest.raises(jaxdp.ConfigError, match="changes with the other examples that a device"):
        fit(loss, devices=2)


def test_one_number_is_refused_with_the_remedy() -> None:
    with pytest.raises(jaxdp.ConfigError, match=r"returns a single number.*tasks\.batch_loss"):
        fit(mean_contrastive, devices=2)


class Own(tasks.Classification):
    """A task of one's own that says that its loss is over the batch."""

    over_batch = True

    def losses(self, outputs: Array, batch: Any) -> Array:
        return supervised_contrastive(outputs, batch["labels"])


def test_a_task_may_say_that_its_loss_is_over_the_batch() -> None:
    one, eight = (losses(fit(Own(4), devices=count)) for count in (1, 8))
    np.testing.assert_allclose(one, eight, rtol=2e-5)


def test_losses_of_examples_are_left_alone() -> None:
    def squares(outputs: Array, labels: Array) -> Array:
        return ((outputs - jax.nn.one_hot(labels, 4)) ** 2).astype(jnp.float32).sum(-1)

    assert fit(squares, devices=2).status == "done"
