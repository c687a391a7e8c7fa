"""Defines the programs of exact training, whose bits depend on no number of devices.

A global batch consists of slices, which are whole batch-norm groups. One program computes the
gradients of one slice, another adds them in the order of the slices, and a third updates the state.
XLA fuses a multiplication with an addition that are in one program. The division and the update are
therefore not in the program of the additions, which is another one for each number of devices.
"""

import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jax.sharding import Mesh, PartitionSpec

from jaxdp.config import TrainConfig
from jaxdp.data.placement import gather_examples
from jaxdp.errors import ConfigError, flag
from jaxdp.sharding.communication import Communication
from jaxdp.sharding.mesh import DATA_AXIS
from jaxdp.sharding.tracing import own_trace
from jaxdp.step import combine, step
from jaxdp.step.state import Constants, TrainState
from jaxdp.step.step import StepConfig

# By default, because smaller slices take longer. Without batch norm, slices may have any size.
_MOST_SLICES, _MOST_WITHOUT_GROUPS = 16, 8
_HERE, _EVERYWHERE = PartitionSpec(DATA_AXIS), PartitionSpec()


def number_of_slices(config: TrainConfig, shapes: TrainState) -> int:
    """Returns into how many slices of the same size a global batch is divided.

    Raises:
        ConfigError: for slices that are not whole groups of batch norm, or that microbatches do not
            consist of.
    """
    size, mode, slices = int(config.global_batch_size or 1), config.batch_norm, config.slices
    unit, most = 1, _MOST_WITHOUT_GROUPS
    if mode is not None and jax.tree.leaves(shapes.batch_stats):
        if mode.kind != "group" and slices != 1:
            group = math.gcd(size, 32)
            remedy = f"depends on what one device computes; {flag('strategy', config.strategy)}"
            remedy += f" takes group:N, e.g. group:{group}"
            raise ConfigError("batch_norm", str(mode), remedy)
        unit, most = mode.group_size or size, _MOST_SLICES
    parts = config.accumulate_steps
    whole = range(parts, size // unit + 1, parts)
    possible = [count for count in whole if size // unit % count == 0] or [1]
    if slices is None:
        return max([count for count in possible if count <= most] or possible[:1])
    if slices not in possible:
        kind = f"whole groups of {unit}" if unit > 1 else "equal parts"
        near = min(possible, key=lambda count: max(count, slices) / min(count, slices))
        batch = "microbatch" if parts > 1 else "batch"
        remedy = f"slices must be {kind} of the {size // parts} examples of a {batch}; use {near}"
        raise ConfigError("slices", slices, remedy)
    return slices


def read_by_gradients(state: TrainState) -> TrainState:
    """Returns the part of a state that gradients depend on."""
    return dataclasses.replace(state, opt_state=(), ema=None)


def compute(devices: Mesh, step_config: StepConfig, *, training: bool = True) -> Any:
    """Returns a program of a state, a batch with one slice for each device, and the constants.

    The program returns means, which are empty unless it trains, and metric sums. Their first dim is
    that of the devices.
    """
    step_config = dataclasses.replace(step_config, accumulate_steps=1)

    def on_each(state: TrainState, batch: step.Batch, constants: Constants) -> Any:
        batch = gather_examples(batch, constants.examples)
        constants = dataclasses.replace(constants, examples={})
        kwargs: Any = {"step_config": step_config, "replicas": Communication()}
        if training:
            found: Any = step.accumulate_gradients(state, batch, constants, **kwargs)
        else:
            found = (), step.eval_step(state, batch, constants, **kwargs)
        return jax.tree.map(lambda leaf: leaf[None], found)

    return _wrap(on_each, devices, (_EVERYWHERE, _HERE, _EVERYWHERE), _HERE)


def add(devices: Mesh, *, last: bool) -> Any:
    """Returns a program that adds the results for one slice of each device to a total.

    Each device owns a share of every array. It receives this share of all results, and adds them in
    order. The program consumes the total, which is None at first, and returns the new one; after
    the last slices it returns the means and sums on every device.

    Args:
        last: whether these are the last slices of a batch.
    """
    replicas = Communication(axis=DATA_AXIS)

    def on_each(total: Any, part: Any, present: Any) -> Any:
        leaves, structure = jax.tree.flatten(jax.tree.map(lambda leaf: leaf[0], part))
        shares = list[Any]()
        for number, ((_, combine_two), places) in enumerate(_groups(part).items()):
            vector, split = ravel_pytree([leaves[place] for place in places])
            rows = replicas.scatter(vector)
            share: Any = None if total is None else total[number][0]
            for row, counts in zip(rows, present, strict=True):
                share = row if share is None else jnp.where(counts, combine_two(share, row), share)
            shares.append(share)
            if last:
                whole = split(replicas.collect(share)[: len(vector)])
                for place, leaf in zip(places, whole, strict=True):
                    leaves[place] = leaf
        return jax.tree.unflatten(structure, leaves) if last else [each[None] for each in shares]

    inputs = (_HERE, _HERE, _EVERYWHERE)
    if last:
        return _wrap(on_each, devices, inputs, _EVERYWHERE)
    return _wrap(on_each, devices, inputs, _HERE, 0)


def update(devices: Mesh, step_config: StepConfig) -> Any:
    """Returns a program of a state, the result of `add`, the number of slices and the learning
    rates, which returns the next state and the metric sums. It consumes the state.
    """

    def on_each(state: TrainState, total: Any, slices: Any, learning_rates: Any) -> Any:
        means, sums = total
        return step.update_state(
            state,
            combine.divide(means, slices),
            sums,
            Constants({}, learning_rates),
            step_config=step_config,
        )

    return _wrap(on_each, devices, _EVERYWHERE, _EVERYWHERE, 0)


def _wrap(function: Any, devices: Mesh, inputs: Any, outputs: PartitionSpec, *donated: int) -> Any:
    mapped = jax.shard_map(
        own_trace(function), mesh=devices, in_specs=inputs, out_specs=outputs, check_vma=False
    )
    return jax.jit(mapped, donate_argnums=donated)


def _groups(pair: tuple[Any, Any]) -> dict[tuple[str, Any], list[int]]:
    """Returns the indices of the leaves that are combined as one vector, which have the same dtype
    and are all added, or are all the largest of their values: `combine.add_with_sums`.
    """
    means, sums = pair
    adds = [*map(combine.is_float, jax.tree.leaves(means)), *(True for _ in jax.tree.leaves(sums))]
    groups: dict[Any, list[int]] = {}
    for number, (leaf, added) in enumerate(zip(jax.tree.leaves(pair), adds, strict=True)):
        groups.setdefault((leaf.dtype.name, jnp.add if added else jnp.maximum), []).append(number)
    return groups
