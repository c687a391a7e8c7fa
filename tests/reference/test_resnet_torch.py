"""ResNet agrees with PyTorch in logits, gradients and running statistics.

The reference is written from the paper here, with torchvision's names, so this tests the table of
names, too. Runs in `nox -s reference`, which installs PyTorch.
"""

from typing import Any

import jax
import jax.numpy as jnp
import pytest
from flax import nnx

from jaxdp import models
from jaxdp.models.reference_weights import reference_names

torch = pytest.importorskip("torch", reason="PyTorch is not installed; `nox -s reference` has it")


def conv(inputs: int, outputs: int, size: int, stride: int = 1):
    return torch.nn.Conv2d(inputs, outputs, size, stride, size // 2, bias=False)


class Unit(torch.nn.Module):
    """torchvision's BasicBlock or Bottleneck."""

    def __init__(self, inputs: int, width: int, stride: int, bottleneck: bool) -> None:
        super().__init__()
        self.outputs = 4 * width if bottleneck else width
        shapes = [(3, width, stride), (3, width, 1)]
        if bottleneck:
            shapes = [(1, width, 1), (3, width, stride), (1, self.outputs, 1)]
        self.convs, channels = len(shapes), inputs
        for part, (size, features, step) in enumerate(shapes, 1):
            self.add_module(f"conv{part}", conv(channels, features, size, step))
            self.add_module(f"bn{part}", torch.nn.BatchNorm2d(features))
            channels = features
        self.downsample = None
        if stride == 2 or inputs != self.outputs:
            projection = conv(inputs, self.outputs, 1, stride)
            norm = torch.nn.BatchNorm2d(self.outputs)
            self.downsample = torch.nn.Sequential(projection, norm)

    def forward(self, x):
        branch = x
        for part in range(1, self.convs + 1):
            branch = torch.relu(branch) if part > 1 else branch
            branch = self.get_submodule(f"conv{part}")(branch)
            branch = self.get_submodule(f"bn{part}")(branch)
        return torch.relu(branch + (x if self.downsample is None else self.downsample(x)))


class Reference(torch.nn.Module):
    def __init__(
        self, width: int, units_per_stage: tuple[int, ...], bottleneck: bool, large_stem: bool
    ) -> None:
        super().__init__()
        self.large_stem, self.stages = large_stem, len(units_per_stage)
        self.conv1 = conv(3, width, 7, 2) if large_stem else conv(3, width, 3)
        self.bn1, channels = torch.nn.BatchNorm2d(width), width
        for stage, count in enumerate(units_per_stage):
            units = []
            for index in range(count):
                stride = 2 if stage and not index else 1
                units.append(Unit(channels, width * 2**stage, stride, bottleneck))
                channels = units[-1].outputs
            self.add_module(f"layer{stage + 1}", torch.nn.Sequential(*units))
        self.fc = torch.nn.Linear(channels, 10)

    def forward(self, x):
        x = torch.relu(self.bn1(self.conv1(x)))
        if self.large_stem:
            x = torch.nn.functional.max_pool2d(x, 3, 2, 1)
        for stage in range(self.stages):
            x = self.get_submodule(f"layer{stage + 1}")(x)
        return self.fc(x.mean((2, 3)))


def check(assert_agreement, units_per_stage: tuple[int, ...], size, **kwargs: Any) -> None:
    torch.manual_seed(0)
    model = models.create(
        "resnet", num_classes=10, in_channels=3, rngs=nnx.Rngs(0), width=4, **kwargs
    )
    reference = Reference(4, units_per_stage, kwargs["depth"] == 50, model.large_stem)
    images, labels = torch.randn(8, 3, *size), torch.arange(8)
    assert_agreement(reference, model, reference_names(model), images, labels)


@pytest.mark.parametrize(
    ("kwargs", "units_per_stage", "size"),
    [
        ({"depth": 14}, (2, 2, 2), (16, 16)),
        ({"depth": 14}, (2, 2, 2), (19, 13)),
        ({"depth": 18}, (2, 2, 2, 2), (64, 49)),
        ({"depth": 18, "stem": "cifar"}, (2, 2, 2, 2), (17, 16)),
    ],
)
def test_logits_gradients_and_statistics_agree(
    assert_agreement, kwargs: dict, units_per_stage, size
) -> None:
    check(assert_agreement, units_per_stage, size, **kwargs)


def test_bottlenecks_agree(assert_agreement) -> None:
    """In float64: 50 layers of batch norm over few pixels blow float32's rounding up to 2.5e-5."""
    with jax.enable_x64(True):
        check(assert_agreement, (3, 4, 6, 3), (64, 49), depth=50, dtype=jnp.float64)
