"""Describes the devices that JAX sees, how much room they have, and what of a run would lie on
each.
"""

import json
import os
import pathlib
import socket
from collections.abc import Sequence
from typing import Any

from jaxdp.config import TrainConfig
from jaxdp.exit_codes import EXIT_USAGE_ERROR
from jaxdp.registry import ConfigError
from jaxdp.rundir.read import Row
from jaxdp.runtime import platform

PARTS = ("params", "batch_stats", "opt_state", "ema", "batch", "dataset")
# What decides which devices a process sees, and how much of their memory it takes.
VARIABLES = (
    "CUDA_VISIBLE_DEVICES",
    "NVIDIA_VISIBLE_DEVICES",
    "JAX_PLATFORMS",
    "JAX_LOCAL_DEVICE_IDS",
    "TPU_VISIBLE_CHIPS",
    "XLA_PYTHON_CLIENT_PREALLOCATE",
    "XLA_PYTHON_CLIENT_MEM_FRACTION",
    "XLA_FLAGS",
)


def survey(config: TrainConfig, *, placement: bool) -> dict[str, Any] | None:
    """Returns what there is, ready for JSON; of several processes only the first one gets it.

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
        mine = describe_process(group.index, platform.select_devices(config.devices))
        placed = place(config, mine["devices"]) if placement else None
        processes = [
            json.loads(text)
            for text in group.exchange("devices", json.dumps(mine), config.distributed_timeout)
        ]
    except BaseException as error:
        is_usage = isinstance(error, ConfigError)
        processes.leave(
            error,
            EXIT_USAGE_ERROR if is_usage else 1,
            str(error) if is_usage else None,
            "jaxdp.devices",
        )
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
                "coords": (
                    list(coords)
                    if (coords := getattr(device, "coords", None)) is not None
                    else None
                ),
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
        "cpu_flags": platform.cpu_flags_note() if shared else None,
        "machine_bytes": platform.device_memory_bytes([devices[0]]) if shared else None,
        "machine_free_bytes": _free_bytes() if shared else None,
        "devices": rows,
    }


def hidden_gpus() -> list[int]:
    """Returns which GPUs of this machine the environment keeps from JAX.

    None where they are named by UUID.
    """
    found = sorted(
        int(path.name.removeprefix("nvidia")) for path in pathlib.Path("/dev").glob("nvidia[0-9]*")
    )
    platforms = os.environ.get("JAX_PLATFORMS", "")
    if platforms and not {"cuda", "gpu"} & set(platforms.split(",")):
        return found
    words = os.environ.get("CUDA_VISIBLE_DEVICES")
    if words is None or not all(
        word.strip().lstrip("-").isdecimal() for word in words.split(",") if word
    ):
        return []
    return [
        number for number in found if str(number) not in [word.strip() for word in words.split(",")]
    ]


def _free_bytes() -> int | None:
    path = pathlib.Path("/proc/meminfo")  # Linux only
    lines = path.read_text().splitlines() if path.exists() else []
    return next(
        (int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")), None
    )


def place(config: TrainConfig, rows: list[Row]) -> dict[str, Any]:
    """Places state and batch, adds to each device's row what it holds, and returns how the largest
    arrays are divided.
    """
    import jax

    from jaxdp.data.sources import Split
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
    resident = sum(
        split.bytes
        for split in (setup.dataset.train, setup.dataset.test)
        if isinstance(split, Split)
    )
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
        # Without padding.
        "parameters": sum(leaf.size for leaf in jax.tree.leaves(setup.shapes.params)),
        "largest_parameter": division(state.params),
        "largest_of_batch": division(batch),
    }


def bytes_by_device(tree: Any) -> dict[int, int]:
    """Returns how many bytes of a tree of arrays each device of this process holds, copies
    included.
    """
    import jax

    held: dict[int, int] = {}
    for leaf in jax.tree.leaves(tree):
        for shard in leaf.addressable_shards:
            held[shard.device.id] = held.get(shard.device.id, 0) + shard.data.nbytes
    return held


def division(tree: Any) -> dict[str, Any]:
    """Returns the largest array of a tree and which devices hold which part of it: `[start, stop]`
    along each dimension.
    """
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
        "parts": [
            {"index": [list(pair) for pair in bounds], "devices": ids}
            for bounds, ids in sorted(parts.items())
        ],
    }
