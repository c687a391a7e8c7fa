"""Trains PyramidNet 20 α24 on the digits in plain PyTorch until 99% of the test images are right,
for `time_to_accuracy.py`.

    python benchmarks/torch_sides/digits.py digits.npz [--seed N] [--target SHARE] [--channels-last]
        [--compiled]

The recipe is jaxdp's default: batches of 128, 20 epochs of SGD with Nesterov's momentum, one cycle
up to 0.1, weight decay 1e-4, random affine deformations of strength 0.07, an evaluation after each
epoch.
"""

import math

import common
import torch
from torch.nn import functional

MEAN, STD = 4.88, 6.02
BATCH, EPOCHS, STRENGTH = 128, 20, 0.07


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
    parser = common.create_parser(__doc__)
    common.add_target(parser, 0.99)
    arguments = parser.parse_args()
    images, labels, test_images, test_labels = common.start(
        arguments, ("train_images", "train_labels", "test_images", "test_labels")
    )
    layout = common.layout_of(arguments)
    images, test_images = (each.permute(0, 3, 1, 2).float() for each in (images, test_images))
    labels, test_labels = labels.long(), test_labels.long()
    test_images = ((test_images - MEAN) / STD).contiguous(memory_format=layout)
    model = common.PyramidNet().to(memory_format=layout)
    # Evaluated as it is: the last batch is smaller, and would be compiled again.
    trained = torch.compile(model) if arguments.compiled else model

    def loss_of(chosen: torch.Tensor) -> torch.Tensor:
        inputs = ((deform(images[chosen]) - MEAN) / STD).contiguous(memory_format=layout)
        return functional.cross_entropy(trained(inputs), labels[chosen])

    common.train(
        model,
        len(images),
        loss_of,
        lambda: common.accuracy(model, test_images, test_labels, BATCH),
        batch=BATCH,
        epochs=EPOCHS,
        target=arguments.target,
    )


if __name__ == "__main__":
    main()
