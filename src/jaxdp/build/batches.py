"""The training batches of a run."""

import dataclasses
from collections.abc import Iterator
from typing import Any

from jaxdp.build.examples import Examples
from jaxdp.build.intervals import Intervals
from jaxdp.data import pipeline


@dataclasses.dataclass(frozen=True, kw_only=True)
class Batches:
    """Which examples are in which training step.

    Attributes:
        global_batch_size: examples of a step over all devices.
        paired: whether each example comes with a partner, to mix them.
    """

    examples: Examples
    intervals: Intervals
    global_batch_size: int
    seed: int
    paired: bool

    @property
    def order(self) -> pipeline.TrainingOrder:
        """The indices of the examples in each step."""
        return pipeline.TrainingOrder(
            self.examples.dataset.train_examples,
            self.global_batch_size,
            self.seed,
            self.intervals.total_steps,
        )

    def placed(self, start: int) -> Iterator[Any]:
        """Returns the placed batches from step `start` on, with `--steps-per-execution` the batches
        of each execution together; or the numbers of the steps, if the strategy takes numbers.
        """
        strategy = self.examples.strategy
        strategy.check_resources()
        if not strategy.takes_batches:
            return iter(range(start, self.intervals.total_steps))
        order: Any = self.order
        if self.intervals.steps_per_execution > 1:
            order, start = pipeline.CallOrder(order, self.intervals.executions(start)), 0
        layout = strategy.batch_permutation(self.global_batch_size)
        return self.examples.batches("train", order, start=start, paired=self.paired, layout=layout)
