"""Defines U-Net, a network with an output per pixel: an encoder that pools, a decoder that
up-samples, and skips between them.

It has three forms. `padding="valid"` is the paper's form. `padding="same"`, the default, is today's
common form, with batch norm and an output as large as the image. `upsampling="resize"` is for
image-to-image regression, with biases instead of batch norm and an up-sampling without weights. The
encoder may be a ResNet, for which there are trained weights.

Source: Ronneberger, Fischer, Brox: U-Net: Convolutional Networks for Biomedical Image Segmentation,
MICCAI 2015.
"""

import functools
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float, Key

from jaxdp.models import initializers, layers, registry, resampling
from jaxdp.models.resnet import IMAGENET_UNITS, Backbone

_MOST_LEVELS = 12  # 2 to the power of 12 pixels become one in the deepest level
# Depths of ResNets whose stem and stages halve the resolution five times.
ENCODERS = {f"resnet{depth}": depth for depth in IMAGENET_UNITS}
_ENCODER_LEVELS = 5


@registry.register("unet")
class UNet(nnx.Module):
    """An encoder and a decoder of 3x3 convolutions, with skips between blocks of the same
    resolution.

    Args:
        num_classes: channels of the output: one logit per class, or one value per regressed
            channel.
        in_channels: channels of the images.
        rngs: source of the initial weights.
        base_channels: channels at full resolution; they double with each pooling. With an
            `encoder`, those of the decoder.
        levels: number of poolings; None for 4, or for 5 with an `encoder`.
        upsampling: `transposed` (2x2 up-convolutions that halve the channels), `bilinear`
            (align-corners) or `resize` (half-pixel bilinear, to the size of the skip). With
            `bilinear` the deepest block and the end of each decoder block have half as many
            channels.
        padding: `same` or `valid`. With `valid`, the paper's form, every 3x3 convolution removes a
            pixel from each side, and skips are cropped.
        encoder: `resnet18`, `resnet34`, `resnet50`, `resnet101` or `resnet152` for the stem and the
            first `levels` - 1 stages of that ResNet, at most five levels. Then there is no skip at
            full resolution, and `bilinear` does not halve the channels of a block. None for
            convolutions like those of the decoder.
        dtype: format of the computation; parameters and outputs are float32.

    Raises:
        ConfigError: for a keyword out of range, or valid padding with an encoder or with another
            up-sampling than `transposed`.
    """

    tasks: ClassVar[tuple[str, ...]] = ("segmentation", "regression")

    def __init__(  # noqa: PLR0913 - a model's constructor
        self,
        *,
        num_classes: int,
        in_channels: int,
        rngs: nnx.Rngs,
        base_channels: int = 64,
        levels: int | None = None,
        upsampling: str = "transposed",
        padding: str = "same",
        encoder: str | None = None,
        dtype: Any = jnp.float32,
    ) -> None:
        if levels is None:
            levels = _ENCODER_LEVELS if encoder else 4
        _check(base_channels, levels, upsampling, padding, encoder)
        self.levels = levels
        self.upsampling = upsampling
        self.padding = padding
        self.dtype = dtype

        norm = padding == "same" and upsampling != "resize"
        options: dict[str, Any] = {"dtype": dtype, "rngs": rngs, "local": True}  # for tiles
        he: dict[str, Any] = {"kernel_init": initializers.he_normal_fan_in}
        pixels = 1 if padding == "same" else 0
        block = functools.partial(
            layers.ConvStack, batch_norm=norm, bias=not norm, padding=pixels, **options, **he
        )
        self.up_convs, self.decoder = nnx.List([]), nnx.List([])
        if encoder is not None:
            self.encoder: Any = Backbone(
                in_channels=in_channels, depth=ENCODERS[encoder], stages=levels - 1, **options
            )
            *halved, features = self.encoder.features
            skips = [*halved[::-1], 0]
            decoder_widths = [(base_channels * 2**level,) * 2 for level in range(levels)][::-1]
        else:
            encoder_widths, decoder_widths = _block_widths(base_channels, levels, upsampling)
            self.encoder = nnx.List([])
            features = in_channels
            for middle, out in encoder_widths:
                self.encoder.append(block([features, middle, out]))
                features = out
            skips = [skip for _, skip in encoder_widths[-2::-1]]
        for (middle, out), skip in zip(decoder_widths, skips, strict=True):
            if upsampling == "transposed":
                self.up_convs.append(UpConv(features, out, dtype=dtype, rngs=rngs))
                features = out
            self.decoder.append(block([skip + features, middle, out]))
            features = out
        self.head = layers.conv(features, num_classes, 1, bias=True, **options, **he)

    def __call__(
        self,
        images: Float[Array, "batch height width channels"],
        keys: Key[Array, "batch"] | None = None,
    ) -> Float[Array, "batch h w classes"]:
        """Returns float32 outputs per pixel: of every pixel with same padding, of the centre with
        valid padding (388 of 572).

        Args:
            images: normalized, NHWC, of any height and width; with valid padding at least
                `smallest_side`.
            keys: unused; this model draws no random numbers.

        Raises:
            ConfigError: if the images are too small for valid padding.
        """
        if self.padding == "valid":
            (height, width), smallest = images.shape[1:3], smallest_side(self.levels)
            remedy = (
                f"valid padding needs images of {smallest}x{smallest} or more, got"
                f" {height}x{width}; use fewer or same padding"
            )
            registry.require(min(height, width) >= smallest, "levels", self.levels, remedy)
        x = images.astype(self.dtype)
        skips: list[Any] = [x[..., :0]] if self._has_backbone else []
        for before, blocks in self._encoder_parts():
            x = layers.run_blocks(self, blocks, before(x))
            skips.append(x)
        x = skips.pop()
        for index, block in enumerate(self.decoder):
            skip = skips.pop()
            up = self._upsample(x, index, skip.shape[1:3])
            if self.padding == "valid":
                skip = resampling.center_crop(skip, up)
            joined = jnp.concatenate([skip, up], -1) if skip.shape[-1] else up
            x = layers.run_blocks(self, [block], joined)
        return layers.float32_or_wider(self.head(x))

    @property
    def _has_backbone(self) -> bool:
        return isinstance(self.encoder, Backbone)

    def _encoder_parts(self) -> Iterator[tuple[Callable[[Array], Array], list[Any]]]:
        """Yields for each resolution a function that comes first, and the blocks after it."""
        if self._has_backbone:
            yield from self.encoder.parts()
            return
        for index, block in enumerate(self.encoder):
            yield (resampling.max_pool if index else lambda x: x), [block]

    def _upsample(self, x: Array, index: int, size: tuple[int, int]) -> Array:
        height, width = x.shape[1:3]
        if self.upsampling == "resize":
            return jax.image.resize(x, (x.shape[0], *size, x.shape[3]), "bilinear")
        x = (
            self.up_convs[index](x)
            if self.up_convs
            else resampling.resize_align_corners(x, (2 * height, 2 * width))
        )
        if self.padding == "valid":
            return x
        if self._has_backbone:  # it rounds up, so a row or column may be left over
            return x[:, : size[0], : size[1]]
        # Pads with zeros around the centre, with an odd row or column at the bottom or the right.
        # A count is negative only if the skip is a single pixel, which pooling did not change.
        missing = [new - old for new, old in zip(size, x.shape[1:3], strict=True)]
        pads = [(0, 0, 0), *((count // 2, count - count // 2, 0) for count in missing), (0, 0, 0)]
        return jax.lax.pad(x, jnp.zeros((), x.dtype), pads)


class UpConv(nnx.Module):
    """A 2x2 transposed convolution with stride 2 and bias. Each pixel becomes 2x2 pixels, to which
    no other pixel contributes.

    It is computed as a dense layer per pixel for each of the two rows, so that outputs have the
    same order in memory as in space. XLA's transposed convolution takes twice as long on a CPU.
    """

    def __init__(self, in_features: int, features: int, *, dtype: Any, rngs: nnx.Rngs) -> None:
        self.kernel = nnx.Param(_he_normal_per_pixel(rngs.params(), (2, 2, in_features, features)))
        self.bias = nnx.Param(initializers.zeros(rngs.params(), (features,)))
        self.dtype = dtype

    def __call__(
        self, x: Float[Array, "batch height width in"]
    ) -> Float[Array, "batch 2*height 2*width features"]:
        batch, height, width, _ = x.shape
        kernel, bias = self.kernel[...].astype(self.dtype), self.bias[...].astype(self.dtype)
        rows = [jnp.einsum("nhwi,cio->nhwco", x, kernel[row]) + bias for row in (0, 1)]
        return jnp.stack(rows, 2).reshape(batch, 2 * height, 2 * width, -1)


# He's normal, as in other layers. Only one tap contributes to an output pixel, so the fan-in is the
# number of channels.
_he_normal_per_pixel = initializers.normal(lambda shape: np.sqrt(2 / shape[-2]))


def _check(
    base_channels: int, levels: int, upsampling: str, padding: str, encoder: str | None
) -> None:
    """Raises ConfigError for keywords of a `UNet` that are out of range or do not go together."""
    registry.require_count("base_channels", base_channels)
    if encoder is not None:
        registry.require_known("encoder", encoder, ENCODERS)
    registry.require_count("levels", levels, _ENCODER_LEVELS if encoder else _MOST_LEVELS)
    registry.require_known("upsampling", upsampling, ("transposed", "bilinear", "resize"))
    registry.require_known("padding", padding, ("same", "valid"))
    possible = padding == "same" or upsampling == "transposed"
    remedy = "valid padding goes with transposed up-sampling; use it, or padding=same"
    registry.require(possible, "upsampling", upsampling, remedy)
    remedy = "a ResNet as the encoder goes with padding=same"
    registry.require(padding == "same" or encoder is None, "padding", padding, remedy)


def smallest_side(levels: int) -> int:
    """Returns the smallest height or width of an image from which valid padding leaves a pixel of
    output.
    """
    side = 1
    for _ in range(levels):  # up the decoder, where a block removes 4 pixels from twice as many
        side = -(-(side + 4) // 2)
    for _ in range(levels):  # up the encoder
        side = 2 * (side + 4)
    return side + 4


def _block_widths(
    base: int, levels: int, upsampling: str
) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    """Returns (middle, out) channels of the blocks of the encoder, full resolution first, and of
    the decoder, coarsest first.
    """
    skips = [base * 2**level for level in range(levels)]
    deepest = base * 2**levels
    if upsampling == "transposed":
        bottom = (deepest, deepest)
        decoder = [(skip, skip) for skip in skips]
    elif upsampling == "bilinear":
        bottom = (deepest // 2, deepest // 2)
        decoder = [(base, base), *((skip, skip // 2) for skip in skips[1:])]
    else:
        bottom = (deepest, deepest // 2)
        decoder = [(2 * skip, skip) for skip in skips]
    return [*((skip, skip) for skip in skips), bottom], decoder[::-1]
