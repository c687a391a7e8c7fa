"""PyramidNet agrees with PyTorch in logits, gradients and running statistics; the reference is written from the paper here.

Runs in `nox -s reference`, which installs PyTorch.
"""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from jaxdp import models

torch = pytest.importorskip("torch", reason="PyTorch is not installed; `nox -s reference` has it")


class Unit(torch.nn.Module):
    def __init__(self, inputs: int, width: int, stride: int, bottleneck: bool) -> None:
        super().__init__()
        outputs = 4 * width if bottleneck else width
        shapes = [(1, width, 1), (3, width, stride), (1, outputs, 1)] if bottleneck else [(3, width, stride), (3, width, 1)]
        self.stride, self.outputs = stride, outputs
        self.norms, self.convs = torch.nn.ModuleList([torch.nn.BatchNorm2d(inputs)]), torch.nn.ModuleList()
        for size, channels, step in shapes:
            self.convs.append(torch.nn.Conv2d(inputs, channels, size, step, size // 2, bias=False))
            self.norms.append(torch.nn.BatchNorm2d(channels))
            inputs = channels

    def forward(self, x):
        branch = self.norms[1](self.convs[0](self.norms[0](x)))
        for conv, norm in zip(self.convs[1:], self.norms[2:], strict=True):
            branch = norm(conv(torch.relu(branch)))
        if self.stride == 2:
            x = torch.nn.functional.avg_pool2d(x, 2, 2, ceil_mode=True, count_include_pad=False)
        zeros = torch.zeros(len(x), self.outputs - x.shape[1], *x.shape[2:])
        return torch.cat([x, zeros], 1) + branch


class Reference(torch.nn.Module):
    def __init__(self, depth: int, alpha: float, bottleneck: bool) -> None:
        super().__init__()
        per_stage = (depth - 2) // (9 if bottleneck else 6)
        self.stem_conv, self.stem_norm = torch.nn.Conv2d(3, 16, 3, 1, 1, bias=False), torch.nn.BatchNorm2d(16)
        self.units, width, channels = torch.nn.ModuleList(), 16.0, 16
        for number in range(3 * per_stage):
            width += alpha / (3 * per_stage)
            unit = Unit(channels, round(width), 2 if number in (per_stage, 2 * per_stage) else 1, bottleneck)
            self.units.append(unit)
            channels = unit.outputs
        self.final_norm, self.head = torch.nn.BatchNorm2d(channels), torch.nn.Linear(channels, 10)

    def forward(self, x):
        x = self.stem_norm(self.stem_conv(x))
        for unit in self.units:
            x = unit(x)
        return self.head(torch.relu(self.final_norm(x)).mean((2, 3)))


def convolutions(model) -> list:
    return [model.stem_conv, *(conv for unit in model.units for conv in unit.convs)]


def norms(model) -> list:
    return [model.stem_norm, *(norm for unit in model.units for norm in unit.norms), model.final_norm]


def copy_weights(reference: Reference, model) -> None:
    for theirs, ours in zip(convolutions(reference), convolutions(model), strict=True):
        ours.kernel[...] = theirs.weight.detach().numpy().transpose(2, 3, 1, 0)
    for theirs, ours in zip(norms(reference), norms(model), strict=True):
        ours.mean[...], ours.var[...] = theirs.running_mean.numpy().copy(), theirs.running_var.numpy().copy()
    model.head.kernel[...], model.head.bias[...] = reference.head.weight.detach().numpy().T, reference.head.bias.detach().numpy()


@pytest.mark.parametrize(("depth", "bottleneck"), [(14, False), (20, True)])
@pytest.mark.parametrize("size", [16, 19])
def test_logits_gradients_and_statistics_agree(depth: int, bottleneck: bool, size: int) -> None:
    torch.manual_seed(0)
    reference = Reference(depth, 30, bottleneck)
    kwargs = {"depth": depth, "alpha": 30, "bottleneck": bottleneck}
    model = models.create("pyramidnet", num_classes=10, in_channels=3, rngs=nnx.Rngs(0), **kwargs)
    assert models.parameter_count(model) == sum(parameter.numel() for parameter in reference.parameters())
    copy_weights(reference, model)
    images, labels = torch.randn(8, 3, size, size), torch.arange(8)
    nhwc = jnp.asarray(images.numpy().transpose(0, 2, 3, 1))

    def loss_function(model):
        logits = model(nhwc)
        return optax.softmax_cross_entropy_with_integer_labels(logits, labels.numpy()).mean(), logits

    (loss, logits), grads = nnx.value_and_grad(loss_function, has_aux=True)(model)
    expected = reference(images)
    expected_loss = torch.nn.functional.cross_entropy(expected, labels)
    expected_loss.backward()
    np.testing.assert_allclose(logits, expected.detach(), atol=1e-5)
    assert float(loss) == pytest.approx(expected_loss.item(), abs=1e-5)

    grads = nnx.to_pure_dict(grads)
    by_name = [(grads["stem_conv"]["kernel"], reference.stem_conv), (grads["head"]["kernel"], reference.head)]
    for number, unit in enumerate(reference.units):
        by_name += [(grads["units"][number]["convs"][position]["kernel"], conv) for position, conv in enumerate(unit.convs)]
        by_name += [(grads["units"][number]["norms"][position]["scale"], norm) for position, norm in enumerate(unit.norms)]
    for ours, module in by_name:
        theirs = module.weight.grad.numpy()
        theirs = theirs.transpose(2, 3, 1, 0) if theirs.ndim == 4 else theirs.T
        np.testing.assert_allclose(ours, theirs, atol=1e-5)

    for theirs, ours in zip(norms(reference), norms(model), strict=True):
        np.testing.assert_allclose(ours.mean[...], theirs.running_mean, atol=1e-5)
        # PyTorch's running variance is unbiased, ours is not: they differ by n / (n - 1), with n at least 8 * 4 * 4 here.
        np.testing.assert_allclose(ours.var[...], theirs.running_var, rtol=0.01)
    copy_weights(reference, model)
    reference.eval()
    model.eval()
    np.testing.assert_allclose(model(nhwc), reference(images).detach(), atol=1e-5)
    assert not jax.tree.leaves(nnx.state(model, nnx.RngState))
