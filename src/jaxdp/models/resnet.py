"""Defines ResNet, a network of residual units, in its forms for CIFAR and for ImageNet.

Source: He, Zhang, Ren, Sun: Deep Residual Learning for Image Recognition, CVPR 2016; section 4.2
for the form with three stages (CIFAR), table 1 for the form with four (ImageNet). Two differences:
where the shape changes, the shortcut is a projection (option B) in both forms, and a bottleneck
strides in its 3x3 convolution, as in torchvision; the paper strides in the 1x1 before it.
"""

import functools
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Key

from jaxdp.models import layers, registry, resampling

# Units per stage of the four-stage form.
IMAGENET_UNITS = {
    18: (2, 2, 2, 2),
    34: (3, 4, 6, 3),
    50: (3, 4, 6, 3),
    101: (3, 4, 23, 3),
    152: (3, 8, 36, 3),
}
_FIRST_BOTTLENECK_DEPTH = 50


class Backbone(nnx.Module):
    """The stem and the stages of a ResNet.

    Args:
        in_channels: channels of the images.
        rngs: source of the initial weights.
        depth, stem, width, dtype: as of `ResNet`.
        stages: how many of the stages to have; None for all.
        local: whether evaluated outputs depend on no pixel outside their window, not even by
            rounding.

    Attributes:
        features: channels after the stem, and after each stage.

    Raises:
        ConfigError: for a keyword out of range, or a depth that no number of units gives.
    """

    def __init__(
        self,
        *,
        in_channels: int,
        rngs: nnx.Rngs,
        depth: int,
        stem: str = "auto",
        width: int | None = None,
        stages: int | None = None,
        local: bool = False,
        dtype: Any = jnp.float32,
    ) -> None:
        registry.require_known("stem", stem, ("auto", "cifar", "imagenet"))
        units_per_stage = _units_per_stage(depth)
        four_stages = len(units_per_stage) == 4
        remedy = (
            f"with {depth} layers there are three stages for small images; use stem=cifar, or"
            " depth=18"
        )
        registry.require(four_stages or stem != "imagenet", "stem", stem, remedy)
        if width is None:
            width = 64 if four_stages else 16
        registry.require_count("width", width)
        self.large_stem = stem == "imagenet" or (stem == "auto" and four_stages)
        size, stride = (7, 2) if self.large_stem else (3, 1)
        options: dict[str, Any] = {"local": local, "dtype": dtype, "rngs": rngs}
        self.stem_conv = layers.conv(in_channels, width, size, stride=stride, **options)
        self.stem_norm = layers.BatchNorm(width, dtype=dtype)

        bottleneck = four_stages and depth >= _FIRST_BOTTLENECK_DEPTH
        unit = functools.partial(Unit, bottleneck=bottleneck, **options)
        self.units = nnx.List([])
        self.units_per_stage = units_per_stage[:stages]
        self.features: tuple[int, ...] = (width,)
        for stage, count in enumerate(self.units_per_stage):
            for index in range(count):
                stride = 2 if stage > 0 and index == 0 else 1
                before = self.units[-1].features if self.units else width
                self.units.append(unit(before, width * 2**stage, stride=stride))
            self.features += (self.units[-1].features,)
        self.dtype = dtype

    def parts(self) -> Iterator[tuple[Callable[[Array], Array], list[Any]]]:
        """Yields the stem and each stage, as a function that comes first and the units after it.

        With the stem for ImageNet, each of them halves the resolution, and rounds it up.
        """
        yield self._stem, []
        units = iter(self.units)
        for stage, count in enumerate(self.units_per_stage):
            pools = stage == 0 and self.large_stem
            yield (_pool if pools else _same), [*itertools.islice(units, count)]

    def _stem(self, images: Array) -> Array:
        return nnx.relu(self.stem_norm(self.stem_conv(images.astype(self.dtype))))


def _pool(x: Array) -> Array:
    return resampling.max_pool(x, 3, padding=1)


def _same(x: Array) -> Array:
    return x


@registry.register("resnet")
class ResNet(Backbone):
    """A stem, three or four stages of residual units, global average pooling and a dense layer.

    Args:
        num_classes: number of logits.
        in_channels: channels of the images.
        rngs: source of the initial weights, and of dropout in calls without keys.
        depth: 18, 34, 50, 101 or 152 for four stages from 64 channels (from 50 on of bottlenecks,
            to four times the width); another 6n + 2, e.g. 20, 32, 44, 56 or 110, for three stages
            from 16.
        stem: `cifar` (a 3x3 convolution) or `imagenet` (7x7 with stride 2 and a pooling; four
            stages only); `auto` chooses the stem of the dataset for which the depth is meant. Four
            stages with the `cifar` stem suit small images.
        width: channels of the first stage; None for the 64 or 16 above.
        dropout: rate before the dense layer.
        dtype: format of the computation; parameters and logits are float32.

    Raises:
        ConfigError: for a keyword out of range, or a depth that no number of units gives.
    """

    def __init__(
        self,
        *,
        num_classes: int,
        in_channels: int,
        rngs: nnx.Rngs,
        depth: int = 20,
        stem: str = "auto",
        width: int | None = None,
        dropout: float | int = 0.0,
        dtype: Any = jnp.float32,
    ) -> None:
        registry.require_rate("dropout", dropout)
        super().__init__(
            in_channels=in_channels, rngs=rngs, depth=depth, stem=stem, width=width, dtype=dtype
        )
        self.dropout = layers.Dropout(dropout, index=0, rngs=rngs)
        self.head = layers.dense(self.features[-1], num_classes, dtype=dtype, rngs=rngs)

    def __call__(
        self,
        images: Float[Array, "batch height width channels"],
        keys: Key[Array, "batch"] | None = None,
    ) -> Float[Array, "batch classes"]:
        """Returns float32 logits.

        Args:
            images: normalized, NHWC, of any size.
            keys: one per example, for dropout in training; None draws from the model's own
                `nnx.Rngs`.
        """
        x = images
        for before, units in self.parts():
            x = layers.run_blocks(self, units, before(x))
        x = jnp.mean(x, (1, 2))
        return layers.float32_or_wider(self.head(self.dropout(x, keys)))


class Unit(layers.ResidualUnit):
    """A residual unit with batch norm after each convolution, and ReLU between them and after the
    addition.

    Source: figure 5.
    """

    def __init__(
        self, in_features: int, width: int, *, bottleneck: bool, stride: int, **options: Any
    ) -> None:
        super().__init__(in_features, width, bottleneck=bottleneck, stride=stride, **options)
        changes_shape = stride != 1 or in_features != self.features
        self.projection = (
            Projection(in_features, self.features, stride, **options) if changes_shape else None
        )

    def __call__(
        self, x: Float[Array, "batch height width in"]
    ) -> Float[Array, "batch h w features"]:
        branch = self.branch(x, self.norms)
        return nnx.relu((x if self.projection is None else self.projection(x)) + branch)


class Projection(nnx.Module):
    """The shortcut of a unit that changes the shape: a 1x1 convolution and batch norm.

    Source: equation 2, option B.
    """

    def __init__(
        self, in_features: int, features: int, stride: int, *, dtype: Any, **options: Any
    ) -> None:
        self.conv = layers.conv(in_features, features, 1, stride=stride, dtype=dtype, **options)
        self.norm = layers.BatchNorm(features, dtype=dtype)

    def __call__(
        self, x: Float[Array, "batch height width in"]
    ) -> Float[Array, "batch h w features"]:
        return self.norm(self.conv(x))


def _units_per_stage(depth: int) -> tuple[int, ...]:
    if depth in IMAGENET_UNITS:
        return IMAGENET_UNITS[depth]
    known = ", ".join(map(str, IMAGENET_UNITS))
    registry.require(
        isinstance(depth, int) and 8 <= depth <= registry.MOST_LAYERS and depth % 6 == 2,
        "depth",
        depth,
        f"must be one of {known}, or 6n + 2, e.g. 20 or 56",
    )
    return ((depth - 2) // 6,) * 3
