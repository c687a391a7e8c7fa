"""Compares a few steps on several numbers of devices with those on one device."""

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from jaxdp.build.inputs import NOTHING, Inputs
from jaxdp.build.setup import Setup, create_setup
from jaxdp.build.step_config import CreateOptimizer
from jaxdp.config import TrainConfig
from jaxdp.sharding.strategy import by_name
from jaxdp.step.state import TrainState, fingerprint

# By strategy and number of devices, and by column.
Differences = dict[tuple[str, int], dict[str, float]]
COLUMNS = ("gradients", "batch_stats", "opt_state", "params", "loss")


def compare(
    config: TrainConfig,
    counts: Sequence[int],
    strategies: Sequence[str],
    inputs: Inputs = NOTHING,
    *,
    tolerance: float,
) -> tuple[Differences, TrainConfig, Any]:
    """Trains on one device, and takes the same steps with each strategy on each number of devices.

    Args:
        config: of the run, in float64 unless it has half precision.
        inputs: what of the run is given as objects.
        tolerance: updates that rounding the gradients changes by more are left out.

    Returns:
        The largest differences by strategy and number of devices, and by column; the settings; and
        the states of one device.
    """
    runs = [("single", 1)] + [
        (name, count)
        for name in strategies
        for count in counts
        if count == 1 or not by_name(name).one_device
    ]
    float64 = config.precision == "float32"
    dtype = "float64" if float64 else config.precision
    setups = [
        create_setup(
            config.replace(strategy=name, devices=count),
            inputs,
            dtype=dtype,
            wrap_optimizer=functools.partial(_recording, dtype),
        )
        for name, count in runs
    ]
    with jax.enable_x64(float64):
        first = _widened(setups[0].create_state(), float64)
        reference = _train(setups[0], [first])
        starts = [first, *[state for state, _ in reference]]
        rows = [_differences(_train(setup, starts), reference, tolerance) for setup in setups]
    named: list[dict[str, float]] = [dict(zip(COLUMNS, row, strict=True)) for row in rows]
    return dict(zip(runs, named, strict=True)), setups[0].config, reference


def digest(config: TrainConfig, devices: int) -> str:
    """Returns the SHA-256 of the state after training on a number of devices with `exact`."""
    setup = create_setup(config.replace(strategy="exact", devices=devices))
    state = setup.strategy.restore(setup.create_state())
    for batch in setup.batches.placed(0):
        state, _ = setup.strategy.train_step(state, batch, setup.constants)
    return fingerprint(state)


class Recorded(NamedTuple):
    """The state of an optimizer, and the inputs of its last update.

    Attributes:
        state: the optimizer's own.
        gradients: averaged over the devices.
        noise: how far each update moves with gradients that are rounded differently. Many
            optimizers divide a gradient by its own size. A gradient that is zero except for
            rounding, as before a batch norm, then determines the update of a parameter.
    """

    state: Any
    gradients: Any
    noise: Any


def _recording(dtype: str, create: CreateOptimizer) -> CreateOptimizer:
    """Returns what makes an optimizer with the same updates, which keeps `Recorded`.

    Args:
        dtype: format of the computation.
        create: makes the optimizer.
    """
    # The user's own model may compute in float32 in between.
    rounding = float(max(jnp.finfo("float32").eps, jnp.finfo(dtype).eps))

    def create_recording(schedule: optax.Schedule) -> optax.GradientTransformation:
        optimizer = create(schedule)

        def init(params: Any) -> Recorded:
            zeros = jax.tree.map(jnp.zeros_like, params)
            return Recorded(optimizer.init(params), zeros, zeros)

        def update(updates: Any, state: Any, params: Any = None) -> tuple[Any, Recorded]:
            step, after = optimizer.update(updates, state.state, params)
            largest = optax.tree.norm(updates, ord=jnp.inf)
            moved = jax.tree.map(lambda grad: grad + rounding * largest, updates)
            other, _ = optimizer.update(moved, state.state, params)
            noise = jax.tree.map(lambda one, two: jnp.abs(one - two), step, other)
            return step, Recorded(after, updates, noise)

        return optax.GradientTransformation(init, update)

    return create_recording


def _widened(state: Any, wanted: bool) -> Any:
    """Returns a state in float64 if requested, since gradients have the dtype of the parameters."""

    def widen(leaf: Any) -> Any:
        return jnp.asarray(leaf, float) if jnp.issubdtype(leaf.dtype, jnp.floating) else leaf

    return jax.tree.map(widen, state) if wanted else state


def _train(setup: Setup, starts: Sequence[TrainState]) -> list[tuple[TrainState, float]]:
    """Takes each step from a state of its own, so that differences do not grow.

    Args:
        starts: states before the steps. After the last of them, a step starts from the result of
            the previous step.

    Returns:
        The state after each step, on the host, and the step's loss.
    """
    strategy, ends = setup.strategy, []
    for number, batch in enumerate(setup.batches.placed(0)):
        start = starts[number] if number < len(starts) else ends[-1][0]
        state, sums = strategy.train_step(strategy.restore(start), batch, setup.constants)
        loss = strategy.gather(sums)["loss"] / setup.batches.global_batch_size
        ends.append((strategy.gather(state), loss))
    return ends


def _differences(ends: Any, reference: Any, tolerance: float) -> list[float]:
    """Returns the largest difference of each column over all steps."""
    pairs = [
        (_compared(end, expected, tolerance), _compared(expected, expected, tolerance))
        for end, expected in zip(ends, reference, strict=True)
    ]
    return [
        max(_largest_difference(one[column], other[column]) for one, other in pairs)
        for column in COLUMNS
    ]


def _compared(end: Any, expected: Any, tolerance: float) -> dict[str, Any]:
    """Returns the arrays of a step that are compared, by column. Parameters with an update that is
    noise are 0.
    """
    (state, loss), (alone, _) = end, expected
    params = jax.tree.map(
        lambda leaf, noise: np.where(noise > tolerance, 0, leaf),
        state.params,
        alone.opt_state.noise,
    )
    recorded = state.opt_state
    values = (recorded.gradients, state.batch_stats, recorded.state, params, loss)
    return dict(zip(COLUMNS, values, strict=True))


def left_out(reference: Any, tolerance: float) -> str:
    """Returns a sentence on how many updates the comparison leaves out, and why."""
    noise = np.concatenate(
        [leaf.ravel() for state, _ in reference for leaf in jax.tree.leaves(state.opt_state.noise)]
    )
    count = int(np.sum(noise > tolerance))
    if not count:
        return ""
    return (
        f"; params leave out {count:,} of {noise.size:,} updates, of which rounding the gradients"
        " changes more than the tolerance"
    )


def _largest_difference(tree: Any, other: Any) -> float:
    """Returns infinity if a number is not finite, so that NaN never passes."""
    pairs = zip(jax.tree.leaves(tree), jax.tree.leaves(other), strict=True)
    largest = [np.max(np.abs(np.float64(a) - np.float64(b)), initial=0) for a, b in pairs]
    worst = float(np.max(largest, initial=0))  # which is NaN if any of them is
    return worst if np.isfinite(worst) else float("inf")
