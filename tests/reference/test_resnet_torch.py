"""ResNet agrees with PyTorch in logits, gradients and running statistics.

The reference is written from the paper here.

Runs in `nox -s reference`, which installs PyTorch.
"""

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
    """Attributes are called as ours."""

    def __init__(self, inputs: int, width: int, stride: int, bottleneck: bool) -> None:
        super().__init__()
        self.outputs = 4 * width if bottleneck else width
        if bottleneck:
            convs = [
                conv(inputs, width, 1),
                conv(width, width, 3, stride),
                conv(width, self.outputs, 1),
            ]
        else:
            convs = [conv(inputs, width, 3, stride), conv(width, width, 3)]
        self.convs = torch.nn.ModuleList(convs)
        self.norms = torch.nn.ModuleList(
            [torch.nn.BatchNorm2d(layer.out_channels) for layer in convs]
        )
        self.projection = None
        if stride == 2 or inputs != self.outputs:
            parts = {
                "conv": conv(inputs, self.outputs, 1, stride),
                "norm": torch.nn.BatchNorm2d(self.outputs),
            }
            self.projection = torch.nn.ModuleDict(parts)

    def forward(self, x):
        branch = x
        for layer, norm in zip(self.convs[:-1], self.norms[:-1], strict=True):
            branch = torch.relu(norm(layer(branch)))
        branch = self.norms[-1](self.convs[-1](branch))
        if self.projection is not None:
            x = self.projection["norm"](self.projection["conv"](x))
        return torch.relu(branch + x)


class Reference(torch.nn.Module):
    def __init__(
        self, width: int, units_per_stage: tuple[int, ...], bottleneck: bool, large_stem: bool
    ) -> None:
        super().__init__()
        self.large_stem = large_stem
        self.stem_conv = conv(3, width, 7, 2) if large_stem else conv(3, width, 3)
        self.stem_norm = torch.nn.BatchNorm2d(width)
        self.units, channels = torch.nn.ModuleList(), width
        for stage, count in enumerate(units_per_stage):
            for index in range(count):
                self.units.append(
                    Unit(channels, width * 2**stage, 2 if stage and not index else 1, bottleneck)
                )
                channels = self.units[-1].outputs
        self.head = torch.nn.Linear(channels, 10)

    def forward(self, x):
        x = torch.relu(self.stem_norm(self.stem_conv(x)))
        if self.large_stem:
            x = torch.nn.functional.max_pool2d(x, 3, 2, 1)
        for unit in self.units:
            x = unit(x)
        return self.head(x.mean((2, 3)))


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
    assert_agreement, names_alike, kwargs: dict, units_per_stage, size
) -> None:
    torch.manual_seed(0)
    model = models.create(
        "resnet", num_classes=10, in_channels=3, rngs=nnx.Rngs(0), width=4, **kwargs
    )
    reference = Reference(4, units_per_stage, False, model.large_stem)
    assert_agreement(
        reference, model, names_alike(model), torch.randn(8, 3, *size), torch.arange(8)
    )


def test_bottlenecks_agree(assert_agreement, names_alike) -> None:
    """In float64: 50 layers of batch norm over few pixels blow float32's rounding up to 2.5e-5."""
    torch.manual_seed(0)
    with jax.enable_x64(True):
        kwargs = {"depth": 50, "width": 4, "dtype": jnp.float64}
        model = models.create("resnet", num_classes=10, in_channels=3, rngs=nnx.Rngs(0), **kwargs)
        reference = Reference(4, (3, 4, 6, 3), True, True)
        assert_agreement(
            reference, model, names_alike(model), torch.randn(8, 3, 64, 49), torch.arange(8)
        )


class TorchvisionUnit(torch.nn.Module):
    """torchvision's BasicBlock, with its names."""

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = conv(inputs, width, 3, stride), torch.nn.BatchNorm2d(width)
        self.conv2, self.bn2 = conv(width, width, 3), torch.nn.BatchNorm2d(width)
        self.downsample = None
        if stride == 2 or inputs != width:
            self.downsample = torch.nn.Sequential(
                conv(inputs, width, 1, stride), torch.nn.BatchNorm2d(width)
            )

    def forward(self, x):
        branch = self.bn2(self.conv2(torch.relu(self.bn1(self.conv1(x)))))
        return torch.relu(branch + (x if self.downsample is None else self.downsample(x)))


class TorchvisionResNet18(torch.nn.Module):
    """torchvision's resnet18, narrower, with its names."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = conv(3, width, 7, 2), torch.nn.BatchNorm2d(width)
        channels = width
        for stage in range(4):
            units = []
            for index in range(2):
                units.append(
                    TorchvisionUnit(channels, width * 2**stage, 2 if stage and not index else 1)
                )
                channels = width * 2**stage
            setattr(self, f"layer{stage + 1}", torch.nn.Sequential(*units))
        self.fc = torch.nn.Linear(channels, 10)

    def forward(self, x):
        x = torch.nn.functional.max_pool2d(torch.relu(self.bn1(self.conv1(x))), 3, 2, 1)
        return self.fc(self.layer4(self.layer3(self.layer2(self.layer1(x)))).mean((2, 3)))


def test_torchvisions_names_are_the_same_network(assert_agreement) -> None:
    torch.manual_seed(0)
    model = models.create(
        "resnet", num_classes=10, in_channels=3, rngs=nnx.Rngs(0), width=4, depth=18
    )
    images, labels = torch.randn(8, 3, 64, 49), torch.arange(8)
    assert_agreement(TorchvisionResNet18(4), model, reference_names(model), images, labels)
