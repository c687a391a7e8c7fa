"""Where do rows go? metrics.jsonl for programs, TensorBoard events for people."""

import json
import pathlib
from typing import Any

import numpy as np
from tensorboardX import SummaryWriter

from jaxdp.run_directory import replace_file

Row = dict[str, Any]


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
    def __init__(self, directory: pathlib.Path, start: int) -> None:
        begun = directory.exists() and any(directory.iterdir())  # what it has of later steps is not shown any more
        self._writer = SummaryWriter(str(directory), purge_step=start + 1 if begun else None)

    def advance(self, step: int) -> None:
        pass

    def write(self, row: Row) -> None:
        for name, value in row.items():
            if name not in ("step", "split"):
                self._writer.add_scalar(f"{row['split']}/{name}", value, row["step"])

    def add_pictures(self, pictures: dict[str, np.ndarray], step: int) -> None:
        for name, picture in pictures.items():
            self._writer.add_image(name, picture, step, dataformats="HWC")

    def close(self) -> None:
        self._writer.close()


def read_rows(path: pathlib.Path) -> list[Row]:
    """Reads metrics.jsonl; a last line that a kill cut short is left out."""
    rows: list[Row] = []
    for line in path.read_text().splitlines() if path.exists() else []:
        try:
            rows.append(json.loads(line))
        except json.JSONDecodeError:
            continue
    return rows
