"""`python -m jaxdp.devices`: prints the devices that JAX finds, and their memory.

With several processes, e.g. of Slurm, it prints the devices of all processes.
`python -m jaxdp.plan` prints what a run would store on each device.
"""

import json
import socket
import sys
from collections.abc import Sequence
from typing import Any

import rich.table

from jaxdp.cli.command_line import command, exit_code
from jaxdp.config import MOST_DEVICES, POSITIVE, ProcessConfig, at_most, setting, settings_group
from jaxdp.errors import ConfigError
from jaxdp.reporting.console import wide_console
from jaxdp.runtime import platform
from jaxdp.runtime.free_memory import available_memory_bytes
from jaxdp.text.flags import for_command
from jaxdp.text.units import bytes_text

DESCRIPTION = "Show the devices and their memory."
Record = dict[str, Any]


@settings_group
class DevicesConfig(ProcessConfig):
    """The devices, the processes that have them, and the form of the output."""

    devices: int | None = setting(
        None,
        "show the first N devices (default: all); on a CPU, simulate N",
        POSITIVE,
        at_most(MOST_DEVICES),
    )
    json: bool = setting(False, "print one line of JSON instead of a table")


@command(DevicesConfig, "jaxdp.devices", DESCRIPTION, defaults_file=False)
def main(config: DevicesConfig) -> int:
    """Prints all processes with their devices. Only the first process prints."""
    platform.configure(config.devices)
    from jaxdp.runtime import processes

    try:
        group = processes.start(config)
        own = describe_process(group.index, platform.select_devices(config.devices))
        texts = group.all_gather_text("devices", json.dumps(own), config.distributed_timeout)
    except BaseException as error:
        message = for_command(error) if isinstance(error, ConfigError) else None
        processes.notify_peers_of_exit(error, exit_code(error), message, "jaxdp.devices")
        raise
    if group.index == 0:
        found = [json.loads(text) for text in texts]
        if config.json:
            print(json.dumps({"processes": found}))
        else:
            print_devices(found)
    return 0


def describe_process(index: int, devices: Sequence[Any]) -> Record:
    """Returns a process and its devices; bytes are None if the platform does not report them."""
    rows = []
    for device in devices:
        memory = device.memory_stats() or {}
        if device.platform == "cpu":
            limit = platform.device_memory_bytes([device])
            memory = {"bytes_limit": limit, "bytes_in_use": limit - available_memory_bytes()}
        row = {"id": device.id, "platform": device.platform, "kind": device.device_kind}
        rows.append(row | {name: memory.get(name) for name in ("bytes_in_use", "bytes_limit")})
    return {
        "process": index,
        "host": socket.gethostname(),
        "cpu_flags": platform.cpu_flags_note() if devices[0].platform == "cpu" else None,
        "devices": rows,
    }


def print_devices(processes: Sequence[Record]) -> None:
    """Prints the devices of all processes on standard output."""
    table = rich.table.Table("process", "host", "device", "platform", "kind", "in use", "limit")
    rows = [(process, device) for process in processes for device in process["devices"]]
    for process, device in rows:
        cells = [process["process"], process["host"], device["id"]]
        cells += [device["platform"], device["kind"]]
        memory = [bytes_text(device[name]) for name in ("bytes_in_use", "bytes_limit")]
        table.add_row(*map(str, cells), *memory)
    console = wide_console()
    console.print(table)
    if any(device["platform"] == "cpu" for _, device in rows):
        console.print("CPU devices share the machine's memory")
    for note in dict.fromkeys(process["cpu_flags"] for process in processes):
        if note:
            console.print(note)


if __name__ == "__main__":
    sys.exit(main())
