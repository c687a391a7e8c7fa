"""Decides whether a run ends before its last step: by a signal, or by a callback."""

import contextlib

from jaxdp.runtime.group import Group
from jaxdp.runtime.signals import StopSignals

# So many processes ask after every step: process 0 answers some thousand questions a second.
_ASKING = 64


class Stopping:
    """Takes requests to end a run, and answers alike in all processes.

    A signal stops a run. A callback ends it, as done, for a reason.

    Args:
        signals: that this process receives.
        group: the processes that train.
    """

    def __init__(self, signals: StopSignals, group: Group) -> None:
        self._signals, self._group = signals, group
        self._requested = self._agreed = ""  # reasons of callbacks: here, and in all processes
        # Whether every process has the reason at the same step, so that none need ask the others.
        self._is_everywhere = group.count == 1
        self._stop_step: int | None = None
        self._asked = 0  # the last step after which it was time to ask the others

    def begin_training(self) -> None:
        """Raises StoppedAtStart if a signal has come; a later one stops the run after a step."""
        self._signals.begin_training()

    def request(self, reason: str, *, everywhere: bool) -> None:
        """Takes a callback's reason to end the run, of which the first counts.

        Args:
            everywhere: whether the callback gives it in every process, at the same step.
        """
        self._requested = self._requested or reason
        self._is_everywhere |= everywhere
        if not self._is_everywhere:
            self._group.put("early", self._requested)

    @property
    def reason(self) -> str:
        """Why a callback ends the run at this step, as all processes know it; or nothing."""
        return self._requested if self._is_everywhere else self._agreed

    def after(self, step: int, *, margin: int) -> bool:
        """Whether the run stops after this step, by a signal or a callback.

        Every process calls it once after each execution, and before it evaluates.

        Args:
            margin: no process is more than `margin` - 1 steps ahead of the slowest.
        """
        wanted = self._signals.requested()
        if self._group.count > 1:
            wanted |= bool(self._requested) and not self._is_everywhere
            wanted = self._agree(step, wanted=wanted, margin=margin)
            if wanted and not self._is_everywhere:
                self._agreed = self._group.get("early") or ""
        return wanted or bool(self.reason)

    def _agree(self, step: int, *, wanted: bool, margin: int) -> bool:
        """Whether to stop after this step; all processes give the same answer at the same step.

        The one that is asked to stop names a step that no other can have passed: none can be
        further ahead, because it waits for results that take all processes.
        """
        # All processes see the same steps, and so ask at the same ones. The named step is among
        # them.
        group = self._group
        every = 1 + group.count // _ASKING
        due = every == 1 or step // every > self._asked // every
        self._asked = step
        if self._stop_step is None and (due or wanted):
            named = group.get("stop")
            if named is None and wanted:
                with contextlib.suppress(Exception):  # another process was first
                    group.put("stop", str(-(-(step + margin) // every) * every), overwrite=False)
                named = group.get("stop")
            self._stop_step = int(named) if named is not None else None
        return self._stop_step is not None and step >= self._stop_step

    def may_leave(self) -> bool:
        """Whether a signal has come, and this process may stop at once, without asking others."""
        return self._group.count == 1 and self._signals.requested() and not self._requested
