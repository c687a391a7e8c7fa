"""A step of Muon agrees with PyTorch's, which comes from Muon's authors.

Runs in `nox -s reference`, which installs PyTorch.
"""

import jax.numpy as jnp
import numpy as np
import pytest

from jaxdp.config import OptimizationConfig
from jaxdp.step.optim import create_optimizer

torch = pytest.importorskip("torch", reason="PyTorch is not installed; `nox -s reference` has it")


@pytest.mark.skipif(not hasattr(torch.optim, "Muon"), reason="PyTorch has Muon since 2.9")
@pytest.mark.parametrize("shape", [(24, 10), (10, 24), (16, 16)], ids=str)
def test_a_step_agrees(shape: tuple[int, int]) -> None:
    """PyTorch computes the iteration in bfloat16, which has 8 bits.

    Later steps differ, the second by 8%: Optax corrects the bias of the momentum, which gives the
    last gradient more weight in the first steps.
    """
    start, gradient = np.random.default_rng(0).normal(size=(2, *shape)).astype(np.float32)
    weight = torch.nn.Parameter(torch.from_numpy(start.T.copy()))  # outputs, inputs
    reference = torch.optim.Muon(
        [weight], lr=0.05, weight_decay=0.1, momentum=0.95, adjust_lr_fn="match_rms_adamw"
    )
    weight.grad = torch.from_numpy(gradient.T.copy())
    reference.step()
    config = OptimizationConfig(optimizer="muon", learning_rate=0.05, weight_decay=0.1)
    optimizer = create_optimizer(config, lambda _: jnp.asarray(0.05))
    params = {"kernel": jnp.asarray(start)}
    gradients = {"kernel": jnp.asarray(gradient)}
    updates, _ = optimizer.update(gradients, optimizer.init(params), params)
    update = np.asarray(updates["kernel"])
    difference = start + update - weight.detach().numpy().T
    assert np.linalg.norm(difference) < 0.02 * np.linalg.norm(update)
