"""Writes TensorBoard events: the rows of a run as curves, and the images drawn at its end."""

# pyright: reportUnknownMemberType=false, reportMissingTypeStubs=false

import time
from typing import Any

from tensorboardX import summary
from tensorboardX.event_file_writer import EventsWriter
from tensorboardX.proto import event_pb2

from jaxdp.callbacks import register
from jaxdp.callbacks.json_lines import metrics_of
from jaxdp.events import Ended, Logged, RolledBack, Run, Started
from jaxdp.registry import ConfigError

_events: Any = event_pb2  # generated: type checkers see nothing in it


@register("tensorboard")
class TensorBoard:
    """Writes in this thread: that of `SummaryWriter` dies of a full disk, and then `add_scalar` waits forever."""

    def __init__(self) -> None:
        self._writer: EventsWriter | None = None

    def on_start(self, run: Run, event: Started) -> None:
        """Opens a file of events in the run directory."""
        if run.folder is None:
            raise ConfigError("callbacks", "tensorboard", "writes into the run directory; give run_dir")
        self.close()
        directory = run.folder / "tensorboard"
        resumed = directory.exists() and any(directory.iterdir())
        directory.mkdir(parents=True, exist_ok=True)
        self._writer = EventsWriter(str(directory / "events"))
        if resumed:  # what it has of later steps is no longer shown
            self._add(event.step + 1, session_log=_events.SessionLog(status=_events.SessionLog.START))

    def on_log(self, run: Run, event: Logged) -> None:
        """Adds a row; a list becomes a curve for each of its numbers."""
        assert self._writer is not None
        for name, value in metrics_of(event.row).items():
            self._add(event.row["step"], summary=summary.scalar(name, value))
        self._writer.flush()

    def on_rollback(self, run: Run, event: RolledBack) -> None:
        """Closes the file."""
        self.close()

    def on_end(self, run: Run, event: Ended) -> None:
        """Adds the images that were drawn."""
        if self._writer is not None:
            for name, image in event.images.items():
                self._add(event.step, summary=summary.image(name, image, dataformats="HWC"))
            self._writer.flush()

    def _add(self, step: int, **content: Any) -> None:
        assert self._writer is not None
        self._writer.write_event(_events.Event(wall_time=time.time(), step=step, **content))

    def close(self) -> None:
        """Closes the file."""
        if self._writer is not None:
            self._writer, writer = None, self._writer
            writer.close()
