"""Jobs that people port from Flax, PyTorch and Keras train at once, or end with one line that says
what to do.
"""

from collections.abc import Callable, Iterator
from typing import Any

import flax.linen as nn
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from jaxtyping import Array

import jaxdp
from jaxdp import data
from jaxdp.errors import ConfigError

pytestmark = pytest.mark.usefixtures("no_pictures")
RNG = np.random.default_rng(0)
IMAGES = RNG.integers(0, 255, (48, 8, 8, 1), dtype=np.uint8)
LABELS = np.arange(48) % 2
SMALL: dict[str, Any] = {"devices": 2, "steps": 2, "global_batch_size": 16, "progress": False}


def dataset() -> data.Dataset:
    return data.from_arrays(IMAGES, LABELS, validation=0.25)


def flat(images: Array) -> Array:
    return images.reshape(len(images), -1)


class Linear(nnx.Module):
    """A layer, with the words that some call models with."""

    def __init__(self, outputs: int = 2, axis_name: str | None = None) -> None:
        self.norm = nnx.BatchNorm(1, axis_name=axis_name, rngs=nnx.Rngs(0))
        self.layer = nnx.Linear(64, outputs, rngs=nnx.Rngs(0))

    def __call__(self, images: Array, **kwargs: Any) -> Array:
        return self.layer(flat(images))


class OfLinen(nn.Module):
    """A module of Flax's older interface."""

    @nn.compact
    def __call__(self, images: Array) -> Array:
        return nn.Dense(2)(flat(images))


def wrapped() -> Any:
    return nnx.bridge.ToNNX(OfLinen(), rngs=nnx.Rngs(0))


MODELS: dict[str, Callable[[], Any]] = {
    "nnx.Sequential": lambda: nnx.Sequential(flat, nnx.Linear(64, 2, rngs=nnx.Rngs(0))),
    "a call with **kwargs": Linear,
    "a module of Linen": lambda: nnx.bridge.lazy_init(wrapped(), jnp.ones((1, 8, 8, 1))),
}


@pytest.mark.parametrize("name", MODELS)
def test_a_model_of_flax_trains(name: str) -> None:
    assert jaxdp.Trainer(MODELS[name](), dataset(), **SMALL).fit().status == "done"


REFUSED_MODELS: dict[str, tuple[Callable[[], Any], str]] = {
    "ToNNX without parameters": (wrapped, "no parameters before nnx.bridge.lazy_init"),
    "an axis of devices": (lambda: Linear(axis_name="batch"), "leave it out, or use jaxdp.models"),
    "one logit": (lambda: Linear(1), r'one logit is for labels \(N, 1\) with task="multilabel"'),
}


@pytest.mark.parametrize("name", REFUSED_MODELS)
def test_a_model_that_cannot_train_is_one_line(name: str) -> None:
    create, message = REFUSED_MODELS[name]
    with pytest.raises(ConfigError, match=message) as error:
        jaxdp.Trainer(create(), dataset(), **SMALL)
    assert "\n" not in str(error.value)


def test_one_logit_trains_with_labels_of_one_column() -> None:
    binary = data.from_arrays(IMAGES, LABELS[:, None], task="multilabel", validation=0.25)
    assert jaxdp.Trainer(Linear(1), binary, **SMALL).fit().status == "done"


def test_the_plateau_of_a_loss_lowers_the_rate() -> None:
    optimizer = optax.chain(optax.sgd(0.1), optax.contrib.reduce_on_plateau(patience=1))
    assert jaxdp.Trainer(Linear(), dataset(), optimizer=optimizer, **SMALL).fit().status == "done"


@pytest.mark.parametrize(
    "optimizer",
    [
        optax.lookahead(optax.sgd(0.1), 5, 0.5),
        optax.lbfgs(),
        optax.contrib.sam(optax.sgd(0.1), optax.sgd(0.1), opaque_mode=True),
    ],
    ids=["lookahead", "L-BFGS with a line search", "opaque SAM"],
)
def test_an_optimizer_that_needs_more_is_one_line(optimizer: Any) -> None:
    with pytest.raises(ConfigError, match="use an optimizer that can"):
        jaxdp.Trainer(Linear(), dataset(), optimizer=optimizer, **SMALL)


def several() -> data.Dataset:
    return data.from_arrays(IMAGES, RNG.integers(0, 2, (48, 3)), validation=0.25)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"class_weights": "balanced"}, "is for classification and segmentation, not for multi"),
        ({"label_smoothing": 0.1}, "known: thresholds"),
        ({"augment": ["mixup:0.2"]}, 'works with task="classification" only'),
    ],
)
def test_settings_that_several_labels_do_not_take(settings: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        jaxdp.Trainer("cnn", several(), **SMALL, **settings).fit()


def endless() -> Iterator[Any]:
    yield from zip(IMAGES, LABELS, strict=True)


@pytest.mark.parametrize(
    ("items", "message"),
    [
        (endless, "has no length or no index; make a list"),
        (lambda: [(IMAGES[i][: 4 + i % 3], i % 2) for i in range(16)], "images differ in size"),
    ],
    ids=["an iterable", "items of several sizes"],
)
def test_items_that_cannot_be_read_are_one_line(items: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        data.from_dataset(items(), validation=0.25)


def test_a_volume_is_told_that_it_becomes_channels(capsys: pytest.CaptureFixture[str]) -> None:
    volumes = RNG.integers(0, 255, (16, 6, 9, 9), dtype=np.uint8)
    data.from_arrays(volumes, np.arange(16) % 2, validation=0.25)
    assert "6x9 pixels with 9 channels, not as volumes" in capsys.readouterr().err


@pytest.mark.parametrize("strategy", ["pmap", "shard_map", "sharded", "central"])
def test_several_labels_do_not_depend_on_the_strategy(strategy: str) -> None:
    settings: dict[str, Any] = SMALL | {"model_kwargs": {"width": 4, "hidden": 8}}
    alone = jaxdp.Trainer("cnn", several_fixed(), strategy="single", **settings | {"devices": 1})
    together = jaxdp.Trainer("cnn", several_fixed(), strategy=strategy, **settings)
    expected = alone.fit().metrics["validation"]
    found = together.fit().metrics["validation"]
    assert found["loss"] == pytest.approx(expected["loss"], rel=1e-4)


def several_fixed() -> data.Dataset:
    present = np.random.default_rng(1).integers(0, 2, (48, 3))
    return data.from_arrays(IMAGES, present, validation=0.25)
