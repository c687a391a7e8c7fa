"""`python -m jaxdp.check`: checks whether the number of devices changes the result, by training a
few steps on each number.
"""

import functools
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import rich.console
import rich.table

from jaxdp.cli.command_line import command
from jaxdp.config import (
    NON_NEGATIVE,
    BatchNormMode,
    OptimizationConfig,
    PartsConfig,
    TrainConfig,
    setting,
    settings_group,
)
from jaxdp.config.values import Counts
from jaxdp.plugins.loading import load_plugins
from jaxdp.runtime import platform
from jaxdp.text.console import say_again
from jaxdp.text.flags import flag
from jaxdp.text.messages import printable

if TYPE_CHECKING:
    import optax

    from jaxdp.build.setup import Setup
    from jaxdp.build.step_config import CreateOptimizer
    from jaxdp.step.state import TrainState

DESCRIPTION = "Train a few steps on several numbers of devices and compare with one device."
COLUMNS = ("gradients", "batch_stats", "opt_state", "params", "loss")


@settings_group
class CheckConfig(PartsConfig, OptimizationConfig):
    """The runs that are compared."""

    devices: Counts = setting(
        Counts((1, 2, 4, 8)),
        "numbers of devices to compare with one device; on CPU they are simulated",
        metavar="N,N,...",
    )
    strategies: tuple[str, ...] = setting(
        ("pmap",), "strategies to run on them", metavar="NAME,NAME,...", separator=","
    )
    tolerance: float = setting(
        1e-5,
        """largest absolute difference that passes, else exit code 1. With --batch-norm replica the
        statistics differ by design. Computed in float64 unless --precision is bfloat16: float32 can
        put an activation on either side of a ReLU, and one such flip changes a gradient by 1e-3""",
        NON_NEGATIVE,
    )


@command(CheckConfig, "jaxdp.check", DESCRIPTION, steps=3)
def main(asked: CheckConfig) -> int:
    """Compares the runs and prints a table; returns 1 if they differ.

    Raises:
        ConfigError: for the first setting that cannot work, before anything is computed.
    """
    counts = asked.devices.values
    platform.configure(max(counts), precision=asked.precision)
    import jax

    from jaxdp.build.setup import create_setup
    from jaxdp.sharding.strategy import by_name

    load_plugins(asked.plugins)
    shared = asked.part(TrainConfig, devices=None)
    runs = [("single", 1)] + [
        (name, count)
        for name in asked.strategies
        for count in counts
        if count == 1 or not by_name(name).one_device
    ]
    float64 = asked.precision == "float32"
    dtype = "float64" if float64 else asked.precision
    setups = [
        create_setup(
            shared.replace(strategy=name, devices=count),
            dtype=dtype,
            wrap_optimizer=functools.partial(_recording, dtype),
        )
        for name, count in runs
    ]
    with jax.enable_x64(float64):
        first = _widened(setups[0].create_state(), float64)
        reference = _train(setups[0], [first])
        starts = [first, *[state for state, _ in reference]]
        differences = [
            _differences(_train(setup, starts), reference, asked.tolerance) for setup in setups
        ]
    config = setups[0].config
    where = printable(f"{config.model} on {config.dataset}")
    title = f"{where}, batch norm {config.batch_norm}: largest differences"
    table = rich.table.Table("strategy", "devices", *COLUMNS, title=title)
    for (name, count), row in zip(runs, differences, strict=True):
        table.add_row(name, str(count), *(f"{difference:.1e}" for difference in row))
    rich.console.Console(markup=False, emoji=False).print(table)
    steps = len(reference)
    print(f"compared after each of {steps} steps, which begin at the states of one device", end="")
    print(_left_out(reference, asked.tolerance))
    worst = max(map(max, differences))
    passed = worst <= asked.tolerance
    print(
        f"{'passed' if passed else 'FAILED'}: the largest difference is {worst:.1e}, the tolerance"
        f" {asked.tolerance:.1e}"
    )
    if not passed and config.batch_norm == BatchNormMode("replica"):
        say_again(
            f"{flag('batch_norm', 'replica')} depends on the number of devices by design; group:N"
            " and global do not"
        )
    return int(not passed)


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


def _recording(dtype: str, create: "CreateOptimizer") -> "CreateOptimizer":
    """Returns what makes an optimizer with the same updates, which keeps `Recorded`.

    Args:
        dtype: format of the computation.
        create: makes the optimizer.
    """
    import jax
    import jax.numpy as jnp
    import optax

    # The user's own model may compute in float32 in between.
    rounding = float(max(jnp.finfo("float32").eps, jnp.finfo(dtype).eps))

    def create_recording(schedule: "optax.Schedule") -> "optax.GradientTransformation":
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
    import jax
    import jax.numpy as jnp

    def widen(leaf: Any) -> Any:
        return jnp.asarray(leaf, float) if jnp.issubdtype(leaf.dtype, jnp.floating) else leaf

    return jax.tree.map(widen, state) if wanted else state


def _train(setup: "Setup", starts: Sequence["TrainState"]) -> list[tuple["TrainState", float]]:
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
    import jax
    import numpy as np

    (state, loss), (alone, _) = end, expected
    params = jax.tree.map(
        lambda leaf, noise: np.where(noise > tolerance, 0, leaf),
        state.params,
        alone.opt_state.noise,
    )
    recorded = state.opt_state
    values = (recorded.gradients, state.batch_stats, recorded.state, params, loss)
    return dict(zip(COLUMNS, values, strict=True))


def _left_out(reference: Any, tolerance: float) -> str:
    """Returns a sentence on how many updates the comparison leaves out, and why."""
    import jax
    import numpy as np

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
    import jax
    import numpy as np

    pairs = zip(jax.tree.leaves(tree), jax.tree.leaves(other), strict=True)
    largest = [np.max(np.abs(np.float64(a) - np.float64(b)), initial=0) for a, b in pairs]
    worst = float(np.max(largest, initial=0))  # which is NaN if any of them is
    return worst if np.isfinite(worst) else float("inf")


if __name__ == "__main__":
    sys.exit(main())
