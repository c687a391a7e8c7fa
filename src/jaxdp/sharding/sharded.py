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

from jaxdp.data.augment import Preprocess
from jaxdp.data.pipeline import HostBatch
from jaxdp.data.placement import gather_examples
from jaxdp.registry import ConfigError
from jaxdp.sharding import mesh, partition, strategy
from jaxdp.sharding.own_trace import own_trace, scan_steps
from jaxdp.sharding.replicas import Replicas
from jaxdp.step import step
from jaxdp.step.state import Constants, TrainState

Batch = Mapping[str, Any]

_LEAST_ROWS = 2  # on each device, at every convolution


@strategy.register("sharded")
class Sharded(strategy.Strategy):
    """The strategy with a mesh of axes data and space, over which XLA inserts the communication.

    Examples are sharded over data, and rows of images over space (spatial partitioning). By default
    each device holds all parameters. With `shard_params`, parameters, optimizer state and EMA are
    sharded over data, and gathered for the step: `partition.py`.
    """

    name = "sharded"
    takes_mesh = True

    def _build(self) -> None:
        self._layout: partition.Layout | None = None
        if not self.shard_params:
            self._compile(
                mesh.replicated(self.mesh),
                Replicas(per_program=self.data_shards),
                lambda state: state,
            )

    def _fix_layout(self, state: TrainState) -> partition.Layout:
        """Returns the layout, which depends on the model.

        A strategy learns that from the first state.
        """
        if self._layout is None:
            layout = self._layout = partition.Layout(self.mesh, state.params)
            replicas = _PartsOfParameters(per_program=self.data_shards, layout=layout)

            def whole(state: TrainState) -> TrainState:
                return dataclasses.replace(
                    state, params=layout.use(state.params), ema=layout.use(state.ema)
                )

            self._compile(layout.shardings(state), replicas, whole)
        return self._layout

    def _compile(
        self, placed: Any, replicas: Replicas, whole: Callable[[TrainState], TrainState]
    ) -> None:
        everywhere, split = mesh.replicated(self.mesh), mesh.split_over_data(self.mesh)
        recipe = self.recipe
        gather: Callable[[Batch, Batch], Batch] = gather_examples
        if mesh.SPACE_AXIS in self.mesh.axis_names:
            # Once after examples are gathered from the dataset, and once after augmentation, which
            # may need whole images.
            split, gather = None, self._gather_and_spread
            recipe = dataclasses.replace(
                recipe, preprocess=_SpreadPreprocess.of(recipe.preprocess, self._spread)
            )

        def train_step(state: TrainState, batch: Batch, constants: Constants) -> Any:
            batch, constants = (
                gather(batch, constants.examples),
                dataclasses.replace(constants, examples={}),
            )
            return step.train_step(state, batch, constants, recipe=recipe, replicas=replicas)

        def eval_step(state: TrainState, batch: Batch, data: Mapping[str, Any]) -> Any:
            return step.eval_step(
                whole(state), gather(batch, data), {}, recipe=recipe, replicas=replicas
            )

        wrap = functools.partial(jax.jit, in_shardings=(placed, split, everywhere))
        train_steps = scan_steps(train_step, recipe=recipe)
        self.train_step = wrap(train_steps, out_shardings=(placed, everywhere), donate_argnums=0)
        self.eval_step = wrap(own_trace(eval_step), out_shardings=everywhere)

    def _gather_and_spread(self, batch: Batch, data: Batch) -> Batch:
        """Returns the examples of a batch with their rows sharded.

        Those from the dataset are whole at first: else XLA shards the dataset as well, before a
        loop over steps or microbatches, and each device writes its share of all examples in each
        call.
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
                remedy = (
                    f"space={pieces} does not divide the {height} rows of an image; use"
                    " --image-size or a crop that it divides"
                )
                raise ConfigError("mesh", self.axes, remedy)
        # Else XLA's partitioner (jaxlib 0.10.2) sums gradients over too many devices.
        if pieces > 1 and fewest < _LEAST_ROWS * pieces:
            remedy = (
                f"a convolution of this model has {fewest} rows, and XLA computes wrong gradients"
                f" with fewer than {_LEAST_ROWS} "
            )
            raise ConfigError(
                "mesh",
                self.axes,
                remedy + "on a device; use larger images, a smaller space or fewer levels",
            )

    def parts(self, shapes: TrainState) -> TrainState | None:
        return self.abstract(shapes) if self.shard_params else None

    def restore(self, state: TrainState, shapes: TrainState | None = None) -> TrainState:
        return (
            self._fix_layout(shapes or state).put(state)
            if self.shard_params
            else super().restore(state)
        )

    def abstract(self, state: TrainState) -> TrainState:
        """Returns shapes and shardings of a placed state; nothing is computed."""
        if self.shard_params:
            return self._fix_layout(state).abstract(state)
        everywhere = mesh.replicated(self.mesh)
        return jax.tree.map(
            lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=everywhere), state
        )

    def state_bytes(self, state: TrainState) -> dict[str, int]:
        replicated = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(state))
        return {
            "replicated": replicated,
            "per_device": partition.bytes_per_device(self.abstract(state)),
        }

    def creating(self) -> contextlib.AbstractContextManager[Any]:
        """Returns a context in which a state is created in host memory: a sharded one need not fit
        a single device.
        """
        with contextlib.suppress(RuntimeError):  # JAX_PLATFORMS may leave the CPU out
            if self.shard_params:
                return jax.default_device(jax.local_devices(backend="cpu")[0])
        return contextlib.nullcontext()

    def gather(self, tree: Any) -> Any:
        """Returns NumPy copies with the model's shapes.

        With several processes this is a collective.
        """
        layout = self._layout
        if layout is None:
            return super().gather(tree)
        return jax.tree_util.tree_map_with_path(
            lambda path, leaf: layout.crop(path, _whole(leaf)), tree
        )

    def to_save(self, state: TrainState) -> TrainState:
        """Returns NumPy arrays, as other strategies do, if this is the only process: all shards are
        on one host then anyway.

        With several processes each returns its own shards, padding included, as copies, since the
        next step consumes the state.
        """
        if self._layout is None or jax.process_count() == 1:
            return self.gather(state)
        return jax.tree.map(
            lambda leaf: _whole(leaf) if leaf.is_fully_replicated else _copy(leaf), state
        )

    def all_finite(self, state: TrainState, saved: TrainState) -> bool:
        if self._layout is None:
            return super().all_finite(state, saved)
        return bool(_whole(_finite((state.params, state.batch_stats, state.ema))))

    def shard_batch(self, batch: HostBatch) -> Mapping[str, jax.Array]:
        return {
            name: jax.make_array_from_process_local_data(
                mesh.split_batch(self.mesh, array.ndim), array
            )
            for name, array in batch.items()
        }


@dataclasses.dataclass(frozen=True)
class _PartsOfParameters(Replicas):
    """Differentiates whole parameters, and updates each device's shard of them with its shard of
    the gradients.
    """

    layout: Any = None

    def local(self, tree: Any) -> Any:
        return self.layout.use(tree)

    def mean(self, tree: Any) -> Any:
        return self.layout.store(tree)


@dataclasses.dataclass(frozen=True)
class _SpreadPreprocess(Preprocess):
    """Preprocessing that shards the rows of what it returns."""

    spread: Callable[[Batch], dict[str, Any]] = dict

    @classmethod
    def of(
        cls, preprocess: Preprocess, spread: Callable[[Batch], dict[str, Any]]
    ) -> "_SpreadPreprocess":
        return cls(
            **{
                field.name: getattr(preprocess, field.name)
                for field in dataclasses.fields(preprocess)
            },
            spread=spread,
        )

    def __call__(self, batch: Any, keys_of: Any) -> Any:
        return self.spread(super().__call__(batch, keys_of))


@jax.jit
def _copy(leaf: jax.Array) -> jax.Array:
    return jnp.copy(leaf)


@jax.jit
def _finite(tree: Any) -> jax.Array:
    return jnp.all(jnp.stack([jnp.all(jnp.isfinite(leaf)) for leaf in jax.tree.leaves(tree)]))


def _whole(leaf: jax.Array) -> np.ndarray:
    """Returns an array as NumPy, assembled from its shards on the host.

    Those of other processes come over the network.
    """
    if leaf.is_fully_replicated:
        return np.array(leaf.addressable_shards[0].data)
    return (
        np.array(leaf)
        if leaf.is_fully_addressable
        else np.asarray(multihost_utils.process_allgather(leaf, tiled=True))
    )
