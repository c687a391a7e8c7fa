"""Loads weights trained in PyTorch into a model object, as `init_from` does for a run."""

from collections.abc import Mapping

import jax
import numpy as np
from flax import nnx

from jaxdp.errors import ConfigError
from jaxdp.models.reference_weights import Table, bare_state, in_our_order, reference_names
from jaxdp.models.weights import fit_weights


def load_reference_weights(
    model: nnx.Module, state: Mapping[str, np.ndarray], names: Table | None = None
) -> None:
    """Fills all weights and batch statistics of a model from a PyTorch `state_dict` of arrays.

    The model changes only if everything fits.

    Args:
        model: the model to fill.
        state: arrays by name, with or without the prefix `module.`; each `num_batches_tracked` is
            ignored.
        names: the table of names; None for the model's own, `reference_names`.

    Raises:
        ConfigError: in one line, if names are missing or unexpected, or shapes differ, or an array
            holds anything but finite floating-point numbers.
    """
    table = reference_names(model) if names is None else names
    variables = dict(nnx.to_flat_state(nnx.state(model, (nnx.Param, nnx.BatchStat))))
    expected: dict[str, jax.ShapeDtypeStruct] = {}
    for name, place in table.items():
        variable = variables[place.path]
        shape = [variable.shape[axis] for axis in np.argsort(place.axes)]
        expected[name] = jax.ShapeDtypeStruct(tuple(shape), variable.dtype)
    fitting, problems = fit_weights(bare_state(state), expected)
    if problems:
        kind = type(model).__name__
        raise ConfigError("", None, f"reference weights do not fit the {kind}: {problems}")
    for name, place in table.items():
        # A copy: on CPU device_put may keep the memory it is given, which may still be PyTorch's.
        array = np.array(in_our_order(fitting[name], place), order="C")
        variables[place.path] = variables[place.path].replace(jax.device_put(array))
    nnx.update(model, nnx.from_flat_state(variables))
