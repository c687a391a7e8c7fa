"""`python -m jaxdp.devices`: shows which devices JAX sees here, how much memory they have, and what
of a run would lie on each.

With flags of a run (`--model`, `--strategy`, ...) its first state and batch are placed as training
would place them, and measured; nothing is trained or written. Several processes, e.g. of Slurm,
show the devices of all.
"""

import dataclasses
import json
import socket
import sys
from collections.abc import Sequence
from typing import Any

import rich.console
import rich.table

from jaxdp import command_line
from jaxdp.config import ProcessConfig, TrainConfig, fields, setting
from jaxdp.exit_codes import EXIT_USAGE_ERROR
from jaxdp.free_memory import available_memory_bytes
from jaxdp.registry import ConfigError
from jaxdp.runtime import platform
from jaxdp.units import bytes_text

DESCRIPTION = "Show the devices, and with flags of a run what would lie on each."
PARTS = ("params", "batch_stats", "opt_state", "ema", "batch", "dataset")
Record = dict[str, Any]


@dataclasses.dataclass(frozen=True, kw_only=True)
class DevicesConfig(TrainConfig):
    """The form of the output."""

    json: bool = setting(False, "print one line of JSON instead of tables")


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command with these arguments or the process's own; returns the exit code."""
    return command_line.main(_main, argv, "jaxdp.devices")


def _main(argv: Sequence[str]) -> int:
    config = command_line.parse(
        DevicesConfig, argv, prog="python -m jaxdp.devices", description=DESCRIPTION
    )
    given = command_line.given_flags(argv) - {"json", "devices", *fields(ProcessConfig)}
    processes = _describe_all(config, placement=bool(given))
    if config.json and processes:
        print(json.dumps({"processes": processes}))
    elif processes:
        print_devices(processes)
    return 0


def _describe_all(config: TrainConfig, *, placement: bool) -> list[Record]:
    """Returns all processes with their devices; none in every process but the first.

    Args:
        placement: whether to create the run's state and a batch and to see where they lie.

    Raises:
        ConfigError: for a run that could not be trained.
    """
    platform.configure(
        config.devices,
        deterministic=config.deterministic,
        precision=config.precision,
    )
    from jaxdp.runtime import processes

    try:
        group = processes.start(config)
        own = describe_process(group.index, platform.select_devices(config.devices))
        if placement:
            _add_placement(config, own["devices"])
        texts = group.all_gather_text("devices", json.dumps(own), config.distributed_timeout)
    except BaseException as error:
        is_usage = isinstance(error, ConfigError)
        code, message = (EXIT_USAGE_ERROR, str(error)) if is_usage else (1, None)
        processes.exit_and_notify(error, code, message, "jaxdp.devices")
        raise
    return [json.loads(text) for text in texts] if group.index == 0 else []


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


def _add_placement(config: TrainConfig, rows: list[Record]) -> None:
    """Places state and batch, and adds the bytes of each part to the rows of the devices."""
    from jaxdp.training.setup import create_setup

    setup = create_setup(config)
    state = setup.strategy.restore(setup.create_state())
    trees = {name: getattr(state, name, ()) for name in PARTS}
    trees |= {"opt_state": (state.opt_state, state.step), "batch": next(setup.train_batches(0))}
    trees["dataset"] = setup.constants.examples
    held = {name: bytes_by_device(tree) for name, tree in trees.items()}
    for row in rows:
        row["holds"] = {name: held[name].get(row["id"], 0) for name in PARTS}


def bytes_by_device(tree: Any) -> dict[int, int]:
    """Returns the bytes of a tree of arrays on each device of this process, with copies."""
    import jax

    held: dict[int, int] = {}
    for leaf in jax.tree.leaves(tree):
        for shard in leaf.addressable_shards:
            held[shard.device.id] = held.get(shard.device.id, 0) + shard.data.nbytes
    return held


def print_devices(processes: Sequence[Record]) -> None:
    """Prints the devices of all processes on standard output."""
    table = rich.table.Table("process", "host", "device", "platform", "kind", "in use", "limit")
    rows = [(process, device) for process in processes for device in process["devices"]]
    for process, device in rows:
        cells = [process["process"], process["host"], device["id"]]
        cells += [device["platform"], device["kind"]]
        memory = [bytes_text(device[name]) for name in ("bytes_in_use", "bytes_limit")]
        table.add_row(*map(str, cells), *memory)
    width = max(rich.console.Console().width, 100)
    console = rich.console.Console(highlight=False, markup=False, soft_wrap=True, width=width)
    console.print(table)
    if "holds" in rows[0][1]:
        table = rich.table.Table("process", "device", *PARTS)
        for process, device in rows:
            ids = [str(process["process"]), str(device["id"])]
            table.add_row(*ids, *map(bytes_text, device["holds"].values()))
        console.print(table)
    if any(device["platform"] == "cpu" for _, device in rows):
        console.print("CPU devices share the machine's memory")
    for note in dict.fromkeys(process["cpu_flags"] for process in processes):
        if note:
            console.print(note)


if __name__ == "__main__":
    sys.exit(main())
