"""Adds the memory of the devices to the training rows, which shows a device that differs."""

from jaxdp.callbacks.callback import register
from jaxdp.callbacks.events import Run
from jaxdp.rundir.read import Row
from jaxdp.runtime import monitor


@register("device_monitor")
class DeviceMonitor:
    """Reads the memory of the process that writes the rows, and of its devices."""

    only_reports = True

    def on_row(self, run: Run, row: Row) -> None:
        """Adds `device_...` and `host_...` to a training row."""
        if row["split"] == "train":
            row |= monitor.read_memory(run.setup.strategy.devices)
