"""What `python -m jaxdp.sweep` takes beside the settings of its runs."""

import dataclasses
from typing import Literal

from jaxdp.config import NON_NEGATIVE, POSITIVE, Settings, setting
from jaxdp.registry import ConfigError


@dataclasses.dataclass(frozen=True, kw_only=True)
class CombinationsConfig(Settings):
    """Flags that choose the combinations, where and how many at once they run, and the folder."""

    grid: tuple[str, ...] = setting(
        (),
        "settings to vary and their values as in YAML, e.g. learning_rate=0.05,0.1 seed=0,1 "
        "or model_kwargs.depth=20,110",
        metavar="NAME=VALUE,...",
    )
    trials: tuple[str, ...] = setting(
        (),
        "instead of a grid: how many runs Optuna proposes, and from what it takes each "
        "setting: log(LOW,HIGH), uniform(LOW,HIGH), int(LOW,HIGH) or values, e.g. 30 "
        "'learning_rate=log(1e-4,1)' optimizer=nesterov,adam. Validation data choose",
        metavar="N NAME=RANGE",
    )
    at_a_time: int | None = setting(
        None,
        "runs at once; each gets an equal share of the GPUs (default: 1; on Ray as many as "
        "there is room for)",
        POSITIVE,
    )
    output: str | None = setting(
        None,
        "folder of the sweep, with one for each run and report.html (default: sweeps/HASH, "
        "the same for the same settings)",
        metavar="PATH",
    )
    on: Literal["here", "ray"] = setting(
        "here",
        "run on this machine, or on the nodes of a Ray cluster; a run whose node dies goes "
        "on elsewhere",
    )
    address: str | None = setting(
        None,
        "cluster to use with --on ray: auto for the one that this machine belongs to, or "
        "HOST:PORT of its head (default: one on this machine alone, for this command)",
        metavar="auto|HOST:PORT",
    )
    cpus_per_run: int = setting(
        1,
        "with --on ray, CPUs set aside for each run",
        POSITIVE,
    )
    gpus_per_run: int | None = setting(
        None,
        "with --on ray, GPUs of each run (default: 1 where the cluster has any, otherwise 0)",
        NON_NEGATIVE,
    )

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
