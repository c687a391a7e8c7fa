"""Defines the strategy `sharded`: one program for the whole batch, which XLA partitions over the
devices.
"""

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import NamedSharding

from jaxdp.config import TrainConfig
from jaxdp.data.placement import gather_examples
from jaxdp.sharding import mesh, partition, strategy
from jaxdp.sharding.communication import Communication
from jaxdp.sharding.tracing import own_trace, scan_steps
from jaxdp.step import step
from jaxdp.step.state import Constants, TrainState, all_finite

Batch = Mapping[str, Any]


@strategy.register("sharded")
class Sharded(strategy.Strategy):
    """The strategy in which XLA inserts the communication between devices.

    Examples are sharded over the devices. By default each device holds all parameters. With
    `shard_params`, parameters, optimizer state and EMA are sharded as well, and gathered for the
    step: `partition.py`. There are steps then only after `prepare`.
    """

    name = "sharded"
    shards_params = True

    def _build(self) -> None:
        if not self.shard_params:
            self._compile(self._state_sharding, Communication(per_program=self.num_devices))

    def prepare(self, shapes: Callable[[], TrainState], config: TrainConfig) -> None:
        if self.shard_params:
            replicas = _ShardedParameters(per_program=self.num_devices, strategy=self)
            self._compile(jax.tree.map(self._shard, shapes()), replicas)

    def _shard(self, leaf: Any) -> NamedSharding:
        shards = self.num_devices if self.shard_params else 1
        return NamedSharding(self.mesh, partition.spec(np.shape(leaf), shards))

    def _compile(self, placed: Any, replicas: Communication) -> None:
        everywhere, split = self._state_sharding, mesh.split_over_data(self.mesh)
        step_config = self.step_config

        def complete(batch: Batch, constants: Constants) -> tuple[Batch, Constants]:
            batch = gather_examples(batch, constants.examples)
            return batch, dataclasses.replace(constants, examples={})

        def train_step(state: TrainState, batch: Batch, constants: Constants) -> Any:
            batch, constants = complete(batch, constants)
            return step.train_step(
                state, batch, constants, step_config=step_config, replicas=replicas
            )

        def eval_step(state: TrainState, batch: Batch, constants: Constants) -> Any:
            params, ema = replicas.local((state.params, state.ema))
            state = dataclasses.replace(state, params=params, ema=ema)
            batch, constants = complete(batch, constants)
            return step.eval_step(
                state, batch, constants, step_config=step_config, replicas=replicas
            )

        wrap = functools.partial(jax.jit, in_shardings=(placed, split, everywhere))
        train_steps = scan_steps(train_step, step_config=step_config)
        self.train_step = wrap(train_steps, out_shardings=(placed, everywhere), donate_argnums=0)
        self.eval_step = wrap(own_trace(eval_step), out_shardings=everywhere)

    def restore(self, state: TrainState) -> TrainState:
        if not self.shard_params:
            return super().restore(state)

        def put(leaf: Any, like: jax.ShapeDtypeStruct) -> jax.Array:
            if isinstance(leaf, jax.Array) and leaf.sharding == like.sharding:
                return leaf  # was read into `abstract`
            whole = np.array(leaf)  # a copy, as in `super`
            # A device receives only its own shard.
            return jax.make_array_from_callback(
                like.shape, like.sharding, lambda index: whole[index]
            )

        return jax.tree.map(put, state, self.abstract(state))

    def abstract(self, state: TrainState) -> TrainState:
        """Returns shapes and shardings of a placed state, without computation."""
        return jax.tree.map(
            lambda leaf: jax.ShapeDtypeStruct(
                np.shape(leaf), leaf.dtype, sharding=self._shard(leaf)
            ),
            state,
        )

    def state_bytes(self, state: TrainState) -> dict[str, int]:
        return {
            "replicated": partition.bytes_per_device(super().abstract(state)),
            "per_device": partition.bytes_per_device(self.abstract(state)),
        }

    def creation_device(self) -> contextlib.AbstractContextManager[Any]:
        """Returns a context in which a state is created in host memory, because a sharded state
        need not fit on a single device.
        """
        with contextlib.suppress(RuntimeError):  # JAX_PLATFORMS may leave the CPU out
            if self.shard_params:
                return jax.default_device(jax.local_devices(backend="cpu")[0])
        return contextlib.nullcontext()

    def gather(self, tree: Any) -> Any:
        """Returns NumPy copies of whole arrays, assembled from their shards on the host.

        With several processes this is a collective.
        """
        return jax.tree.map(
            lambda leaf: (
                np.array(leaf)
                if _is_here(leaf)
                else np.asarray(multihost_utils.process_allgather(leaf, tiled=True))
            ),
            tree,
        )

    def host_copy(self, state: TrainState) -> TrainState:
        """Returns NumPy arrays, as other strategies do, if this is the only process, because all
        shards are then on one host.

        With several processes, each process returns copies of its own shards, because the next step
        consumes the state.
        """
        return jax.tree.map(lambda leaf: np.array(leaf) if _is_here(leaf) else _copy(leaf), state)

    def all_finite(self, state: TrainState, saved: TrainState) -> bool:
        return bool(_all_finite((state.params, state.batch_stats, state.ema)))


@dataclasses.dataclass(frozen=True)
class _ShardedParameters(Communication):
    """Differentiates whole parameters, and updates each device's shard of them with its shard of
    the gradients.
    """

    strategy: Any = None

    def local(self, tree: Any) -> Any:
        return jax.lax.with_sharding_constraint(tree, mesh.replicated(self.strategy.mesh))

    def mean(self, tree: Any) -> Any:
        return jax.tree.map(
            lambda leaf: jax.lax.with_sharding_constraint(leaf, self.strategy._shard(leaf)), tree
        )


_copy = jax.jit(jnp.copy)
_all_finite = jax.jit(all_finite)


def _is_here(leaf: jax.Array) -> bool:
    return leaf.is_fully_replicated or leaf.is_fully_addressable
