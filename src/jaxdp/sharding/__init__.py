"""Divides the work of a step among devices, with one file per strategy.

`strategy.py` defines the interface of all strategies, and only `communication.py` names
collectives. `mesh.py` and `partition.py` determine where arrays are. The names in this package are
public, for programs with their own loop or strategy.
"""

from jaxdp.sharding.communication import Communication
from jaxdp.sharding.strategy import Strategy, create_strategy, names, register

__all__ = ["Communication", "Strategy", "create_strategy", "names", "register"]
