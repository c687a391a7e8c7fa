"""Output that a run can lose without ending: to a terminal that was closed, or a broken pipe."""

import contextlib
from typing import Any


class BestEffortStream:
    """A text stream that raises no OSError: what cannot be written is lost, and the run continues."""

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
