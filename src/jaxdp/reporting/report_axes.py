"""What the report's charts may be drawn over beside steps: epochs and time."""

import dataclasses
from collections.abc import Sequence

import numpy as np

from jaxdp.reporting.report_figures import Axis, Clock
from jaxdp.reporting.report_runs import Run, number

# From how many seconds on.
_UNITS = ((3 * 3600, 3600.0, "hours"), (600, 60.0, "minutes"), (0, 1.0, "seconds"))


@dataclasses.dataclass(frozen=True)
class Over(Axis):
    """An axis, and how the steps of each run are told on it.

    Attributes:
        clocks: by name of the run; those are missing of which it is not known.
    """

    clocks: dict[str, Clock]


def of_runs(runs: Sequence[Run]) -> list[Over]:
    """Returns the axes beside that of the steps over which at least one of the runs can be
    drawn.
    """
    found, last = [], {run.name: run.steps for run in runs}
    if epochs := {run.name: clock for run in runs if (clock := _epochs(run))}:
        found.append(Over("epoch", "epochs", "epoch", _last(epochs, last), epochs))
    if seconds := {run.name: clock for run in runs if (clock := _seconds(run))}:
        size, unit = unit_of(_last(seconds, last))
        clocks = {name: _in_units(clock, size) for name, clock in seconds.items()}
        found.append(Over("time", unit, f"training time, {unit}", _last(clocks, last), clocks))
    return found


def unit_of(seconds: float) -> tuple[float, str]:
    """Returns the seconds of the unit in which a time of this length is told, and its name."""
    return next((size, unit) for least, size, unit in _UNITS if seconds >= least)


def _last(clocks: dict[str, Clock], steps: dict[str, int]) -> float:
    return max(clock(steps[name]) for name, clock in clocks.items()) or 1.0


def _epochs(run: Run) -> Clock | None:
    examples, batch = run.description.get("examples"), number(run.about("global_batch_size"))
    train = number(examples.get("train")) if isinstance(examples, dict) else None
    if train and batch and train >= batch:
        steps_per_epoch = train // batch  # the rest of an epoch is dropped
    else:
        steps, epochs = number(run.get("steps")), number(run.get("epochs"))
        if not steps or not epochs:
            return None
        steps_per_epoch = steps / epochs
    return lambda step: step / steps_per_epoch


def _seconds(run: Run) -> Clock | None:
    """Returns the time that the steps up to one took, as measured.

    Evaluation, saving and compilation are not in it.
    """
    at, spent = [0.0], [0.0]
    for step, each in run.points("train", "step_seconds"):
        if step > at[-1] and each > 0:
            spent.append(spent[-1] + (step - at[-1]) * each)
            at.append(step)
    if len(at) == 1:
        return None
    rate = (spent[-1] - spent[-2]) / (at[-1] - at[-2])
    return lambda step: float(np.interp(step, at, spent)) + max(step - at[-1], 0) * rate


def _in_units(clock: Clock, size: float) -> Clock:
    return lambda step: clock(step) / size
