"""VGG agrees with PyTorch in logits, gradients and running statistics.

The reference is written from the paper here.

Runs in `nox -s reference`, which installs PyTorch.
"""

import itertools

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jaxdp import models
from jaxdp.models.reference_weights import load_reference_weights

torch = pytest.importorskip("torch", reason="PyTorch is not installed; `nox -s reference` has it")


class Reference(torch.nn.Module):
    """Configuration A; attributes are called as ours."""

    def __init__(self, width: int, imagenet: bool, batch_norm: bool) -> None:
        super().__init__()
        self.imagenet, self.stages, inputs = imagenet, torch.nn.ModuleList(), 3
        for factor, count in ((1, 1), (2, 1), (4, 2), (8, 2), (8, 2)):
            channels = [inputs, *[factor * width] * count]
            convs = [torch.nn.Conv2d(*pair, 3, padding=1) for pair in itertools.pairwise(channels)]
            norms = [
                torch.nn.BatchNorm2d(factor * width) if batch_norm else torch.nn.Identity()
                for _ in convs
            ]
            self.stages.append(
                torch.nn.ModuleDict(
                    {"convs": torch.nn.ModuleList(convs), "norms": torch.nn.ModuleList(norms)}
                )
            )
            inputs = factor * width
        widths = [49 * inputs, 8 * inputs, 8 * inputs, 10]
        denses = [torch.nn.Linear(*pair) for pair in itertools.pairwise(widths)]
        self.head = torch.nn.ModuleDict(
            {"denses": torch.nn.ModuleList(denses)}
            if imagenet
            else {"dense": torch.nn.Linear(inputs, 10)}
        )

    def forward(self, x):
        for stage in self.stages:
            for conv, norm in zip(stage["convs"], stage["norms"], strict=True):
                x = torch.relu(norm(conv(x)))
            x = torch.nn.functional.max_pool2d(x, [min(2, side) for side in x.shape[2:]])
        if not self.imagenet:
            return self.head["dense"](x.mean((2, 3)))
        # Our order of positions and channels.
        x = torch.nn.functional.adaptive_avg_pool2d(x, 7).permute(0, 2, 3, 1).flatten(1)
        first, second, last = self.head["denses"]
        return last(torch.relu(second(torch.relu(first(x)))))


@pytest.mark.parametrize("batch_norm", [True, False])
@pytest.mark.parametrize(
    ("head", "size"), [("cifar", (32, 32)), ("cifar", (9, 20)), ("imagenet", (64, 50))]
)
def test_logits_gradients_and_statistics_agree(
    assert_agreement, names_alike, head: str, size, batch_norm: bool
) -> None:
    torch.manual_seed(0)
    kwargs = {"depth": 11, "width": 4, "head": head, "batch_norm": batch_norm, "dropout": 0.0}
    model = models.create("vgg", num_classes=10, in_channels=3, rngs=nnx.Rngs(0), **kwargs)
    reference = Reference(4, head == "imagenet", batch_norm)
    assert_agreement(
        reference, model, names_alike(model), torch.randn(8, 3, *size), torch.arange(8)
    )


def test_torchvisions_names_are_the_same_network() -> None:
    """vgg11_bn, narrower, as torchvision builds it: its first dense layer sees channels first."""
    torch.manual_seed(0)
    features, channels = [], 3
    for out in (2, "M", 4, "M", 8, 8, "M", 16, 16, "M", 16, 16, "M"):
        if out == "M":
            features.append(torch.nn.MaxPool2d(2, 2))
            continue
        features += [
            torch.nn.Conv2d(channels, out, 3, padding=1),
            torch.nn.BatchNorm2d(out),
            torch.nn.ReLU(),
        ]
        channels = out
    reference = torch.nn.Module()
    reference.features = torch.nn.Sequential(*features)
    layers = [torch.nn.Linear(49 * 16, 128), torch.nn.ReLU(), torch.nn.Dropout(0.5)]
    layers += [
        torch.nn.Linear(128, 128),
        torch.nn.ReLU(),
        torch.nn.Dropout(0.5),
        torch.nn.Linear(128, 10),
    ]
    reference.classifier = torch.nn.Sequential(*layers)
    for layer in reference.features:
        if isinstance(layer, torch.nn.BatchNorm2d):
            layer.running_mean.uniform_(-0.5, 0.5)
            layer.running_var.uniform_(0.5, 1.5)
    kwargs = {"depth": 11, "width": 2, "head": "imagenet"}
    model = models.create("vgg", num_classes=10, in_channels=3, rngs=nnx.Rngs(0), **kwargs)
    load_reference_weights(
        model, {name: tensor.numpy() for name, tensor in reference.state_dict().items()}
    )
    model.eval()
    reference.eval()
    images = torch.randn(4, 3, 224, 224)
    with torch.no_grad():
        expected = reference.classifier(reference.features(images).flatten(1)).numpy()
    found = model(jnp.asarray(images.numpy().transpose(0, 2, 3, 1)))
    np.testing.assert_allclose(found, expected, atol=1e-5)
