"""`python -m jaxdp.check`: checks whether the number of devices changes what is learned, by
training a few steps on each.
"""

import contextlib
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import rich.console
import rich.table
from rich.markup import escape

from jaxdp.command_line import command
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
from jaxdp.parsing import printable
from jaxdp.runtime import platform

if TYPE_CHECKING:
    from jaxdp.training.setup import Setup

DESCRIPTION = "Train a few steps on several numbers of devices and compare with one device."
COLUMNS = ("params", "batch_stats", "opt_state", "loss")


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
        ConfigError: for the first setting that cannot work; nothing has been computed then.
    """
    counts = asked.devices.values
    platform.configure(max(counts), precision=asked.precision)
    from jaxdp.training.setup import create_setup

    shared = asked.part(TrainConfig, devices=None)
    runs = [("single", 1)] + [
        (name, count)
        for name in asked.strategies
        for count in counts
        if name != "single" or count == 1
    ]
    float64 = asked.precision == "float32"
    setups = [
        create_setup(
            shared.replace(strategy=name, devices=count), dtype="float64" if float64 else None
        )
        for name, count in runs
    ]
    with _float64(float64):
        ends = [_train(setup) for setup in setups]
    differences = [
        [_largest_difference(end[column], ends[0][column]) for column in COLUMNS] for end in ends
    ]
    config = setups[0].config
    where = escape(printable(f"{config.model} on {config.dataset}"))
    title = f"{where}, batch norm {config.batch_norm}: largest differences"
    table = rich.table.Table("strategy", "devices", *COLUMNS, title=title)
    for (name, count), row in zip(runs, differences, strict=True):
        table.add_row(name, str(count), *(f"{difference:.1e}" for difference in row))
    rich.console.Console(emoji=False).print(table)
    worst = max(map(max, differences))
    passed = worst <= asked.tolerance
    print(
        f"{'passed' if passed else 'FAILED'}: the largest difference is {worst:.1e}, the tolerance"
        f" {asked.tolerance:.1e}"
    )
    if not passed and config.batch_norm == BatchNormMode("replica"):
        print(
            "--batch-norm replica depends on the number of devices by design; group:N and global"
            " do not",
            file=sys.stderr,
        )
    return int(not passed)


@contextlib.contextmanager
def _float64(wanted: bool) -> Iterator[None]:
    """Has JAX compute in float64 in the block, if it is wanted; a notebook goes on as before."""
    import jax

    settings: Any = jax.config
    before = settings.jax_enable_x64
    settings.update("jax_enable_x64", wanted)
    try:
        yield
    finally:
        settings.update("jax_enable_x64", before)


def _train(setup: "Setup") -> dict[str, Any]:
    """Returns the state and the losses after all steps, on the host."""
    state, losses = setup.strategy.init(setup.create_state), []
    for batch in setup.train_batches(0):
        state, sums = setup.strategy.train_step(state, batch, setup.constants)
        losses.append(setup.strategy.gather(sums)["loss"] / setup.global_batch_size)
    host = setup.strategy.gather(state)
    return {name: getattr(host, name) for name in COLUMNS[:3]} | {"loss": losses}


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
