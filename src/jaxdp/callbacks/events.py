"""Typed events of a run, which callbacks receive in the order in which they happen.

A run begins (`Started`), gives steps to the devices (`StepBegin`, `StepEnd`), reads their metrics
(`Logged`), evaluates (`Evaluated`), hands out a state to be saved (`Saving`), and ends (`Ended`).
`Activity` names in between what the process is busy with.
"""

import contextlib
import dataclasses
import pathlib
from collections.abc import Callable, Mapping
from typing import Any, Protocol, runtime_checkable

from jaxdp.rundir.read import Row


@dataclasses.dataclass(frozen=True)
class Started:
    """The run is about to give its first step to the devices.

    Attributes:
        step: how many steps are done already.
        resumed: whether a checkpoint was read.
        message: text about the start for the user; may be empty.
        evaluates: whether the run first evaluates the state after `step`, because a signal stopped
            it before that evaluation.
    """

    step: int
    resumed: bool
    message: str = ""
    evaluates: bool = False


@dataclasses.dataclass(frozen=True)
class Activity:
    """The process does something else from now on, which is also a sign of life.

    Attributes:
        step: the last step that was given to the devices.
        limited: whether this may only last about as long as a step; compiling and saving may take
            longer.
    """

    name: str
    step: int
    limited: bool = True


@dataclasses.dataclass(frozen=True)
class StepBegin:
    """Steps `first` to `last`, counted from 1, are about to be given to the devices, as one
    program.
    """

    first: int
    last: int


@dataclasses.dataclass(frozen=True)
class StepEnd:
    """All steps up to `step` have been given to the devices, which may still be computing them.

    Attributes:
        state: after these steps, on the devices. The next step consumes it: keep a copy, not this.
            With `--strategy async` or `--servers` it is at servers, and this is the state that was
            evaluated or saved last.
    """

    step: int
    state: Any


@dataclasses.dataclass(frozen=True)
class Logged:
    """A row is complete: training metrics since the last such row, or an evaluation's metrics."""

    row: Row


@dataclasses.dataclass(frozen=True)
class Evaluated:
    """The state after `step` was evaluated on a whole split, and its loss is a finite number.

    Attributes:
        metrics: the task's, and `examples`.
    """

    step: int
    split: str
    metrics: Mapping[str, float]


@dataclasses.dataclass(frozen=True)
class Saving:
    """A state is due to be saved: a copy in host memory, in which all weights are finite numbers.

    Attributes:
        position: what a run needs in addition to the state to resume as if it had never stopped.
        metrics: of an evaluation of this very state, if there was one.
    """

    step: int
    state: Any
    position: Mapping[str, Any]
    metrics: Mapping[str, float] | None


@dataclasses.dataclass(frozen=True)
class Ended:
    """The run is over.

    Attributes:
        status: `done`, `stopped` or `diverged`.
        reason: why it ended before its last step, if it did.
        sums: metric sums of the last state's evaluation, if it was evaluated.
        predict: yields each of some images with the result's answer to it; None unless the result
            was evaluated.
        summary: what summary.json holds.
        images: uint8 (H, W, 3) by name, drawn by one callback for those after it.
    """

    status: str
    step: int
    reason: str
    sums: Mapping[str, Any] | None
    predict: Callable[[Any], Any] | None
    summary: Mapping[str, Any]
    images: dict[str, Any] = dataclasses.field(default_factory=dict[str, Any])


@runtime_checkable
class Run(Protocol):
    """The parts of a run that a callback may use.

    Attributes:
        setup: model, task, dataset, optimizer, strategy and intervals: `build.setup.Setup`.
        group: the processes that train: `runtime.processes.Group`.
        folder: the run directory; None for a run that writes no files.
        description: what dataset.json holds.
        title: names model, dataset, devices and batch norm, for figures.
        headline: names model, data, optimizer and number of steps, for a person.
    """

    setup: Any
    group: Any
    folder: pathlib.Path | None
    description: dict[str, Any]
    title: str
    headline: str

    def predict(self, images: Any, *, probabilities: bool = False) -> Any:
        """Returns the model's answers to images, as `Result.predict` does: after the last step, and
        at `on_end` for the result.

        With `--strategy sharded` on several processes, callbacks of every process must call it.
        """
        ...

    def where(self) -> dict[str, Any]:
        """Returns the number of `devices` and `processes`, and of `workers` if there are any."""
        ...

    def paused(self) -> contextlib.AbstractContextManager[Any]:
        """Waits for all steps given to the devices, and keeps what happens inside the block out of
        the training time.
        """
        ...

    def stop(self, reason: str) -> None:
        """Ends the run, as done, after the current step, and saves the state after it.

        Where several processes train, only callbacks of every process end it at this step; a
        callback of the first one alone ends it a few steps later, at a step that all processes
        agree on.
        """
        ...
