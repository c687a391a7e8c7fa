"""`python -m jaxdp.check`: checks whether the number of devices changes what is learned, by
training a few steps on each.
"""

import dataclasses
import sys
from collections.abc import Sequence
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
)
from jaxdp.config.values import Counts
from jaxdp.parsing import printable
from jaxdp.runtime import platform

if TYPE_CHECKING:
    from jaxdp.training.setup import Setup

DESCRIPTION = "Train a few steps on several numbers of devices and compare with one device."
COLUMNS = ("params", "batch_stats", "opt_state", "loss")


@dataclasses.dataclass(frozen=True, kw_only=True)
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
        "largest absolute difference that passes, else exit code 1. With --batch-norm replica the "
        "statistics differ by design. Computed in float64 unless --precision is bfloat16: float32 "
        "can put an activation on either side of a ReLU, and one such flip changes a gradient by "
        "1e-3",
        NON_NEGATIVE,
    )


@dataclasses.dataclass(frozen=True)
class Comparison:
    """How far the results of a run are from the results of the first run.

    Attributes:
        config: of a run, with what depends on model, dataset and devices filled in.
        differences: the largest absolute difference of each of `COLUMNS` from the first run.
    """

    config: TrainConfig
    differences: tuple[float, ...]


@command(CheckConfig, "jaxdp.check", DESCRIPTION, restarts=False, steps=3)
def main(asked: CheckConfig) -> int:
    """Compares the runs and prints a table; returns 1 if they differ."""
    counts = asked.devices.values
    platform.configure(max(counts), precision=asked.precision)
    shared = asked.part(TrainConfig, devices=None)
    runs = [("single", 1)] + [
        (name, count)
        for name in asked.strategies
        for count in counts
        if name != "single" or count == 1
    ]
    configs = [shared.replace(strategy=name, devices=count) for name, count in runs]
    comparisons = compare(configs, float64=asked.precision == "float32")
    print_table(configs, comparisons)
    worst = max(max(row.differences) for row in comparisons)
    passed = worst <= asked.tolerance
    print(
        f"{'passed' if passed else 'FAILED'}: the largest difference is {worst:.1e}, the tolerance"
        f" {asked.tolerance:.1e}"
    )
    if not passed and comparisons[0].config.batch_norm == BatchNormMode("replica"):
        print(
            "--batch-norm replica depends on the number of devices by design; group:N and global"
            " do not",
            file=sys.stderr,
        )
    return int(not passed)


def compare(configs: Sequence[TrainConfig], *, float64: bool) -> list[Comparison]:
    """Trains each as configured and compares its end with the end of the first one.

    Args:
        float64: whether to compute in it, which makes it JAX's default number format from here on.

    Raises:
        ConfigError: for the first setting that cannot work; nothing has been computed then.
    """
    import jax

    from jaxdp.training.setup import create_setup

    setups = [create_setup(config, dtype="float64" if float64 else None) for config in configs]
    jax.config.update("jax_enable_x64", float64)
    ends = [_train(setup) for setup in setups]
    return [
        Comparison(
            setup.config,
            tuple(_largest_difference(end[column], ends[0][column]) for column in COLUMNS),
        )
        for setup, end in zip(setups, ends, strict=True)
    ]


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
    largest = max(
        (float(np.max(np.abs(np.float64(a) - np.float64(b)), initial=0)) for a, b in pairs),
        default=0.0,
    )
    return largest if np.isfinite(largest) else float("inf")


def print_table(configs: Sequence[TrainConfig], comparisons: Sequence[Comparison]) -> None:
    """Prints a row for each run.

    Args:
        configs: as they were asked for.
        comparisons: one for each configuration.
    """
    first = comparisons[0].config
    where = escape(printable(f"{first.model} on {first.dataset}"))
    title = f"{where}, batch norm {first.batch_norm}: largest differences"
    table = rich.table.Table("strategy", "devices", *COLUMNS, title=title)
    for config, row in zip(configs, comparisons, strict=True):
        table.add_row(
            config.strategy,
            str(config.devices),
            *(f"{each:.1e}" for each in row.differences),
        )
    rich.console.Console(emoji=False).print(table)


if __name__ == "__main__":
    sys.exit(main())
