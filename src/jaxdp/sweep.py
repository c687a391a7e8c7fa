"""`python -m jaxdp.sweep config.yaml --grid learning_rate=0.05,0.1 seed=0,1`: trains with each
combination, and compares the runs.

With `--trials 30 'learning_rate=log(1e-4,1)'` Optuna proposes the runs, and those that are worse
than most are stopped early. Each run is a process of its own, with `--on ray` on a node of a Ray
cluster, in a folder that its settings name: one that fails is a row of the table, and the same
command goes on where it was stopped.
"""

import contextlib
import dataclasses
import pathlib
import sys
from collections.abc import Iterator, Sequence

from jaxdp import command_line
from jaxdp import config as config_lib
from jaxdp.config import ProcessConfig, TrainConfig, fields
from jaxdp.exit_codes import EXIT_STOPPED
from jaxdp.runtime import ray_cluster
from jaxdp.tools import sweep_combinations, sweep_grid, sweep_ray, sweep_runs, sweep_search
from jaxdp.tools.sweep_settings import CombinationsConfig

DESCRIPTION = "Train with every combination of some settings, or search them."
_HIDDEN = ("run_dir", "resume", *fields(ProcessConfig))


@dataclasses.dataclass(frozen=True, kw_only=True)
class SweepConfig(CombinationsConfig, TrainConfig):
    """The grid, and a training run's settings, which hold for all runs."""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs `python -m jaxdp.sweep` with these arguments, by default the process's own, and returns
    the exit code.
    """
    return command_line.main(_main, argv, "jaxdp.sweep")


def _main(argv: Sequence[str]) -> int:
    words = list(argv)
    if words and not words[0].startswith("-"):
        words = ["--config", *words]
    config = command_line.parse(
        SweepConfig, words, prog="python -m jaxdp.sweep", description=DESCRIPTION, hidden=_HIDDEN
    )
    shared = config.part(TrainConfig)
    asked = config
    given = command_line.given_flags(words)
    words = asked.trials[1:] or asked.grid
    name = config_lib.hash_of(
        config_lib.defining(shared) | {"trials" if asked.trials else "grid": words}
    )
    folder = pathlib.Path(asked.output or f"sweeps/{name}")
    plan: sweep_runs.Plan
    if asked.trials:
        plan = sweep_search.Search(asked.trials, shared, given, folder)
    else:
        plan = sweep_combinations.Grid(sweep_grid.expand(asked.grid, shared, given), folder)
    with _place(asked) as place:
        finished = sweep_runs.run(plan, place, folder)
    if not finished:
        return EXIT_STOPPED
    sweep_runs.show(plan, folder)
    return int(plan.failed)


@contextlib.contextmanager
def _place(asked: CombinationsConfig) -> Iterator[sweep_runs.Place]:
    if asked.on == "here":
        yield sweep_runs.Here(sweep_runs.gpu_shares(asked.at_a_time or 1))
        return
    with ray_cluster.connected(asked.address, "jaxdp.sweep"):
        place = sweep_ray.OnRay(
            asked.at_a_time, ray_cluster.Room(asked.cpus_per_run, asked.gpus_per_run)
        )
        try:
            yield place
        except ray_cluster.HeadLost as error:
            sweep_runs.say(f"{error}; all runs save")
            place.wait_until_saved()
            raise


if __name__ == "__main__":
    sys.exit(main())
