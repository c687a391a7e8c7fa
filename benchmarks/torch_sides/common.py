"""Provides the common parts of the PyTorch benchmarks: PyramidNet, and training with one cycle of
SGD.

`time_to_accuracy.py` and `cifar10.py` start the scripts next to this file.
"""

import argparse
import math
import os
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from jaxdp.runtime import malloc

BETA = 0.95  # decay of the momentum of Muon


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


class Muon(torch.optim.Optimizer):
    """Muon for kernels, with as large updates as those of AdamW. A kernel counts as a matrix of
    outputs by inputs. The momentum is corrected for its start, as in Optax.
    """

    def __init__(self, kernels: Sequence[nn.Parameter], lr: float, weight_decay: float) -> None:
        super().__init__(kernels, {"lr": lr, "weight_decay": weight_decay})
        self.count = 0

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        self.count += 1
        for group in self.param_groups:
            for kernel in group["params"]:
                momentum = self.state[kernel].setdefault("momentum", torch.zeros_like(kernel))
                momentum.lerp_(kernel.grad, 1 - BETA)
                ahead = BETA * momentum / (1 - BETA ** (self.count + 1))
                ahead += (1 - BETA) * kernel.grad / (1 - BETA**self.count)
                matrix = ahead.reshape(len(ahead), -1)
                size = 0.2 * max(matrix.shape) ** 0.5
                kernel.mul_(1 - group["lr"] * group["weight_decay"])
                update = orthogonalized(matrix).view_as(kernel)
                kernel.add_(update, alpha=-group["lr"] * size)


def orthogonalized(matrix: torch.Tensor) -> torch.Tensor:
    """Returns a matrix with the same singular vectors, and singular values near 1.

    Source: Jordan et al., Muon, 2024.
    """
    wide = matrix if len(matrix) <= matrix.shape[1] else matrix.T
    x = wide / (wide.norm() + 1e-8)
    for _ in range(5):
        gram = x @ x.T
        x = 3.4445 * x + (-4.7750 * gram + 2.0315 * gram @ gram) @ x
    return x if wide is matrix else x.T


def create_parser(description: str | None) -> argparse.ArgumentParser:
    """Returns a parser of the file of the arrays and the seed."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data")
    parser.add_argument("--seed", type=int, default=0)
    return parser


def add_target(parser: argparse.ArgumentParser, target: float) -> None:
    """Adds the flags of the scripts that train up to a target."""
    parser.add_argument("--target", type=float, default=target)
    parser.add_argument("--channels-last", action="store_true")
    parser.add_argument("--compiled", action="store_true")


def start(arguments: Any, names: Sequence[str]) -> list[torch.Tensor]:
    """Prepares this process as jaxdp does, and returns the arrays of these names."""
    malloc.keep_freed()
    torch.manual_seed(arguments.seed)
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    with np.load(arguments.data) as file:
        return [torch.from_numpy(file[name]) for name in names]


def layout_of(arguments: Any) -> torch.memory_format:
    return torch.channels_last if arguments.channels_last else torch.contiguous_format


def accuracy(
    model: Callable[[torch.Tensor], torch.Tensor],
    images: torch.Tensor,
    labels: torch.Tensor,
    batch: int,
    inputs: Callable[[torch.Tensor], torch.Tensor] = lambda images: images,
) -> float:
    """Returns the share of images that a model classifies right; `inputs` prepares a batch."""
    right = sum(
        int((model(inputs(some)).argmax(1) == truth).sum())
        for some, truth in zip(images.split(batch), labels.split(batch), strict=True)
    )
    return right / len(labels)


def train(
    model: nn.Module,
    count: int,
    loss_of: Callable[[torch.Tensor], torch.Tensor],
    score: Callable[[], float],
    *,
    batch: int,
    epochs: int,
    target: float = math.inf,
    weight_decay: float = 1e-4,
    warmup: float = 0.3,
    muon: bool = False,
) -> None:
    """Trains with SGD, Nesterov's momentum and one cycle up to 0.1. Prints a line after each epoch.

    Args:
        count: of the training examples.
        loss_of: the loss of the examples with these indices.
        score: measures the model, in its form for evaluation.
        target: ends the training when the score reaches it.
        warmup: the part of the steps in which the rate rises.
        muon: trains kernels by Muon instead, and all else by AdamW, up to a rate of 0.01.
    """
    steps, peak = count // batch, 0.01 if muon else 0.1
    parameters = [*model.parameters()]
    if muon:
        kernels = [each for each in parameters if each.ndim > 1]
        vectors = [each for each in parameters if each.ndim == 1]
        optimizers = [
            Muon(kernels, peak, weight_decay),
            torch.optim.AdamW(vectors, peak, weight_decay=weight_decay),
        ]
    else:
        optimizers = [
            torch.optim.SGD(
                parameters, lr=peak, momentum=0.9, nesterov=True, weight_decay=weight_decay
            )
        ]
    schedules = [
        torch.optim.lr_scheduler.OneCycleLR(
            optimizer, peak, epochs * steps, pct_start=warmup, cycle_momentum=False
        )
        for optimizer in optimizers
    ]
    for epoch in range(1, epochs + 1):
        model.train()
        order = torch.randperm(count)
        for step in range(steps):
            loss = loss_of(order[step * batch : (step + 1) * batch])
            model.zero_grad()
            loss.backward()
            for optimizer, schedule in zip(optimizers, schedules, strict=True):
                optimizer.step()
                schedule.step()
        model.eval()
        with torch.no_grad():
            reached = score()
        print(epoch, f"{reached:.4f}", flush=True)
        if reached >= target:
            break
