"""What `python -m jaxdp.sweep` takes beside the settings of its runs."""

import dataclasses
from typing import Annotated, Literal

import tyro

from jaxdp.config import NON_NEGATIVE, POSITIVE, OptionalInt, OptionalPath, Settings
from jaxdp.registry import ConfigError
from jaxdp.runtime.ray_cluster import Address


@dataclasses.dataclass(frozen=True)
class CombinationsConfig(Settings):
    """Flags that choose the combinations, where and how many at once they run, and the folder."""

    grid: Annotated[
        tuple[str, ...], tyro.conf.arg(metavar="NAME=VALUE,...", help_behavior_hint="")
    ] = ()
    """settings to vary and their values as in YAML, e.g. learning_rate=0.05,0.1 seed=0,1 or
    model_kwargs.depth=20,110"""
    trials: Annotated[
        tuple[str, ...], tyro.conf.arg(metavar="N NAME=RANGE", help_behavior_hint="")
    ] = ()
    """instead of a grid: how many runs Optuna proposes, and from what it takes each setting:
    log(LOW,HIGH), uniform(LOW,HIGH), int(LOW,HIGH) or values, e.g. 30 'learning_rate=log(1e-4,1)'
    optimizer=nesterov,adam. Validation data choose"""
    at_a_time: Annotated[OptionalInt, POSITIVE] = None
    """runs at once; each gets an equal share of the GPUs (default: 1; on Ray as many as there is
    room for)"""
    output: OptionalPath = None
    """folder of the sweep, with one for each run and report.html (default: sweeps/HASH, the same
    for the same settings)"""
    on: Literal["here", "ray"] = "here"
    """run on this machine, or on the nodes of a Ray cluster; a run whose node dies goes on
    elsewhere"""
    address: Address = None
    """cluster to use with --on ray: auto for the one that this machine belongs to, or HOST:PORT of
    its head (default: one on this machine alone, for this command)"""
    cpus_per_run: Annotated[int, POSITIVE] = 1
    """with --on ray, CPUs set aside for each run"""
    gpus_per_run: Annotated[OptionalInt, NON_NEGATIVE] = None
    """with --on ray, GPUs of each run (default: 1 where the cluster has any, otherwise 0)"""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.grid and self.trials:
            raise ConfigError(
                "trials",
                self.trials[0],
                "cannot be combined with --grid; a search, too, takes NAME=VALUE,VALUE",
            )
        if self.on == "here" and self.address is not None:
            raise ConfigError("address", self.address, "is of a Ray cluster; add --on ray")
