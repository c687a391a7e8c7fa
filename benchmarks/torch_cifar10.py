"""Trains PyramidNet 20 α48 on CIFAR-10 in plain PyTorch, compiled, for `cifar10.py`.

    python benchmarks/torch_cifar10.py cifar10.npz [--seed N] [--epochs N]

`cifar10.py` has the same recipe: batches of 64, SGD with Nesterov's momentum, one cycle with a peak
of 0.1 after a fifth of the steps, weight decay 5e-4 and label smoothing 0.1. Images are padded by 2
pixels, cropped and flipped.
"""

import argparse
import os

import numpy as np
import torch
from torch.nn import functional
from torch_digits import PyramidNet

from jaxdp.runtime import malloc

MEAN, STD = torch.tensor([125.3, 123.0, 113.9]), torch.tensor([63.0, 62.1, 66.7])
BATCH, PIXELS = 64, 2


def augment(images: torch.Tensor) -> torch.Tensor:
    """Moves each image by up to `PIXELS`, with black behind its border, and mirrors half of them.

    Images are uint8 of (batch, height, width, channels).
    """
    count, height, width, _ = images.shape
    padded = functional.pad(images, (0, 0, PIXELS, PIXELS, PIXELS, PIXELS))
    top, left = (torch.randint(0, 2 * PIXELS + 1, (count, 1)) for _ in range(2))
    rows, columns = top + torch.arange(height), left + torch.arange(width)
    columns = torch.where(torch.rand(count, 1) < 0.5, columns.flip(1), columns)
    return padded[torch.arange(count)[:, None, None], rows[:, :, None], columns[:, None, :]]


def normalize(images: torch.Tensor) -> torch.Tensor:
    """Returns float32 of (batch, channels, height, width), channels last in memory."""
    return ((images - MEAN) / STD).permute(0, 3, 1, 2)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--epochs", type=int, default=12)
    arguments = parser.parse_args()
    malloc.keep_freed()  # as jaxdp does
    torch.manual_seed(arguments.seed)
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    with np.load(arguments.data) as file:
        images, labels, test_images, test_labels = (
            torch.from_numpy(file[name])
            for name in ("train_images", "train_labels", "test_images", "test_labels")
        )
    labels, test_labels = labels.long(), test_labels.long()
    model = PyramidNet(alpha=48, inputs=3).to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(
        model.parameters(), lr=0.1, momentum=0.9, nesterov=True, weight_decay=5e-4
    )
    steps = len(images) // BATCH
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, 0.1, arguments.epochs * steps, pct_start=0.2, cycle_momentum=False
    )
    # Evaluated as it is: the last batch is smaller, and would be compiled again.
    trained = torch.compile(model)
    for epoch in range(1, arguments.epochs + 1):
        model.train()
        order = torch.randperm(len(images))
        for step in range(steps):
            chosen = order[step * BATCH : (step + 1) * BATCH]
            loss = functional.cross_entropy(
                trained(normalize(augment(images[chosen]))), labels[chosen], label_smoothing=0.1
            )
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
        model.eval()
        with torch.no_grad():
            right = sum(
                int((model(normalize(some)).argmax(1) == truth).sum())
                for some, truth in zip(
                    test_images.split(BATCH), test_labels.split(BATCH), strict=True
                )
            )
        print(epoch, f"{right / len(test_labels):.4f}", flush=True)


if __name__ == "__main__":
    main()
