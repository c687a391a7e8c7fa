"""How does a model here compare with the same one in PyTorch? From the same weights, in all that a
step computes.
"""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from reference_state import load_reference_weights

from jaxdp import models
from jaxdp.models.reference_weights import Table, in_our_order


@pytest.fixture
def assert_agreement() -> Callable[..., None]:
    """Compares logits, gradients and running statistics: `assert_agreement(reference, model, table,
    images, labels)`.

    Images are NCHW. Both sides compute in the model's `dtype`.
    """

    def check(reference: Any, model: Any, table: Table, images: Any, labels: Any) -> None:
        import torch

        assert models.parameter_count(model) == sum(
            parameter.numel() for parameter in reference.parameters()
        )
        _unsettle(reference)
        state = {name: tensor.numpy() for name, tensor in reference.state_dict().items()}
        load_reference_weights(model, state, table)
        images = images.to(torch.float64 if model.dtype == jnp.float64 else torch.float32)
        reference.to(images.dtype)
        nhwc = jnp.asarray(images.numpy().transpose(0, 2, 3, 1))

        reference.eval()
        model.eval()
        np.testing.assert_allclose(
            nnx.jit(lambda model: model(nhwc))(model), _channels_last(reference(images)), atol=1e-5
        )

        reference.train()
        model.train()

        @nnx.jit
        def gradients(model):
            def loss(model):
                logits = model(nhwc)
                return (
                    optax.softmax_cross_entropy_with_integer_labels(logits, labels.numpy()).mean(),
                    logits,
                )

            return nnx.grad(loss, has_aux=True)(model)

        grads, logits = gradients(model)
        expected = reference(images)
        torch.nn.functional.cross_entropy(expected, labels).backward()
        np.testing.assert_allclose(logits, _channels_last(expected), atol=1e-5)
        grads = dict(nnx.to_flat_state(grads))
        for name, parameter in reference.named_parameters():
            theirs = in_our_order(parameter.grad.numpy(), table[name])
            ours = grads[table[name].path][...]
            np.testing.assert_allclose(ours, theirs, rtol=3e-5, atol=1e-5, err_msg=name)

        statistics = dict(nnx.to_flat_state(nnx.state(model, nnx.BatchStat)))
        # PyTorch's running variance is unbiased, ours is not: a tenth of it differs by n / (n - 1),
        # with n at least 8.
        tolerances = {"running_mean": {"atol": 1e-5}, "running_var": {"rtol": 0.02}}
        for name, buffer in reference.named_buffers():
            tolerance = tolerances.get(name.rpartition(".")[2])
            if tolerance is not None:
                ours = statistics[table[name].path][...]
                np.testing.assert_allclose(ours, buffer, err_msg=name, **tolerance)

    return check


def _unsettle(reference: Any) -> None:
    """Gives every batch norm values of its own: at 1 and 0 it would not show if two were
    exchanged.
    """
    import torch

    for module in reference.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            for values, low in (
                (module.weight, 0.5),
                (module.bias, -0.5),
                (module.running_mean, -0.5),
                (module.running_var, 0.5),
            ):
                values.data.uniform_(low, low + 1)


def _channels_last(logits: Any) -> np.ndarray:
    return np.moveaxis(logits.detach().numpy(), 1, -1)
