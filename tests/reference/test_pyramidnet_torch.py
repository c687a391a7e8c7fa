"""PyramidNet agrees with PyTorch in logits, gradients and running statistics.

The reference is written from the paper here.

Its names are those of the authors' code, so this tests the table of names, too. Runs in `nox -s
reference`, which installs PyTorch.
"""

import pytest
import versus_torch
from flax import nnx

from jaxdp import models
from jaxdp.models.reference_weights import reference_names

torch = pytest.importorskip("torch", reason="PyTorch is not installed; `nox -s reference` has it")


class Unit(torch.nn.Module):
    def __init__(self, inputs: int, width: int, stride: int, bottleneck: bool) -> None:
        super().__init__()
        outputs = 4 * width if bottleneck else width
        shapes = (
            [(1, width, 1), (3, width, stride), (1, outputs, 1)]
            if bottleneck
            else [(3, width, stride), (3, width, 1)]
        )
        self.stride, self.outputs, self.convs = stride, outputs, len(shapes)
        self.bn1 = torch.nn.BatchNorm2d(inputs)
        for number, (size, channels, step) in enumerate(shapes, 1):
            self.add_module(
                f"conv{number}",
                torch.nn.Conv2d(inputs, channels, size, step, size // 2, bias=False),
            )
            self.add_module(f"bn{number + 1}", torch.nn.BatchNorm2d(channels))
            inputs = channels

    def forward(self, x):
        branch = self.bn2(self.conv1(self.bn1(x)))
        for number in range(2, self.convs + 1):
            branch = self.get_submodule(f"bn{number + 1}")(
                self.get_submodule(f"conv{number}")(torch.relu(branch))
            )
        if self.stride == 2:
            x = torch.nn.functional.avg_pool2d(x, 2, 2, ceil_mode=True, count_include_pad=False)
        zeros = torch.zeros(len(x), self.outputs - x.shape[1], *x.shape[2:])
        return torch.cat([x, zeros], 1) + branch


class Reference(torch.nn.Module):
    def __init__(self, depth: int, alpha: float, bottleneck: bool) -> None:
        super().__init__()
        per_stage = (depth - 2) // (9 if bottleneck else 6)
        self.conv1, self.bn1 = torch.nn.Conv2d(3, 16, 3, 1, 1, bias=False), torch.nn.BatchNorm2d(16)
        width, channels = 16.0, 16
        for stage in (1, 2, 3):
            units = []
            for index in range(per_stage):
                width += alpha / (3 * per_stage)
                units.append(
                    Unit(channels, round(width), 2 if stage > 1 and index == 0 else 1, bottleneck)
                )
                channels = units[-1].outputs
            self.add_module(f"layer{stage}", torch.nn.Sequential(*units))
        self.bn_final, self.fc = torch.nn.BatchNorm2d(channels), torch.nn.Linear(channels, 10)

    def forward(self, x):
        x = self.layer3(self.layer2(self.layer1(self.bn1(self.conv1(x)))))
        return self.fc(torch.relu(self.bn_final(x)).mean((2, 3)))


@pytest.mark.parametrize(("depth", "bottleneck"), [(14, False), (20, True)])
@pytest.mark.parametrize("size", [16, 19])
def test_logits_gradients_and_statistics_agree(
    assert_agreement, depth: int, bottleneck: bool, size: int
) -> None:
    torch.manual_seed(0)
    kwargs = {"depth": depth, "alpha": 30, "bottleneck": bottleneck}
    model = models.create("pyramidnet", num_classes=10, in_channels=3, rngs=nnx.Rngs(0), **kwargs)
    reference = Reference(depth, 30, bottleneck)
    assert_agreement(
        reference, model, reference_names(model), torch.randn(8, 3, size, size), torch.arange(8)
    )


@pytest.mark.parametrize("row", versus_torch.ROWS)
def test_the_benchmark_compares_the_same_models(row: str) -> None:
    versus_torch.check_same_model(*versus_torch.ROWS[row][:3])
