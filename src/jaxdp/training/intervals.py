"""Says in which steps of a run it logs, evaluates and saves, and which steps the devices get as one
program.
"""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Intervals:
    """When what happens, in steps counted from 1.

    Attributes:
        steps_per_execution: how many steps the devices get at once, at most.
        cuts: steps after which a call ends.
    """

    total_steps: int
    steps_per_epoch: int
    log_every: int
    eval_every: int
    checkpoint_every: int
    steps_per_execution: int = 1
    cuts: tuple[int, ...] = ()

    def calls(self, start: int) -> list[range]:
        """Returns which steps, counted from 0, the devices get at once from step `start` on.

        Each call has as many steps as may be, and none goes across an evaluation, a checkpoint or
        one of `cuts`.
        """
        steps, calls = start, []
        while steps < self.total_steps:
            ends = [
                (steps // every + 1) * every for every in (self.eval_every, self.checkpoint_every)
            ]
            ends += [cut for cut in self.cuts if cut > steps]
            end = min(steps + self.steps_per_execution, self.total_steps, *ends)
            calls.append(range(steps, end))
            steps = end
        return calls

    def epoch(self, step: int) -> int:
        """Returns the epoch that a step belongs to, counted from 1."""
        return max(step - 1, 0) // self.steps_per_epoch + 1
