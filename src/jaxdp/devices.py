"""`python -m jaxdp.devices`: shows which devices JAX sees here, how much room they have, and what
of a run would lie on each.

With flags of a run (`--model`, `--strategy`, ...) its first state and batch are placed as training
would place them, and measured; nothing is trained or written. Started as several processes, by
Slurm for one, it shows those of all. `--address` lists the nodes of a Ray cluster instead.
"""

import dataclasses
import json
import sys
from collections.abc import Sequence

from jaxdp import command_line
from jaxdp.config import ProcessConfig, TrainConfig, fields, setting

DESCRIPTION = "Show the devices, and with flags of a run what would lie on each."


@dataclasses.dataclass(frozen=True, kw_only=True)
class DevicesConfig(TrainConfig):
    """Flags that choose the form of the output."""

    json: bool = setting(
        False,
        "print one line of JSON instead of tables",
    )
    address: str | None = setting(
        None,
        "list the nodes of the Ray cluster that this machine belongs to (auto), or whose "
        "head is there, and what they have",
        metavar="auto|HOST:PORT",
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Runs `python -m jaxdp.devices` with these arguments, by default the process's own, and
    returns the exit code.
    """
    return command_line.main(_main, argv, "jaxdp.devices")


def _main(argv: Sequence[str]) -> int:
    config = command_line.parse(
        DevicesConfig, argv, prog="python -m jaxdp.devices", description=DESCRIPTION
    )
    if config.address is not None:
        return _list_cluster(config)
    idle = {"json", "devices", *fields(ProcessConfig)}
    from jaxdp.tools import device_survey

    found = device_survey.survey(config, placement=bool(command_line.given_flags(argv) - idle))
    if found is None:
        return 0
    if config.json:
        print(json.dumps(found))
    else:
        from jaxdp.tools import device_tables

        device_tables.print_survey(found)
    return 0


def _list_cluster(output: DevicesConfig) -> int:
    from jaxdp.tools import device_cluster

    assert output.address is not None
    found = device_cluster.survey(output.address)
    if output.json:
        print(json.dumps(found))
    else:
        device_cluster.print_cluster(found)
    return 0


if __name__ == "__main__":
    sys.exit(main())
