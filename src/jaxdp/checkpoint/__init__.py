"""Saves the states of a run as checkpoints, verifies the checkpoints, and restores states.

The names in this package are public, for programs with their own loop.
"""

from jaxdp.checkpoint.checkpoints import Checkpoints

__all__ = ["Checkpoints"]
