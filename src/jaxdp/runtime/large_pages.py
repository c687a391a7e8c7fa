"""Lets a command have large pages of memory, of 2 MiB in place of 4 KiB.

XLA:CPU allocates the memory of a step anew in each step. glibc maps and unmaps it each time, and
the kernel clears it page by page: 50,000 page faults for a U-Net, a fifth of the step. With large
pages there are some hundreds. Keeping the memory in the heap by `mallopt` is faster still, but only
with one arena for all threads, and XLA's compiler then takes a third longer.
"""

import contextlib
import os
import pathlib
import sys

from jaxdp.runtime import platform

_TUNABLE = {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}
_SINCE = (2, 35)  # glibc
_MODE = pathlib.Path("/sys/kernel/mm/transparent_hugepage/enabled")


def variables() -> dict[str, str]:
    """Returns what a process has to have in its environment when it starts.

    Nothing where that would not help.

    That is with an accelerator, without glibc, where Linux gives large pages always or never, and
    where the user has settled how malloc works.
    """
    if "GLIBC_TUNABLES" in os.environ or any(name.startswith("MALLOC_") for name in os.environ):
        return {}
    try:
        name, _, version = (os.confstr("CS_GNU_LIBC_VERSION") or "").partition(" ")
        known = name == "glibc" and tuple(map(int, version.split("."))) >= _SINCE
        asks = known and "[madvise]" in _MODE.read_text()
    except (ValueError, OSError, AttributeError):  # no such name, no Linux
        return {}
    return dict(_TUNABLE) if asks and platform.only_cpu() else {}


def restart() -> None:
    """Starts the command of this process again with `variables`, in its place: glibc reads them
    when a process starts.

    Call it before anything is read or written. It returns where there is nothing to be gained, and
    in a process that somebody else has started, such as a notebook.
    """
    main = sys.modules["__main__"]
    spec, file = getattr(main, "__spec__", None), getattr(main, "__file__", None) or ""
    # Of python -m jaxdp.train, or of the script jaxdp.
    name = spec.name if spec is not None else pathlib.Path(file).name
    if name.partition(".")[0] == "jaxdp" and (wanted := variables()):
        with contextlib.suppress(OSError):
            os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], os.environ | wanted)
