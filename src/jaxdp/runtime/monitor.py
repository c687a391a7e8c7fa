"""Reads how much memory and time each device uses, once a training row, so that an idle or uneven
one is seen.

Each process reads its own devices. Where there are several it leaves its figures in the runtime's
key-value store, and process 0, which writes the rows, takes what it finds there: no collective and
no waiting; the others' figures may be a row old.
"""

import contextlib
import importlib
import json
import os
import pathlib
import resource
from collections.abc import Sequence
from typing import Any

from jaxdp.runtime.processes import Group

Device = Any  # jax.Device, which type checkers take for a value
Figures = dict[str, list[Any]]  # of int or float

FIELDS = (
    "device_memory_bytes",
    "device_peak_memory_bytes",
    "device_utilization",
    "host_memory_bytes",
)
_STATISTICS = {
    "device_memory_bytes": "bytes_in_use",
    "device_peak_memory_bytes": "peak_bytes_in_use",
}
_KEY = "monitor"


class Monitor:
    """Reads the memory and utilization of the devices, and gathers those of all processes.

    Args:
        devices: this process's devices.
        timeout_seconds: to wait for the other processes' first metrics.
    """

    def __init__(self, devices: Sequence[Device], group: Group, timeout_seconds: float) -> None:
        self._devices = list(devices)
        self._group = group
        self._utilization = _Utilization(devices)
        group.all_gather_text(_KEY, json.dumps(self._read_own()), timeout_seconds)

    def read(self) -> Figures:
        """Returns lists with a number for each device of the run, process by process, or for each
        process (`host_...`).

        What is not known of every one is left out. In processes other than the first it is empty.
        """
        own = self._read_own()
        if self._group.count == 1:
            return own
        # The coordinator is gone: the loop finds out by itself.
        with contextlib.suppress(Exception):
            self._group.put(f"{_KEY}/{self._group.index}", json.dumps(own))
            if self._group.index == 0:
                found = self._group.get_all(_KEY)
                return join([json.loads(found[index]) for index in range(self._group.count)])
        return {}

    def _read_own(self) -> Figures:
        found = {
            **read_memory(self._devices),
            "device_utilization": self._utilization.read(),
            "host_memory_bytes": _resident_bytes(),
        }
        return {name: values for name, values in found.items() if values}

    def close(self) -> None:
        self._utilization.close()


def join(parts: Sequence[Figures]) -> Figures:
    """Puts the metrics of processes one after the other, those that all of them have."""
    return {
        name: [value for part in parts for value in part[name]]
        for name in FIELDS
        if all(name in part for part in parts)
    }


def read_memory(devices: Sequence[Device]) -> Figures:
    """Returns the current and peak memory of each device, and nothing where the devices do not
    report them.
    """
    try:
        found = [device.memory_stats() or {} for device in devices]
    except RuntimeError:  # a backend that cannot be asked; JAX's own errors are RuntimeErrors
        return {}
    return {
        field: [statistics[name] for statistics in found]
        for field, name in _STATISTICS.items()
        if all(name in statistics for statistics in found)
    }


def _resident_bytes() -> list[int]:
    """Returns this process's memory on the host; nothing where there is no /proc."""
    try:
        pages = pathlib.Path("/proc/self/statm").read_text().split()[1]
    except OSError:
        return []
    return [int(pages) * resource.getpagesize()]


class _Utilization:
    """The share of the last second or less in which each GPU computed anything, as NVML counts it.

    NVML is asked where nvidia-ml-py is installed and knows all of these devices: a part of a GPU
    (MIG) has no such figure.
    """

    def __init__(self, devices: Sequence[Device]) -> None:
        self._nvml: Any = None
        self._handles: list[Any] = []
        if devices[0].platform != "gpu":
            return
        # Not installed, no driver, a device unknown to it: a run does without.
        with contextlib.suppress(Exception):
            nvml: Any = importlib.import_module("pynvml")
            nvml.nvmlInit()
            self._nvml = nvml
            self._handles = [_find(nvml, device.local_hardware_id) for device in devices]

    def read(self) -> list[float]:
        try:
            return [
                self._nvml.nvmlDeviceGetUtilizationRates(handle).gpu / 100
                for handle in self._handles
            ]
        except self._nvml.NVMLError:
            return []

    def close(self) -> None:
        if self._nvml is not None:
            with contextlib.suppress(self._nvml.NVMLError):
                self._nvml.nvmlShutdown()


def _find(nvml: Any, number: int) -> Any:
    """Returns NVML's handle of a GPU.

    Args:
        number: CUDA's, which counts what CUDA_VISIBLE_DEVICES shows. NVML's counts all GPUs of the
            machine.

    Raises:
        LookupError: if several kinds of GPUs make the number ambiguous.
    """
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    word = str(number) if visible is None else visible.split(",")[number].strip()
    if not word.isdecimal():
        return nvml.nvmlDeviceGetHandleByUUID(word)
    # Which is NVML's; CUDA's own puts faster kinds first.
    if os.environ.get("CUDA_DEVICE_ORDER") != "PCI_BUS_ID":
        handles = [
            nvml.nvmlDeviceGetHandleByIndex(index) for index in range(nvml.nvmlDeviceGetCount())
        ]
        if len({nvml.nvmlDeviceGetName(handle) for handle in handles}) > 1:
            raise LookupError(word)
    return nvml.nvmlDeviceGetHandleByIndex(int(word))
