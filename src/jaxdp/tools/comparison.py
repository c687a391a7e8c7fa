"""Compares a few training steps on several numbers of devices and under several strategies with
those of one device.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
import rich.console
import rich.table
from rich.markup import escape

from jaxdp.config import TrainConfig
from jaxdp.parsing import printable
from jaxdp.training.setup import Setup, create_setup

COLUMNS = ("params", "batch_stats", "opt_state", "loss")


@dataclasses.dataclass(frozen=True)
class Comparison:
    """A run, and how far its results are from those of the first one.

    Attributes:
        config: of a run, with what depends on model, dataset and devices filled in.
        differences: the largest absolute one of each of `COLUMNS` from the first run.
    """

    config: TrainConfig
    differences: tuple[float, ...]


def compare(configs: Sequence[TrainConfig], *, float64: bool) -> list[Comparison]:
    """Trains each as configured and compares what it ends with to what the first one does.

    Args:
        float64: whether to compute in it, which makes it JAX's default number format from here on.

    Raises:
        ConfigError: for the first setting that cannot work; nothing has been computed then.
    """
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


def print_table(configs: Sequence[TrainConfig], found: Sequence[Comparison]) -> None:
    """Prints a row for each run.

    Args:
        configs: as they were asked for.
        found: the comparison of each.
    """
    first = found[0].config
    where = escape(printable(f"{first.model} on {first.dataset}"))
    title = f"{where}, batch norm {first.batch_norm}: largest differences"
    table = rich.table.Table("strategy", "devices", *COLUMNS, title=title)
    for config, row in zip(configs, found, strict=True):
        table.add_row(
            config.strategy,
            str(config.devices),
            *(f"{each:.1e}" for each in row.differences),
        )
    rich.console.Console(emoji=False).print(table)


def _train(setup: Setup) -> dict[str, Any]:
    """Returns what a few steps end with, on the host."""
    state, losses = setup.strategy.init(setup.create_state), []
    for batch in setup.train_batches(0):
        state, sums = setup.strategy.train_step(state, batch, setup.constants)
        losses.append(setup.strategy.gather(sums)["loss"] / setup.global_batch_size)
    host = setup.strategy.gather(state)
    return {
        "params": host.params,
        "batch_stats": host.batch_stats,
        "opt_state": host.opt_state,
        "loss": losses,
    }


def _largest_difference(tree: Any, other: Any) -> float:
    """Returns infinity where a number is not finite, so that NaN never passes."""
    pairs = zip(jax.tree.leaves(tree), jax.tree.leaves(other), strict=True)
    largest = max(
        (float(np.max(np.abs(np.float64(a) - np.float64(b)), initial=0)) for a, b in pairs),
        default=0.0,
    )
    return largest if np.isfinite(largest) else float("inf")
