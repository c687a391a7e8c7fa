"""Decides whether a run ends before its last step: by a signal, or by a callback."""

import contextlib

from jaxdp.runtime.group import Group
from jaxdp.runtime.signals import StopSignals

# From this number of processes on, a process does not ask after every step, because process 0
# answers about a thousand requests per second.
_ASKING = 64


class Interrupted(Exception):
    """A signal arrived during an evaluation."""


class Stopping:
    """Collects requests to end a run, and decides alike in all processes when the run ends.

    A signal stops a run, which then has the status `stopped`. A callback ends a run for a reason,
    and the run then has the status `done`.

    Args:
        signals: the signals of this process.
        group: the processes that train.
    """

    def __init__(self, signals: StopSignals, group: Group) -> None:
        self._signals, self._group = signals, group
        # `_shared` is a reason that all processes give at one step, `_own` one of this process.
        self._shared = self._own = ""
        # `_named` is stored with the step on which all agree; `_agreed` is the same once the step
        # is reached.
        self._named = self._agreed = ""
        self._stop_step: int | None = None
        self._asked = 0  # the last step after which a request to stop was checked

    def begin_training(self) -> None:
        """Raises StoppedAtStart if a signal has arrived. A later signal stops the run after a
        step.
        """
        self._signals.begin_training()

    def request(self, reason: str, *, everywhere: bool) -> None:
        """Takes the reason of a callback to end the run. The first shared and the first own reason
        count, and a shared one wins.

        Args:
            everywhere: whether the callback gives the reason in every process, at the same step.
        """
        if everywhere or self._group.count == 1:
            self._shared = self._shared or reason
        else:
            self._own = self._own or reason

    @property
    def reason(self) -> str:
        """The reason of a callback to end the run at this step, the same in all processes, or an
        empty text.
        """
        return self._agreed or self._shared

    def after(self, step: int, *, margin: int) -> bool:
        """Returns whether a signal or a callback ends the run after this step.

        Every process must call this method once after each execution of one or more steps
        (`Intervals.executions`), before it evaluates.

        Args:
            margin: no process is more than `margin` - 1 steps ahead of the slowest process.
        """
        wanted = self._signals.requested()
        if self._group.count > 1:
            wanted |= bool(self._own) and not self._shared
            wanted = self._agree(step, wanted=wanted, margin=margin)
            if wanted:
                self._agreed = self._named
        return wanted or bool(self.reason)

    def _agree(self, step: int, *, wanted: bool, margin: int) -> bool:
        """Returns whether to stop after this step. All processes return the same value at the same
        step.

        A process that must stop names a step that no other process can have passed, and its reason.
        No process can be further ahead, because it waits for results that require all processes.

        The process that asks first decides the step and the reason for all. With a reason, a
        process evaluates at this step, which requires all processes; after a signal, it only saves.
        So a process with another reason than the others could wait for them for ever.
        """
        # All processes take the same steps, so they ask after the same steps, including the named
        # step.
        group = self._group
        every = 1 + group.count // _ASKING
        due = every == 1 or step // every > self._asked // every
        self._asked = step
        if self._stop_step is None and (due or wanted):
            named = group.get("stop")
            if named is None and wanted:
                last = -(-(step + margin) // every) * every
                with contextlib.suppress(Exception):  # another process was first
                    group.put("stop", f"{last} {self._own}", overwrite=False)
                named = group.get("stop")
            if named is not None:
                text, _, self._named = named.partition(" ")
                self._stop_step = int(text)
        return self._stop_step is not None and step >= self._stop_step

    def leave(self) -> None:
        """Raises Interrupted if a signal has arrived and this process may stop at once, without
        asking the others.
        """
        if self._group.count == 1 and self._signals.requested() and not self._shared:
            raise Interrupted
