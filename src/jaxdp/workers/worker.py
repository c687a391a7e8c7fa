"""Defines a worker, which holds the dataset and computes gradients of slices of batches."""

import dataclasses
import functools
import os
import time
from typing import Any, NamedTuple

import jax
import numpy as np

from jaxdp.build.inputs import Inputs
from jaxdp.build.setup import create_setup
from jaxdp.config import TrainConfig
from jaxdp.data import pipeline
from jaxdp.sharding import slices
from jaxdp.step import step

# For tests and measurements: the minimum seconds that each worker takes for a slice, e.g.
# 0.1,0.1,0.4.
SLOWED = "JAXDP_WORKER_SECONDS"


@dataclasses.dataclass(frozen=True)
class WorkerSpec:
    """Settings that all workers of a run share.

    Attributes:
        config: of the run, for one device.
        inputs: inputs of the run.
        slices: number of equal slices of a batch.
    """

    config: TrainConfig
    inputs: Inputs
    slices: int


class Job(NamedTuple):
    """One slice of a batch.

    Attributes:
        batch: number of its step, counted from 0.
        slice: which slice of the batch.
        version: version of the parameters. A worker that already has this version does not read
            them again.
        leaves: reference to the list of the leaves of `slices.read_by_gradients`.
    """

    batch: int
    slice: int
    version: int
    leaves: Any


class SliceResult(NamedTuple):
    """The result of a slice.

    Attributes:
        means: gradients, new running statistics of batch norm, and the mean weight of the examples.
        sums: metric sums.
    """

    means: step.Means
    sums: dict[str, Any]


class Worker:
    """Computes slices.

    Args:
        place: index of the worker, from 0. A worker that replaces a lost worker gets its index.
    """

    def __init__(self, spec: WorkerSpec, place: int) -> None:
        seconds = [float(word) for word in os.environ.get(SLOWED, "").split(",") if word]
        self._least_seconds = seconds[place % len(seconds)] if seconds else 0.0
        self._spec = spec
        setup = self._setup = create_setup(spec.config, spec.inputs)
        self._gradients = slices.compute(setup.strategy.mesh, setup.step_config)
        self._state, self._version = slices.read_by_gradients(setup.create_state()), -1
        self._compute(0, 0)  # compiles

    def run(self, job: Job) -> SliceResult:
        """Returns the result of a slice."""
        begun = time.perf_counter()
        if job.version != self._version:
            import ray

            self._state = jax.tree.unflatten(jax.tree.structure(self._state), ray.get(job.leaves))
            self._version = job.version
        result = self._compute(job.batch, job.slice)
        time.sleep(max(self._least_seconds - (time.perf_counter() - begun), 0.0))
        return result

    def _compute(self, number: int, part: int) -> SliceResult:
        # A batch has its own random numbers, independent of the number of updates before it.
        state = dataclasses.replace(self._state, step=np.int32(number))
        batch = self._batch(number, part)
        found = jax.device_get(self._gradients(state, batch, self._setup.constants))
        return SliceResult(*jax.tree.map(lambda leaf: leaf[0], found))

    def _batch(self, number: int, part: int) -> Any:
        setup, order = self._setup, self._setup.batches.order
        indices, read = order[number], pipeline.index_batch
        if setup.config.data_placement == "host":
            read = functools.partial(pipeline.load, setup.examples.source("train"))
        batch = pipeline.share_of(
            indices,
            read,
            part,
            self._spec.slices,
            paired=bool(setup.step_config.preprocess.mixings),
        )
        return setup.strategy.shard_batch(batch)
