"""The port of a Lightning module in examples/ has the losses of the module in PyTorch, over twenty
steps, on one device and on eight. Runs in `nox -s reference`.
"""

import pathlib
import runpy
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed; `nox -s reference` has it")
functional = torch.nn.functional

FILE = pathlib.Path(__file__).parents[2] / "examples" / "from_lightning.py"
EXAMPLES, STEPS = 240, 20


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = torch.nn.Linear(64, 32)
        self.number = torch.nn.Linear(32, 10)
        self.ink = torch.nn.Linear(32, 1)

    def forward(self, images: Any) -> Any:
        features = functional.relu(self.body(images.flatten(1)))
        return self.number(features), self.ink(features)[:, 0], features


def contrastive(features: Any, numbers: Any, temperature: float) -> Any:
    vectors = functional.normalize(features, eps=1e-6)
    itself = torch.eye(len(vectors), dtype=torch.bool)
    logits = (vectors @ vectors.T / temperature).masked_fill(itself, -1e9)
    same = (numbers[:, None] == numbers[None]) & ~itself
    logs = torch.log_softmax(logits, 1)
    return -(logs * same).sum(1) / same.sum(1).clamp(min=1)


def losses_in_torch(port: dict[str, Any]) -> list[float]:
    """Trains the module of the comments: each batch is the whole training set."""
    source, net, ours = port["Digits"](0, EXAMPLES), Net(), port["Net"](port["nnx"].Rngs(0))
    with torch.no_grad():
        for name in ("body", "number", "ink"):
            layer = getattr(ours, name)
            getattr(net, name).weight.copy_(torch.tensor(np.array(layer.kernel.get_value()).T))
            getattr(net, name).bias.copy_(torch.tensor(np.array(layer.bias.get_value())))
    images = torch.tensor((source.images[..., 0].astype(np.float32) - 73) / 90)
    numbers = torch.tensor(source.numbers, dtype=torch.long)
    inks = torch.tensor(np.stack([source[index]["ink"] for index in range(EXAMPLES)]))
    optimizer = torch.optim.SGD(net.parameters(), 0.03, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)
    found = []
    for _ in range(STEPS):
        logits, ink, features = net(images)
        loss = functional.cross_entropy(logits, numbers) + functional.mse_loss(ink, inks)
        loss = loss + 0.1 * contrastive(features, numbers, port["TEMPERATURE"]).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()
        found.append(loss.item())
    return found


@pytest.mark.parametrize("devices", [1, 8])
def test_the_port_has_the_losses_of_the_module(devices: int) -> None:
    port = runpy.run_path(str(FILE))
    result = port["train"](
        epochs=STEPS,
        batch=EXAMPLES,
        examples=EXAMPLES,
        devices=devices,
        log_every=1,
        augment=(),
        progress=False,
    )
    ours = [row["loss"] for row in result.history if row["split"] == "train"]
    expected = losses_in_torch(port)
    assert expected[-1] < expected[0] - 0.4
    np.testing.assert_allclose(ours, expected, atol=1e-4)
