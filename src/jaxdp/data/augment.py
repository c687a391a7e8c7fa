"""How are images changed between the disk and the model? On the device, inside the compiled step, one key per example."""

import dataclasses
from typing import Protocol, runtime_checkable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key, UInt8


@runtime_checkable
class Augmentation(Protocol):
    def __call__(self, image: Float[Array, "height width channels"], key: Key[Array, ""]) -> Float[Array, "height width channels"]:
        """Returns one image, in the units of the stored pixels, changed at random."""
        ...


@dataclasses.dataclass(frozen=True)
class Shift:
    """Moves an image by a random fraction of up to `pixels` in each direction, linearly interpolated; black comes in at the border.

    Whole-pixel crops are the usual form, but of an 8x8 digit they cut off an eighth.
    """

    pixels: float

    def __call__(self, image: Float[Array, "height width channels"], key: Key[Array, ""]) -> Float[Array, "height width channels"]:
        offset = jax.random.uniform(key, (2,), minval=-self.pixels, maxval=self.pixels)
        ones = jnp.ones(2)
        return jax.image.scale_and_translate(image, image.shape, (0, 1), ones, offset, "linear", antialias=False)


@dataclasses.dataclass(frozen=True)
class Preprocess:
    """Augments images, in training, and normalizes them."""

    mean: tuple[float, ...]
    std: tuple[float, ...]
    augmentations: tuple[Augmentation, ...] = ()

    def __call__(
        self, images: UInt8[Array, "batch height width channels"], keys: Key[Array, "batch"] | None
    ) -> Float[Array, "batch height width channels"]:
        """Args:
        keys: one per example; None to leave out the augmentation.
        """
        pixels = images.astype(jnp.float32)
        if keys is not None:
            for position, augmentation in enumerate(self.augmentations):
                pixels = jax.vmap(augmentation)(pixels, jax.vmap(jax.random.fold_in, (0, None))(keys, position))
        return (pixels - jnp.asarray(self.mean)) / jnp.asarray(self.std)
