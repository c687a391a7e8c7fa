"""Adds the memory and utilization of the devices to the training rows, so that an idle or uneven
one shows.
"""

from jaxdp.callbacks import register
from jaxdp.events import Run, Started
from jaxdp.rundir.read import Row
from jaxdp.runtime import monitor


@register("device_monitor")
class DeviceMonitor:
    """Reads its own devices in each process.

    The first one, which writes the rows, collects what the others have read.
    """

    every_process = True

    def __init__(self) -> None:
        self._monitor: monitor.Monitor | None = None

    def on_start(self, run: Run, event: Started) -> None:
        """Meets the other processes."""
        setup = run.setup
        self._monitor = monitor.Monitor(
            setup.strategy.devices, run.group, setup.config.distributed_timeout
        )

    def on_row(self, run: Run, row: Row) -> None:
        """Adds `device_...` and `host_...` to a training row."""
        if self._monitor is not None and row["split"] == "train":
            row |= self._monitor.read()

    def close(self) -> None:
        """Lets go of NVML."""
        if self._monitor is not None:
            self._monitor.close()
