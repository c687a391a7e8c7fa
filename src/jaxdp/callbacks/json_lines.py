"""Writes metrics.jsonl, the rows of a run for programs, with one JSON object per line."""

from typing import TextIO

from jaxdp.callbacks.callback import folder_of, register
from jaxdp.callbacks.events import Logged, Run, Started
from jaxdp.rundir.read import Row
from jaxdp.rundir.write import keep_readable, no_link, rows_text


@register("json_lines")
class JsonLines:
    """Writes each row at once, so that a killed run has all rows up to its end.

    If the run resumes, rows that it will compute again, such as rows of later steps, are first
    dropped, and unreadable rows are moved to `damaged/`.
    """

    def __init__(self) -> None:
        self._file: TextIO | None = None

    def on_start(self, run: Run, event: Started) -> None:
        """Opens the file."""
        file = folder_of(run, "json_lines") / "metrics.jsonl"

        def is_kept(row: Row) -> bool:
            # A training row between two log steps was written because a callback ended the run.
            is_logged = row["split"] == "train" and run.setup.intervals.logs_at(row["step"])
            computed_again = event.evaluates and not is_logged
            return row["step"] < event.step + (not computed_again)

        keep_readable(file, is_kept)
        self._file = open(file, "a", buffering=1, opener=no_link)  # noqa: SIM115

    def on_log(self, run: Run, event: Logged) -> None:
        """Writes a row."""
        assert self._file is not None
        self._file.write(rows_text([event.row]))

    def close(self) -> None:
        """Closes the file."""
        if self._file is not None:
            self._file.close()
