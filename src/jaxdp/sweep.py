"""`python -m jaxdp.sweep config.yaml --grid learning_rate=0.05,0.1 seed=0,1`: trains with each combination, and compares the runs.

Each run is a process of its own, in a folder that its settings name: one that fails is a row of the table, and the same command
goes on where it was stopped.
"""

import dataclasses
import pathlib
import sys
from collections.abc import Sequence
from typing import Annotated

import tyro

from jaxdp import command_line
from jaxdp import config as config_lib
from jaxdp.config import POSITIVE, OptionalPath, ProcessConfig, Settings, TrainConfig
from jaxdp.exit_codes import EXIT_STOPPED
from jaxdp.tools import sweep_grid, sweep_runs

DESCRIPTION = "Train with every combination of some settings, and compare the runs."
_HIDDEN = ("run_dir", "resume", *ProcessConfig.places())


@dataclasses.dataclass(frozen=True)
class CombinationsConfig(Settings):
    """Flags that choose the combinations, how many run at once, and the folder."""

    grid: Annotated[tuple[str, ...], tyro.conf.arg(metavar="NAME=VALUE,...", help_behavior_hint="")] = ()
    """settings to vary and their values as in YAML, e.g. learning_rate=0.05,0.1 seed=0,1 or model_kwargs.depth=20,110"""
    at_a_time: Annotated[int, POSITIVE] = 1
    """runs at once; each gets an equal share of the GPUs"""
    output: OptionalPath = None
    """folder of the sweep, with one for each run and report.html (default: sweeps/HASH, the same for the same settings)"""


@dataclasses.dataclass(frozen=True)
class SweepConfig(TrainConfig):
    """What `python -m jaxdp.sweep` takes: the grid, and a training run's settings, which hold for all runs."""

    combinations: CombinationsConfig = CombinationsConfig()


def main(argv: Sequence[str] | None = None) -> int:
    """Runs `python -m jaxdp.sweep` with these arguments, by default the process's own, and returns the exit code."""
    return command_line.main(_main, argv, "jaxdp.sweep")


def _main(argv: Sequence[str]) -> int:
    words = list(argv)
    if words and not words[0].startswith("-"):
        words = ["--config", *words]
    config = command_line.parse(SweepConfig, words, prog="python -m jaxdp.sweep", description=DESCRIPTION, hidden=_HIDDEN)
    shared = TrainConfig(**{field.name: getattr(config, field.name) for field in dataclasses.fields(TrainConfig)})
    asked = config.combinations
    given = {word.split("=")[0][2:].replace("-", "_") for word in words if word.startswith("--")}
    cells = sweep_grid.expand(asked.grid, shared, given)
    name = config_lib.hash_of(config_lib.defining(shared) | {"grid": asked.grid})
    folder = pathlib.Path(asked.output or f"sweeps/{name}")
    reasons = sweep_runs.run(cells, folder, asked.at_a_time)
    if reasons is None:
        return EXIT_STOPPED
    sweep_runs.show(cells, folder, reasons)
    return int(bool(reasons))


if __name__ == "__main__":
    sys.exit(main())
