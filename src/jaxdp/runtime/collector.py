"""Keeps Python's garbage collector away while JAX traces a program."""

import contextlib
import gc
from collections.abc import Iterator


@contextlib.contextmanager
def paused() -> Iterator[None]:
    """Collects nothing until the end of the block, or of the function that this decorates.

    Tracing makes millions of objects that stay. The collector looks through them again and again,
    for a quarter of the time that tracing takes.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
