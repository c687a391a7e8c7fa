"""Names become the optimisers and schedules that they stand for, written out here."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxdp.build.resolve import with_rate
from jaxdp.build.setup import create_setup
from jaxdp.config import OptimizationConfig, TrainConfig
from jaxdp.step.optim import OPTIMIZERS, create_optimizer, create_schedule


def schedule_of(config: OptimizationConfig, total_steps: int, steps_per_epoch: int = 0) -> Any:
    """The schedule once the defaults are filled in, as a run has them."""
    return create_schedule(with_rate(config, total_steps, steps_per_epoch), total_steps)


def rates(total_steps: int = 100, **settings) -> np.ndarray:
    schedule = schedule_of(OptimizationConfig(**settings), total_steps)
    return np.asarray(jax.vmap(schedule)(np.arange(total_steps)))


def updates(gradients: list[float], parameter: float = 2.0, **settings) -> float:
    """Returns what a parameter becomes."""
    config = OptimizationConfig(learning_rate=0.1, schedule="constant", **settings)
    optimizer = create_optimizer(config, schedule_of(config, 10))
    value = jnp.asarray(parameter)
    state = optimizer.init(value)
    for gradient in gradients:
        update, state = optimizer.update(jnp.asarray(gradient), state, value)
        value = value + update
    return float(value)


def test_decay_is_coupled_and_nesterov_looks_ahead() -> None:
    """The PyramidNet recipe: the decay goes through the momentum."""
    value, buffer = 2.0, 0.0
    for gradient in (1.0, -0.5, 0.25):
        decayed = gradient + 0.01 * value
        buffer = 0.9 * buffer + decayed
        value -= 0.1 * (decayed + 0.9 * buffer)
    assert updates([1.0, -0.5, 0.25], weight_decay=0.01) == pytest.approx(value, abs=1e-6)


@pytest.mark.parametrize(
    ("gradient", "expected", "settings"),
    [
        # The first Adam step has the size of the learning rate, whatever the gradient.
        (3.0, 2 - 0.1 * (1 + 0.5 * 2), {"optimizer": "adamw"}),
        (3.0, 2 - 0.1, {"optimizer": "adam"}),
        # Clipping comes before the decay.
        (100.0, 2 - 0.1 * (1 + 0.5 * 2), {"optimizer": "sgd", "clip_norm": 1.0}),
    ],
)
def test_the_decay_has_its_place(gradient: float, expected: float, settings: Any) -> None:
    assert updates([gradient], weight_decay=0.5, **settings) == pytest.approx(expected, abs=1e-5)


def test_keywords_reach_the_optimizer() -> None:
    assert updates(
        [1.0, 1.0], optimizer="momentum", weight_decay=0.0, optimizer_kwargs={"momentum": 0.5}
    ) == pytest.approx(2 - 0.25)


def orthogonalized(matrix: np.ndarray, steps: int) -> np.ndarray:
    """The iteration of Jordan et al., Muon, 2024, for a matrix with fewer rows than columns."""
    a, b, c = 3.4445, -4.7750, 2.0315
    matrix = matrix / np.linalg.norm(matrix)
    for _ in range(steps):
        square = matrix @ matrix.T
        matrix = a * matrix + (b * square + c * square @ square) @ matrix
    return matrix


def test_muon_makes_singular_values_alike_and_leaves_vectors_to_adamw() -> None:
    """A kernel of 3x3 windows is a matrix of 9 times its inputs by its outputs."""
    rng = np.random.default_rng(0)
    kernels, biases = rng.normal(size=(4, 3, 3, 2, 5)), rng.normal(size=(4, 5))
    config = OptimizationConfig(
        optimizer="muon", learning_rate=0.1, schedule="constant", weight_decay=0.5
    )
    optimizer = create_optimizer(config, schedule_of(config, 10))
    params = {"bias": jnp.asarray(biases[0]), "kernel": jnp.asarray(kernels[0])}
    state, momentum, first, second = optimizer.init(params), 0.0, 0.0, 0.0
    for count in (1, 2, 3):
        of_kernel, of_bias = kernels[count], biases[count]
        old = jax.tree.map(np.asarray, params)
        updates, state = optimizer.update({"kernel": of_kernel, "bias": of_bias}, state, params)
        params = jax.tree.map(jnp.add, params, updates)
        # Unbiased means, in which Nesterov's momentum looks one step ahead.
        momentum = 0.95 * momentum + 0.05 * of_kernel
        ahead = 0.95 * momentum / (1 - 0.95 ** (count + 1)) + 0.05 * of_kernel / (1 - 0.95**count)
        update = 0.2 * np.sqrt(18) * orthogonalized(ahead.reshape(18, 5).T, 5).T
        expected = 0.95 * old["kernel"] - 0.1 * update.reshape(3, 3, 2, 5)
        np.testing.assert_allclose(params["kernel"], expected, rtol=1e-4, atol=1e-5)
        first, second = 0.9 * first + 0.1 * of_bias, 0.999 * second + 0.001 * of_bias**2
        ahead = 0.9 * first / (1 - 0.9 ** (count + 1)) + 0.1 * of_bias / (1 - 0.9**count)
        update = ahead / (np.sqrt(second / (1 - 0.999**count)) + 1e-8)
        np.testing.assert_allclose(
            params["bias"], 0.95 * old["bias"] - 0.1 * update, rtol=1e-4, atol=1e-5
        )
    values = np.linalg.svd(update_of(optimizer, kernels[0]).reshape(18, 5), compute_uv=False)
    assert np.all((values > 0.6) & (values < 1.3))


def update_of(optimizer: Any, kernel: np.ndarray) -> np.ndarray:
    """Returns a first update without decay, in units of its size."""
    params = {"kernel": jnp.zeros(kernel.shape)}
    updates, _ = optimizer.update({"kernel": jnp.asarray(kernel)}, optimizer.init(params), params)
    return np.asarray(updates["kernel"]) / (0.1 * 0.2 * np.sqrt(18))


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_optimizer_goes_downhill(name: str) -> None:
    config = OptimizationConfig(optimizer=name, weight_decay=1e-4)
    optimizer = create_optimizer(config, schedule_of(config, 50))
    value = {"w": jnp.asarray([1.0, -2.0])}
    state = optimizer.init(value)
    for _ in range(50):
        update, state = optimizer.update(value, state, value)  # the gradient of half the square
        value = jax.tree.map(jnp.add, value, update)
    assert float(jnp.sum(value["w"] ** 2)) < 5.0


def test_schedules() -> None:
    multistep = rates(schedule="multistep")
    np.testing.assert_allclose(
        multistep[[0, 49, 50, 74, 75, 99]], [0.1, 0.1, 0.01, 0.01, 0.001, 0.001], rtol=1e-5
    )
    warmed = rates(schedule="multistep", warmup_fraction=0.1)
    np.testing.assert_allclose(warmed[:11], [*(0.01 * np.arange(1, 11)), 0.1], rtol=1e-5)
    np.testing.assert_allclose(warmed[11:], multistep[11:], rtol=1e-5)
    onecycle = rates(learning_rate=0.5)
    assert np.argmax(onecycle) == 30
    np.testing.assert_allclose([onecycle[0], onecycle[30]], [0.02, 0.5], rtol=1e-5)
    assert onecycle[-1] < 0.001
    cosine = rates(schedule="cosine", optimizer="adam")
    np.testing.assert_allclose(
        cosine, 0.0005 * (1 + np.cos(np.pi * np.arange(100) / 100)), rtol=1e-4, atol=1e-9
    )
    np.testing.assert_array_equal(rates(schedule="constant"), np.float32(0.1))


@pytest.mark.parametrize("warmup_fraction", [0.0, 0.2])
@pytest.mark.parametrize("total_steps", [*range(1, 14), 300])
def test_multistep_divides_at_each_milestone(total_steps: int, warmup_fraction: float) -> None:
    """As PyTorch's `MultiStepLR`, which counts a milestone as often as it is given."""
    milestones = [round(total_steps / 2), round(total_steps * 3 / 4)]
    steps, warmup = np.arange(total_steps), round(warmup_fraction * total_steps)
    expected = 0.1 * 0.1 ** sum((steps >= milestone).astype(int) for milestone in milestones)
    expected[:warmup] = 0.1 * (steps[:warmup] + 1) / max(warmup, 1)
    found = rates(total_steps, schedule="multistep", warmup_fraction=warmup_fraction)
    np.testing.assert_allclose(found, expected, rtol=1e-5)


@pytest.mark.parametrize("total_steps", [1, 2, 3])
@pytest.mark.parametrize("schedule", ["constant", "multistep", "cosine", "onecycle"])
def test_short_runs_have_a_finite_rate(schedule: str, total_steps: int) -> None:
    found = rates(total_steps, schedule=schedule)
    assert np.all(np.isfinite(found))
    assert found[0] > 0


@pytest.mark.parametrize(("scaling", "factor"), [("none", 1.0), ("linear", 4.0), ("sqrt", 2.0)])
def test_the_rate_follows_the_batch(scaling: str, factor: float) -> None:
    """Goyal et al. 2017: in proportion to the batch, after a warm-up of 5 epochs."""
    config = OptimizationConfig(
        lr_scaling=scaling, global_batch_size=512, schedule="cosine", learning_rate=0.1
    )
    schedule = schedule_of(config, total_steps=200, steps_per_epoch=4)
    warmup = 0 if scaling == "none" else 20
    rates = np.array([float(schedule(step)) for step in range(200)])
    assert rates.max() == pytest.approx(0.1 * factor)
    assert int(rates.argmax()) == max(warmup - 1, 0)
    if warmup:
        np.testing.assert_allclose(rates[:20], 0.1 * factor * np.arange(1, 21) / 20, rtol=1e-5)


@pytest.mark.parametrize(
    ("optimizer", "rate"),
    [
        (None, 0.1),
        ("sgd", 0.1),
        ("nesterov", 0.1),
        ("muon", 0.01),
        ("adamw", 0.001),
        ("lion", 0.001),
    ],
)
def test_each_optimizer_has_its_rate(optimizer: str | None, rate: float) -> None:
    config = OptimizationConfig(optimizer=optimizer)
    assert with_rate(config, total_steps=100).learning_rate == rate


def test_the_rate_of_the_default_batch_is_not_scaled() -> None:
    config = OptimizationConfig(lr_scaling="linear", global_batch_size=128, schedule="cosine")
    assert float(schedule_of(config, 200, 4)(0)) == pytest.approx(0.1)


def test_rates_lengths_and_seeds_share_a_compiled_step() -> None:
    """A search over them compiles once."""

    def program(**settings: Any) -> str:
        setup = create_setup(TrainConfig.of(model="cnn", **settings))
        return setup.strategy.train_step.lower(*setup.abstract_step(128)).as_text()

    first = program()
    for settings in (
        {"learning_rate": 0.03},
        {"schedule": "cosine"},
        {"warmup_fraction": 0.2},
        {"epochs": 3},
        {"seed": 5},
    ):
        assert program(**settings) == first, settings
    assert program(weight_decay=0.1) != first
