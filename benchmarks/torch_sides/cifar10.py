"""Trains PyramidNet 20 α48 on CIFAR-10 in plain PyTorch, compiled, for `cifar10.py`.

    python benchmarks/torch_sides/cifar10.py cifar10.npz [--seed N] [--epochs N] [--muon]

`cifar10.py` has the same recipe: batches of 64, SGD with Nesterov's momentum, one cycle with a peak
of 0.1 after a fifth of the steps, weight decay 5e-4 and label smoothing 0.1. Images are padded by 2
pixels, cropped and flipped. With `--muon`, Muon has a peak of 0.01, and each image is mirrored in
every second epoch, half of them first in the first one. Evaluation then sums the scores of an image
and of its mirror image.
"""

import common
import torch
from torch.nn import functional

MEAN, STD = torch.tensor([125.3, 123.0, 113.9]), torch.tensor([63.0, 62.1, 66.7])
BATCH, PIXELS = 64, 2


def augment(images: torch.Tensor, mirrored: torch.Tensor) -> torch.Tensor:
    """Moves each image by up to `PIXELS`, with black behind its border, and mirrors some of them.

    Images are uint8 of (batch, height, width, channels).
    """
    count, height, width, _ = images.shape
    padded = functional.pad(images, (0, 0, PIXELS, PIXELS, PIXELS, PIXELS))
    top, left = (torch.randint(0, 2 * PIXELS + 1, (count, 1)) for _ in range(2))
    rows, columns = top + torch.arange(height), left + torch.arange(width)
    columns = torch.where(mirrored[:, None], columns.flip(1), columns)
    return padded[torch.arange(count)[:, None, None], rows[:, :, None], columns[:, None, :]]


def normalize(images: torch.Tensor) -> torch.Tensor:
    """Returns float32 of (batch, channels, height, width), channels last in memory."""
    return ((images - MEAN) / STD).permute(0, 3, 1, 2)


def main() -> None:
    parser = common.create_parser(__doc__)
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--muon", action="store_true")
    arguments = parser.parse_args()
    images, labels, test_images, test_labels = common.start(
        arguments, ("train_images", "train_labels", "test_images", "test_labels")
    )
    labels, test_labels = labels.long(), test_labels.long()
    model = common.PyramidNet(alpha=48, inputs=3).to(memory_format=torch.channels_last)
    # Evaluated as it is: the last batch is smaller, and would be compiled again.
    trained = torch.compile(model)

    first = torch.rand(len(images)) < 0.5  # which images are mirrored in the first epoch
    steps, taken = len(images) // BATCH, 0

    def loss_of(chosen: torch.Tensor) -> torch.Tensor:
        nonlocal taken
        odd = bool(taken // steps % 2)
        mirrored = first[chosen] ^ odd if arguments.muon else torch.rand(len(chosen)) < 0.5
        taken += 1
        inputs = normalize(augment(images[chosen], mirrored))
        return functional.cross_entropy(trained(inputs), labels[chosen], label_smoothing=0.1)

    def scores(inputs: torch.Tensor) -> torch.Tensor:
        return model(inputs) + model(inputs.flip(3)) if arguments.muon else model(inputs)

    common.train(
        model,
        len(images),
        loss_of,
        lambda: common.accuracy(scores, test_images, test_labels, BATCH, normalize),
        batch=BATCH,
        epochs=arguments.epochs,
        weight_decay=5e-4,
        warmup=0.2,
        muon=arguments.muon,
    )


if __name__ == "__main__":
    main()
