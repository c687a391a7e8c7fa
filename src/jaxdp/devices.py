"""`python -m jaxdp.devices`: which devices does JAX see here, how much room have they, and what of a run would lie on each?

With flags of a run (`--model`, `--strategy`, ...) its first state and batch are placed as training would place them, and measured;
nothing is trained or written. Started as several processes, by Slurm for one, it shows those of all.
"""

import dataclasses
import json
import math
import os
import pathlib
import socket
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import tyro

from jaxdp import command_line
from jaxdp.config import ProcessConfig, TrainConfig
from jaxdp.registry import ConfigError
from jaxdp.runtime import platform

if TYPE_CHECKING:
    import rich.console

DESCRIPTION = "Show the devices, and with flags of a run what would lie on each."
PARTS = ("params", "batch_stats", "opt_state", "ema", "batch", "dataset")
# What decides which devices a process sees, and how much of their memory it takes.
VARIABLES = (
    "CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES", "JAX_PLATFORMS", "JAX_LOCAL_DEVICE_IDS", "TPU_VISIBLE_CHIPS",
    "XLA_PYTHON_CLIENT_PREALLOCATE", "XLA_PYTHON_CLIENT_MEM_FRACTION", "XLA_FLAGS",
)  # fmt: skip
_TITLE_WIDTH = 22
_MAX_CELLS = 16  # in a row of a picture


@dataclasses.dataclass(frozen=True)
class OutputConfig:
    json: tyro.conf.FlagCreatePairsOff[bool] = False
    """print one line of JSON instead of tables"""


@dataclasses.dataclass(frozen=True)
class DevicesConfig(TrainConfig, OutputConfig):
    """What `python -m jaxdp.devices` takes."""


def main(argv: Sequence[str] | None = None) -> int:
    return command_line.main(_main, argv, "jaxdp.devices")


def _main(argv: Sequence[str]) -> int:
    config = command_line.parse(DevicesConfig, argv, prog="python -m jaxdp.devices", description=DESCRIPTION)
    given = {word.split("=")[0][2:].replace("-", "_") for word in argv if word.startswith("--")}
    idle = {"json", "devices", *(field.name for field in dataclasses.fields(ProcessConfig))}
    found = examine(config, placement=bool(given - idle))
    if found is not None:
        print(json.dumps(found)) if config.json else _print(found)
    return 0


def examine(config: TrainConfig, *, placement: bool) -> dict[str, Any] | None:
    """Returns what there is, ready for JSON; of several processes only the first one gets it.

    Args:
        placement: whether to create the run's state and a batch and to see where they lie.

    Raises:
        ConfigError: for a run that could not be trained.
    """
    platform.configure(config.devices, deterministic=config.deterministic)
    from jaxdp.runtime import processes

    try:
        group = processes.start(config)
        mine = describe_process(group.index, platform.select_devices(config.devices))
        placed = _place(config, mine["devices"]) if placement else None
        processes = [json.loads(text) for text in group.exchange("devices", json.dumps(mine), config.distributed_timeout)]
    except BaseException as error:
        mistake = isinstance(error, ConfigError)
        processes.leave(error, command_line.EXIT_USAGE_ERROR if mistake else 1, str(error) if mistake else None, "jaxdp.devices")
        raise
    return {"processes": processes, "placement": placed} if group.index == 0 else None


def describe_process(index: int, devices: Sequence[Any]) -> dict[str, Any]:
    """Returns a process and its devices; bytes are None where the platform does not tell."""
    rows = []
    for device in devices:
        memory = device.memory_stats() or {}
        rows.append(
            {
                "id": device.id,
                "platform": device.platform,
                "kind": device.device_kind,
                "coords": list(coords) if (coords := getattr(device, "coords", None)) is not None else None,
                "slice_index": getattr(device, "slice_index", None),
                "bytes_in_use": memory.get("bytes_in_use"),
                "bytes_limit": memory.get("bytes_limit"),
            }
        )
    shared = devices[0].platform == "cpu"
    return {
        "process": index,
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "environment": {name: os.environ[name] for name in VARIABLES if name in os.environ},
        "hidden_gpus": hidden_gpus(),
        "machine_bytes": platform.device_memory_bytes([devices[0]]) if shared else None,
        "machine_free_bytes": _free_bytes() if shared else None,
        "devices": rows,
    }


def hidden_gpus() -> list[int]:
    """Returns which GPUs of this machine the environment keeps from JAX; none where they are named by UUID."""
    found = sorted(int(path.name.removeprefix("nvidia")) for path in pathlib.Path("/dev").glob("nvidia[0-9]*"))
    platforms = os.environ.get("JAX_PLATFORMS", "")
    if platforms and not {"cuda", "gpu"} & set(platforms.split(",")):
        return found
    words = os.environ.get("CUDA_VISIBLE_DEVICES")
    if words is None or not all(word.strip().lstrip("-").isdecimal() for word in words.split(",") if word):
        return []
    return [number for number in found if str(number) not in [word.strip() for word in words.split(",")]]


def _free_bytes() -> int | None:
    path = pathlib.Path("/proc/meminfo")  # Linux only
    lines = path.read_text().splitlines() if path.exists() else []
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")), None)


def _place(config: TrainConfig, rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Places state and batch, adds to each device's row what it holds, and returns how the largest arrays are divided."""
    import jax

    from jaxdp.data.sources import CheckedSource
    from jaxdp.training.setup import create_setup

    setup = create_setup(config)
    state = setup.strategy.restore(setup.create_state())
    batch = next(setup.train_batches(0))
    parts = {
        "params": state.params,
        "batch_stats": state.batch_stats,
        "opt_state": (state.opt_state, state.step),
        "ema": state.ema,
        "batch": batch,
    }
    held = {name: bytes_by_device(tree) for name, tree in parts.items()}
    resident = sum(split.bytes for split in (setup.dataset.train, setup.dataset.test) if isinstance(split, CheckedSource))
    if setup.config.data_placement == "device":  # all of it on each, which need not be tried
        held["dataset"] = {device.id: resident for device in setup.strategy.devices}
    for row in rows:
        row["holds"] = {name: held.get(name, {}).get(row["id"], 0) for name in PARTS}
    settings = setup.config
    return {
        "model": settings.model,
        "dataset": settings.dataset,
        "strategy": settings.strategy,
        "global_batch_size": settings.global_batch_size,
        "data_placement": settings.data_placement,
        "parameters": sum(leaf.size for leaf in jax.tree.leaves(setup.shapes.params)),  # without padding
        "largest_parameter": division(state.params),
        "largest_of_batch": division(batch),
    }


def bytes_by_device(tree: Any) -> dict[int, int]:
    """Returns how many bytes of a tree of arrays each device of this process holds, copies included."""
    import jax

    held: dict[int, int] = {}
    for leaf in jax.tree.leaves(tree):
        for shard in leaf.addressable_shards:
            held[shard.device.id] = held.get(shard.device.id, 0) + shard.data.nbytes
    return held


def division(tree: Any) -> dict[str, Any]:
    """Returns the largest array of a tree and which devices hold which part of it: `[start, stop]` along each dimension."""
    import jax

    path, leaf = max(jax.tree.leaves_with_path(tree), key=lambda pair: pair[1].nbytes)
    parts: dict[tuple[tuple[int, int], ...], list[int]] = {}
    for device, index in leaf.sharding.devices_indices_map(leaf.shape).items():
        bounds = tuple(part.indices(size)[:2] for part, size in zip(index, leaf.shape, strict=True))
        parts.setdefault(bounds, []).append(device.id)
    return {
        "name": jax.tree_util.keystr(path, simple=True, separator="/"),
        "shape": list(leaf.shape),
        "dtype": str(leaf.dtype),
        "bytes": leaf.nbytes,
        "parts": [{"index": [list(pair) for pair in bounds], "devices": ids} for bounds, ids in sorted(parts.items())],
    }


def draw(divided: Mapping[str, Any]) -> list[str]:
    """Returns lines of text that show a division: a row of device numbers for one divided dimension, a grid for two."""
    parts, shape = divided["parts"], divided["shape"]
    head = f"{divided['name']} {divided['dtype']}{tuple(shape)}, {size_text(divided['bytes'])}"
    split = [dim for dim in range(len(shape)) if len({tuple(part["index"][dim]) for part in parts}) > 1]
    if not split:
        count = len(parts[0]["devices"])
        return [f"{head}: whole on " + (f"each of {count} devices" if count > 1 else f"device {parts[0]['devices'][0]}")]
    counts = [len({tuple(part["index"][dim]) for part in parts}) for dim in split]
    dims = " and ".join(f"dim {dim} in {count}" for dim, count in zip(split, counts, strict=True))
    cells = [_ranges(part["devices"]) for part in parts]  # in the order of their place: the last divided dimension runs fastest
    width, row = max(map(len, cells)), counts[-1] if len(counts) > 1 else _MAX_CELLS
    lines = [
        "|" + "|".join(f" {cell:^{width}} " for cell in cells[start : start + row]) + "|" for start in range(0, len(cells), row)
    ]
    return [f"{head}: {dims}, device by device", *lines]


def _ranges(numbers: Sequence[int]) -> str:
    """Writes 0, 1, 2, 5 as `0-2,5`."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ",".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)


def size_text(count: int | None) -> str:
    if count is None:
        return "?"
    power = min(int(math.log10(count)) // 3, 4) if count else 0
    return f"{count} B" if power == 0 else f"{count / 1000**power:.1f} {' kMGT'[power]}B"


def _print(found: Mapping[str, Any]) -> None:
    import rich.console
    import rich.table

    console = rich.console.Console()
    processes, placed = found["processes"], found["placement"]
    rows = [(process, device) for process in processes for device in process["devices"]]
    # Only where they tell devices apart; several processes of CPUs, too, are one slice.
    slices = len({device["slice_index"] for _, device in rows}) > 1
    topology = {"coords": any(device["coords"] is not None for _, device in rows), "slice_index": slices}
    shown = [name for name, tells in topology.items() if tells]
    table = rich.table.Table("process", "host", "device", "platform", "kind", *shown)
    for title in ("in use", "free", "limit"):
        table.add_column(title, justify="right", no_wrap=True)
    for process, device in rows:
        names = [str(process["process"]), process["host"], str(device["id"]), device["platform"], device["kind"]]
        table.add_row(*names, *(str(device[name]) for name in shown), *_memory(process, device))
    console.print(table)
    if any(process["machine_bytes"] for process in processes):
        console.print("* CPU devices share the machine's memory", highlight=False)
    for process in processes:
        _print_environment(console, process)
    if placed is not None:
        _print_placement(console, placed, [device for _, device in rows])


def _memory(process: Mapping[str, Any], device: Mapping[str, Any]) -> list[str]:
    limit, used = device["bytes_limit"], device["bytes_in_use"]
    if process["machine_bytes"] is not None:
        return ["*", f"{size_text(process['machine_free_bytes'])} *", f"{size_text(process['machine_bytes'])} *"]
    free = limit - used if limit is not None and used is not None else None
    return [size_text(used), size_text(free), size_text(limit)]


def _print_environment(console: "rich.console.Console", process: Mapping[str, Any]) -> None:
    words = [f"{name}={value}" for name, value in process["environment"].items()]
    text = f"process {process['process']} (pid {process['pid']}): {' '.join(words) or 'nothing set that hides devices'}"
    console.print(text, highlight=False, markup=False, soft_wrap=True)
    if process["hidden_gpus"]:
        console.print(f"  hidden from it: GPU {_ranges(process['hidden_gpus'])} of {process['host']}", highlight=False)


def _print_placement(console: "rich.console.Console", placed: Mapping[str, Any], devices: list[dict[str, Any]]) -> None:
    import rich.table

    names = [name for name in PARTS if any(device["holds"][name] for device in devices)]
    title = f"{placed['model']} on {placed['dataset']}, {placed['strategy']}, {placed['global_batch_size']} examples a step"
    console.print(f"\n{title}: bytes on each device, activations left out", highlight=False, markup=False, soft_wrap=True)
    table = rich.table.Table("device", *names, "together")
    for column in table.columns[1:]:
        column.justify = "right"
    for device in devices:
        sizes = [device["holds"][name] for name in names]
        table.add_row(str(device["id"]), *map(size_text, [*sizes, sum(sizes)]))
    console.print(table)
    for label, name in (("largest parameter", "largest_parameter"), ("largest of a batch", "largest_of_batch")):
        first, *others = draw(placed[name])
        for line in [f"{label:<{_TITLE_WIDTH}}{first}", *(" " * _TITLE_WIDTH + line for line in others)]:
            console.print(line, highlight=False, markup=False, soft_wrap=True)
    if placed["data_placement"] == "device":
        console.print("A batch names examples, which the compiled step takes from the dataset on its own device.", highlight=False)


if __name__ == "__main__":
    sys.exit(main())
