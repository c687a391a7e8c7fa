"""Makes glibc keep the memory that a training step frees for the next step.

XLA:CPU allocates the memory of a step again in each step. By default, glibc maps and unmaps blocks
of this size each time, and the kernel clears them page by page, which causes 45,000 page faults for
a U-Net.
"""

import ctypes
import os
from typing import Any

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # of malloc.h
_MOST = 2**31 - 1  # bytes, the largest int of C


def keep_freed() -> None:
    """Keeps freed blocks of less than 2 GiB in the heap of the main thread.

    Does nothing without glibc, or if the environment configures malloc.
    """
    if any(name == "GLIBC_TUNABLES" or name.startswith("MALLOC_") for name in os.environ):
        return
    for threshold in (_TRIM_THRESHOLD, _MMAP_THRESHOLD):
        _call("mallopt", threshold, _MOST)


def return_freed() -> None:
    """Returns free memory of the heap to the system."""
    _call("malloc_trim", 0)


def _call(name: str, *arguments: int) -> None:
    function: Any = getattr(ctypes.CDLL(None), name, None)
    if function is not None:
        function(*arguments)
