"""Presents runs, predictions, sweeps and benchmarks as text, tables, plots and one page."""

import errno
import os

from jaxdp.rundir.read import warn


def _ignore_loops() -> None:
    """Removes variables that name a link to itself: Python 3.12 cannot import Matplotlib then."""
    for name in ("MPLCONFIGDIR", "XDG_CACHE_HOME", "XDG_CONFIG_HOME"):
        try:
            os.stat(os.environ.get(name) or ".")
        except OSError as error:
            if error.errno == errno.ELOOP:
                warn(f"{name} is ignored: {os.environ.pop(name)} is a link to itself")


_ignore_loops()
