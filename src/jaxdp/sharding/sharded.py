"""Defines the strategy `sharded`: one program for the whole batch, which XLA partitions over a
named mesh.
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

from jaxdp.data.augment import Preprocess
from jaxdp.data.placement import gather_examples
from jaxdp.errors import ConfigError, flag
from jaxdp.models import winograd
from jaxdp.sharding import mesh, partition, strategy
from jaxdp.sharding.communication import Communication
from jaxdp.sharding.tracing import own_trace, scan_steps
from jaxdp.step import step
from jaxdp.step.state import Constants, TrainState, all_finite

Batch = Mapping[str, Any]

_LEAST_ROWS = 2  # on each device, at every convolution


@strategy.register("sharded")
class Sharded(strategy.Strategy):
    """The strategy with a mesh of axes data and space, over which XLA inserts the communication.

    Examples are sharded over data, and rows of images over space (spatial partitioning). By default
    each device holds all parameters. With `shard_params`, parameters, optimizer state and EMA are
    sharded over data, and gathered for the step: `partition.py`. There are steps then only after
    `prepare`.
    """

    name = "sharded"
    takes_mesh = True

    def _build(self) -> None:
        if not self.shard_params:
            self._compile(self._state_sharding, Communication(per_program=self.data_shards))

    def prepare(self, shapes: Callable[[], TrainState]) -> None:
        if self.shard_params:
            replicas = _ShardedParameters(per_program=self.data_shards, strategy=self)
            self._compile(jax.tree.map(self._shard, shapes()), replicas)

    def _shard(self, leaf: Any) -> NamedSharding:
        shards = self.data_shards if self.shard_params else 1
        return NamedSharding(self.mesh, partition.spec(np.shape(leaf), shards))

    def _compile(self, placed: Any, replicas: Communication) -> None:
        everywhere, split = self._state_sharding, mesh.split_over_data(self.mesh)
        step_config = self.step_config
        gather: Callable[[Batch, Batch], Batch] = gather_examples
        spread = mesh.SPACE_AXIS in self.mesh.axis_names
        if spread:
            # Once after examples are gathered from the dataset, and again after augmentation, which
            # may require whole images.
            split, gather = None, self._gather_and_spread
            preprocess = _SpreadPreprocess(**vars(step_config.preprocess), spread=self._spread)
            step_config = dataclasses.replace(step_config, preprocess=preprocess)

        def complete(batch: Batch, constants: Constants) -> tuple[Batch, Constants]:
            batch = gather(batch, constants.examples)
            return batch, dataclasses.replace(constants, examples={})

        @winograd.avoided(spread)
        def train_step(state: TrainState, batch: Batch, constants: Constants) -> Any:
            batch, constants = complete(batch, constants)
            return step.train_step(
                state, batch, constants, step_config=step_config, replicas=replicas
            )

        @winograd.avoided(spread)
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

    def _gather_and_spread(self, batch: Batch, data: Batch) -> Batch:
        """Returns the examples of a batch with their rows sharded.

        Examples from the dataset are whole at first. Otherwise, XLA would also shard the dataset
        before a loop over steps or microbatches, and each device would write its share of all
        examples in each call.
        """
        whole = mesh.split_over_data(self.mesh)
        gathered = gather_examples(batch, data)
        return self._spread(jax.lax.with_sharding_constraint(gathered, whole) if data else gathered)

    def _spread(self, batch: Batch) -> dict[str, Any]:
        return {
            name: jax.lax.with_sharding_constraint(array, mesh.split_batch(self.mesh, array.ndim))
            for name, array in batch.items()
        }

    def check_rows(self, heights: set[int], fewest: int) -> None:
        pieces = self.mesh.shape.get(mesh.SPACE_AXIS, 1)
        for height in sorted(heights):
            if height % pieces:
                problem = f"space={pieces} does not divide the {height} rows of an image"
                remedy = f"{problem}; use {flag('image_size')} or a crop it divides"
                raise ConfigError("mesh", self.axes, remedy)
        # Otherwise, XLA's partitioner (jaxlib 0.10.2) sums gradients over too many devices.
        if pieces > 1 and fewest < _LEAST_ROWS * pieces:
            remedy = (
                f"a convolution of this model has {fewest} rows, and XLA computes wrong gradients"
                f" with fewer than {_LEAST_ROWS} on a device; use larger images, a smaller space or"
                " fewer levels"
            )
            raise ConfigError("mesh", self.axes, remedy)

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


@dataclasses.dataclass(frozen=True)
class _SpreadPreprocess(Preprocess):
    """Preprocessing that shards the rows of its result."""

    spread: Callable[[Batch], dict[str, Any]] = dict

    def __call__(self, batch: Any, keys_of: Any, moments: Any = None) -> Any:
        return self.spread(super().__call__(batch, keys_of, moments))


_copy = jax.jit(jnp.copy)
_all_finite = jax.jit(all_finite)


def _is_here(leaf: jax.Array) -> bool:
    return leaf.is_fully_replicated or leaf.is_fully_addressable
