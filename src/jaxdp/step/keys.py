"""Derives random keys from the run's key, so that they depend on no strategy or device count."""

import jax
from jaxtyping import Array, Bool, Key

# The implementation is explicit, because JAX_DEFAULT_PRNG_IMPL changes the default. Under vmap,
# bits of `rbg` depend on the number of keys.
_IMPLEMENTATION = "threefry2x32"
_TURNS = 2**32 - 1  # more than any step


def create_key(seed: int) -> Key[Array, ""]:
    """Returns the random key of a seed."""
    return jax.random.key(seed, impl=_IMPLEMENTATION)


def example_keys(key: Array, step: Array, indices: Array) -> Key[Array, "batch"]:
    """Returns one key per example, from the run's key, the step and the example's index.

    Args:
        key: data of the run's random key.
        step: number of updates done.
        indices: of the examples in the dataset, or numbers that distinguish copies of an example
            in a batch.
    """
    return jax.vmap(jax.random.fold_in, (None, 0))(
        jax.random.fold_in(jax.random.wrap_key_data(key, impl=_IMPLEMENTATION), step), indices
    )


def turns(key: Array, epoch: Array, indices: Array) -> Bool[Array, "batch"]:
    """Returns whether it is the turn of each example in an epoch.

    In the first epoch, each example has its turn with probability 1/2, and from then on in every
    second epoch.

    Args:
        key: data of the run's random key.
        epoch: number of epochs done.
        indices: of the examples in the dataset.
    """
    # Not a key of `example_keys`, which would be that of the first step.
    key = jax.random.fold_in(jax.random.wrap_key_data(key, impl=_IMPLEMENTATION), _TURNS)
    first = jax.vmap(lambda index: jax.random.bernoulli(jax.random.fold_in(key, index)))(indices)
    return first ^ (epoch % 2 == 1)


def fold(keys: Key[Array, "batch"], purpose: int) -> Key[Array, "batch"]:
    """Returns keys for one purpose, independent of the keys for other purposes."""
    return jax.vmap(jax.random.fold_in, (0, None))(keys, purpose)
