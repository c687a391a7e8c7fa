"""The grid as the runs of a sweep: every combination, but for those that are finished."""

import collections
import pathlib
from collections.abc import Sequence

from jaxdp import config as config_lib
from jaxdp.config import TrainConfig
from jaxdp.registry import ConfigError, shown
from jaxdp.rundir.layout import RunDirectory
from jaxdp.tools.sweep_grid import Cell
from jaxdp.tools.sweep_runs import say, settings_file


class Grid:
    """Every combination, in order; those that are finished are not run again.

    Args:
        folder: of the sweep, with one for each cell.

    Raises:
        ConfigError: if the folder cannot be written or holds runs with other settings.
    """

    def __init__(self, cells: Sequence[Cell], folder: pathlib.Path) -> None:
        _check_folder(folder, cells)
        self._cells = cells
        self._waiting = collections.deque(
            cell for cell in cells if not RunDirectory(folder / cell.name).is_done()
        )
        self._reasons: dict[str, str] = {}
        self.count = len(self._waiting)
        if self.count < len(cells):
            say(f"{len(cells) - self.count} of {len(cells)} runs in {folder} are finished")

    @property
    def failed(self) -> bool:
        return bool(self._reasons)

    def next(self) -> Cell | None:
        return self._waiting.popleft() if self._waiting else None

    def should_stop(self, cell: Cell) -> bool:
        return False

    def ended(self, cell: Cell, code: int, reason: str) -> str:
        if code:
            self._reasons[cell.name] = reason
        return f"failed: {reason}" if code else "done"

    def results(self) -> list[tuple[Cell, str | None, int | None]]:
        return [(cell, self._reasons.get(cell.name), None) for cell in self._cells]


def _check_folder(folder: pathlib.Path, cells: Sequence[Cell]) -> None:
    """Raises ConfigError if the sweep cannot be written there, or holds runs of the same names with
    other settings.
    """
    for cell in cells:
        file = settings_file(folder / cell.name)
        if file.is_file():
            ours = config_lib.defining(cell.config)
            theirs = config_lib.defining(TrainConfig.of(**config_lib.load(file)))
            differing = [
                name
                for name in sorted(ours.keys() | theirs.keys())
                if ours.get(name) != theirs.get(name)
            ]
            if differing:
                name = differing[0]
                remedy = (
                    f"holds {cell.name} with {name} {shown(theirs.get(name))}, not"
                    f" {shown(ours.get(name))}; give another --output"
                )
                raise ConfigError("output", folder, remedy)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(
            "output", folder, f"cannot be written ({error.strerror}); give another folder"
        ) from error
