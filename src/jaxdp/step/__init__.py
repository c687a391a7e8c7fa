"""Defines one training step: the state it updates, the optimizer, the step itself and the sums of
its metrics.
"""
