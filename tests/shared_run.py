"""What all tests of a file start from, a run mostly, is made once and copied into the folder of
each test.
"""

import pathlib
import shutil
from collections.abc import Callable
from typing import TypeVar

import pytest

T = TypeVar("T")


def make_once(factory: pytest.TempPathFactory, make: Callable[[], T]) -> tuple[pathlib.Path, T]:
    """Returns the folder in which `make` was called, without drawing pictures, and what it
    returned.
    """
    from jaxdp.reporting import outcome, plots

    folder = factory.mktemp("shared")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr(outcome, "draw", lambda *_, **__: {})
        patch.setattr(plots, "plot_curves", lambda *_, **__: None)
        return folder, make()


def copy_here(folder: pathlib.Path) -> None:
    shutil.copytree(folder, ".", dirs_exist_ok=True)
