"""A model comes back from a checkpoint without the optimizer's state, whatever that is, and even
where it is damaged.
"""

import contextlib
import dataclasses
import pathlib
import shutil
from typing import Any

import jax
import numpy as np
import optax
import pytest
import tensorstore
from flax import nnx

from jaxdp import models
from jaxdp.checkpoint import integrity
from jaxdp.checkpoint.checkpoints import Checkpoints
from jaxdp.checkpoint.restore import SavedCheckpoints
from jaxdp.errors import ConfigError
from jaxdp.step.state import TrainState, create_train_state

FOLDER = pathlib.Path("run", "checkpoints")
METRIC = ("accuracy", True)


def state(optimizer: optax.GradientTransformation, **kwargs: Any) -> TrainState:
    model = models.create(
        "cnn", num_classes=10, in_channels=1, rngs=nnx.Rngs(0), width=4, hidden=16
    )
    return jax.tree.map(np.asarray, create_train_state(model, optimizer, **kwargs))


@pytest.fixture
def saved() -> TrainState:
    """Returns a state that is saved as step 6."""
    found = state(optax.adam(0.1), with_ema=True, with_loss_scale=True)
    FOLDER.mkdir(parents=True)
    with contextlib.closing(Checkpoints(FOLDER, keep=3, best_metric=METRIC)) as checkpoints:
        checkpoints.save(6, found, {"position": 1}, {"accuracy": 0.5})
    return found


def test_a_model_is_restored_whatever_the_optimizer_was(saved: TrainState) -> None:
    checkpoints = SavedCheckpoints(FOLDER, best_metric=METRIC)
    for optimizer in (optax.adam(0.1), optax.sgd(0.1, momentum=0.9), optax.identity()):
        found = checkpoints.restore_model(6, state(optimizer, with_ema=True))
        assert (found.opt_state, found.loss_scale) == (None, None)
        expected = dataclasses.replace(saved, opt_state=None, loss_scale=None)
        jax.tree.map(np.testing.assert_array_equal, found, expected)
    with pytest.raises(ConfigError, match=r"does not fit this model: \d+ unexpected: ema/"):
        checkpoints.restore_model(6, state(optax.adam(0.1)))
    with pytest.raises(ConfigError, match="does not fit this model and optimizer"):
        checkpoints.restore(
            6, state(optax.sgd(0.1, momentum=0.9), with_ema=True, with_loss_scale=True)
        )


def test_a_model_is_restored_where_the_optimizer_state_is_damaged(saved: TrainState) -> None:
    arrays = tensorstore.KvStore.open(
        {"driver": "ocdbt", "base": f"file://{FOLDER.absolute() / '6' / 'state'}/"}
    ).result()
    damaged = [
        key
        for key in arrays.list().result()
        if b"opt_state" in key and not key.endswith((b"zarr.json", b".zarray"))
    ]
    assert damaged
    for key in damaged:
        arrays.write(key, b"no array").result()
    checkpoints = SavedCheckpoints(FOLDER, best_metric=METRIC)
    with pytest.raises(ConfigError, match="cannot be read"):
        checkpoints.restore(6, saved)
    found = checkpoints.restore_model(6, saved)
    jax.tree.map(np.testing.assert_array_equal, found.params, saved.params)
    assert found.step == saved.step


def test_weights_of_another_dtype_are_cast_and_do_not_resume(saved: TrainState) -> None:
    def save(step: int, **bias: Any) -> None:
        params = {**saved.params, "head": {**saved.params["head"], **bias}}
        with contextlib.closing(Checkpoints(FOLDER, keep=9, best_metric=METRIC)) as checkpoints:
            checkpoints.save(step, dataclasses.replace(saved, params=params), {}, None)

    reader, bias = SavedCheckpoints(FOLDER, best_metric=METRIC), np.arange(10, dtype=np.float32) / 4
    save(7, bias=bias.astype(np.float16))
    found = reader.restore_model(7, saved).params["head"]["bias"]
    np.testing.assert_array_equal(found, bias, strict=True)
    line = "model and optimizer: 1 of another dtype: params/head/bias float16, expected float32$"
    with pytest.raises(ConfigError, match=line):
        reader.restore(7, saved)
    save(8, bias=bias.astype(np.int32))
    line = "fit this model: 1 of another dtype: params/head/bias int32, expected float32$"
    with pytest.raises(ConfigError, match=line):
        reader.restore_model(8, saved)


def test_a_folder_named_0006_is_not_step_6(saved: TrainState) -> None:
    shutil.copytree(FOLDER / "6", FOLDER / "0006")
    shutil.copytree(FOLDER / "6", FOLDER / "0007")
    assert integrity.steps(FOLDER) == [6]
    with contextlib.closing(Checkpoints(FOLDER, keep=1, best_metric=METRIC)) as checkpoints:
        assert checkpoints.latest() == 6
        checkpoints.save(8, saved, {}, {"accuracy": 0.25})
    assert integrity.steps(FOLDER) == [6, 8]  # the best one and the newest
    shutil.rmtree(FOLDER / "6")
    assert integrity.steps(FOLDER) == [8]
    with pytest.raises(ConfigError, match="there are: 8"):
        SavedCheckpoints(FOLDER, best_metric=METRIC).restore_model(6, saved)


def test_the_best_of_equals_is_the_newest_and_what_is_no_number_is_the_worst(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    figures = {2: {"loss": 0.5}, 4: {"loss": float("nan")}, 6: {"loss": 0.25}, 8: {"loss": 0.5}}
    monkeypatch.setattr(integrity, "steps", lambda folder: [*figures])
    monkeypatch.setattr(integrity, "read_metrics", lambda folder, step: figures[step])
    for larger_is_better, order in ((False, [6, 8, 2, 4]), (True, [8, 2, 6, 4])):
        reader = SavedCheckpoints(FOLDER, best_metric=("loss", larger_is_better))
        assert [*reader.ranked()] == order
