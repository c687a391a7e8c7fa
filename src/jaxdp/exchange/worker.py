"""A worker: a process of its own that holds the dataset and computes slices of batches with the
parameters that it is given.

This module imports no JAX, so that a worker's process can say first how many threads XLA may have.
"""

import dataclasses
import functools
import os
import time
from typing import Any, NamedTuple

from jaxdp.config import TrainConfig

# For tests and measurements: the least seconds that a slice takes each worker, e.g. 0.1,0.1,0.4.
SLOWED = "JAXDP_WORKER_SECONDS"
_ONE_THREAD = "xla_cpu_multi_thread_eigen"


class Job(NamedTuple):
    """One slice of a batch, or of each of several consecutive ones.

    Attributes:
        steps: whose batches these are, counted from 0.
        slice, slices: which of how many equal slices of each batch.
        version: number of the parameters in `parts`: a worker that has them does not read them
            again.
        parts: references to the leaves of what a worker computes with; in each part those that
            others hold are None.
    """

    steps: range
    slice: int
    slices: int
    version: int
    parts: tuple[Any, ...]


@dataclasses.dataclass(frozen=True)
class Task:
    """What a worker does all the time.

    Attributes:
        config: of the run, for one device.
        objects: `components.Objects` that the run was given.
        folder: working directory of the run.
        trains: whether it trains a whole state by itself, rather than computing gradients.
        slices: of how many the first one is computed beforehand, so that it is compiled.
        owners: to which server each array goes of what is computed: gradients of the parameters,
            or, where it trains, those of `leaves.of` of the state and nothing; empty where the
            driver takes them all.
        alone: whether others update the state meanwhile. Then what is returned of batch statistics
            is by how much they changed.
    """

    config: TrainConfig
    objects: Any
    folder: str
    trains: bool
    slices: int
    owners: tuple[int, ...] = ()
    alone: bool = False


@dataclasses.dataclass(frozen=True)
class Refusal:
    """A ConfigError that a worker has raised: field, value and remedy."""

    field: str
    value: str
    remedy: str


class Worker:
    """The process of one worker; Ray calls its methods one after the other.

    Args:
        place: which of the workers it is, counted from 0; one that replaces a lost one has its
            place.
    """

    def __init__(self, task: Task, place: int) -> None:
        self._task = task
        padding = [float(word) for word in os.environ.get(SLOWED, "").split(",") if word]
        self._least_seconds = padding[place % len(padding)] if padding else 0.0
        self._version: int | None = None
        self._held: Any = None

    def prepare(self) -> dict[str, Any] | Refusal:
        """Opens the dataset and compiles, and returns where this is."""
        from jaxdp.registry import ConfigError

        if os.path.isdir(self._task.folder):
            os.chdir(self._task.folder)
        self._limit_threads()
        try:
            self._build()
        except ConfigError as error:
            return Refusal(error.field, str(error.value), error.remedy)
        return {"pid": os.getpid(), "host": os.uname().nodename}

    def alive(self) -> None:
        """Answers."""

    def _limit_threads(self) -> None:
        """One thread computes: as many workers as cores do not disturb each other, and no result
        depends on the number of cores.
        """
        from jaxdp.runtime import platform

        os.environ.update({"JAX_PLATFORMS": "cpu", "NPROC": "1", "PJRT_NPROC": "1"})
        flags = os.environ.get("XLA_FLAGS", "")
        if _ONE_THREAD not in flags:
            os.environ["XLA_FLAGS"] = f"{flags} --{_ONE_THREAD}=false".strip()
        platform.configure(None, precision=self._task.config.precision)

    def _build(self) -> None:
        import jax

        from jaxdp.exchange import leaves
        from jaxdp.sharding.replicas import Replicas
        from jaxdp.step import step
        from jaxdp.training.setup import create_setup

        setup = self._setup = create_setup(self._task.config, self._task.objects)
        self._order, self._constants = setup.train_order, setup.constants
        recipe, replicas = setup.recipe, Replicas()

        def gradients(state: Any, batch: Any, constants: Any) -> Any:
            batch = step.gather_examples(batch, constants.examples)
            return step.accumulate_gradients(
                state, batch, constants, recipe=recipe, replicas=replicas
            )

        self._gradients = jax.jit(gradients)
        state = setup.create_state()
        self._held = (state, self._constants.learning_rates) if self._task.trains else needed(state)
        self._structure = leaves.structure(self._held)
        self._compute(Job(range(1), 0, self._task.slices, -1, ()))  # compiles

    def run(self, job: Job) -> Any:
        """Computes a slice.

        Returns what there is to know about it, and then the arrays for each server or the driver.
        """
        from jaxdp.data.dataset import BadExample

        begun = time.perf_counter()
        try:
            self._read(job)
            found = self._compute(job)
        except BadExample as error:
            return Refusal(error.field, str(error.value), error.remedy), *[None] * (
                max(self._task.owners, default=0) + 1
            )
        time.sleep(max(self._least_seconds - (time.perf_counter() - begun), 0.0))
        return found

    def _read(self, job: Job) -> None:
        if job.version == self._version:
            return
        import ray

        from jaxdp.exchange import leaves

        self._held, self._version = (
            leaves.joined(self._structure, ray.get(list(job.parts))),
            job.version,
        )

    def _compute(self, job: Job) -> Any:
        if self._task.trains:
            return self._train(job)
        import jax
        import numpy as np

        # Whatever the number of updates before it, a batch has its own random numbers.
        state = dataclasses.replace(self._held, step=np.int32(job.steps.start))
        batch = self._batch(job.steps.start, job)
        (grads, batch_stats, weight), sums = jax.device_get(
            self._gradients(state, batch, self._constants)
        )
        if self._task.alone:
            batch_stats = jax.tree.map(np.subtract, batch_stats, self._held.batch_stats)
        squares = float(sum(np.vdot(leaf, leaf) for leaf in jax.tree.leaves(grads)))
        known = {
            "batch_stats": batch_stats,
            "weight": weight,
            "sums": sums,
            "squares": squares,
            "bytes": _size(grads),
        }
        return known, *self._divided(jax.tree.leaves(grads))

    def _divided(self, found: list[Any]) -> list[Any]:
        owners = self._task.owners
        if not owners:
            return [found]
        servers = range(max(owners) + 1)
        return [
            [leaf if owner == server else None for leaf, owner in zip(found, owners, strict=True)]
            for server in servers
        ]

    def _train(self, job: Job) -> Any:
        import jax

        from jaxdp.exchange import leaves

        (state, rates), sums = self._held, []
        state, constants = (
            self._setup.strategy.restore(state),
            dataclasses.replace(self._constants, learning_rates=rates),
        )
        for step in job.steps:
            state, of_step = self._setup.strategy.train_step(
                state, self._batch(step, job), constants
            )
            sums.append(of_step)
        found = leaves.of((state, None))  # without the learning rates
        return {"sums": jax.device_get(sums), "bytes": _size(found)}, *self._divided(found)

    def _batch(self, step: int, job: Job) -> Any:
        from jaxdp.data import pipeline

        setup, numbers = self._setup, self._order[step]
        streams = setup.config.data_placement == "host"
        read = (
            functools.partial(pipeline.load, setup.source("train"))
            if streams
            else pipeline.index_batch
        )
        draws = getattr(self._order, "draws", None)
        batch = pipeline.share_of(
            numbers,
            read,
            job.slice,
            job.slices,
            draws={"draws": draws(numbers)} if draws is not None else {},
            paired=bool(setup.recipe.preprocess.mixings),
        )
        return setup.strategy.shard_batch(batch)


def needed(state: Any) -> Any:
    """Returns the part of a state that gradients depend on."""
    return dataclasses.replace(state, opt_state=(), ema=None)


def _size(arrays: Any) -> int:
    import jax

    return sum(leaf.nbytes for leaf in jax.tree.leaves(arrays))
