"""One run on workers: its workers, the way of its steps, and the updates of its state."""

import abc
import dataclasses
from typing import Any

import jax
import numpy as np

from jaxdp.step import step
from jaxdp.step.state import Constants, TrainState
from jaxdp.workers.pool import Finished, Joined, Lost, Pool
from jaxdp.workers.scheduler import Work
from jaxdp.workers.worker import read_by_workers


@dataclasses.dataclass
class WorkerSession(abc.ABC):
    """The workers of a run, with the steps that they take together. This process holds the state
    and updates it, as a parameter server does.

    Attributes:
        work: counts what workers did since the last row.
        step_config: the settings of a step.
        slices: of a batch.
        total_steps: of the run.
        staleness: the largest that is allowed; None for any.
        version: number of the parameters that workers get.
    """

    pool: Pool
    work: Work
    step_config: step.StepConfig
    slices: int
    total_steps: int
    staleness: int | None
    version: int = 0

    def __post_init__(self) -> None:
        """Makes `update`, the program of an update. Workers are not ready yet."""

        def update(
            state: TrainState, means: step.Means, sums: dict[str, Any], learning_rates: Any
        ) -> tuple[TrainState, dict[str, Any]]:
            constants = Constants({}, learning_rates, ())
            return step.update_state(state, means, sums, constants, step_config=self.step_config)

        self.update = jax.jit(update, donate_argnums=0)

    @abc.abstractmethod
    def step(
        self, state: TrainState, batch: int, constants: Constants
    ) -> tuple[TrainState, dict[str, Any]]:
        """Returns the state after the step with a batch, counted from 0, and its metric sums."""

    def publish(self, state: TrainState) -> Any:
        """Returns a reference with which workers read the arrays that gradients depend on."""
        leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(read_by_workers(state))]
        self.version += 1
        return self.pool.put(leaves)

    def listen(self) -> None:
        """Waits a moment for news of the workers, and notes them."""
        for news in self.pool.poll():
            self._note(news)

    @abc.abstractmethod
    def _note(self, news: Joined | Lost | Finished) -> None:
        """Notes that a worker joined, was lost, or finished a slice."""
