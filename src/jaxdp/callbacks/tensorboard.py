"""Writes TensorBoard events: the rows of a run as curves, and the images drawn at its end."""

# pyright: reportUnknownMemberType=false, reportMissingTypeStubs=false

import time
from typing import Any

from jaxdp.callbacks.callback import folder_of, register
from jaxdp.callbacks.events import Ended, Logged, Run, Started
from jaxdp.callbacks.tracking import metrics_of


@register("tensorboard")
class TensorBoard:
    """Writes in this thread, because a full disk ends the thread of `SummaryWriter`, and
    `add_scalar` then waits forever.
    """

    only_reports = True

    def __init__(self) -> None:
        self._writer: Any = None
        self._library: Any = None

    def on_start(self, run: Run, event: Started) -> None:
        """Opens a file of events in the run directory."""
        directory = folder_of(run, "tensorboard") / "tensorboard"
        resumed = any(directory.glob("*"))
        directory.mkdir(parents=True, exist_ok=True)
        import tensorboardX.event_file_writer

        self._library = tensorboardX
        self._writer = tensorboardX.event_file_writer.EventsWriter(str(directory / "events"))
        if resumed:  # hides its events of later steps
            log = self._library.proto.event_pb2.SessionLog
            self._add(event.step + 1, session_log=log(status=log.START))

    def on_log(self, run: Run, event: Logged) -> None:
        """Adds a row. A list becomes a curve for each of its numbers."""
        for name, value in metrics_of(event.row).items():
            self._add(event.row["step"], summary=self._library.summary.scalar(name, value))
        self._writer.flush()

    def on_end(self, run: Run, event: Ended) -> None:
        """Adds the images that were drawn."""
        for name, image in event.images.items():
            summary = self._library.summary.image(name, image, dataformats="HWC")
            self._add(event.step, summary=summary)
        self._writer.flush()

    def _add(self, step: int, **content: Any) -> None:
        self._writer.write_event(
            self._library.proto.event_pb2.Event(wall_time=time.time(), step=step, **content)
        )

    def close(self) -> None:
        """Closes the file."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None
