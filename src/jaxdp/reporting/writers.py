"""Where do rows go? metrics.jsonl for programs, TensorBoard events for people."""

import json
import pathlib
import time
from typing import Any

import numpy as np
from tensorboardX import summary
from tensorboardX.event_file_writer import EventsWriter
from tensorboardX.proto import event_pb2

from jaxdp.run_directory import Row, read_lines, replace_file

_events: Any = event_pb2  # generated: type checkers see nothing in it


class JsonLines:
    """Writes a row a line, each at once: a killed run has all lines up to its end.

    Args:
        path: rows of steps after `start`, which a resumed run computes again, are dropped from it first.
    """

    def __init__(self, path: pathlib.Path, start: int) -> None:
        kept = [row for row in read_rows(path) if row["step"] <= start]
        replace_file(path, "".join(json.dumps(row) + "\n" for row in kept))
        self._file = path.open("a", buffering=1)

    def advance(self, step: int) -> None:
        pass

    def write(self, row: Row) -> None:
        self._file.write(json.dumps(row) + "\n")

    def close(self) -> None:
        self._file.close()


class TensorBoard:
    """Writes in this thread: that of `SummaryWriter` dies of a full disk, and then `add_scalar` waits for ever."""

    def __init__(self, directory: pathlib.Path, start: int) -> None:
        begun = directory.exists() and any(directory.iterdir())
        directory.mkdir(parents=True, exist_ok=True)
        self._writer = EventsWriter(str(directory / "events"))
        if begun:  # what it has of later steps is not shown any more
            self._add(start + 1, session_log=_events.SessionLog(status=_events.SessionLog.START))

    def advance(self, step: int) -> None:
        pass

    def write(self, row: Row) -> None:
        """A list becomes a curve for each of its numbers: `device_memory_bytes` those of `device/0/memory_bytes` and so on."""
        for name, value in row.items():
            if isinstance(value, list):
                of_what, _, figure = name.partition("_")
                for number, each in enumerate(value):
                    self._add(row["step"], summary=summary.scalar(f"{of_what}/{number}/{figure}", each))
            elif name not in ("step", "split"):
                self._add(row["step"], summary=summary.scalar(f"{row['split']}/{name}", value))
        self._writer.flush()

    def add_pictures(self, pictures: dict[str, np.ndarray], step: int) -> None:
        for name, picture in pictures.items():
            self._add(step, summary=summary.image(name, picture, dataformats="HWC"))
        self._writer.flush()

    def _add(self, step: int, **content: Any) -> None:
        self._writer.write_event(_events.Event(wall_time=time.time(), step=step, **content))

    def close(self) -> None:
        self._writer.close()


def read_rows(path: pathlib.Path) -> list[Row]:
    """Reads metrics.jsonl; a last line that a kill cut short is left out."""
    return read_lines(path)
