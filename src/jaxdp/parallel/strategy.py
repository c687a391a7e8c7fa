"""How do devices share a training step? The interface that every strategy fills."""

import abc
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import jax
import numpy as np
from jax.sharding import Sharding

from jaxdp.config import batch_norm_group
from jaxdp.data.pipeline import HostBatch
from jaxdp.parallel import mesh
from jaxdp.parallel.mesh import Device
from jaxdp.registry import ConfigError, Registry
from jaxdp.training.state import TrainState
from jaxdp.training.step import Recipe

TrainStep = Callable[[TrainState, Any, Any], tuple[TrainState, dict[str, jax.Array]]]
EvalStep = Callable[[TrainState, Any, Any], dict[str, jax.Array]]


class Strategy(abc.ABC):
    """Places the state, shards batches, wraps the step in its transform, and gathers the state to host.

    Args:
        recipe: what a step does.
        devices: this process's devices.

    Attributes:
        train_step: (state, placed batch, placed data) -> (state, metric sums); the old state's memory is reused, so it is gone
            afterwards.
        eval_step: (state, placed batch, placed data) -> metric sums.
    """

    name: ClassVar[str]
    train_step: TrainStep
    eval_step: EvalStep

    def __init__(self, recipe: Recipe, devices: Sequence[Device]) -> None:
        self.recipe, self.devices = recipe, list(devices)
        self.mesh = mesh.data_mesh(mesh.all_devices(self.devices))
        self.num_devices = self.mesh.size
        self._build()

    @abc.abstractmethod
    def _build(self) -> None:
        """Sets `train_step` and `eval_step`."""

    @property
    def _state_sharding(self) -> Sharding:
        return mesh.replicated(self.mesh)

    def examples_per_program(self, global_batch_size: int) -> int:
        """How many examples one program of this strategy sees, which bounds the groups of batch norm."""
        return global_batch_size // self.num_devices

    def check_batch(self, global_batch_size: int) -> None:
        """Raises ConfigError for a global batch that devices or batch-norm groups do not divide."""
        if global_batch_size % self.num_devices:
            lower = global_batch_size // self.num_devices * self.num_devices
            near = " or ".join(str(size) for size in (lower, lower + self.num_devices) if size)
            raise ConfigError("global_batch_size", global_batch_size, f"{self.num_devices} devices do not divide it; use {near}")
        group, share = batch_norm_group(self.recipe.batch_norm), self.examples_per_program(global_batch_size)
        if group is not None and share % group:
            divisors = [size for size in range(1, share + 1) if share % size == 0]
            near = min(divisors, key=lambda size: abs(size - group))
            remedy = f"does not divide the {share} examples that {self.name} computes at a time; use e.g. group:{near}"
            raise ConfigError("batch_norm", self.recipe.batch_norm, remedy)

    def init(self, create_state: Callable[[], TrainState]) -> TrainState:
        """Creates a state and places it."""
        return self.restore(create_state())

    def restore(self, state: TrainState) -> TrainState:
        """Places a state from host or elsewhere on the devices, as a copy: a train step consumes what it is given."""
        sharding = self._state_sharding
        return jax.tree.map(lambda leaf: jax.device_put(np.asarray(leaf), sharding, may_alias=False), state)

    def replicate(self, arrays: HostBatch) -> Mapping[str, jax.Array]:
        """Places a dataset whole on every device: batches are then gathered from it inside the step."""
        return {name: jax.device_put(array, self._state_sharding) for name, array in arrays.items()}

    def gather(self, tree: Any) -> Any:
        """Returns NumPy copies of a replicated tree, reading one replica; waits until the devices have computed it."""
        return jax.tree.map(lambda leaf: np.array(leaf.addressable_shards[0].data), tree)

    def shard_batch(self, batch: HostBatch) -> Mapping[str, jax.Array]:
        """Places this process's share of a global batch on its devices, in order."""
        sharding = mesh.split_over_data(self.mesh)
        return {name: jax.make_array_from_process_local_data(sharding, array) for name, array in batch.items()}


_strategies: Registry[type[Strategy]] = Registry("strategy", "jaxdp.parallel")
register = _strategies.register
names = _strategies.entries


def create_strategy(name: str, recipe: Recipe, devices: Sequence[Device]) -> Strategy:
    """Raises ConfigError for an unknown name, or a number of devices that the strategy does not take."""
    return _strategies[name](recipe, devices)
