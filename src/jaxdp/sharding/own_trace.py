"""Keeps what JAX traces for one strategy apart from what it traced before."""

import functools
from collections.abc import Callable
from typing import Any, TypeVar

import jax

Function = TypeVar("Function", bound=Callable[..., Any])

_context = jax.make_user_context()  # a part of the key by which JAX finds a trace


def own_trace(function: Function) -> Function:
    """Returns a function that shares no trace with other functions, not even of what it calls.

    JAX keeps the trace of a function under `jax.jit`, `nnx.remat`, `jax.lax.scan` and the like as
    long as the process lives. A model that calls such a function would get the values of module
    constants that an earlier Trainer traced.
    """
    token = object()
    named = function.func if isinstance(function, functools.partial) else function

    @functools.wraps(named)  # profiles show its name
    def traced(*args: Any, **kwargs: Any) -> Any:
        with _context(token):
            return function(*args, **kwargs)

    return traced  # pyright: ignore[reportReturnType]
