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
def test_two_steps_agree(shape: tuple[int, int]) -> None:
    """PyTorch computes the iteration in bfloat16, which has 8 bits."""
    rng = np.random.default_rng(0)
    start, *gradients = rng.normal(size=(3, *shape)).astype(np.float32)
    weight = torch.nn.Parameter(torch.from_numpy(start.T.copy()))  # outputs, inputs
    reference = torch.optim.Muon(
        [weight], lr=0.05, weight_decay=0.1, momentum=0.95, adjust_lr_fn="match_rms_adamw"
    )
    config = OptimizationConfig(optimizer="muon", learning_rate=0.05, weight_decay=0.1)
    optimizer = create_optimizer(config, lambda _: jnp.asarray(0.05))
    params = {"kernel": jnp.asarray(start)}
    state = optimizer.init(params)
    for gradient in gradients:
        weight.grad = torch.from_numpy(gradient.T.copy())
        reference.step()
        updates, state = optimizer.update({"kernel": jnp.asarray(gradient)}, state, params)
        params = {"kernel": params["kernel"] + updates["kernel"]}
        difference = params["kernel"] - weight.detach().numpy().T
        assert np.linalg.norm(difference) < 0.03 * np.linalg.norm(updates["kernel"])
