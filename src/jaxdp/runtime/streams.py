"""A stream that a run can print to when nobody reads it any more: the terminal was closed, or a pipe broke."""

import contextlib
from typing import Any


class BestEffortStream:
    """A text stream whose failures to write are not the writer's: what cannot be printed is lost, and the run goes on."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        try:
            return self._stream.write(text)
        except OSError:
            return len(text)

    def flush(self) -> None:
        with contextlib.suppress(OSError):
            self._stream.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)
