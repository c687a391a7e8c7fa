"""Provides the augmentations that mix two examples.

The loss then mixes their labels in the same proportion.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxdp.data.augment.pixels import rectangle
from jaxdp.data.augment.words import Example, Mixed, Mixing, Number, RandomKey, register

_QUANTILES = 4096


@register("mixup")
class Mixup(Mixing):
    """Averages two images with a weight drawn from Beta(`alpha`, `alpha`), which is mostly near 0
    or 1 at 0.2, and uniform at 1.

    Source: Zhang et al., mixup: Beyond Empirical Risk Minimization, 2018, section 2; section 3 uses
    0.1 to 0.4 for ImageNet and 1 for CIFAR-10. A weight is drawn for each example, whereas the
    authors' code draws one for each batch.
    """

    alpha: Number = 0.2

    def mix(self, example: Example, partner: Example, key: RandomKey) -> Mixed:
        share = draw_share(self.alpha, key)
        return (1 - share) * example["images"] + share * partner["images"], share


@register("cutmix")
class Cutmix(Mixing):
    """Pastes a random rectangle of the partner. Its share of the area is drawn from Beta(`alpha`,
    `alpha`), which is uniform at 1.

    The rectangle has whole pixels and is clipped at the border. Its share is computed after
    clipping.

    Source: Yun et al., CutMix, 2019, equations 1 and 2 and appendix A.
    """

    alpha: Number = 1

    def mix(self, example: Example, partner: Example, key: RandomKey) -> Mixed:
        share_key, place_key = jax.random.split(key)
        size = example["images"].shape[:2]
        sides = jnp.array(size) * jnp.sqrt(draw_share(self.alpha, share_key))
        pasted = rectangle(size, sides.astype(jnp.int32), place_key)
        images = jnp.where(pasted[..., None], partner["images"], example["images"])
        return images, jnp.mean(pasted, dtype=jnp.float32)


def draw_share(alpha: Number, key: RandomKey) -> Float[Array, ""]:
    """Draws from Beta(alpha, alpha), as one of 4,096 equally likely quantiles.

    `jax.random.beta` draws and rejects in a loop, which takes 1.5 s to compile.
    """
    import scipy.special  # takes 0.2 s, and only these two augmentations require it

    quantiles = scipy.special.betaincinv(alpha, alpha, (np.arange(_QUANTILES) + 0.5) / _QUANTILES)
    return jnp.asarray(quantiles, jnp.float32)[jax.random.randint(key, (), 0, _QUANTILES)]
