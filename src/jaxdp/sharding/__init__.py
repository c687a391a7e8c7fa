"""Shares the work of a step among devices, one file per strategy.

`strategy.py` is the interface of all strategies; only `replicas.py` names collectives; `mesh.py`
and `partition.py` decide where arrays lie.
"""
