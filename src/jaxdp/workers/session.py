"""One run on workers: its workers and servers, and the way of its steps."""

import abc
import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from jaxdp.step.state import Constants, TrainState
from jaxdp.workers import shares
from jaxdp.workers.pool import Finished, Joined, Lost, Pool
from jaxdp.workers.scheduler import Work
from jaxdp.workers.server_group import ServerGroup


@dataclasses.dataclass
class WorkerSession(abc.ABC):
    """The workers and servers of a run, with the steps that they take together.

    Attributes:
        work: counts what workers did since the last row.
        slices: of a batch.
        total_steps: of the run.
        staleness: the largest that is allowed; None for any.
        state: that the loop has, once servers have taken it over.
        version: number of the parameters that workers get.
    """

    pool: Pool
    servers: ServerGroup
    work: Work
    slices: int
    total_steps: int
    staleness: int | None
    state: TrainState | None = None
    version: int = 0

    @abc.abstractmethod
    def __post_init__(self) -> None:
        """Begins without workers that are ready."""

    @abc.abstractmethod
    def step(
        self, state: TrainState, batch: int, constants: Constants
    ) -> tuple[TrainState, dict[str, Any]]:
        """Returns the state after the step with a batch, counted from 0, and its metric sums."""

    def install(self, state: TrainState, constants: Constants) -> None:
        """Gives the servers a state."""
        self.state = state
        self.pool.read_bytes = sum(leaf.nbytes for leaf in jax.tree.leaves(shares.needed(state)))
        self.servers.install(state, np.asarray(constants.learning_rates))

    def fetch(self, state: TrainState, place: Callable[[TrainState], TrainState]) -> TrainState:
        """Returns the state after the last step, placed on the device if servers had it."""
        if state is self.state and not self.servers.here:
            self.state = state = place(self.servers.collect(state))
        return state

    def listen(self) -> None:
        """Waits a moment for news of the workers, and notes them."""
        for news in self.pool.poll():
            self._note(news)

    @abc.abstractmethod
    def _note(self, news: Joined | Lost | Finished) -> None:
        """Notes that a worker joined, was lost, or finished a slice."""
