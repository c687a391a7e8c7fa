"""Creates optimizers and learning-rate schedules of Optax from their names."""

import functools
import inspect
import math
import traceback
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import optax
import optax.contrib

from jaxdp.config import DEFAULT_OPTIMIZER, OptimizationConfig
from jaxdp.errors import ConfigError
from jaxdp.plugins.registry import check_keywords
from jaxdp.text.console import warn
from jaxdp.text.messages import nearest, one_line


def _muon(
    learning_rate: optax.ScalarOrSchedule,
    weight_decay: float = 0.0,
    *,
    beta: float = 0.95,
    ns_steps: int = 5,
    nesterov: bool = True,
    adam_b1: float = 0.9,
    adam_b2: float = 0.999,
) -> optax.GradientTransformation:
    """Returns Muon for kernels and AdamW for biases and scales.

    An update of a kernel is its momentum with all singular values near 1, times 0.2 and the root of
    its larger side. This is the size of an update of AdamW, so that both have one learning rate.

    Args:
        learning_rate: as a function of the step.
        weight_decay: decoupled, of all parameters.
        beta: decay of the momentum.
        ns_steps: iterations of Newton and Schulz.
        nesterov: whether the momentum looks ahead, for kernels and for all others.
        adam_b1: decay of the first moment in AdamW.
        adam_b2: decay of the second moment in AdamW.

    Sources: Jordan et al., Muon, 2024; for the size of an update Liu et al., Muon is Scalable for
    LLM Training, 2025, section 2.2.
    """
    return optax.contrib.muon(
        learning_rate,
        weight_decay=weight_decay,
        beta=beta,
        ns_steps=ns_steps,
        nesterov=nesterov,
        adam_b1=adam_b1,
        adam_b2=adam_b2,
        adam_weight_decay=weight_decay,
        muon_weight_dimension_numbers=_matrices,
        consistent_rms=0.2,
    )


def _matrices(params: Any) -> Any:
    """Returns how Muon makes a matrix of each parameter: all inputs of a kernel by its outputs.

    None for what is no kernel.
    """

    def dimensions(leaf: Any) -> optax.contrib.MuonDimensionNumbers | None:
        dims = tuple(range(leaf.ndim))
        return optax.contrib.MuonDimensionNumbers(dims[:-1], dims[-1:]) if leaf.ndim > 1 else None

    return jax.tree.map(dimensions, params)


# `--optimizer-kwargs` may set the keywords of a rule.
OPTIMIZERS: dict[str, Callable[..., optax.GradientTransformation]] = {
    "sgd": lambda learning_rate: optax.sgd(learning_rate),
    "momentum": lambda learning_rate, momentum=0.9: optax.sgd(learning_rate, momentum),
    "nesterov": lambda learning_rate, momentum=0.9: optax.sgd(
        learning_rate, momentum, nesterov=True
    ),
    "adam": optax.adam,
    "adamw": optax.adamw,
    "rmsprop": optax.rmsprop,
    "adagrad": optax.adagrad,
    "lamb": optax.lamb,
    "lion": optax.lion,
    "muon": _muon,
}
MULTISTEP_MILESTONES = (0.5, 0.75)  # the PyramidNet recipe: epochs 150 and 225 of 300
DEFAULT_BATCH_SIZE = 128  # for which rates are meant that are scaled with the batch


def create_schedule(config: OptimizationConfig, total_steps: int) -> optax.Schedule:
    """Returns the learning rate as a function of the step.

    Args:
        config: with learning rate and warm-up filled in, and the global batch size as well, if the
            rate is to be scaled with it.
        total_steps: number of steps of the run.

    Raises:
        ConfigError: if the warm-up reaches beyond the first milestone.

    Source: one-cycle is Smith and Topin 2018 with cosine arms, from 1/25 of the peak to 1/250,000
    of it; the linear warm-up of the others, and a rate in proportion to the batch, are Goyal et al.
    2017, section 2; its square root is Krizhevsky 2014, section 3.
    """
    peak, warmup_fraction = config.learning_rate, config.warmup_fraction
    assert peak is not None
    assert warmup_fraction is not None
    if config.lr_scaling != "none":
        ratio = int(config.global_batch_size or DEFAULT_BATCH_SIZE) / DEFAULT_BATCH_SIZE
        peak *= ratio if config.lr_scaling == "linear" else math.sqrt(ratio)
    if config.schedule == "onecycle":
        total_steps = max(total_steps, 2)
        # Optax divides by the length of each arm.
        rising = min(max(round(warmup_fraction * total_steps), 1), total_steps - 1)
        return optax.cosine_onecycle_schedule(
            total_steps, peak, pct_start=(rising + 0.5) / total_steps
        )
    warmup = round(warmup_fraction * total_steps)
    rest = max(total_steps - warmup, 1)
    if config.schedule == "constant":
        after = optax.constant_schedule(peak)
    elif config.schedule == "cosine":
        after = optax.cosine_decay_schedule(peak, rest)
    else:
        milestones: dict[int, float] = {}
        for fraction in MULTISTEP_MILESTONES:  # which are one step of a very short run
            step = round(total_steps * fraction) - warmup
            milestones[step] = 0.1 * milestones.get(step, 1.0)
        if min(milestones) < 0:
            remedy = "reaches beyond the first milestone of multistep, 0.5"
            raise ConfigError("warmup_fraction", config.warmup_fraction, remedy)
        after = optax.piecewise_constant_schedule(peak, milestones)
    if not warmup:
        return after
    return optax.join_schedules(
        [optax.linear_schedule(peak / warmup, peak, warmup - 1 or 1), after], [warmup]
    )


def create_optimizer(
    config: OptimizationConfig, schedule: optax.Schedule
) -> optax.GradientTransformation:
    """Returns clipping, weight decay and the named optimizer, in this order, as in PyTorch's
    training loops.

    Args:
        config: names the optimizer and its keywords.
        schedule: the learning rate as a function of the step.

    Raises:
        ConfigError: for an unknown name or keyword, or a value that Optax does not accept.
    """
    name, keywords = config.optimizer or DEFAULT_OPTIMIZER, dict(config.optimizer_kwargs)
    if name not in OPTIMIZERS:
        raise ConfigError("optimizer", name, f"unknown optimizer; {nearest(name, OPTIMIZERS)}")
    rule = OPTIMIZERS[name]
    check_keywords(
        "optimizer_kwargs", rule, keywords, reserved=("learning_rate", "weight_decay", "mask")
    )
    chain: list[optax.GradientTransformation] = []
    if config.clip_norm is not None:
        chain.append(optax.clip_by_global_norm(config.clip_norm))
    if "weight_decay" in inspect.signature(rule).parameters:
        keywords["weight_decay"] = config.weight_decay
    elif config.weight_decay:
        chain.append(optax.add_decayed_weights(config.weight_decay))
    try:
        rule_transformation: Any = rule(learning_rate=schedule, **keywords)
    except (TypeError, ValueError) as error:
        raise ConfigError("optimizer_kwargs", keywords, one_line(error)) from error
    return optax.chain(*chain, rule_transformation)


def update(
    optimizer: optax.GradientTransformation, grads: Any, opt_state: Any, params: Any, loss: Any
) -> tuple[Any, Any]:
    """Returns the optimizer's updates and its new state.

    Args:
        loss: of the global batch, which is the `value` of e.g. `optax.contrib.reduce_on_plateau`.
    """
    try:
        extended = optax.with_extra_args_support(optimizer)
        return extended.update(grads, opt_state, params, value=loss)
    except TypeError:  # it takes no value, as optax.contrib.sam
        return optimizer.update(grads, opt_state, params)


def check_update(optimizer: optax.GradientTransformation, params: Any) -> None:
    """Checks that an optimizer needs only gradients, parameters and the loss of a batch.

    Args:
        params: their shapes.

    Raises:
        ConfigError: if it needs more.
    """
    loss = jax.ShapeDtypeStruct((), np.float32)
    try:
        opt_state = jax.eval_shape(optimizer.init, params)
        jax.eval_shape(functools.partial(update, optimizer), params, opt_state, params, loss)
    except Exception as error:  # whatever an optimizer raises without what it needs
        frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
        of_optax = [each for each in frames if "optax" in each.f_globals["__name__"]]
        name = of_optax[-1].f_code.co_qualname.partition(".")[0] if of_optax else "(an object)"
        remedy = (
            "cannot be updated from gradients, parameters and the loss of a batch alone"
            f" ({type(error).__name__}: {one_line(error)}); use an optimizer that can, e.g."
            " optax.lbfgs with linesearch=None"
        )
        raise ConfigError("optimizer", name, remedy) from error
    own = (optax.contrib.ScheduleFreeState, optax.contrib.SAMState)
    for state in jax.tree.leaves(opt_state, is_leaf=lambda each: isinstance(each, own)):
        if isinstance(state, own):
            name = type(state).__name__.removesuffix("State")
            problem = "keeps the weights that should be evaluated to itself"
            warn(f"the optimizer {name} {problem}; the weights in training are evaluated and saved")
