"""Trains PyramidNet 20 α24 on the digits in plain PyTorch until 99% of the test images are right,
for `time_to_accuracy.py`.

    python benchmarks/torch_digits.py digits.npz [--seed N] [--target SHARE] [--channels-last]
        [--compiled]

The recipe is jaxdp's default: batches of 128, 20 epochs of SGD with Nesterov's momentum, one cycle
up to 0.1, weight decay 1e-4, random affine deformations of strength 0.07, an evaluation after each
epoch.
"""

import argparse
import math
import os

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from jaxdp.runtime import malloc

MEAN, STD = 4.88, 6.02
BATCH, EPOCHS, STRENGTH = 128, 20, 0.07


class Unit(nn.Module):
    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.bn1, self.conv1 = (
            nn.BatchNorm2d(inputs),
            nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False),
        )
        self.bn2, self.conv2 = (
            nn.BatchNorm2d(outputs),
            nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False),
        )
        self.bn3, self.stride, self.more = nn.BatchNorm2d(outputs), stride, outputs - inputs

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        branch = self.bn3(self.conv2(functional.relu(self.bn2(self.conv1(self.bn1(x))))))
        if self.stride == 2:
            x = functional.avg_pool2d(x, 2)
        return functional.pad(x, (0, 0, 0, 0, 0, self.more)) + branch


class PyramidNet(nn.Module):
    def __init__(self, depth: int = 20, alpha: int = 24, inputs: int = 1) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(inputs, 16, 3, 1, 1, bias=False), nn.BatchNorm2d(16))
        count, units, channels = (depth - 2) // 6, [], 16
        for index in range(3 * count):
            width = round(16 + alpha * (index + 1) / (3 * count))
            units.append(Unit(channels, width, 2 if index and index % count == 0 else 1))
            channels = width
        self.units = nn.Sequential(*units)
        self.norm, self.head = nn.BatchNorm2d(channels), nn.Linear(channels, 10)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = functional.relu(self.norm(self.units(self.stem(x))))
        return self.head(x.mean((2, 3)))


def deform(images: torch.Tensor) -> torch.Tensor:
    """Scales, shears, rotates and moves each image by a random amount.

    Pixels from beyond its border are black.
    """
    draws = torch.rand(len(images), 6) * 2 - 1
    zero, one = torch.zeros(len(images)), torch.ones(len(images))
    angle = draws[:, 3] * (STRENGTH * math.pi / 2)
    cosine, sine = angle.cos(), angle.sin()
    scale = torch.exp(draws[:, :2] * math.log1p(STRENGTH))
    rotation = torch.stack([cosine, -sine, sine, cosine], 1).view(-1, 2, 2)
    shear = torch.stack([one, zero, draws[:, 2] * STRENGTH, one], 1).view(-1, 2, 2)
    matrix = rotation @ shear @ torch.diag_embed(scale)
    offset = 2 * STRENGTH * draws[:, 4:, None]  # in halves of an image's side
    grid = functional.affine_grid(
        torch.cat([matrix, offset], 2), list(images.shape), align_corners=False
    )
    return functional.grid_sample(
        images, grid, mode="bilinear", padding_mode="zeros", align_corners=False
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--target", type=float, default=0.99)
    parser.add_argument("--channels-last", action="store_true")
    parser.add_argument("--compiled", action="store_true")
    arguments = parser.parse_args()
    malloc.keep_freed()  # as jaxdp does
    torch.manual_seed(arguments.seed)
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    layout = torch.channels_last if arguments.channels_last else torch.contiguous_format
    with np.load(arguments.data) as file:
        images, labels, test_images, test_labels = (
            torch.from_numpy(file[name])
            for name in ("train_images", "train_labels", "test_images", "test_labels")
        )
    images, test_images = (each.permute(0, 3, 1, 2).float() for each in (images, test_images))
    labels, test_labels = labels.long(), test_labels.long()
    test_images = ((test_images - MEAN) / STD).contiguous(memory_format=layout)
    model = PyramidNet().to(memory_format=layout)
    optimizer = torch.optim.SGD(
        model.parameters(), lr=0.1, momentum=0.9, nesterov=True, weight_decay=1e-4
    )
    steps = len(images) // BATCH
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, 0.1, EPOCHS * steps, cycle_momentum=False
    )
    # Evaluated as it is: the last batch is smaller, and would be compiled again.
    trained = torch.compile(model) if arguments.compiled else model
    for epoch in range(1, EPOCHS + 1):
        model.train()
        order = torch.randperm(len(images))
        for step in range(steps):
            chosen = order[step * BATCH : (step + 1) * BATCH]
            inputs = ((deform(images[chosen]) - MEAN) / STD).contiguous(memory_format=layout)
            loss = functional.cross_entropy(trained(inputs), labels[chosen])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
        model.eval()
        with torch.no_grad():
            right = sum(
                int((model(some).argmax(1) == truth).sum())
                for some, truth in zip(
                    test_images.split(BATCH), test_labels.split(BATCH), strict=True
                )
            )
        print(epoch, f"{right / len(test_labels):.4f}", flush=True)
        if right / len(test_labels) >= arguments.target:
            break


if __name__ == "__main__":
    main()
