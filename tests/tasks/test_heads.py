"""Several tasks of one model are trained, evaluated and written together."""

import pathlib
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jaxtyping import Array

import jaxdp
from jaxdp import tasks
from jaxdp.errors import ConfigError

COUNT = 96
RNG = np.random.default_rng(0)
DIGITS = (np.arange(COUNT) % 3).astype(np.int64)
MARKS = RNG.integers(0, 2, (COUNT, 2))
AGES = RNG.uniform(20, 60, COUNT)
IMAGES = (RNG.integers(0, 60, (COUNT, 6, 6, 1)) + 50 * DIGITS[:, None, None, None]).astype(np.uint8)
TASK = tasks.heads(
    {
        "digit": tasks.Classification(3, ("x", "y", "z")),
        "marks": tasks.MultiLabel(2, ("left", "right")),
        "age": tasks.ScalarRegression(1, ("years",), mean=(40.0,), std=(10.0,)),
    },
    weights={"age": 0.5},
)


class Network(nnx.Module):
    """One layer for each head."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        self.digit = nnx.Linear(36, 3, rngs=rngs)
        self.marks = nnx.Linear(36, 2, rngs=rngs)
        self.age = nnx.Linear(36, 1, rngs=rngs)

    def __call__(self, images: Array) -> dict[str, Array]:
        pixels = images.reshape(len(images), -1)
        return {name: getattr(self, name)(pixels) for name in ("digit", "marks", "age")}


def fields(part: slice) -> dict[str, Any]:
    return {"digit": DIGITS[part], "marks": MARKS[part], "age": AGES[part]}


def data() -> jaxdp.data.Dataset:
    train, held_out = slice(0, 64), slice(64, COUNT)
    pairs = [(IMAGES[part], fields(part)) for part in (train, held_out)]
    return jaxdp.data.from_arrays(*pairs[0], validation=pairs[1])


def fit(devices: int, run_dir: Any = None) -> jaxdp.Result:
    return jaxdp.Trainer(
        Network(nnx.Rngs(0)),
        data=data(),
        task=TASK,
        steps=6,
        global_batch_size=16,
        optimizer="sgd",
        learning_rate=0.02,
        devices=devices,
        run_dir=run_dir,
    ).fit()


def test_the_loss_is_the_weighted_sum_of_losses() -> None:
    outputs = {
        name: jnp.asarray(RNG.normal(size=(COUNT, size)), "float32")
        for name, size in [("digit", 3), ("marks", 2), ("age", 1)]
    }
    batch = {"weights": jnp.ones(COUNT)} | {
        name: jnp.asarray(v) for name, v in fields(slice(None)).items()
    }
    parts = dict(TASK.tasks)
    expected = (
        parts["digit"].losses(outputs["digit"], {"labels": batch["digit"]})
        + parts["marks"].losses(outputs["marks"], {"present": batch["marks"]})
        + 0.5 * parts["age"].losses(outputs["age"], {"values": batch["age"]})
    )
    np.testing.assert_allclose(TASK.losses(outputs, batch), expected, rtol=1e-6)
    sums = TASK.sums(outputs, batch, training=False)
    found = TASK.metrics(sums)
    accuracy = (np.asarray(outputs["digit"]).argmax(-1) == DIGITS).mean()
    assert found["digit_accuracy"] == pytest.approx(accuracy)
    assert {"marks_mean_average_precision", "marks_threshold/left", "age_mae", "loss"} <= {*found}


@pytest.mark.usefixtures("no_pictures")
def test_heads_train_alike_on_any_devices_and_are_loaded(tmp_path: pathlib.Path) -> None:
    one, eight = fit(1, tmp_path / "run"), fit(8)
    for name, value in one.metrics["validation"].items():
        assert eight.metrics["validation"][name] == pytest.approx(value, rel=1e-4, abs=1e-5), name
    loaded = jaxdp.load(tmp_path / "run", model=Network(nnx.Rngs(1)), task=TASK)
    part = slice(64, COUNT)
    again = loaded.evaluate(IMAGES[part], fields(part))
    assert again == pytest.approx(one.metrics["validation"], rel=1e-4, abs=1e-5)
    predicted = loaded.predict(IMAGES[part])
    assert predicted.shape == (32, 6)
    np.testing.assert_allclose(predicted[:, :3].sum(-1), 1, rtol=1e-5)
    errors = np.abs(predicted[:, 5] - AGES[part]).mean()
    assert again["age_mae"] == pytest.approx(errors, rel=1e-4)
    task = TASK.calibrated(again)
    assert task.columns() == [
        "digit.class", "digit.probability", "digit.x", "digit.y", "digit.z",
        "marks.labels", "marks.left", "marks.right", "age.years",
    ]  # fmt: skip
    assert len(task.cells(predicted[0])) == len(task.columns())
    assert task.row(predicted[0], 2)["heads"]["age"]["values"]["years"] == pytest.approx(
        predicted[0, 5], rel=1e-5
    )
    assert loaded.show_wrong(IMAGES[part], fields(part), count=2).size[0] > 100


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"a": tasks.Segmentation(2)}, "predictions for pixels"),
        ({"a": tasks.Classification(2, class_weights=(1.0, 2.0))}, "class weights"),
        ({"a": tasks.ScalarRegression(1)}, "needs the mean and std"),
        ({}, "needs a head"),
    ],
)
def test_tasks_that_cannot_be_heads(given: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        tasks.heads(given)


def test_integers_must_fit_32_bits() -> None:
    with pytest.raises(ConfigError, match=r"targets\['id'\] has integers of 2\*\*31 and more"):
        jaxdp.data.from_arrays(IMAGES[:8], {"id": DIGITS[:8] + 2**31}, validation=0.5)


def test_fields_must_have_the_length_of_the_images() -> None:
    with pytest.raises(ConfigError, match=r"images has 8 examples, but targets\['age'\] 7"):
        jaxdp.data.from_arrays(IMAGES[:8], {"age": AGES[:7]}, validation=0.5)
