"""Augments and normalizes images on the device, inside the compiled step, with one random key per
example.

An augmentation is registered by name and made from a word such as `pad_crop:4`; `--augment` takes a
list of them. It changes one example: `images` (float32, H x W x C, in the units of uint8 pixels)
and any dense targets on the same grid. These are `masks` (int32, H x W) or
`targets` (float32, H x W x C). Every change of geometry also applies to them.
"""

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Key

from jaxdp.data.augment.words import Augmentation as Augmentation
from jaxdp.data.augment.words import Example, Mixing, RandomKey, create, output_shape, require
from jaxdp.data.augment.words import names as names
from jaxdp.data.augment.words import register as register
from jaxdp.text.flags import flag

Batch = Mapping[str, Array]
# `float` is float32, and float64 where JAX has 64-bit types, as in `jaxdp.check`.
_DTYPES = {"images": float, "masks": jnp.int32, "targets": float}
TARGET_MAX = (
    255.0  # regression targets are stored as uint8, and networks learn them as fractions of this
)


@dataclasses.dataclass(frozen=True)
class Preprocess:
    """Normalizes a batch, and augments it in training.

    Attributes:
        mean: of each channel, in the units of the stored pixels.
        std: standard deviation of each channel, in the same units.
        augmentations: applied in order, each with its own key. If there are several `Mixing`s, each
            example draws one of them.
        per_image: whether to normalize each image by its own mean and standard deviation instead.
        pixel_range: the stored values that become 0 and 255 first, linearly and without clipping;
            None for pixels of uint8.
    """

    mean: tuple[float, ...]
    std: tuple[float, ...]
    augmentations: tuple[Augmentation, ...] = ()
    per_image: bool = False
    pixel_range: tuple[float, float] | None = None

    @property
    def mixings(self) -> tuple[Mixing, ...]:
        """The augmentations that mix two examples."""
        return tuple(item for item in self.augmentations if isinstance(item, Mixing))

    def __call__(
        self,
        batch: Batch,
        keys_of: Callable[[Array], Key[Array, "batch"]] | None,
        moments: Float[Array, "2 channels"] | None = None,
        turns_of: Callable[[Array], Bool[Array, "batch"]] | None = None,
    ) -> dict[str, Array]:
        """Returns the batch with float32 images, int32 masks and float32 targets.

        With mixings, the batch requires the fields `partner_images`, `partner_labels`,
        `partner_indices` and `partner_weights`, and the result has `partner_share`, by which a loss
        mixes the labels.

        Args:
            batch: the fields of the examples as they are stored.
            keys_of: returns one key per example from their indices; None for no augmentation.
            moments: mean and standard deviation as data of a program, so that the program also
                applies to other datasets; None for the values of this object.
            turns_of: returns whether it is the turn of each example in this epoch, from their
                indices, for augmentations that take turns; None if there are no epochs.

        Raises:
            ConfigError: while tracing, for an augmentation that does not fit the images.
                `output_shape` detects it beforehand.
        """
        if keys_of is None:
            return dict(batch) | self._normalized(self._floats(_pixels(batch)), moments)
        height, width, channels = batch["images"].shape[1:]
        output_shape(self.augmentations, (height, width, channels))

        def augment(prefix: str = "") -> Example:
            indices = batch[f"{prefix}indices"]
            pixels = _pixels(batch, prefix)
            if turns_of is not None and any(item.takes_turns for item in self.augmentations):
                pixels["turn"] = turns_of(indices)
            return jax.vmap(self._augment)(pixels, keys_of(indices))

        out = dict(batch) | augment()
        if self.mixings:
            partners, keys = augment("partner_"), keys_of(batch["indices"])
            images, shares = jax.vmap(self._mix)({"images": out["images"]}, partners, keys)
            usable = batch["partner_weights"] > 0
            out["images"] = jnp.where(usable[:, None, None, None], images, out["images"])
            out["partner_share"] = jnp.where(usable, shares, 0.0)
        return self._normalized(out, moments)

    @property
    def moments(self) -> Float[np.ndarray, "2 channels"]:
        """Mean and standard deviation."""
        return np.array([self.mean, self.std], jax.dtypes.canonicalize_dtype(float))

    def normalize(
        self, images: Float[Array, "*batch height width channels"], moments: Any = None
    ) -> Float[Array, "*batch height width channels"]:
        """Subtracts the mean from float32 images and divides by the standard deviation."""
        if self.per_image:
            mean = jnp.mean(images, (-3, -2, -1), keepdims=True)
            std = jnp.std(images, (-3, -2, -1), keepdims=True)
            # The standard deviation if a single value differed by 1, which keeps an image of one
            # colour finite.
            floor = 1 / jnp.sqrt(float(math.prod(images.shape[-3:])))
            return (images - mean) / jnp.maximum(std, floor)
        if moments is not None:  # gives the bits of the line below, in which XLA inverts a constant
            return (images - moments[0]) * (1 / moments[1])
        return (images - jnp.asarray(self.mean)) / jnp.asarray(self.std)

    def _floats(self, pixels: Batch) -> Example:
        floats = {name: jnp.asarray(array, _DTYPES.get(name)) for name, array in pixels.items()}
        return floats | {"images": self.scale(floats["images"])}

    def scale(self, images: Float[Array, "..."]) -> Float[Array, "..."]:
        """Returns stored pixels, as float32, in units of 0 to 255."""
        if self.pixel_range is None:
            return images
        low, high = self.pixel_range
        return (images - low) * (255.0 / (high - low))

    def _normalized(self, examples: Example, moments: Any) -> Example:
        out = examples | {"images": self.normalize(examples["images"], moments)}
        return out | ({"targets": out["targets"] / TARGET_MAX} if "targets" in out else {})

    def _augment(self, pixels: Example, key: RandomKey) -> Example:
        example = self._floats(pixels)
        for position, augmentation in enumerate(self.augmentations):
            example = augmentation(example, jax.random.fold_in(key, position))
        return {name: array for name, array in example.items() if name != "turn"}

    def _mix(self, example: Example, partner: Example, key: RandomKey) -> tuple[Array, Array]:
        mixings = self.mixings
        draw, inner = jax.random.split(jax.random.fold_in(key, len(self.augmentations)))
        choice = jax.random.randint(draw, (), 0, len(mixings))
        mixed = [
            mixing.mix(example, partner, jax.random.fold_in(inner, number))
            for number, mixing in enumerate(mixings)
        ]
        images, shares = (jnp.stack(parts) for parts in zip(*mixed, strict=True))
        return images[choice], shares[choice]


def _pixels(batch: Batch, prefix: str = "") -> Example:
    """Returns the stored image fields of the examples, or of their partners."""
    return {name: batch[prefix + name] for name in _DTYPES if prefix + name in batch}


def create_augmentations(
    words: Sequence[str], *, dense: bool, mixes: bool = True, padded: bool = False
) -> tuple[Augmentation, ...]:
    """Creates augmentations from the words of `--augment`.

    Args:
        words: e.g. `pad_crop:4`; `none`, without others, for no augmentation.
        dense: whether the targets are masks or images.
        mixes: whether the loss takes the labels of mixed images.
        padded: whether images were padded to one size. Crops then exclude the padding as far as
            possible.

    Raises:
        ConfigError: for a word that cannot be used.
    """
    alone = "none" not in words or len(words) == 1
    require(alone, " ".join(words), "none excludes other augmentations; leave it out")
    augmentations: list[Augmentation] = []
    for word in words:
        if word != "none":
            augmentation = create(word)
            is_mixing = isinstance(augmentation, Mixing)
            fits = not (dense and augmentation.of_classes) and (mixes or not is_mixing)
            require(fits, word, f"works with {flag('task', 'classification')} only")
            augmentations.append(augmentation.within_valid() if padded else augmentation)
    return tuple(augmentations)
