"""Defines the state that a training step updates, the constants that all steps read, and how both
are created.
"""

import hashlib
import inspect
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx, struct
from jaxtyping import Array, Bool

from jaxdp.errors import ConfigError
from jaxdp.step.keys import create_key

Tree = Any  # of jax.Array on devices, np.ndarray on the host
Leaf = Any
_GROWTH_INTERVAL, _FIRST_LOSS_SCALE = 2000, 2.0**15
_FEWEST_RATES = 1024
_VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


@struct.dataclass
class LossScale:
    """The factor by which a loss is multiplied, so that small gradients do not vanish in float16.

    It is halved when gradients overflow, and doubled after 2,000 steps without overflow.

    Attributes:
        factor: a power of 2, at least 1.
        steps: number of steps since it last changed.

    Source: Micikevicius et al. 2018, section 3.2.
    """

    factor: Leaf
    steps: Leaf

    def adjusted(self, finite: Any) -> "LossScale":
        """Returns the loss scale of the next step.

        Args:
            finite: whether the gradients of this step were finite.
        """
        grows = finite & (self.steps + 1 >= _GROWTH_INTERVAL)
        factor = jnp.where(
            finite, jnp.where(grows, self.factor * 2, self.factor), jnp.maximum(self.factor / 2, 1)
        )
        return LossScale(factor, jnp.where(finite & ~grows, self.steps + 1, 0))


@struct.dataclass
class TrainState:
    """The state of training. Its arrays are plain, never stacked per device, and form the same tree
    on any devices and in a checkpoint.

    Attributes:
        step: number of updates done, an int32 scalar.
        params: parameters of the model, nested dicts of arrays.
        batch_stats: running statistics of batch norm, nested dicts of arrays.
        opt_state: state of the Optax optimizer.
        ema: exponential moving averages (EMA) of params and batch_stats, or None.
        loss_scale: for float16, or None.
        graphdef: the model without its arrays.
        random: where the model keeps its own random streams, as `(path, is_key)`; empty for a model
            that is called with a key for each example.
        others: variables of the model's own types, such as constants, which no step changes.
    """

    step: Leaf
    params: Tree
    batch_stats: Tree
    opt_state: Tree
    ema: Tree  # like the others, since JAX also makes states of shardings, with any value for none
    loss_scale: LossScale | Any  # None except for float16
    graphdef: nnx.GraphDef = struct.field(pytree_node=False)
    random: tuple[tuple[tuple[Any, ...], bool], ...] = struct.field(pytree_node=False, default=())
    others: Tree = struct.field(default_factory=dict)


@struct.dataclass
class Constants:
    """The arrays that all steps of a run read, on every device. Other learning rates, seeds or
    statistics of a dataset therefore require no compilation.

    Attributes:
        examples: the dataset from which batches are gathered, if it is held on the devices;
            otherwise empty.
        learning_rates: one for each update. The last rate applies to all later updates.
        key: data of the random key from which all others are derived.
        moments: mean and standard deviation of the images; None: the preprocessing has them.
        steps_per_epoch: number of steps in which each example is seen once.
    """

    examples: Mapping[str, Leaf]
    learning_rates: Leaf = ()
    key: Leaf = ()
    moments: Leaf | None = None
    steps_per_epoch: Leaf = ()

    @classmethod
    def create(
        cls, learning_rates: Any, seed: int, moments: Any = None, *, steps_per_epoch: int = 1
    ) -> "Constants":
        """Returns the constants on the host, without examples.

        Pads the learning rates to a length that most runs share.
        """
        rates = np.asarray(learning_rates, np.float32)
        length = max(1 << (len(rates) - 1).bit_length(), _FEWEST_RATES)
        key = np.asarray(jax.random.key_data(create_key(seed)))
        rates = np.pad(rates, (0, length - len(rates)), mode="edge")
        return cls({}, rates, key, moments, np.asarray(steps_per_epoch, np.int32))


def create_train_state(
    model: nnx.Module,
    optimizer: optax.GradientTransformation,
    *,
    with_ema: bool = False,
    with_loss_scale: bool = False,
) -> TrainState:
    """Splits a model into the parts of a state.

    The state excludes the model's own random streams. A train step passes one key per example or,
    if the model accepts no keys, new streams.
    """
    random: tuple[Any, ...] = ()
    if takes_keys(model):
        nnx.pop(model, nnx.RngState)
    else:
        random = tuple(
            (path, isinstance(leaf, nnx.RngKey))
            for path, leaf in nnx.to_flat_state(nnx.state(model, nnx.RngState))
        )
    kinds = (nnx.Param, nnx.BatchStat, nnx.RngState, ...)
    graphdef, params, batch_stats, _, others = nnx.split(model, *kinds)
    params, batch_stats = nnx.to_pure_dict(params), nnx.to_pure_dict(batch_stats)
    return TrainState(
        step=jnp.asarray(np.zeros((), np.int32)),
        params=params,
        batch_stats=batch_stats,
        opt_state=jax.jit(optimizer.init)(params),  # jitted: eagerly it compiles once per shape
        ema=(params, batch_stats) if with_ema else None,
        loss_scale=LossScale(np.float32(_FIRST_LOSS_SCALE), np.zeros((), np.int32))
        if with_loss_scale
        else None,
        graphdef=graphdef,
        random=random,
        others=nnx.to_pure_dict(others),
    )


def array_name(path: Any) -> str:
    """Returns the name of a parameter or batch statistic from its path in the tree, e.g.
    `units/0/convs/1/kernel`.
    """
    return jax.tree_util.keystr(path, simple=True, separator="/")


def model_arrays(state: TrainState) -> dict[str, Leaf]:
    """Returns parameters and batch statistics by name, averages if the state has them."""
    leaves = jax.tree_util.tree_leaves_with_path(state.ema or (state.params, state.batch_stats))
    return {array_name(path[1:]): leaf for path, leaf in leaves}  # without the index in the pair


def all_finite(tree: Tree) -> Bool[Array, ""]:
    """Returns whether all numbers of a tree are finite."""
    return jnp.all(jnp.stack([jnp.all(jnp.isfinite(leaf)) for leaf in jax.tree.leaves(tree)]))


def takes_keys(model: nnx.Module) -> bool:
    """Returns whether a model is called with `keys`, one for each example, for its random draws."""
    return "keys" in inspect.signature(type(model).__call__).parameters


def call_model(model: Any, batch: Any, *, keys: Any = None) -> Any:
    """Calls a model with images, and with what further parameters of its `__call__` name: fields of
    the batch, if they have no default; `keys`; `train` or `training`, or `deterministic` for the
    opposite. Outputs of half precision become float32, in which losses are computed.

    Args:
        keys: of the examples, in training; None in evaluation.

    Raises:
        ConfigError: for a parameter without a default that nothing is known for.
    """
    training = keys is not None
    known = {"train": training, "training": training, "deterministic": not training}
    if training:
        known["keys"] = keys
    parameters = [*inspect.signature(type(model).__call__).parameters.values()][2:]
    given = {each.name: known[each.name] for each in parameters if each.name in known}
    for each in parameters:
        has_default = each.default is not each.empty or each.kind in _VARIADIC
        if has_default or each.name in known:
            continue
        if each.name not in batch:
            remedy = f"takes {each.name}, which is no field of the examples here"
            raise ConfigError("model", type(model).__name__, remedy)
        given[each.name] = batch[each.name]
    return jax.tree.map(_as_float32, model(batch["images"], **given))


def _as_float32(output: Any) -> Any:
    is_half = getattr(output, "dtype", None) in (jnp.bfloat16, jnp.float16)
    return output.astype(jnp.float32) if is_half else output


def merge(state: TrainState, params: Tree, batch_stats: Tree, key: Any = None) -> Any:
    """Returns a model that can be called, and can change its batch statistics, inside a transform.

    Args:
        key: from which the model's own random streams start, in training.
    """
    if not state.random:
        return nnx.merge(state.graphdef, params, batch_stats, state.others, copy=True)
    key = create_key(0) if key is None else key
    streams = {
        path: jax.random.fold_in(key, number) if is_key else jnp.zeros((), jnp.uint32)
        for number, (path, is_key) in enumerate(state.random)
    }
    nested = nnx.traversals.unflatten_mapping(streams)
    return nnx.merge(state.graphdef, params, batch_stats, nested, state.others, copy=True)


def fingerprint(state: TrainState) -> str:
    """Returns a SHA-256 digest of all arrays that this process holds whole. Digests are equal if
    every bit is equal.

    In a sharded state these are the small arrays: biases, scales, statistics, counts.
    """
    digest = hashlib.sha256()
    for leaf in jax.tree.leaves(state):
        if not isinstance(leaf, jax.Array) or leaf.is_fully_addressable or leaf.is_fully_replicated:
            digest.update(np.ascontiguousarray(leaf).tobytes())
    return digest.hexdigest()
