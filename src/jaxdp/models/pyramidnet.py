"""Defines PyramidNet, a residual network that widens in every unit.

Source: Han, Kim, Kim: Deep Pyramidal Residual Networks, CVPR 2017. Where the paper's formula and
the authors' code differ (rounding of widths), this follows the code, which gives the published
parameter counts.
"""

import functools
import itertools
from typing import Any

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Key

from jaxdp.models import layers, registry, resampling

# Units per stage of the ImageNet form, all bottlenecks.
_IMAGENET_UNITS = {50: (3, 4, 6, 3), 101: (3, 4, 23, 3), 152: (3, 8, 36, 3), 200: (3, 24, 36, 3)}


@registry.register("pyramidnet")
class PyramidNet(nnx.Module):
    """A stem, pre-activation residual units with parameter-free shortcuts, global average pooling
    and a dense layer.

    Args:
        num_classes: number of logits.
        in_channels: channels of the images.
        rngs: source of the initial weights, and of random numbers in calls without keys.
        depth: number of layers: 6n + 2 with basic units, 9n + 2 with bottlenecks; 50, 101, 152 or
            200 with the ImageNet stem.
        alpha: number of channels that all units add together; with multiplicative growth, the
            factor by which they widen.
        bottleneck: whether units have 1x1, 3x3 and 1x1 convolutions (to four times the width)
            instead of two 3x3.
        growth: `additive` or `multiplicative`.
        stem: `cifar` for small images (3 stages from 16 channels), `imagenet` for large ones (4
            stages from 64, pooled first).
        shake_drop: drop probability of the last unit; it rises linearly with depth. 0 turns
            ShakeDrop off, 0.5 is the paper's.
        dropout: rate before the dense layer.
        dtype: format of the computation; parameters and logits are float32.

    Raises:
        ConfigError: for a keyword out of range, or a depth that no number of units gives.
    """

    def __init__(  # noqa: PLR0913 - a model's hyper-parameters are its configuration
        self,
        *,
        num_classes: int,
        in_channels: int,
        rngs: nnx.Rngs,
        depth: int = 20,
        alpha: float | int = 24,
        bottleneck: bool = False,
        growth: str = "additive",
        stem: str = "cifar",
        shake_drop: float | int = 0.0,
        dropout: float | int = 0.0,
        dtype: Any = jnp.float32,
    ) -> None:
        registry.require_known("growth", growth, ("additive", "multiplicative"))
        registry.require_known("stem", stem, ("cifar", "imagenet"))
        possible = isinstance(alpha, int | float) and 0 < alpha <= registry.MOST_CHANNELS
        remedy = f"must be a number greater than 0 and at most {registry.MOST_CHANNELS}"
        registry.require(possible, "alpha", alpha, remedy)
        registry.require_rate("shake_drop", shake_drop)
        registry.require_rate("dropout", dropout)
        units_per_stage = _units_per_stage(depth, bottleneck, stem)
        start = 16 if stem == "cifar" else 64
        widths = unit_widths(start, alpha, sum(units_per_stage), growth)
        self.large_stem = stem == "imagenet"
        size, stride = (7, 2) if self.large_stem else (3, 1)
        self.stem_conv = layers.conv(
            in_channels, start, size, stride=stride, dtype=dtype, rngs=rngs
        )
        self.stem_norm = layers.BatchNorm(start, dtype=dtype)

        unit = functools.partial(Unit, bottleneck=bottleneck, dtype=dtype, rngs=rngs)
        self.units = nnx.List([])
        features = start
        first_of_later_stages = [*itertools.accumulate(units_per_stage[:-1])]
        for index, width in enumerate(widths):
            stride = 2 if index in first_of_later_stages else 1
            rate = shake_drop * (index + 1) / len(widths)
            self.units.append(unit(features, width, stride=stride, shake_drop=rate, index=index))
            features = self.units[-1].features
        self.final_norm = layers.BatchNorm(features, dtype=dtype)
        self.dropout = layers.Dropout(dropout, index=len(widths), rngs=rngs)
        self.head = layers.dense(features, num_classes, dtype=dtype, rngs=rngs)
        self.dtype = dtype

    def __call__(
        self,
        images: Float[Array, "batch height width channels"],
        keys: Key[Array, "batch"] | None = None,
    ) -> Float[Array, "batch classes"]:
        """Returns float32 logits.

        Args:
            images: normalized, NHWC.
            keys: one per example, for ShakeDrop and dropout in training; None draws from the
                model's own `nnx.Rngs`.
        """
        x = self.stem_norm(self.stem_conv(images.astype(self.dtype)))
        if self.large_stem:
            x = resampling.max_pool(nnx.relu(x), 3, padding=1)
        x = layers.run_blocks(self, self.units, x, keys)
        x = jnp.mean(nnx.relu(self.final_norm(x)), (1, 2))
        return layers.float32_or_wider(self.head(self.dropout(x, keys)))


class Unit(layers.ResidualUnit):
    """A residual unit with batch norm first and last, and no ReLU before the first convolution or
    after the addition.

    Attributes:
        stride: of the first 3x3 convolution and of the shortcut.
    """

    def __init__(
        self,
        in_features: int,
        width: int,
        *,
        stride: int,
        shake_drop: float | int,
        index: int,
        rngs: nnx.Rngs,
        **options: Any,
    ) -> None:
        super().__init__(in_features, width, stride=stride, rngs=rngs, **options)
        self.stride = stride
        first = layers.BatchNorm(in_features, dtype=options["dtype"])
        self.norms = nnx.List([first, *self.norms])
        self.shake = layers.ShakeDrop(shake_drop, index=index, rngs=rngs)

    def __call__(
        self, x: Float[Array, "batch height width in"], keys: Key[Array, "batch"] | None
    ) -> Float[Array, "batch h w features"]:
        branch = self.shake(self.branch(self.norms[0](x), self.norms[1:]), keys)
        return layers.shortcut(x, self.features, self.stride) + branch


def unit_widths(start: int, alpha: float | int, units: int, growth: str) -> list[int]:
    """Returns each unit's width.

    The width grows in float64 and is rounded, half to even, only for use, as in all code of the
    authors.

    Args:
        start: width of the stem.
        alpha: channels added by all units together, or the factor by which they widen.
        units: number of units.
        growth: `additive` or `multiplicative`.

    Source: Han et al. 2017, equations 3 (additive) and 4 (multiplicative); the paper floors.
    """
    widths, width = [], float(start)
    for _ in range(units):
        width = width + alpha / units if growth == "additive" else width * alpha ** (1 / units)
        widths.append(round(width))
    return widths


def _units_per_stage(depth: int, bottleneck: bool, stem: str) -> tuple[int, ...]:
    if stem == "imagenet":
        remedy = "the imagenet stem has bottleneck units; set bottleneck=true"
        registry.require(bottleneck, "bottleneck", bottleneck, remedy)
        remedy = f"with the imagenet stem it must be one of {', '.join(map(str, _IMAGENET_UNITS))}"
        registry.require(depth in _IMAGENET_UNITS, "depth", depth, remedy)
        return _IMAGENET_UNITS[depth]
    layers_per_round = 9 if bottleneck else 6
    registry.require_count("depth", depth, maximum=registry.MOST_LAYERS)
    rounds, rest = divmod(depth - 2, layers_per_round)
    lower = max(1, rounds) * layers_per_round + 2
    kind = "bottleneck" if bottleneck else "basic"
    remedy = (
        f"{kind} units need {layers_per_round}n + 2 layers, e.g. {lower} or"
        f" {lower + layers_per_round}"
    )
    registry.require(rounds >= 1 and rest == 0, "depth", depth, remedy)
    return (rounds,) * 3
