"""Defines CNN, a small convolutional network for digits and similar images, which trains in seconds
on a CPU.

Source: LeCun, Bottou, Bengio, Haffner: Gradient-Based Learning Applied to Document Recognition,
Proc. IEEE 1998, for the plan (convolutions, poolings, dense layers); 3x3 convolutions, batch norm
and ReLU are later practice.
"""

import itertools
from typing import Any

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Key

from jaxdp.models import layers, registry, resampling

# The dense layers get 4x4 positions for images of any size.
_POSITIONS = 4


@registry.register("cnn")
class CNN(nnx.Module):
    """Three 3x3 convolutions with batch norm, ReLU and poolings, and two dense layers.

    Args:
        num_classes: number of logits.
        in_channels: channels of the images.
        rngs: source of the initial weights, and of dropout in calls without keys.
        width: channels of the first of three convolutions. The other two have twice and four times
            as many channels.
        hidden: width of the dense layer before the logits.
        dropout: rate before each dense layer.
        dtype: format of the computation; parameters and logits are float32.

    Raises:
        ConfigError: for a keyword out of range.
    """

    def __init__(
        self,
        *,
        num_classes: int,
        in_channels: int,
        rngs: nnx.Rngs,
        width: int = 16,
        hidden: int = 128,
        dropout: float | int = 0.0,
        dtype: Any = jnp.float32,
    ) -> None:
        registry.require_count("width", width)
        registry.require_count("hidden", hidden)
        registry.require_rate("dropout", dropout)
        widths = [in_channels, width, 2 * width, 4 * width]
        self.convs = nnx.List(
            [layers.conv(*pair, 3, dtype=dtype, rngs=rngs) for pair in itertools.pairwise(widths)]
        )
        self.norms = nnx.List(layers.norms(self.convs, dtype))
        self.hidden = layers.dense(_POSITIONS**2 * widths[-1], hidden, dtype=dtype, rngs=rngs)
        self.head = layers.dense(hidden, num_classes, dtype=dtype, rngs=rngs)
        self.dropouts = nnx.List(
            [layers.Dropout(dropout, index=index, rngs=rngs) for index in (0, 1)]
        )
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
        x = images.astype(self.dtype)
        for position, (conv, norm) in enumerate(zip(self.convs, self.norms, strict=True)):
            x = conv(x)
            # Pooling first leaves batch norm and ReLU a quarter of the pixels.
            x = nnx.relu(norm(resampling.max_pool(x) if position < 2 else x))
        x = resampling.adaptive_average_pool(x, _POSITIONS)
        first, second = self.dropouts
        x = nnx.relu(self.hidden(first(x.reshape(x.shape[0], -1), keys)))
        return layers.float32_or_wider(self.head(second(x, keys)))
