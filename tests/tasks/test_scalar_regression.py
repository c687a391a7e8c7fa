"""Metrics of numbers agree with scikit-learn's, in the units of the data."""

import pathlib
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from sklearn import metrics as sklearn_metrics

import jaxdp
from jaxdp import tasks
from jaxdp.errors import ConfigError
from jaxdp.step import metrics

RNG = np.random.default_rng(0)
VALUES = (RNG.normal(size=(90, 2)) * [12, 0.1] + [1000, 3]).astype(np.float32)
OUTPUTS = RNG.normal(size=(90, 2)).astype(np.float32)
MEAN, STD = VALUES.mean(0), VALUES.std(0)


@pytest.mark.parametrize("parts", [1, 4])
def test_figures_are_those_of_scikit_learn(parts: int) -> None:
    task = tasks.ScalarRegression(2, ("age", "size"), mean=MEAN.tolist(), std=STD.tolist())
    sums: dict[str, Any] = {}
    for numbers in np.array_split(np.arange(90), parts):
        batch = {"weights": jnp.ones(len(numbers)), "values": jnp.asarray(VALUES[numbers])}
        sums = metrics.add(sums, task.sums(jnp.asarray(OUTPUTS[numbers]), batch, training=False))
    ours = metrics.compute(task, sums)
    predicted = np.asarray(task.probabilities(jnp.asarray(OUTPUTS)), np.float64)
    for column, name in enumerate(("age", "size")):
        pair = (VALUES[:, column].astype(float), predicted[:, column])
        assert ours[f"mae/{name}"] == pytest.approx(
            sklearn_metrics.mean_absolute_error(*pair), rel=1e-4
        )
        rmse = sklearn_metrics.root_mean_squared_error(*pair)
        assert ours[f"rmse/{name}"] == pytest.approx(rmse, rel=1e-4)
        assert ours[f"r2/{name}"] == pytest.approx(sklearn_metrics.r2_score(*pair), rel=1e-4)
    assert ours["mae"] == pytest.approx((ours["mae/age"] + ours["mae/size"]) / 2)
    standardized = (predicted - VALUES) / STD
    assert ours["loss"] == pytest.approx(np.square(standardized).mean(), rel=1e-4)


def images_of(ages: np.ndarray) -> np.ndarray:
    noise = np.random.default_rng(1).integers(0, 40, (len(ages), 8, 8, 1))
    return (noise + 2 * ages[:, None, None, None]).astype(np.uint8)


@pytest.mark.usefixtures("no_pictures")
def test_ages_are_learned_in_years(tmp_path: pathlib.Path) -> None:
    ages = np.random.default_rng(2).uniform(20, 80, 160)
    dataset = jaxdp.data.from_arrays(
        images_of(ages)[:128],
        ages[:128],
        test=(images_of(ages)[128:], ages[128:]),
        class_names=["age"],
    )
    assert (dataset.task, dataset.num_classes) == ("scalar_regression", 1)
    np.testing.assert_allclose(dataset.value_mean, ages[:128].mean(), rtol=1e-6)
    np.testing.assert_allclose(dataset.value_std, ages[:128].std(), rtol=1e-6)
    result = jaxdp.Trainer(
        "cnn",
        data=dataset,
        steps=60,
        global_batch_size=32,
        optimizer="adam",
        learning_rate=0.003,
        model_kwargs={"width": 4, "hidden": 16},
        devices=1,
        run_dir=tmp_path / "run",
    ).fit()
    predicted = result.predict(images_of(ages)[128:])
    assert predicted.shape == (32, 1)
    assert result.metrics["test"]["r2"] > 0.6
    loaded = jaxdp.load(tmp_path / "run", devices=1)
    again = loaded.evaluate(images_of(ages)[128:], ages[128:])
    assert again == pytest.approx(result.metrics["test"], rel=1e-5)
    mae = sklearn_metrics.mean_absolute_error(ages[128:], predicted[:, 0])
    assert again["mae"] == pytest.approx(mae, rel=1e-4)
    assert loaded.show_wrong(images_of(ages)[128:], ages[128:], count=3).size[0] > 100


def test_losses_are_those_of_the_name() -> None:
    errors = jnp.array([[0.5], [3.0]])
    batch = {"weights": jnp.ones(2), "values": jnp.zeros((2, 1))}
    expected = {"l2": [0.25, 9], "l1": [0.5, 3], "huber": [0.125, 2.5]}
    for name, losses in expected.items():
        found = tasks.ScalarRegression(1, loss=name).losses(errors, batch)
        np.testing.assert_allclose(found, losses, rtol=1e-6)
    with pytest.raises(ConfigError, match="did you mean l2"):
        tasks.ScalarRegression(1, loss="l3")


def test_numbers_that_are_not_finite_are_one_line() -> None:
    ages = np.array([1.5, np.nan, 2, 3])
    with pytest.raises(ConfigError, match="targets holds NaN or infinity"):
        jaxdp.data.from_arrays(np.zeros((4, 8, 8), np.uint8), ages, task="scalar_regression")
