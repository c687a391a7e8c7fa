"""Provides the models, one file per family, by name with `create` or as classes.

model = models.create("pyramidnet", num_classes=10, in_channels=3, rngs=nnx.Rngs(0), depth=20)
model = models.PyramidNet(num_classes=10, in_channels=3, rngs=nnx.Rngs(0), depth=20, alpha=48)
logits = model(images)
"""

from jaxdp.models.cnn import CNN
from jaxdp.models.pyramidnet import PyramidNet
from jaxdp.models.registry import (
    constructor_of,
    create,
    factory,
    names,
    parameter_count,
    register,
    require_count,
    require_known,
    require_rate,
    tasks_of,
)
from jaxdp.models.resnet import ResNet
from jaxdp.models.unet import UNet
from jaxdp.models.vgg import VGG

__all__ = [
    "CNN",
    "VGG",
    "PyramidNet",
    "ResNet",
    "UNet",
    "constructor_of",
    "create",
    "factory",
    "names",
    "parameter_count",
    "register",
    "require_count",
    "require_known",
    "require_rate",
    "tasks_of",
]
