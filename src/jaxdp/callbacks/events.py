"""Defines the typed events of a run, which callbacks receive in the order in which they happen.

A run starts (`Started`), dispatches steps to the devices (`StepBegin`, `StepEnd`), reads their
metrics (`Logged`), evaluates (`Evaluated`), passes on a state to be saved (`Saving`), and ends
(`Ended`). `Activity` names the current work of the process in between.
"""

import contextlib
import dataclasses
import pathlib
from collections.abc import Callable, Mapping
from typing import Any, Protocol, runtime_checkable

from jaxdp.rundir.read import Row


@dataclasses.dataclass(frozen=True)
class Started:
    """The run is about to dispatch its first step to the devices.

    Attributes:
        step: how many steps are already done.
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
    """The process begins other work, which is also a sign of life.

    Attributes:
        step: the last step that was dispatched to the devices.
        limited: whether the work may last only about as long as a step. Compiling and saving may
            take longer.
    """

    name: str
    step: int
    limited: bool = True


@dataclasses.dataclass(frozen=True)
class StepBegin:
    """Steps `first` to `last`, counted from 1, are about to be dispatched to the devices as one
    program.
    """

    first: int
    last: int


@dataclasses.dataclass(frozen=True)
class StepEnd:
    """All steps up to `step` have been dispatched to the devices, which may still be computing
    them.

    Attributes:
        state: the state after these steps, on the devices. The next step consumes it, so keep a
            copy.
    """

    step: int
    state: Any


@dataclasses.dataclass(frozen=True)
class Logged:
    """A row is complete. It has the training metrics since the last such row, or the metrics of an
    evaluation.
    """

    row: Row


@dataclasses.dataclass(frozen=True)
class Evaluated:
    """The state after `step` was evaluated on a whole split, and its loss is finite.

    Attributes:
        metrics: the metrics of the task, and `examples`.
    """

    step: int
    split: str
    metrics: Mapping[str, float]


@dataclasses.dataclass(frozen=True)
class Saving:
    """A state is due to be saved. It is a copy in host memory, in which all weights are finite.

    Attributes:
        position: what a run needs in addition to the state to resume as if it had never stopped.
        metrics: metrics of this state, if it was evaluated.
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
        reason: why the run ended before its last step, if it did.
        sums: metric sums of the last state's evaluation, if it was evaluated.
        predict: yields each image with the prediction of the result; None unless the result was
            evaluated.
        summary: what summary.json holds.
        images: images, uint8 (H, W, 3), by name, which one callback draws for the callbacks after
            it.
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
        description: the content of dataset.json.
        title: names model, dataset, devices and batch norm, for figures.
        headline: a line with model, data, optimizer and number of steps, for the user.
    """

    setup: Any
    group: Any
    folder: pathlib.Path | None
    description: dict[str, Any]
    title: str
    headline: str

    def predict(self, images: Any, *, probabilities: bool = False) -> Any:
        """Returns the model's predictions for images, as `Result.predict` does. The model has the
        state after the last step and, at `on_end`, the state of the result.

        With `--strategy sharded` on several processes, callbacks of every process must call it.
        """
        ...

    def where(self) -> dict[str, Any]:
        """Returns the number of `devices` and `processes`, and of `workers` if there are any."""
        ...

    def paused(self) -> contextlib.AbstractContextManager[Any]:
        """Waits for all steps that were dispatched to the devices, and excludes the time of the
        block from the training time.
        """
        ...

    def stop(self, reason: str) -> None:
        """Ends the run, as done, after the current step, and saves the state after it.

        If several processes train, only callbacks of every process end the run at this step. A
        callback of the first process alone ends it a few steps later, at a step on which all
        processes agree.
        """
        ...
