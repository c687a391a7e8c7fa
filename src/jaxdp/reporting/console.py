"""Provides standard output for tables."""

import rich.console

_WIDTH = 100


def wide_console() -> rich.console.Console:
    """Returns a console of at least 100 columns, including for a small terminal and a pipe, that
    prints text as it is.
    """
    console = rich.console.Console(highlight=False, markup=False, emoji=False, soft_wrap=True)
    console.width = max(console.width, _WIDTH)
    return console
