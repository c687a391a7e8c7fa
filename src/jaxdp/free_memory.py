"""How much memory is free: what would take more is refused before it is read or computed."""

import contextlib
import os
import pathlib
import re
import sys

from jaxdp.units import bytes_text

_UNNOTICED_BYTES = 64 * 2**20  # what takes less than this is not worth a look at the memory


def check_memory(wanted: int) -> None:
    """Raises ValueError if so many bytes are more than this machine, or this container, has
    free.
    """
    if wanted > _UNNOTICED_BYTES and wanted > (free := available_memory_bytes()):
        raise ValueError(
            f"it would take {bytes_text(wanted)} of memory, and {bytes_text(free)} are free"
        )


def available_memory_bytes() -> int:
    """Returns how much memory this process can still take before others are swapped out or
    killed.

    The limits of a container and of the process itself (`ulimit -v`) count.
    """
    free = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    with contextlib.suppress(OSError, StopIteration):  # Linux only
        lines = pathlib.Path("/proc/meminfo").read_text().splitlines()
        free = 1024 * int(
            next(line for line in lines if line.startswith("MemAvailable:")).split()[1]
        )
    group = pathlib.Path("/sys/fs/cgroup")  # of a container
    with contextlib.suppress(OSError, ValueError):  # there is none, or it has no limit
        free = min(
            free,
            int((group / "memory.max").read_text()) - int((group / "memory.current").read_text()),
        )
    if sys.platform == "linux":
        import resource

        limit, _ = resource.getrlimit(resource.RLIMIT_AS)
        size = re.search(r"VmSize:\s*(\d+) kB", pathlib.Path("/proc/self/status").read_text())
        if limit != resource.RLIM_INFINITY and size is not None:
            free = min(free, limit - 1024 * int(size[1]))
    return max(free, 0)
