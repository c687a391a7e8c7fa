"""Reads how much memory this process and its devices use."""

import pathlib
import resource
from collections.abc import Sequence
from typing import Any

Device = Any  # jax.Device, which type checkers read as a value

_STATISTICS = {
    "device_memory_bytes": "bytes_in_use",
    "device_peak_memory_bytes": "peak_bytes_in_use",
}
FIELDS = (*_STATISTICS, "host_memory_bytes")


def read_memory(devices: Sequence[Device]) -> dict[str, list[int]]:
    """Returns the current and peak memory of each device, and this process's memory on the host, if
    they are reported.
    """
    try:
        found = [device.memory_stats() or {} for device in devices]
    except RuntimeError:  # a backend without this information; JAX's own errors are RuntimeErrors
        found = [{}]
    figures = {
        field: [statistics[name] for statistics in found]
        for field, name in _STATISTICS.items()
        if all(name in statistics for statistics in found)
    }
    resident = pathlib.Path("/proc/self/statm")
    if resident.is_file():  # Linux
        pages = int(resident.read_text().split()[1])
        figures["host_memory_bytes"] = [pages * resource.getpagesize()]
    return figures
