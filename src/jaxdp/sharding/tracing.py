"""Separates the traces of a strategy from earlier traces of JAX, and scans over steps."""

import functools
from collections.abc import Callable
from typing import Any, TypeVar

import jax
import jax.numpy as jnp

from jaxdp.step.state import Constants, TrainState
from jaxdp.step.step import Batch, StepConfig, TrainStep

Function = TypeVar("Function", bound=Callable[..., Any])

_context = jax.make_user_context()  # a part of the key by which JAX finds a trace


def own_trace(function: Function) -> Function:
    """Returns a function that shares no trace with other functions, including traces of the
    functions that it calls.

    JAX keeps the trace of a function under `jax.jit`, `nnx.remat`, `jax.lax.scan` and similar
    transforms as long as the process lives. A model that calls such a function would use the values
    of module constants that an earlier Trainer traced.
    """
    token = object()
    named = function.func if isinstance(function, functools.partial) else function

    @functools.wraps(named)  # profiles show its name
    def traced(*args: Any, **kwargs: Any) -> Any:
        with _context(token):
            return function(*args, **kwargs)

    return traced  # pyright: ignore[reportReturnType]


def scan_steps(train_step: TrainStep, *, step_config: StepConfig) -> TrainStep:
    """Returns a train step with its own trace that also accepts K batches at once.

    Their fields are (batch, K, ...), and it returns sums (K, ...). The K steps are one program, so
    that the device does not wait for the host between them. K is the second dim, because the first
    dim is sharded over devices and processes.
    """
    token = object()

    def steps(
        state: TrainState, batch: Batch, constants: Constants
    ) -> tuple[TrainState, dict[str, jax.Array]]:
        with _context(token):  # as `own_trace` does, without its frame
            if batch["indices"].ndim == 1:
                return train_step(state, batch, constants)
            return jax.lax.scan(
                lambda state, batch: train_step(state, batch, constants),
                state,
                {name: jnp.moveaxis(values, 1, 0) for name, values in batch.items()},
                unroll=not step_config.scan,
            )

    return steps
