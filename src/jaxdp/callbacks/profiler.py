"""What do host and devices do in a few steps? A trace that XProf and TensorBoard open."""

import pathlib

import jax


class Profiler:
    """Records steps into a folder.

    The step's parts have the names `input`, `augment`, `forward`, `backward`, `reduce` and `update`; what the host does is in
    `train`, numbered, and `waiting for input`.

    Args:
        steps: the first and the last one, counted from 1; None for none.
        folder: each process writes a file of its own there.
    """

    def __init__(self, steps: tuple[int, int] | None, folder: pathlib.Path) -> None:
        self._first, self._last = steps or (0, -1)
        self._folder, self._records = folder, False

    def begins(self, step: int) -> bool:
        """Whether recording is to begin before this step; a run that continues may miss the first of them."""
        return not self._records and self._first <= step <= self._last

    def ends(self, step: int) -> bool:
        """Whether recording is to end after this step."""
        return self._records and step >= self._last

    def start(self) -> None:
        jax.profiler.start_trace(self._folder)
        self._records = True

    def stop(self) -> None:
        if self._records:
            self._records = False
            jax.profiler.stop_trace()
