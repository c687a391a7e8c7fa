"""Computes one training or evaluation step, in pure functions that strategies wrap."""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import nnx
from jaxtyping import Array, Bool, Float, Key

from jaxdp.config import BatchNormMode
from jaxdp.data.augment import Preprocess
from jaxdp.data.placement import gather_examples
from jaxdp.models import layers
from jaxdp.step import batch_norm, combine, optim
from jaxdp.step.keys import example_keys, fold, turns
from jaxdp.step.replicas import Replicas
from jaxdp.step.state import (
    Constants,
    TrainState,
    Tree,
    all_finite,
    array_name,
    call_model,
    merge,
)
from jaxdp.step.views import mean_over_views
from jaxdp.tasks import Task

Batch = Mapping[str, Array]
# Gradients of the weighted loss, new running statistics of batch norm, and the mean weight of the
# examples, times the task's divisors.
Means = tuple[Tree, Tree, Float[Array, ""]]
TrainStep = Callable[[TrainState, Any, Constants], tuple[TrainState, dict[str, Array]]]


@dataclasses.dataclass(frozen=True)
class StepConfig:
    """The settings of a step, which are the same under every strategy.

    Attributes:
        task: computes losses and metric sums.
        optimizer: creates an optimizer that follows a schedule.
        preprocess: augments and normalizes a batch.
        batch_norm: which examples share statistics.
        ema_decay: decay of the moving average of the weights; 0 for none.
        on_divergence: `skip` keeps the old state if the new state would not be finite. With other
            values, the loop handles divergence.
        accumulate_steps: number of microbatches of a batch, computed one after the other.
        scan: whether microbatches, and several steps of one call, are a loop in the program, which
            compiles faster; XLA:CPU runs convolutions in loops very slowly.
        remat: which activations the backward pass recomputes: `none` or `blocks`.
        frozen: names of the frozen parameters. Their gradients are 0 and are not computed. Batch
            norms still update their running statistics, as in PyTorch.
        views: of each image in evaluation, a name of `views.VIEWS`.
    """

    task: Task
    optimizer: Callable[[optax.Schedule], optax.GradientTransformation]
    preprocess: Preprocess
    batch_norm: BatchNormMode = dataclasses.field(default_factory=BatchNormMode)
    ema_decay: float = 0.0
    on_divergence: str = "stop"
    accumulate_steps: int = 1
    scan: bool = False
    remat: str = "none"
    frozen: frozenset[str] = frozenset()
    views: str | None = None


def train_step(
    state: TrainState,
    batch: Batch,
    constants: Constants,
    *,
    step_config: StepConfig,
    replicas: Replicas,
) -> tuple[TrainState, dict[str, Array]]:
    """Returns the state after one update and the metric sums of the global batch.

    Both are equal on all replicas.

    The sums are the task's sums, `gradient_norm` (before clipping) and `updates`, which is 1 for
    this step. If updates can be skipped, the sums include `skipped_updates`, which is 1 if this
    update was skipped. With a loss scale, they include `overflows`, which is 1 if the scale was too
    large.

    Args:
        state: before the update.
        batch: this program's examples, or their indices in `constants.examples`.
        constants: learning rates, random key, and the dataset if it is held on the devices.
    """
    with jax.named_scope("input"):  # scopes name the stages of a step in a profile
        batch = gather_examples(batch, constants.examples)
    means, sums = accumulate_gradients(
        state, batch, constants, step_config=step_config, replicas=replicas
    )
    with jax.named_scope("reduce"):
        means, sums = replicas.mean(means), replicas.sum(sums)
    return update_state(state, means, sums, constants, step_config=step_config)


@jax.named_scope("update")
def update_state(
    state: TrainState,
    means: Means,
    sums: dict[str, Array],
    constants: Constants,
    *,
    step_config: StepConfig,
) -> tuple[TrainState, dict[str, Array]]:
    """Returns the state after one update, and the metric sums of the step.

    Args:
        state: before the update.
        means: over replicas.
        sums: metric sums of the global batch.
        constants: holds the learning rates.
    """
    grads, batch_stats, weight = means
    # The weight is exactly 1 for a full batch. With missing examples, the mean is over the present
    # examples, on any replica.
    scale = jnp.maximum(weight, jnp.finfo(jnp.float32).tiny) * (
        1.0 if state.loss_scale is None else state.loss_scale.factor
    )
    grads = jax.tree.map(lambda grad: grad / scale, grads)
    # The norm of the averaged gradients is the same on all replicas, so it is added to the sums
    # after the reduction over replicas.
    sums = sums | {"gradient_norm": optax.tree.norm(grads), "updates": jnp.ones(())}
    loss = sums["loss"] / jnp.maximum(sums["examples"], 1.0)
    updated = apply_gradients(
        state, grads, batch_stats, constants.learning_rates, loss, step_config=step_config
    )
    if step_config.on_divergence == "skip" or state.loss_scale is not None:
        finite = jnp.isfinite(sums["loss"]) & jnp.isfinite(sums["gradient_norm"])
        sound = finite & all_finite(updated) if step_config.on_divergence == "skip" else finite
        updated = jax.tree.map(lambda new, old: jnp.where(sound, new, old), updated, state)
        updated = dataclasses.replace(updated, step=state.step + 1)
        sums["skipped_updates"] = jnp.where(sound, 0.0, 1.0)
        if state.loss_scale is not None:
            updated = dataclasses.replace(updated, loss_scale=state.loss_scale.adjusted(finite))
            # This is not a divergence, because gradients may be finite with a smaller scale.
            sums["overflows"] = jnp.where(
                jnp.isfinite(sums["loss"]) & ~finite & (state.loss_scale.factor > 1), 1.0, 0.0
            )
    return updated, sums


def accumulate_gradients(
    state: TrainState,
    batch: Batch,
    constants: Constants,
    *,
    step_config: StepConfig,
    replicas: Replicas,
) -> tuple[Means, dict[str, Array]]:
    """Returns the same values as `compute_gradients`, as means over microbatches that are computed
    one after the other, and their metric sums.
    """
    count = step_config.accumulate_steps
    compute = functools.partial(
        compute_gradients, state, constants=constants, step_config=step_config, replicas=replicas
    )
    if count == 1:
        return compute(batch)

    # Each replica computes its share of every microbatch, so that under jit over a mesh no example
    # moves to another device.
    shares = {
        name: leaf.reshape(replicas.per_program, count, -1, *leaf.shape[1:])
        for name, leaf in batch.items()
    }
    parts = {
        name: jnp.moveaxis(leaf, 1, 0).reshape(count, -1, *leaf.shape[3:])
        for name, leaf in shares.items()
    }

    def microbatch(number: int) -> Batch:
        return {name: leaf[number] for name, leaf in parts.items()}

    if step_config.scan:
        # Starts from zeros. With the first microbatch before the loop, the program would be twice
        # as long, and gradients would be reduced twice.
        means, sums = jax.eval_shape(compute, microbatch(0))
        zeros = combine.nothing(means), jax.tree.map(jnp.zeros_like, sums)
        total, _ = jax.lax.scan(
            lambda total, part: (combine.add_with_sums(total, compute(part)), None), zeros, parts
        )
    else:
        total = compute(microbatch(0))
        for number in range(1, count):
            # The barrier makes a microbatch wait for the previous microbatch. Computed together,
            # they would require the memory of the whole batch.
            part, total = jax.lax.optimization_barrier((microbatch(number), total))
            total = combine.add_with_sums(total, compute(part))
    means, sums = total
    return combine.divide(means, count), sums


def compute_gradients(
    state: TrainState,
    batch: Batch,
    *,
    constants: Constants,
    step_config: StepConfig,
    replicas: Replicas,
) -> tuple[Means, dict[str, Array]]:
    """Returns the means and the metric sums of this replica's examples.

    The gradients must still be divided by the mean weight of the global batch.

    Args:
        state: before the update.
        batch: this replica's examples, not yet augmented.
        constants: holds the run's random key, the statistics of its images, and the length of an
            epoch.
    """

    def keys_of(purpose: int) -> Callable[[Array], Key[Array, "batch"]]:
        return lambda indices: fold(example_keys(constants.key, state.step, indices), purpose)

    def turns_of(indices: Array) -> Bool[Array, "batch"]:
        return turns(constants.key, state.step // constants.steps_per_epoch, indices)

    with jax.named_scope("augment"):
        batch = step_config.preprocess(batch, keys_of(0), constants.moments, turns_of)
    keys = keys_of(1)(batch["indices"])
    group_size, joined = batch_norm.statistics(
        step_config.batch_norm, replicas, len(batch["images"])
    )

    def loss_function(
        params: Tree,
    ) -> tuple[Float[Array, ""], tuple[Tree, Float[Array, ""], dict[str, Array]]]:
        trained = _merge_frozen(step_config.frozen, jax.lax.stop_gradient(params), params)
        model = merge(state, trained, state.batch_stats, keys[0] if state.random else None)
        model.train()
        layers.set_batch_norm(model, group_size=group_size, combine=joined)
        if step_config.remat != "none":  # a model of one's own may have an attribute of this name
            model.remat = step_config.remat  # for `layers.run_blocks`
        outputs = call_model(model, batch, keys=keys)
        outputs, examples, own = _seen_by_task(step_config.task, outputs, batch, replicas)
        losses = examples["weights"] * step_config.task.losses(outputs, examples)
        # The mean over replicas of the gradients is the gradient of the mean loss, also where each
        # replica computes the losses of all.
        loss = jnp.sum(losses) / len(batch["weights"])
        if state.loss_scale is not None:
            loss = loss * state.loss_scale.factor
        weight = jnp.mean(examples["weights"] * step_config.task.divisors(outputs, examples))
        return loss, (
            nnx.to_pure_dict(nnx.state(model, nnx.BatchStat)),
            weight,
            step_config.task.sums(outputs, own, training=True),
        )

    with jax.named_scope("forward"):
        loss, pull_back, (batch_stats, weight, metrics) = jax.vjp(
            loss_function, replicas.local(state.params), has_aux=True
        )
    with jax.named_scope("backward"):
        (grads,) = pull_back(jnp.ones_like(loss))
    return (grads, batch_stats, weight), metrics


def _seen_by_task(
    task: Task, outputs: Tree, batch: Batch, replicas: Replicas
) -> tuple[Tree, Batch, Batch]:
    """Returns outputs and examples for the loss of a task, and the examples for its sums: those of
    this replica, or those of all if the task compares examples.
    """
    if not task.over_batch:
        return outputs, batch, batch
    # XLA leaves out what no loss reads, such as the images of other replicas.
    examples = {name: replicas.join(values) for name, values in batch.items()}
    examples["present"] = examples["weights"]
    own = examples | {"weights": replicas.apart(batch["weights"])}
    return jax.tree.map(replicas.join, outputs), examples, own


def apply_gradients(
    state: TrainState,
    grads: Tree,
    batch_stats: Tree,
    learning_rates: Array,
    loss: Array,
    *,
    step_config: StepConfig,
) -> TrainState:
    """Returns the state after the optimizer's update with these gradients, with new batch
    statistics and moving averages.

    Args:
        loss: of the global batch, for optimizers that use the loss.
    """
    # A count beyond the last rate reads the last rate, because JAX clamps indices.
    optimizer = step_config.optimizer(lambda count: learning_rates[count])
    updates, opt_state = optim.update(optimizer, grads, state.opt_state, state.params, loss)
    # Weight decay and similar terms would change parameters without a gradient.
    params = _merge_frozen(
        step_config.frozen, state.params, optax.apply_updates(state.params, updates)
    )
    ema = None
    if state.ema is not None:
        # With the full decay, early averages would be mostly initial weights. The decay therefore
        # starts at 0.1 and rises.
        decay = jnp.minimum(step_config.ema_decay, (1.0 + state.step) / (10.0 + state.step))
        averages: Any = optax.incremental_update((params, batch_stats), state.ema, 1 - decay)
        averages = jax.tree.map(
            lambda average, new: average if combine.is_float(new) else new,
            averages,
            (params, batch_stats),
        )
        ema = (_merge_frozen(step_config.frozen, params, averages[0]), averages[1])
    return dataclasses.replace(
        state,
        step=state.step + 1,
        params=params,
        batch_stats=batch_stats,
        opt_state=opt_state,
        ema=ema,
    )


def _merge_frozen(names: frozenset[str], frozen: Tree, trained: Tree) -> Tree:
    """Returns the parameters of these names from the first tree and all others from the second."""
    if not names:
        return trained
    return jax.tree.map_with_path(
        lambda path, one, other: one if array_name(path) in names else other, frozen, trained
    )


def eval_step(
    state: TrainState,
    batch: Batch,
    constants: Constants,
    *,
    step_config: StepConfig,
    replicas: Replicas,
) -> dict[str, Array]:
    """Returns the metric sums of the global batch, computed with the moving average of the weights
    if there is one.

    Args:
        state: of the model.
        batch: this program's examples, or their indices in `constants.examples`.
    """
    batch = gather_examples(batch, constants.examples)
    batch = step_config.preprocess(batch, None, constants.moments)
    call = functools.partial(call_model, evaluation_model(state))
    outputs = mean_over_views(call, batch, step_config.views, step_config.task)
    outputs, _, own = _seen_by_task(step_config.task, outputs, batch, replicas)
    return replicas.sum(step_config.task.sums(outputs, own, training=False))


def evaluation_model(state: TrainState) -> Any:
    """Returns the model in evaluation mode, with averaged weights if the state has them."""
    params, batch_stats = (state.params, state.batch_stats) if state.ema is None else state.ema
    model = merge(state, params, batch_stats)
    model.eval()
    return model
