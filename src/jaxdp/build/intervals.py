"""The steps at which a run logs, evaluates and saves, and those that run as one program."""

import dataclasses

from jaxdp.config import TrainConfig


def lengths(config: TrainConfig, examples: int) -> tuple[int, int]:
    """Returns the number of steps of an epoch, and of the run.

    Args:
        config: with a batch size, and a number of epochs or steps.
        examples: of an epoch.
    """
    steps_per_epoch = examples // int(config.global_batch_size or 1)
    return steps_per_epoch, config.steps or (config.epochs or 0) * steps_per_epoch


@dataclasses.dataclass(frozen=True)
class Intervals:
    """The schedule of a run, in steps counted from 1.

    Attributes:
        steps_per_execution: the largest number of steps in one execution of a program.
    """

    total_steps: int
    steps_per_epoch: int
    log_every: int
    eval_every: int
    checkpoint_every: int
    steps_per_execution: int = 1

    @classmethod
    def of(cls, config: TrainConfig, examples: int) -> "Intervals":
        """Returns the intervals of a run whose lengths are filled in.

        Args:
            examples: of an epoch.
        """
        steps_per_epoch, total_steps = lengths(config, examples)
        return cls(
            total_steps=total_steps,
            steps_per_epoch=steps_per_epoch,
            log_every=config.log_every,
            eval_every=config.eval_every or steps_per_epoch,
            checkpoint_every=config.checkpoint_every or steps_per_epoch,
            steps_per_execution=config.steps_per_execution,
        )

    def executions(self, start: int) -> list[range]:
        """Returns the steps of each execution from step `start` on, counted from 0.

        Each has as many steps as possible, and none crosses an evaluation or a checkpoint.
        """
        executions = list[range]()
        while start < self.total_steps:
            ends = [start + self.steps_per_execution, self.total_steps]
            ends += [
                (start // every + 1) * every for every in (self.eval_every, self.checkpoint_every)
            ]
            executions.append(range(start, min(ends)))
            start = min(ends)
        return executions

    def logs_at(self, step: int) -> bool:
        """Whether a row of training metrics ends with this step."""
        return step % self.log_every == 0 or step == self.total_steps

    def evaluates_at(self, step: int) -> bool:
        """Whether the state after this step is evaluated."""
        return step % self.eval_every == 0 or step == self.total_steps

    def saves_at(self, step: int) -> bool:
        """Whether the state after this step is saved."""
        return step % self.checkpoint_every == 0 or step == self.total_steps

    def epoch(self, step: int) -> int:
        """Returns the epoch that a step belongs to, counted from 1."""
        return max(step - 1, 0) // self.steps_per_epoch + 1
