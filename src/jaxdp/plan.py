"""`python -m jaxdp.plan`: tells what a training step takes, which batch fits, and what would change that."""

import dataclasses
import json
import sys
from collections.abc import Sequence
from typing import Annotated

import tyro

from jaxdp import command_line
from jaxdp.config import Settings, TrainConfig
from jaxdp.registry import ConfigError
from jaxdp.units import parse_bytes

DESCRIPTION = "Tell what a training step takes, and which batch fits, without running it."


@dataclasses.dataclass(frozen=True)
class LimitConfig(Settings):
    """Flags that choose the memory limit and the form of the output."""

    device_memory: Annotated[str | None, tyro.conf.arg(metavar="SIZE", help_behavior_hint="")] = None
    """memory of a device, e.g. 11GiB (default: what the devices here have)"""
    json: tyro.conf.FlagCreatePairsOff[bool] = False
    """print one line of JSON instead of tables"""


@dataclasses.dataclass(frozen=True)
class PlanConfig(TrainConfig):
    """What `python -m jaxdp.plan` takes."""

    limit: LimitConfig = LimitConfig()


def main(argv: Sequence[str] | None = None) -> int:
    """Runs `python -m jaxdp.plan` with these arguments, by default the process's own, and returns the exit code."""
    return command_line.main(_main, argv, "jaxdp.plan")


def _main(argv: Sequence[str]) -> int:
    config = command_line.parse(PlanConfig, argv, prog="python -m jaxdp.plan", description=DESCRIPTION)
    try:
        limit = parse_bytes(config.limit.device_memory) if config.limit.device_memory else None
    except ValueError:
        raise ConfigError("device_memory", config.limit.device_memory, "must be a size, e.g. 11GiB or 40GB") from None
    from jaxdp.tools import memory_plan

    found = memory_plan.plan(config, limit)
    print(json.dumps(found)) if config.limit.json else memory_plan.print_plan(found)
    return 0


if __name__ == "__main__":
    sys.exit(main())
