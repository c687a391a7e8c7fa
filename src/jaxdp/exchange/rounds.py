"""Training in rounds: all workers compute with the same parameters, and what they found is joined in the order of the slices."""

import abc
import dataclasses
import time
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from jaxdp.config import ExchangeConfig
from jaxdp.exchange import leaves
from jaxdp.exchange.plan import Counts, Plan
from jaxdp.exchange.pool import Finished, Joined, Lost, Pool
from jaxdp.exchange.worker import Job, needed
from jaxdp.sharding.single import Single
from jaxdp.step import step
from jaxdp.step.state import Constants, TrainState


class Rounds(Single):
    """A strategy whose batches are computed by workers, while this process holds the state and evaluates it.

    Args:
        recipe, devices: as for `Single`.
        pool: the workers.
        slices: of a round.
    """

    runs_ahead = False

    def __init__(self, recipe: step.Recipe, devices: Any, pool: Pool, slices: int) -> None:
        super().__init__(recipe, devices)
        self.pool, self.plan, self._slices, self._version = pool, Plan(), slices, 0

    def _build(self) -> None:
        super()._build()
        self.train_step = self._train_step

    @abc.abstractmethod
    def _train_step(self, state: TrainState, batch: range, constants: Constants) -> tuple[TrainState, dict[str, Any]]:
        """Returns the state after the steps `batch`, and their metric sums."""

    def gather(self, tree: Any) -> Any:
        return jax.tree.map(np.array, tree)

    @property
    def counts(self) -> Counts:
        """What became of the work that was given out."""
        return self.plan.counts

    def _round(self, steps: range, published: Any) -> Iterator[tuple[dict[str, Any], Any]]:
        """Has the workers compute all slices of some steps, and yields what was found in the order of the slices.

        Args:
            published: what workers compute with.
        """
        self._version += 1
        job = Job(steps, 0, self._slices, self._version, (self.pool.put(leaves.of(published)),))
        self.plan.begin(self._slices)
        found: dict[int, Finished] = {}
        for number in range(self._slices):
            while number not in found:
                for worker, ticket in self.plan.assign(time.monotonic()):
                    self.pool.submit(worker, ticket, job._replace(slice=ticket.slice))
                for news in self.pool.poll():
                    match news:
                        case Joined(worker):
                            self.plan.join(worker)
                        case Lost(worker):
                            self.plan.leave(worker)
                        case Finished(worker, ticket) if self.plan.finished(worker, ticket, time.monotonic()):
                            found[ticket.slice] = news
            done = found.pop(number)
            yield done.found, done.arrays[0]


class Exact(Rounds):
    """Adds the gradients of fixed slices in their order, so that who computed them changes no bit, and updates once a batch."""

    name = "exact"

    def _build(self) -> None:
        super()._build()
        recipe = self.recipe

        def update(state: TrainState, means: Any, sums: Any, constants: Constants) -> Any:
            grads, batch_stats, weight = means
            return step.update_state(state, grads, batch_stats, weight, sums, constants, recipe=recipe)

        self._update = jax.jit(update, donate_argnums=0)

    def _train_step(self, state: TrainState, batch: range, constants: Constants) -> tuple[TrainState, dict[str, Any]]:
        total: Any = None
        for found, grads in self._round(batch, needed(state)):
            new = (grads, found["batch_stats"], found["weight"]), found["sums"]
            total = new if total is None else jax.tree.map(np.add, total, new)
        means, sums = total
        grads, batch_stats, weight = jax.tree.map(lambda leaf: leaf / np.float32(self._slices), means)
        grads = jax.tree.unflatten(jax.tree.structure(state.params), grads)
        return self._update(state, (grads, batch_stats, weight), sums, constants)


class Local(Rounds):
    """Lets replicas train alone for some steps, each on its slice of the batches, and averages their states.

    Averaged are parameters, batch statistics, moving averages and the optimizer's state, so that any worker can go on with any
    replica, and a checkpoint is that of one model.

    Args:
        config: how many steps, and what is done with the change of the average: Nesterov's momentum, as in DiLoCo, or nothing.

    Source: Stich 2019, Local SGD Converges Fast and Communicates Little; Douillard et al. 2023, DiLoCo, algorithm 1.
    """

    name = "local"

    def __init__(self, recipe: step.Recipe, devices: Any, pool: Pool, slices: int, config: ExchangeConfig) -> None:
        super().__init__(recipe, devices, pool, slices)
        rate, momentum = config.outer_learning_rate or 1.0, config.outer_momentum or 0.0
        self._plain, self._stacks = rate == 1 and momentum == 0, config.steps_alone > 1
        self._outer = optax.sgd(rate, momentum or None, nesterov=momentum > 0)
        self._outer_state: Any = None

    def _train_step(self, state: TrainState, batch: range, constants: Constants) -> tuple[TrainState, dict[str, Any]]:
        total: Any = None
        for found, replica in self._round(batch, (state, constants.learning_rates)):
            new = [leaf.astype(np.float64) for leaf in replica], found["sums"]
            total = new if total is None else jax.tree.map(np.add, total, new)
        summed, sums = total
        now, structure = jax.tree.leaves(state), jax.tree.structure(state)
        means = [jnp.asarray((leaf / self._slices).astype(old.dtype)) for leaf, old in zip(summed, now, strict=True)]
        averaged = jax.tree.unflatten(structure, means)
        if not self._plain:
            averaged = dataclasses.replace(averaged, params=self._outer_step(state.params, averaged.params))
        # What is no sum over examples is the same for each replica, or a mean of them.
        each = [
            {name: value / self._slices if name in ("gradient_norm", "updates") else value for name, value in of.items()}
            for of in sums
        ]
        found = {name: np.stack([of[name] for of in each]) for name in each[0]} if self._stacks else each[0]
        return self.restore(averaged), found

    def _outer_step(self, before: Any, averaged: Any) -> Any:
        if self._outer_state is None:
            self._outer_state = self._outer.init(before)
        change = jax.tree.map(jnp.subtract, before, averaged)
        updates, self._outer_state = self._outer.update(change, self._outer_state, before)
        return optax.apply_updates(before, updates)
