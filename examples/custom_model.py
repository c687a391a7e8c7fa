"""A model of your own: a small ConvNeXt (Liu et al. 2022, figure 4), which also shows how layers
come from Flax or from jaxdp.

python examples/custom_model.py --epochs 10                                  # or:
jaxdp.Trainer(ConvNeXt(...), "digits").fit() python -m jaxdp.train --plugins
examples/custom_model.py --model convnext --model-kwargs width=48 depth=6
"""

import sys

import jax.numpy as jnp
from flax import nnx

from jaxdp import models, train
from jaxdp.models import layers


class Block(nnx.Module):
    """A 7x7 convolution of each channel by itself, then two dense layers across channels, beside an
    identity.
    """

    def __init__(self, width, *, dtype, rngs):
        self.spatial = nnx.Conv(
            width, width, (7, 7), feature_group_count=width, dtype=dtype, rngs=rngs
        )
        self.norm = nnx.LayerNorm(width, dtype=dtype, rngs=rngs)
        self.expand = layers.dense(width, 4 * width, dtype=dtype, rngs=rngs)
        self.shrink = layers.dense(4 * width, width, dtype=dtype, rngs=rngs)

    def __call__(self, x):
        return x + self.shrink(nnx.gelu(self.expand(self.norm(self.spatial(x)))))


@models.register("convnext")
class ConvNeXt(nnx.Module):
    """Keywords with a default are what --model-kwargs can set."""

    def __init__(
        self,
        *,
        num_classes,
        in_channels,
        rngs,
        width=32,
        depth=4,
        patch=2,
        dropout=0.0,
        dtype=jnp.float32,
    ):
        models.require_count("depth", depth)
        models.require_rate("dropout", dropout)
        self.stem = layers.conv(
            in_channels, width, patch, stride=patch, padding=0, bias=True, dtype=dtype, rngs=rngs
        )
        self.blocks = nnx.List([Block(width, dtype=dtype, rngs=rngs) for _ in range(depth)])
        self.norm = nnx.LayerNorm(width, dtype=dtype, rngs=rngs)
        self.dropout = layers.Dropout(dropout, index=0, rngs=rngs) if dropout else None
        self.head = layers.dense(width, num_classes, dtype=dtype, rngs=rngs)
        self.dtype = dtype

    def __call__(self, images, keys=None):  # keys: one per example, for what is drawn at random
        # Heeds --remat.
        x = layers.run_blocks(self, self.blocks, self.stem(images.astype(self.dtype)))
        x = self.norm(x.mean((1, 2)))
        x = self.dropout(x, keys) if self.dropout is not None else x
        return self.head(x).astype(jnp.float32)


if __name__ == "__main__":  # what the user's flags leave open is set here
    sys.exit(train.main(["--model", "convnext", "--optimizer", "adamw", *sys.argv[1:]]))
