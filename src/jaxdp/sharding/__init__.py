"""Shares the work of a step among devices, one file per strategy.

`strategy.py` is the interface of all strategies; only `replicas.py` names collectives; `mesh.py`
and `partition.py` decide where arrays lie. The names here are public: a program with a loop or a
strategy of its own may rely on them.
"""

from jaxdp.sharding.mesh import MeshShape as MeshShape
from jaxdp.sharding.strategy import Strategy as Strategy
from jaxdp.sharding.strategy import create_strategy as create_strategy
from jaxdp.sharding.strategy import names as names
from jaxdp.sharding.strategy import register as register

__all__ = ["MeshShape", "Strategy", "create_strategy", "names", "register"]
