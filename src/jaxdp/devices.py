"""`python -m jaxdp.devices`: shows which devices JAX sees here, how much memory they have, and what
of a run would lie on each.

With flags of a run (`--model`, `--strategy`, ...) its first state and batch are placed as training
would place them, and measured; nothing is trained or written. Several processes, e.g. of Slurm,
show the devices of all.
"""

import dataclasses
import json
import os
import socket
import sys
from collections.abc import Mapping, Sequence
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
# What decides which devices a process sees, and how much of their memory it takes.
VARIABLES = (
    "CUDA_VISIBLE_DEVICES NVIDIA_VISIBLE_DEVICES JAX_PLATFORMS JAX_LOCAL_DEVICE_IDS"
    " TPU_VISIBLE_CHIPS XLA_PYTHON_CLIENT_PREALLOCATE XLA_PYTHON_CLIENT_MEM_FRACTION XLA_FLAGS"
).split()
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
    record = _describe_all(config, placement=bool(given))
    if record is not None:
        print_devices(record) if not config.json else print(json.dumps(record))
    return 0


def _describe_all(config: TrainConfig, *, placement: bool) -> Record | None:
    """Returns the devices of all processes; None in every process but the first.

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
        placed = _place(config, own["devices"]) if placement else None
        texts = group.all_gather_text("devices", json.dumps(own), config.distributed_timeout)
    except BaseException as error:
        is_usage = isinstance(error, ConfigError)
        code, message = (EXIT_USAGE_ERROR, str(error)) if is_usage else (1, None)
        processes.exit_and_notify(error, code, message, "jaxdp.devices")
        raise
    record = {"processes": [json.loads(text) for text in texts], "placement": placed}
    return record if group.index == 0 else None


def describe_process(index: int, devices: Sequence[Any]) -> Record:
    """Returns a process and its devices; bytes are None if the platform does not report them."""
    rows = []
    for device in devices:
        memory = device.memory_stats() or {}
        if device.platform == "cpu":
            limit = platform.device_memory_bytes([device])
            memory = {"bytes_limit": limit, "bytes_in_use": limit - available_memory_bytes()}
        rows.append(
            {
                "id": device.id,
                "platform": device.platform,
                "kind": device.device_kind,
                "coords": [*(getattr(device, "coords", None) or ())],
                "slice_index": getattr(device, "slice_index", None),
                "bytes_in_use": memory.get("bytes_in_use"),
                "bytes_limit": memory.get("bytes_limit"),
            }
        )
    return {
        "process": index,
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "environment": {name: os.environ[name] for name in VARIABLES if name in os.environ},
        "devices": rows,
    }


def _place(config: TrainConfig, rows: list[Record]) -> Record:
    """Places state and batch, adds to each device's row what it holds, and describes the run."""
    import jax

    from jaxdp.training.setup import create_setup

    setup = create_setup(config)
    state = setup.strategy.restore(setup.create_state())
    parts = {name: getattr(state, name) for name in PARTS if hasattr(state, name)}
    parts |= {"opt_state": (state.opt_state, state.step), "batch": next(setup.train_batches(0))}
    held = {name: bytes_by_device(tree) for name, tree in parts.items()}
    settings = setup.config
    if settings.data_placement == "device":  # every device holds all of it
        resident = setup.source("train").bytes + setup.evaluation_source.bytes
        held["dataset"] = {device.id: resident for device in setup.strategy.devices}
    for row in rows:
        row["holds"] = {name: held.get(name, {}).get(row["id"], 0) for name in PARTS}
    names = ("model", "dataset", "strategy", "global_batch_size", "data_placement")
    return {
        **{name: getattr(settings, name) for name in names},
        # Without padding.
        "parameters": sum(leaf.size for leaf in jax.tree.leaves(setup.shapes.params)),
    }


def bytes_by_device(tree: Any) -> dict[int, int]:
    """Returns the bytes of a tree of arrays on each device of this process, with copies."""
    import jax

    held: dict[int, int] = {}
    for leaf in jax.tree.leaves(tree):
        for shard in leaf.addressable_shards:
            held[shard.device.id] = held.get(shard.device.id, 0) + shard.data.nbytes
    return held


def _table(titles: Sequence[str], numbers: Sequence[str]) -> rich.table.Table:
    """Returns a table with columns of text, then with columns of numbers."""
    table = rich.table.Table(*titles)
    for title in numbers:
        table.add_column(title, justify="right", no_wrap=True)
    return table


def print_devices(record: Mapping[str, Any]) -> None:
    """Prints the devices of all processes on standard output."""
    console = rich.console.Console(highlight=False, markup=False, soft_wrap=True)
    rows = [(process, device) for process in record["processes"] for device in process["devices"]]
    # CPUs have no coordinates, and are one slice.
    shown = ["coords", "slice_index"] if any(device["coords"] for _, device in rows) else []
    titles = ["process", "host", "device", "platform", "kind", *shown]
    table = _table(titles, ["in use", "free", "limit"])
    for process, device in rows:
        names = [process["process"], process["host"], device["id"]]
        names += [device[name] for name in ("platform", "kind", *shown)]
        used, limit = device["bytes_in_use"], device["bytes_limit"]
        free = None if used is None or limit is None else limit - used
        table.add_row(*map(str, names), *map(bytes_text, (used, free, limit)))
    console.print(table)
    if any(device["platform"] == "cpu" for _, device in rows):
        console.print("CPU devices share the machine's memory")
    for process in record["processes"]:
        words = [f"{name}={value}" for name, value in process["environment"].items()]
        what = " ".join(words) or "nothing set that hides devices"
        console.print(f"process {process['process']} (pid {process['pid']}): {what}")
    if record["placement"] is not None:
        _print_placement(console, record["placement"], [device for _, device in rows])


def _print_placement(
    console: rich.console.Console, placed: Mapping[str, Any], devices: list[Record]
) -> None:
    names = [name for name in PARTS if any(device["holds"][name] for device in devices)]
    console.print(
        f"\n{placed['model']} on {placed['dataset']}, {placed['strategy']},"
        f" {placed['global_batch_size']} examples a step: bytes on each device, activations left"
        " out"
    )
    table = _table(["device"], [*names, "sum"])
    for device in devices:
        sizes = [device["holds"][name] for name in names]
        table.add_row(str(device["id"]), *map(bytes_text, [*sizes, sum(sizes)]))
    console.print(table)
    if placed["data_placement"] == "device":
        console.print("A batch holds indices of examples; the step reads them on its own device.")


if __name__ == "__main__":
    sys.exit(main())
