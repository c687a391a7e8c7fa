"""Provides the tasks, one file each. A task computes a loss and metrics from a model's outputs and
a batch. It does not depend on devices.

task = tasks.create("segmentation", num_classes=2, loss="dice")
task = tasks.Segmentation(2, loss="dice")
task = tasks.from_loss(optax.softmax_cross_entropy_with_integer_labels, num_classes=10)
"""

from jaxdp.tasks.classification import Classification as Classification
from jaxdp.tasks.loss_function import from_loss as from_loss
from jaxdp.tasks.regression import Regression as Regression
from jaxdp.tasks.segmentation import Segmentation as Segmentation
from jaxdp.tasks.task import Sums as Sums
from jaxdp.tasks.task import Task as Task
from jaxdp.tasks.task import candidates as candidates
from jaxdp.tasks.task import create as create
from jaxdp.tasks.task import kind_of as kind_of
from jaxdp.tasks.task import names as names
from jaxdp.tasks.task import ratio as ratio
from jaxdp.tasks.task import register as register
