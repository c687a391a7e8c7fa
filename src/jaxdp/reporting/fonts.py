"""Imports Matplotlib independently of the backend in the environment, and chooses its fonts.

Figures are drawn without a backend. Modules that draw import Matplotlib's names from this module.
"""

import contextlib
import os
import sys
import warnings
from collections.abc import Iterator
from typing import Any

try:
    import matplotlib
except ValueError:  # a notebook's MPLBACKEND, in an environment that lacks the notebook's packages
    _backend = os.environ.pop("MPLBACKEND", "")
    for _name in [each for each in sys.modules if each.startswith("matplotlib.")]:
        del sys.modules[_name]  # a second import would not find them in the package
    import matplotlib

    os.environ["MPLBACKEND"] = _backend

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import PowerNorm
from matplotlib.figure import Figure

__all__ = ["Figure", "FigureCanvasAgg", "PowerNorm", "matplotlib", "without_warnings"]


@contextlib.contextmanager
def without_warnings(style: Any) -> Iterator[None]:
    """Draws in a style. A character that no font has becomes a box, without a warning."""
    with matplotlib.rc_context(style), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing")
        yield
