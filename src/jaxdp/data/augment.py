"""How are images changed between the disk and the model? On the device, inside the compiled step, one key per example."""

import dataclasses
from typing import Protocol

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key, UInt8


class Augmentation(Protocol):
    def __call__(self, image: Float[Array, "height width channels"], key: Key[Array, ""]) -> Float[Array, "height width channels"]:
        """Returns one normalized image changed at random."""
        ...


@dataclasses.dataclass(frozen=True)
class PadAndCrop:
    """Moves an image by up to `pad` pixels in each direction. Source: He et al. 2016, section 4.2.

    Normalized images are padded with zeros, as the PyramidNet recipe does, so the border has the mean colour.
    """

    pad: int

    def __call__(self, image: Float[Array, "height width channels"], key: Key[Array, ""]) -> Float[Array, "height width channels"]:
        padded = jnp.pad(image, ((self.pad, self.pad), (self.pad, self.pad), (0, 0)))
        row, column = jax.random.randint(key, (2,), 0, 2 * self.pad + 1)
        return jax.lax.dynamic_slice(padded, (row, column, 0), image.shape)


@dataclasses.dataclass(frozen=True)
class Preprocess:
    """Normalizes images and, in training, augments them."""

    mean: tuple[float, ...]
    std: tuple[float, ...]
    augmentations: tuple[Augmentation, ...] = ()

    def __call__(
        self, images: UInt8[Array, "batch height width channels"], keys: Key[Array, "batch"] | None
    ) -> Float[Array, "batch height width channels"]:
        """Args:
        keys: one per example; None to leave out the augmentation.
        """
        normalized = (images.astype(jnp.float32) - jnp.asarray(self.mean)) / jnp.asarray(self.std)
        if keys is None:
            return normalized
        for position, augmentation in enumerate(self.augmentations):
            normalized = jax.vmap(augmentation)(normalized, jax.vmap(jax.random.fold_in, (0, None))(keys, position))
        return normalized
