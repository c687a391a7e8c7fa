"""Saves the states of a run as checkpoints, verifies these, and restores from them.

The names here are public: a program with a loop of its own may rely on them.
"""

from jaxdp.checkpoint.checkpoints import Checkpoints as Checkpoints

__all__ = ["Checkpoints"]
