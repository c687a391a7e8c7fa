"""Defines a small ConvNeXt (Liu et al. 2022, figure 4) as a model of your own.

Layers come from Flax or from jaxdp. In Python: jaxdp.Trainer(ConvNeXt(...), "digits").fit()

python examples/custom_model.py --epochs 10
python -m jaxdp.train --plugins examples/custom_model.py --model convnext --model-kwargs width=48
"""

import sys

import jax.numpy as jnp
from flax import nnx

from jaxdp import models, train
from jaxdp.models import layers


class Block(nnx.Module):
    """A depthwise 7x7 convolution and two dense layers, added to their input."""

    def __init__(self, width, **options):
        self.spatial = nnx.Conv(width, width, (7, 7), feature_group_count=width, **options)
        self.norm = nnx.LayerNorm(width, **options)
        self.expand = layers.dense(width, 4 * width, **options)
        self.shrink = layers.dense(4 * width, width, **options)

    def __call__(self, x):
        return x + self.shrink(nnx.gelu(self.expand(self.norm(self.spatial(x)))))


@models.register("convnext")
class ConvNeXt(nnx.Module):
    """`--model-kwargs` can set keywords that have a default."""

    def __init__(
        self, *, num_classes, in_channels, rngs, width=32, depth=4, dropout=0.0, dtype=jnp.float32
    ):
        models.require_count("depth", depth)
        models.require_rate("dropout", dropout)
        options = {"dtype": dtype, "rngs": rngs}
        self.stem = layers.conv(in_channels, width, 2, stride=2, padding=0, bias=True, **options)
        self.blocks = nnx.List([Block(width, **options) for _ in range(depth)])
        self.norm = nnx.LayerNorm(width, **options)
        self.dropout = layers.Dropout(dropout, index=0, rngs=rngs) if dropout else None
        self.head = layers.dense(width, num_classes, **options)
        self.dtype = dtype

    def __call__(self, images, keys=None):  # keys: one per example, for random draws
        x = self.stem(images.astype(self.dtype))
        x = layers.run_blocks(self, self.blocks, x)  # supports --remat
        x = self.norm(x.mean((1, 2)))
        x = self.dropout(x, keys) if self.dropout is not None else x
        return self.head(x).astype(jnp.float32)


if __name__ == "__main__":  # the user's flags come last and override the flags before them
    sys.exit(train.main(["--model", "convnext", "--optimizer", "adamw", *sys.argv[1:]]))
