"""Pauses Python's garbage collector while JAX traces a program."""

import contextlib
import gc
from collections.abc import Iterator


@contextlib.contextmanager
def paused() -> Iterator[None]:
    """Pauses the collector until the end of the block, or of the decorated function.

    Tracing creates millions of objects that stay alive. The collector would scan them repeatedly,
    which takes a quarter of the tracing time.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
