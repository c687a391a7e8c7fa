"""How do devices share a training step? The interface that every strategy fills."""

import abc
import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import jax
import numpy as np
from jax.sharding import Sharding

from jaxdp.data.pipeline import HostBatch
from jaxdp.registry import ConfigError, Registry
from jaxdp.sharding import mesh
from jaxdp.sharding.mesh import Device
from jaxdp.step.state import TrainState
from jaxdp.step.step import Recipe, TrainStep

EvalStep = Callable[[TrainState, Any, Any], dict[str, jax.Array]]


class Strategy(abc.ABC):
    """Places the state, shards batches, wraps the step in its transform, and gathers the state to host.

    Args:
        recipe: what a step does.
        devices: this process's devices.
        axes: of the mesh over all processes' devices, e.g. "data=4,model=2"; None for data alone.
        shard_params: whether a device holds its part of parameters, optimizer state and averages alone.

    Attributes:
        train_step: (state, placed batch, placed constants) -> (state, metric sums); the old state's memory is reused, so it is gone
            afterwards. Most take several batches at once, too: `step.several_steps`.
        eval_step: (state, placed batch, placed data) -> metric sums.
    """

    name: ClassVar[str]
    takes_mesh: ClassVar[bool] = False  # whether it takes `axes` and `shard_params`
    train_step: TrainStep
    eval_step: EvalStep

    def __init__(self, recipe: Recipe, devices: Sequence[Device], axes: str | None = None, *, shard_params: bool = False) -> None:
        for field, value in (("mesh", axes), ("shard_params", shard_params)):
            if value and not self.takes_mesh:
                flag = field.replace("_", "-")
                raise ConfigError(field, value, f"--strategy {self.name} takes none; use --strategy sharded, or leave --{flag} out")
        self.recipe, self.devices, self.axes, self.shard_params = recipe, list(devices), axes, shard_params
        self.mesh = mesh.named_mesh(mesh.all_devices(self.devices), axes)
        self.num_devices = self.mesh.size
        self.data_shards = self.mesh.shape[mesh.DATA_AXIS]
        self._build()

    @abc.abstractmethod
    def _build(self) -> None:
        """Sets `train_step` and `eval_step`."""

    @property
    def on_cpu(self) -> bool:
        return self.devices[0].platform == "cpu"

    @property
    def _state_sharding(self) -> Sharding:
        return mesh.replicated(self.mesh)

    def examples_per_program(self, global_batch_size: int) -> int:
        """How many examples one program of this strategy sees, which bounds the groups of batch norm."""
        return global_batch_size // self.num_devices

    def check_batch(self, global_batch_size: int) -> None:
        """Raises ConfigError for a global batch that devices or batch-norm groups do not divide."""
        shards = self.data_shards
        if global_batch_size % shards:
            lower = global_batch_size // shards * shards
            near = " or ".join(str(size) for size in (lower, lower + shards) if size)
            who = f"{shards} devices do" if shards == self.num_devices else f"data={shards} of the mesh does"
            raise ConfigError("global_batch_size", global_batch_size, f"{who} not divide it; use {near}")
        parts = self.recipe.accumulate_steps
        if global_batch_size % (parts * shards):
            each = global_batch_size // shards
            divisors = [count for count in range(1, each + 1) if each % count == 0]
            near = min(divisors, key=lambda count: abs(count - parts))
            remedy = f"does not divide the {each} examples of each device; use e.g. {near}"
            raise ConfigError("accumulate_steps", parts, remedy)
        group, share = self.recipe.batch_norm.group_size, self.examples_per_program(global_batch_size) // parts
        if group is not None and share % group:
            divisors = [size for size in range(1, share + 1) if share % size == 0]
            near = min(divisors, key=lambda size: abs(size - group))
            remedy = f"does not divide the {share} examples that {self.name} computes at a time; use e.g. group:{near}"
            raise ConfigError("batch_norm", self.recipe.batch_norm, remedy)

    def check_rows(self, heights: set[int], fewest: int) -> None:  # noqa: B027 - most strategies cut no rows
        """Raises ConfigError for images whose rows the mesh does not divide, or a model that leaves a device too few.

        Args:
            heights: of images before and after augmentation.
            fewest: rows at any of the model's convolutions.
        """

    def state_bytes(self, state: TrainState) -> dict[str, int] | None:
        """Returns the bytes of a state as it is on the host, and on each device; None where every device holds all of it."""
        return None

    def creating(self) -> contextlib.AbstractContextManager[Any]:
        """Inside it a state is created, to be placed later."""
        return contextlib.nullcontext()

    def init(self, create_state: Callable[[], TrainState]) -> TrainState:
        """Creates a state and places it."""
        return self.restore(create_state())

    def parts(self, shapes: TrainState) -> TrainState | None:
        """Returns shapes and shardings for a checkpoint to be read into, each process its own parts; None where it is read whole.

        Args:
            shapes: of the state that the model knows; nothing is computed.
        """
        return None

    def restore(self, state: TrainState, shapes: TrainState | None = None) -> TrainState:
        """Places a state from host or elsewhere on the devices, as a copy: a train step consumes what it is given.

        Args:
            shapes: of the state that the model knows, where this one may have been read into `parts`; those it leaves in place.
        """
        sharding = self._state_sharding
        return jax.tree.map(lambda leaf: jax.device_put(np.asarray(leaf), sharding, may_alias=False), state)

    def replicate(self, tree: Any) -> Any:
        """Places arrays whole on every device, such as a dataset, from which batches are then gathered inside the step."""
        return jax.tree.map(lambda array: jax.device_put(array, self._state_sharding), tree)

    def gather(self, tree: Any) -> Any:
        """Returns NumPy copies of a replicated tree, reading one replica; waits until the devices have computed it."""
        return jax.tree.map(lambda leaf: np.array(leaf.addressable_shards[0].data), tree)

    def to_save(self, state: TrainState) -> TrainState:
        """Returns a copy of a state that a checkpoint can take its time to write, in the shapes of the model or as it is stored."""
        return self.gather(state)

    def all_finite(self, state: TrainState, saved: TrainState) -> bool:
        """Whether weights, statistics and averages are finite numbers.

        Args:
            state, saved: the same one, on the devices and as `to_save` returns it.
        """
        return all(np.isfinite(leaf).all() for leaf in jax.tree.leaves((saved.params, saved.batch_stats, saved.ema)))

    def abstract_batch(self, batch: Mapping[str, jax.ShapeDtypeStruct]) -> Mapping[str, jax.ShapeDtypeStruct]:
        """Returns the shapes of a placed batch from those of the global one; nothing is placed."""
        return batch

    def abstract(self, state: TrainState) -> TrainState:
        """Returns the shapes of a placed state, with shardings where its parts differ; nothing is computed."""
        return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), state)

    def shard_batch(self, batch: HostBatch) -> Mapping[str, jax.Array]:
        """Places this process's share of a global batch on its devices, in order."""
        sharding = mesh.split_over_data(self.mesh)
        return {name: jax.make_array_from_process_local_data(sharding, array) for name, array in batch.items()}


_strategies: Registry[type[Strategy]] = Registry("strategy", "jaxdp.sharding")
register = _strategies.register
names = _strategies.entries


def create_strategy(
    name: str, recipe: Recipe, devices: Sequence[Device], axes: str | None = None, *, shard_params: bool = False
) -> Strategy:
    """Raises ConfigError for an unknown name, or devices, a mesh or `shard_params` that the strategy does not take."""
    return _strategies[name](recipe, devices, axes, shard_params=shard_params)
