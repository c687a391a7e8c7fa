"""Provides the models, one file per family, by name with `create` or as classes.

model = models.create("pyramidnet", num_classes=10, in_channels=3, rngs=nnx.Rngs(0), depth=20)
model = models.PyramidNet(num_classes=10, in_channels=3, rngs=nnx.Rngs(0), depth=20, alpha=48)
logits = model(images)
"""

from typing import TYPE_CHECKING

from jaxdp.models.registry import class_named as __getattr__  # noqa: F401
from jaxdp.models.registry import constructor_of as constructor_of
from jaxdp.models.registry import create as create
from jaxdp.models.registry import factory as factory
from jaxdp.models.registry import names as names
from jaxdp.models.registry import parameter_count as parameter_count
from jaxdp.models.registry import register as register
from jaxdp.models.registry import tasks_of as tasks_of

if TYPE_CHECKING:
    from jaxdp.models.cnn import CNN as CNN
    from jaxdp.models.pyramidnet import PyramidNet as PyramidNet
    from jaxdp.models.resnet import ResNet as ResNet
    from jaxdp.models.unet import UNet as UNet
    from jaxdp.models.vgg import VGG as VGG
