"""Provides the tasks, one file each. A task computes a loss and metrics from a model's outputs and
a batch. It does not depend on devices.

task = tasks.create("segmentation", num_classes=2, loss="dice")
task = tasks.Segmentation(2, loss="dice")
task = tasks.heads({"digit": tasks.Classification(10), "parity": tasks.Classification(2)})
task = tasks.from_loss(optax.softmax_cross_entropy_with_integer_labels, num_classes=10)
"""

from jaxdp.tasks.classification import Classification
from jaxdp.tasks.heads import heads
from jaxdp.tasks.instance_segmentation import InstanceSegmentation
from jaxdp.tasks.loss_function import batch_loss, from_loss
from jaxdp.tasks.multilabel import MultiLabel
from jaxdp.tasks.regression import Regression
from jaxdp.tasks.scalar_regression import ScalarRegression
from jaxdp.tasks.segmentation import Segmentation
from jaxdp.tasks.task import (
    Sums,
    Task,
    candidates,
    create,
    keywords_of,
    kind_of,
    names,
    ratio,
    register,
)

__all__ = [
    "Classification",
    "InstanceSegmentation",
    "MultiLabel",
    "Regression",
    "ScalarRegression",
    "Segmentation",
    "Sums",
    "Task",
    "batch_loss",
    "candidates",
    "create",
    "from_loss",
    "heads",
    "keywords_of",
    "kind_of",
    "names",
    "ratio",
    "register",
]
