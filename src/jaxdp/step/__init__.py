"""Defines one training step: the state it updates, the optimizer, the step itself and the sums of
its metrics.

The names in this package are public, for programs with their own loop.
"""

from jaxdp.step import metrics as metrics
from jaxdp.step.replicas import Replicas as Replicas
from jaxdp.step.state import Constants as Constants
from jaxdp.step.state import TrainState as TrainState
from jaxdp.step.state import create_train_state as create_train_state
from jaxdp.step.step import StepConfig as StepConfig
from jaxdp.step.step import eval_step as eval_step
from jaxdp.step.step import train_step as train_step

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
