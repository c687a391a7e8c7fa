"""VGG agrees with PyTorch in logits, gradients and running statistics.

The reference is torchvision's, narrower, and with the layers' names there, so this tests the table
of names, too. Runs in `nox -s reference`, which installs PyTorch.
"""

import itertools

import pytest
from flax import nnx

from jaxdp import models
from jaxdp.models.reference_weights import reference_names

torch = pytest.importorskip("torch", reason="PyTorch is not installed; `nox -s reference` has it")


class Reference(torch.nn.Module):
    """Configuration A; poolings leave a side of one pixel as it is."""

    def __init__(self, width: int, imagenet: bool, batch_norm: bool) -> None:
        super().__init__()
        features, inputs = [], 3
        for factor, count in ((1, 1), (2, 1), (4, 2), (8, 2), (8, 2)):
            for _ in range(count):
                features.append(torch.nn.Conv2d(inputs, factor * width, 3, padding=1))
                features += [torch.nn.BatchNorm2d(factor * width)] if batch_norm else []
                features.append(torch.nn.ReLU())
                inputs = factor * width
            features.append(torch.nn.MaxPool2d(2))
        self.features = torch.nn.Sequential(*features)
        self.classifier = torch.nn.Linear(inputs, 10)
        if imagenet:
            widths = [49 * inputs, 8 * inputs, 8 * inputs, 10]
            layers = []
            for pair in itertools.pairwise(widths):
                layers += [torch.nn.Linear(*pair), torch.nn.ReLU(), torch.nn.Identity()]
            self.classifier = torch.nn.Sequential(*layers[:-2])
        self.imagenet = imagenet

    def forward(self, x):
        for layer in self.features:
            if isinstance(layer, torch.nn.MaxPool2d):
                x = torch.nn.functional.max_pool2d(x, [min(2, side) for side in x.shape[2:]])
            else:
                x = layer(x)
        if self.imagenet:
            return self.classifier(torch.nn.functional.adaptive_avg_pool2d(x, 7).flatten(1))
        return self.classifier(x.mean((2, 3)))


@pytest.mark.parametrize("batch_norm", [True, False])
@pytest.mark.parametrize(
    ("head", "size"),
    [("cifar", (32, 32)), ("cifar", (9, 20)), ("imagenet", (64, 50))],
)
def test_logits_gradients_and_statistics_agree(
    assert_agreement, head: str, size, batch_norm: bool
) -> None:
    torch.manual_seed(0)
    kwargs = {"depth": 11, "width": 4, "head": head, "batch_norm": batch_norm, "dropout": 0.0}
    model = models.create("vgg", num_classes=10, in_channels=3, rngs=nnx.Rngs(0), **kwargs)
    reference = Reference(4, head == "imagenet", batch_norm)
    images, labels = torch.randn(8, 3, *size), torch.arange(8)
    assert_agreement(reference, model, reference_names(model), images, labels)
