"""One run on workers: its workers, the way of its steps, and the updates of its state."""

import abc
import dataclasses
from typing import Any

import jax
import numpy as np

from jaxdp.sharding.slices import read_by_gradients
from jaxdp.step.state import Constants, TrainState
from jaxdp.workers.pool import Finished, Joined, Lost, Pool
from jaxdp.workers.scheduler import Work


@dataclasses.dataclass
class WorkerSession(abc.ABC):
    """The workers of a run, with the steps that they take together. This process holds the state
    and updates it, as a parameter server does.

    Attributes:
        work: counts what workers did since the last row.
        update: the program of an update, `slices.update`.
        slices: of a batch.
        total_steps: of the run.
        staleness: the largest that is allowed; None for any.
        version: number of the parameters that workers get.
    """

    pool: Pool
    work: Work
    update: Any
    slices: int
    total_steps: int
    staleness: int | None
    version: int = 0

    @abc.abstractmethod
    def step(
        self, state: TrainState, batch: int, constants: Constants
    ) -> tuple[TrainState, dict[str, Any]]:
        """Returns the state after the step with a batch, counted from 0, and its metric sums."""

    def publish(self, state: TrainState) -> Any:
        """Returns a reference with which workers read the arrays that gradients depend on."""
        leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(read_by_gradients(state))]
        self.version += 1
        return self.pool.put(leaves)

    def listen(self) -> None:
        """Waits a moment for news of the workers, and notes them."""
        for news in self.pool.poll():
            self._note(news)

    @abc.abstractmethod
    def _note(self, news: Joined | Lost | Finished) -> None:
        """Notes that a worker joined, was lost, or finished a slice."""
