"""Defines the strategy `exact`: the same bits on any number of devices and processes.

Each device computes slices of the batch, one after the other, with the programs of `slices.py`. No
device holds the gradients of more than one slice.
"""

import contextlib
import dataclasses
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import jax
import numpy as np

from jaxdp.config import TrainConfig
from jaxdp.data.pipeline import HostBatch
from jaxdp.errors import ConfigError, flag
from jaxdp.runtime import platform
from jaxdp.runtime.processes import compile_then_barrier
from jaxdp.sharding import slices, strategy
from jaxdp.sharding.partition import bytes_per_device
from jaxdp.sharding.strategy import Program, nearest_divisor
from jaxdp.step.state import Constants, TrainState
from jaxdp.text.console import warn


@strategy.register("exact")
class Exact(strategy.Strategy):
    """The strategy in which the devices that compute change no bit.

    A placed batch is a list with a batch for each round, in which each device computes a slice.

    Attributes:
        slices: number of slices of a global batch; 1 until `prepare`.
    """

    name = "exact"
    joins_batches = False
    divided_by_devices = False
    settings: ClassVar[Mapping[str, Any]] = dict.fromkeys(("slices", "workers", "ray_address"))
    refuses: ClassVar[Mapping[str, str]] = {
        "steps_per_execution": "has a step of several programs; use 1"
    }

    def _build(self) -> None:
        self.slices = 1
        self._gradients = slices.compute(self.mesh, self.step_config)
        self._evaluate = slices.compute(self.mesh, self.step_config, training=False)
        self._add = slices.add(self.mesh, last=False)
        self._add_last = slices.add(self.mesh, last=True)
        self._update = slices.update(self.mesh, self.step_config)
        self.train_step, self.eval_step = self._train_step, self._eval_step

    def prepare(self, shapes: Callable[[], TrainState], config: TrainConfig) -> None:
        with contextlib.suppress(ConfigError):  # which `check` raises
            self.slices = slices.number_of_slices(config, shapes())

    def check(self, config: TrainConfig, shapes: Callable[[], TrainState]) -> None:
        super().check(config, shapes)
        count = slices.number_of_slices(config, shapes())
        if count < self.num_devices:
            problem = f"a batch has {count} slices, so only {count} of {self.num_devices} devices"
            size = int(config.global_batch_size or 1)
            group = nearest_divisor(size, max(size // self.num_devices, 1))
            warn(f"{problem} compute; use e.g. {flag('batch_norm', f'group:{group}')}")
        if self.devices[0].platform == "gpu" and not config.deterministic:
            warn(f"a GPU may choose other kernels in each run; use {flag('deterministic')}")
        expected = int(os.environ.get("NPROC") or platform.THREADS[self.name])
        if self.on_cpu and (threads := platform.threads()) != expected:
            problem = f"JAX has {threads} threads instead of {expected}, and bits depend on them"
            warn(f"{problem}; set NPROC={threads} in all runs that are to be the same")

    @property
    def shards(self) -> int:
        return self.slices

    @property
    def _rounds(self) -> int:
        return -(-self.slices // self.num_devices)

    def _train_step(self, state: TrainState, batch: Any, constants: Constants) -> Any:
        needed = slices.read_by_gradients(state)
        total = self._in_order(self._gradients, needed, batch, constants)
        count = np.float32(self.slices)
        return compile_then_barrier(self._update, state, total, count, constants.learning_rates)

    def _eval_step(self, state: TrainState, batch: Any, constants: Constants) -> Any:
        needed = dataclasses.replace(state, opt_state=())
        return self._in_order(self._evaluate, needed, batch, constants)[1]

    def _in_order(self, program: Any, state: TrainState, batch: Any, constants: Constants) -> Any:
        """Returns the sums of the results of a program over the slices of a batch."""
        total = None
        for number, part in enumerate(batch):
            result = compile_then_barrier(program, state, part, constants)
            first = number * self.num_devices
            present = np.arange(first, first + self.num_devices) < self.slices
            add = self._add if number + 1 < len(batch) else self._add_last
            total = compile_then_barrier(add, total, result, present)
        return total

    def compile(
        self, state: TrainState, batch: Mapping[str, Any], constants: Constants
    ) -> Sequence[Program]:
        needed, count = slices.read_by_gradients(state), np.float32(self.slices)
        group = self.step_config.batch_norm.group_size or 1

        def sliced(leaf: Any) -> jax.ShapeDtypeStruct:
            length = -(-leaf.shape[0] // (self.slices * group)) * group
            return jax.ShapeDtypeStruct((length * self.num_devices, *leaf.shape[1:]), leaf.dtype)

        part = {name: sliced(leaf) for name, leaf in batch.items()}
        result = jax.eval_shape(self._gradients, needed, part, constants)
        present = np.ones(self.num_devices, bool)
        share = jax.eval_shape(self._add, None, result, present) if self._rounds > 1 else None
        total = jax.eval_shape(self._add_last, share, result, present)
        compute = self._gradients.lower(needed, part, constants).compile()
        add = self._add_last.lower(share, result, present).compile()
        update = self._update.lower(state, total, count, constants.learning_rates).compile()
        held = bytes_per_device(share) // self.num_devices
        return [
            Program(compute, needed, calls=self._rounds, held_bytes=held),
            Program(add, (), reads_examples=False),
            Program(update, state, reads_examples=False),
        ]

    def _positions(self, size: int) -> np.ndarray:
        """Returns the positions in a global batch of the examples of each process, round, device.

        A device without a slice in the last round computes the first slice, which is not added.
        """
        numbers = np.arange(self._rounds * self.num_devices)
        numbers = np.where(numbers < self.slices, numbers, 0)
        numbers = numbers.reshape(self._rounds, jax.process_count(), -1).swapaxes(0, 1)
        length = size // self.slices
        return (numbers[..., None] * length + np.arange(length)).ravel()

    def batch_permutation(
        self, global_batch_size: int, *, training: bool = True
    ) -> np.ndarray | None:
        return self._positions(global_batch_size) if jax.process_count() > 1 else None

    def shard_batch(self, batch: HostBatch) -> Any:
        if jax.process_count() == 1:
            places = self._positions(len(batch["weights"]))
            batch = {name: array[places] for name, array in batch.items()}
        parts = [
            {name: np.split(array, self._rounds)[number] for name, array in batch.items()}
            for number in range(self._rounds)
        ]
        return [super(Exact, self).shard_batch(part) for part in parts]
