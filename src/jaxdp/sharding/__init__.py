"""Which devices are there, and how do they share the work? One file per strategy.

`platform.py` is what must happen before JAX starts; `replicas.py` is the only place that names collectives;
`strategy.py` is the interface, and each other file one way to fill it.
"""
