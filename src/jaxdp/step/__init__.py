"""Defines one training step: the state it updates, the optimizer, the step itself and the sums of
its metrics.

The names in this package are public, for programs with their own loop.
"""

from jaxdp.step import metrics
from jaxdp.step.replicas import Replicas
from jaxdp.step.state import Constants, TrainState, create_train_state
from jaxdp.step.step import StepConfig, eval_step, train_step

__all__ = [
    "Constants",
    "Replicas",
    "StepConfig",
    "TrainState",
    "create_train_state",
    "eval_step",
    "metrics",
    "train_step",
]
