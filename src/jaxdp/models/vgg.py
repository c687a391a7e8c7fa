"""Defines VGG, a network of stages of 3x3 convolutions that each end in a pooling.

Source: Simonyan, Zisserman: Very Deep Convolutional Networks for Large-Scale Image Recognition,
ICLR 2015, table 1, configurations A, B, D and E. Batch norm and the head for small images are later
practice.
"""

import itertools
from typing import Any

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Key

from jaxdp.models import initializers, layers, registry, resampling

# Convolutions per stage; a pooling follows each.
_CONVS = {11: (1, 1, 2, 2, 2), 13: (2, 2, 2, 2, 2), 16: (2, 2, 3, 3, 3), 19: (2, 2, 4, 4, 4)}
# The ImageNet head gets 7x7 positions, which is the size that an image of 224x224 leaves.
POSITIONS = 7


@registry.register("vgg")
class VGG(nnx.Module):
    """Five stages of 3x3 convolutions and poolings, and a head for CIFAR or for ImageNet.

    Args:
        num_classes: number of logits.
        in_channels: channels of the images.
        rngs: source of the initial weights, and of dropout in calls without keys.
        depth: layers with weights in the paper's count: 11, 13, 16 or 19.
        head: `cifar` (mean over positions, one dense layer) or `imagenet` (7x7 positions, two dense
            layers and another for the logits).
        batch_norm: whether batch norm follows each convolution.
        width: channels of the first stage; the last has 8 times as many, and the dense layers of
            the ImageNet head 64 times.
        dropout: rate before the dense layer of the CIFAR head, by default 0; after the ReLUs of the
            ImageNet head, by default 0.5.
        dtype: format of the computation; parameters and logits are float32.

    Raises:
        ConfigError: for a keyword out of range.
    """

    def __init__(  # noqa: PLR0913 - a model's hyper-parameters are its configuration
        self,
        *,
        num_classes: int,
        in_channels: int,
        rngs: nnx.Rngs,
        depth: int = 16,
        head: str = "cifar",
        batch_norm: bool = True,
        width: int = 64,
        dropout: float | int | None = None,
        dtype: Any = jnp.float32,
    ) -> None:
        registry.require_known("depth", depth, _CONVS)
        registry.require_known("head", head, ("cifar", "imagenet"))
        registry.require_count("width", width)
        if dropout is None:
            dropout = 0.5 if head == "imagenet" else 0.0
        registry.require_rate("dropout", dropout)
        self.stages = nnx.List([])
        features = in_channels
        for convs, factor in zip(_CONVS[depth], (1, 2, 4, 8, 8), strict=True):
            widths = [features, *[factor * width] * convs]
            self.stages.append(
                Stage(widths, batch_norm=batch_norm, bias=True, dtype=dtype, rngs=rngs)
            )
            features = factor * width
        make_head = ImageNetHead if head == "imagenet" else CifarHead
        self.head = make_head(features, num_classes, dropout=dropout, dtype=dtype, rngs=rngs)
        self.dtype = dtype

    def __call__(
        self,
        images: Float[Array, "batch height width channels"],
        keys: Key[Array, "batch"] | None = None,
    ) -> Float[Array, "batch classes"]:
        """Returns float32 logits.

        Args:
            images: normalized, NHWC, of any size: poolings that would leave no pixel are left out.
            keys: one per example, for dropout in training; None draws from the model's own
                `nnx.Rngs`.
        """
        x = layers.run_blocks(self, self.stages, images.astype(self.dtype))
        return layers.float32_or_wider(self.head(x, keys))


class Stage(layers.ConvStack):
    """Convolutions, each with a bias and ReLU, then a 2x2 max pool along each side longer than one
    pixel.
    """

    def __call__(
        self, x: Float[Array, "batch height width in"]
    ) -> Float[Array, "batch h w features"]:
        return resampling.max_pool(super().__call__(x))


class CifarHead(nnx.Module):
    """The mean over all positions, dropout, and a dense layer."""

    def __init__(
        self, features: int, num_classes: int, *, dropout: float | int, dtype: Any, rngs: nnx.Rngs
    ) -> None:
        self.dropout = layers.Dropout(dropout, index=0, rngs=rngs)
        self.dense = layers.dense(features, num_classes, dtype=dtype, rngs=rngs)

    def __call__(
        self, x: Float[Array, "batch height width features"], keys: Key[Array, "batch"] | None
    ) -> Float[Array, "batch classes"]:
        return self.dense(self.dropout(jnp.mean(x, (1, 2)), keys))


class ImageNetHead(nnx.Module):
    """Two dense layers with ReLU and dropout, and one to the logits, on 7x7 positions.

    Source: the paper's table 1, section 3.1.
    """

    def __init__(
        self, features: int, num_classes: int, *, dropout: float | int, dtype: Any, rngs: nnx.Rngs
    ) -> None:
        hidden = 8 * features
        shapes = itertools.pairwise([POSITIONS**2 * features, hidden, hidden, num_classes])
        init: Any = {"kernel_init": _normal, "bias_init": initializers.zeros}
        self.denses = nnx.List(
            [nnx.Linear(*shape, dtype=dtype, rngs=rngs, **init) for shape in shapes]
        )
        self.dropouts = nnx.List(
            [layers.Dropout(dropout, index=index, rngs=rngs) for index in (0, 1)]
        )

    def __call__(
        self, x: Float[Array, "batch height width features"], keys: Key[Array, "batch"] | None
    ) -> Float[Array, "batch classes"]:
        x = resampling.adaptive_average_pool(x, POSITIONS)
        x = x.reshape(x.shape[0], -1)
        for dense, dropout in zip(self.denses[:-1], self.dropouts, strict=True):
            x = dropout(nnx.relu(dense(x)), keys)
        return self.denses[-1](x)


_normal = initializers.normal(lambda shape: 0.01)  # Source: section 3.1.
