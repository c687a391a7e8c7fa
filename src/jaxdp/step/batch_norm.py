"""Determines which examples share batch-norm statistics, and combines the statistics of parts on
several replicas.
"""

import functools
import math

import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxdp.config import BatchNormMode
from jaxdp.models import layers
from jaxdp.step.replicas import Replicas


def statistics(
    batch_norm: BatchNormMode, replicas: Replicas, examples: int
) -> tuple[int | None, layers.Combine | None]:
    """Returns how many examples of this program a batch norm normalizes together, and a function
    that combines their statistics for larger groups.

    A group that is larger than a replica's share, or that does not divide it, consists of parts
    that divide it.
    """
    if batch_norm.kind == "global":
        return None, functools.partial(of_all, replicas) if replicas.axis is not None else None
    share = examples // replicas.per_program
    if batch_norm.group_size is None:
        return share, None
    part = math.gcd(share, batch_norm.group_size)
    parts = batch_norm.group_size // part
    return part, functools.partial(of_groups, replicas, parts) if parts > 1 else None


def of_all(replicas: Replicas, mean: Array, var: Array) -> tuple[Array, Array]:
    """Returns the moments of the union of all replicas' examples from each replica's moments."""
    # The variance of a union from its parts (Chan et al. 1979), without the cancellation of E[x²] -
    # E[x]².
    local_mean, mean = mean, replicas.mean(mean)
    return mean, replicas.mean(var + jnp.square(local_mean - mean))


def of_groups(
    replicas: Replicas,
    count: int,
    mean: Float[Array, "parts features"],
    var: Float[Array, "parts features"],
) -> tuple[Array, Array]:
    """Returns, for each part, the moments of its group of `count` consecutive parts from the
    moments of the parts.
    """
    # This number of replicas holds whole groups.
    gathered = replicas.gather(jnp.stack([mean, var], 1), count)
    means, variances = jnp.moveaxis(gathered.reshape(-1, count, *gathered.shape[1:]), 2, 0)
    group_mean = means.mean(1, keepdims=True)
    group_var = (variances + jnp.square(means - group_mean)).mean(1, keepdims=True)
    found = jnp.concatenate([group_mean, group_var], 1)
    mean, var = jnp.moveaxis(replicas.own(jnp.repeat(found, count, 0), count), 1, 0)
    return mean, var
