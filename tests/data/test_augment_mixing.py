"""The share of the partner is what is in the image, and is distributed as the papers say."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

from jaxdp.data.augment import create
from jaxdp.data.augment.mixing import draw_share

KEYS = jax.random.split(jax.random.key(0), 2000)
HEIGHT, WIDTH = 12, 16


def mix(word: str, own: np.ndarray, partner: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    mixing = create(word)
    examples = [{"images": jnp.asarray(image, jnp.float32)} for image in (own, partner)]
    images, shares = jax.jit(jax.vmap(lambda key: mixing.mix(*examples, key)))(KEYS)
    return np.asarray(images), np.asarray(shares)


@pytest.mark.parametrize("alpha", [0.2, 1, 1.0, 4.5])
def test_shares_are_beta_distributed(alpha: float) -> None:
    shares = np.asarray(jax.jit(jax.vmap(lambda key: draw_share(alpha, key)))(KEYS), np.float64)
    assert shares.min() >= 0
    assert shares.max() <= 1
    assert scipy.stats.kstest(shares, scipy.stats.beta(alpha, alpha).cdf).pvalue > 0.01


def test_mixup_averages() -> None:
    own, partner = np.random.default_rng(0).uniform(0, 255, (2, 3, 4, 2)).astype(np.float32)
    images, shares = mix("mixup:0.4", own, partner)
    weights = shares[:, None, None, None]
    np.testing.assert_allclose(images, (1 - weights) * own + weights * partner, rtol=1e-5)


def test_cutmix_counts_the_pixels_it_pastes() -> None:
    own, partner = np.zeros((HEIGHT, WIDTH, 1)), np.ones((HEIGHT, WIDTH, 1))
    images, shares = mix("cutmix:1", own, partner)
    np.testing.assert_allclose(images.mean((1, 2, 3)), shares, rtol=1e-6)
    assert set(np.unique(images)) == {0, 1}
    pasted = images[..., 0] == 1
    rows, columns = pasted.any(2), pasted.any(1)
    np.testing.assert_array_equal(pasted, rows[:, :, None] & columns[:, None, :])
    # One run of rows.
    assert np.all(np.abs(np.diff(np.pad(rows, [(0, 0), (1, 1)]).astype(int))).sum(1) <= 2)
    inner = ~(rows[:, 0] | rows[:, -1] | columns[:, 0] | columns[:, -1]) & (shares > 0)
    assert inner.sum() > 50
    # Both sides are the same fraction of the image's, but for whole pixels.
    np.testing.assert_array_less(
        np.abs(rows[inner].sum(1) / HEIGHT - columns[inner].sum(1) / WIDTH), 1 / HEIGHT
    )
