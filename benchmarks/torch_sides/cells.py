"""Trains U-Net on the cells in plain PyTorch until their IoU reaches 0.93 on the test images, for
`time_to_accuracy.py`.

    python benchmarks/torch_sides/cells.py cells.npz [--seed N] [--target IOU] [--channels-last]
        [--compiled]

The recipe is jaxdp's default for this set: base 16, batches of 16, 8 epochs of SGD with Nesterov's
momentum, one cycle up to 0.1, weight decay 1e-4, random flips along both axes, an evaluation after
each epoch.
"""

import common
import torch
from torch import nn
from torch.nn import functional

MEAN, STD = 43.6, 41.4
BATCH, EPOCHS = 16, 8


def block(inputs: int, outputs: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    for channels in (inputs, outputs):
        layers += [
            nn.Conv2d(channels, outputs, 3, padding=1, bias=False),
            nn.BatchNorm2d(outputs),
            nn.ReLU(inplace=True),
        ]
    return nn.Sequential(*layers)


class UNet(nn.Module):
    def __init__(self, base: int = 16, levels: int = 4) -> None:
        super().__init__()
        widths = [base * 2**level for level in range(levels + 1)]
        self.encoder = nn.ModuleList(
            block(inputs, outputs) for inputs, outputs in zip([1, *widths], widths, strict=False)
        )
        pairs = list(zip(widths[:0:-1], widths[-2::-1], strict=True))
        self.ups = nn.ModuleList(
            nn.ConvTranspose2d(inputs, outputs, 2, 2) for inputs, outputs in pairs
        )
        self.decoder = nn.ModuleList(block(2 * outputs, outputs) for _, outputs in pairs)
        self.head = nn.Conv2d(base, 2, 1)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, nonlinearity="relu")
            elif isinstance(module, nn.ConvTranspose2d):
                nn.init.normal_(module.weight, std=(2 / module.in_channels) ** 0.5)
            if isinstance(module, nn.Conv2d | nn.ConvTranspose2d) and module.bias is not None:
                nn.init.zeros_(module.bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        skips: list[torch.Tensor] = []
        for index, layer in enumerate(self.encoder):
            x = layer(functional.max_pool2d(x, 2) if index else x)
            skips.append(x)
        skips.pop()
        for up, layer in zip(self.ups, self.decoder, strict=True):
            x = layer(torch.cat([skips.pop(), up(x)], 1))
        return self.head(x)


def flipped(images: torch.Tensor, masks: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Swaps left and right, and top and bottom, of each image and its mask with probability 1/2."""
    for axis in (-1, -2):
        coins = torch.rand(len(images)) < 0.5
        images = torch.where(coins[:, None, None, None], images.flip(axis), images)
        masks = torch.where(coins[:, None, None], masks.flip(axis), masks)
    return images, masks


def main() -> None:
    parser = common.create_parser(__doc__)
    common.add_target(parser, 0.93)
    arguments = parser.parse_args()
    images, masks, test_images, test_masks = common.start(
        arguments, ("train_images", "train_masks", "test_images", "test_masks")
    )
    layout = common.layout_of(arguments)
    images, test_images = (
        (each.permute(0, 3, 1, 2).float() - MEAN) / STD for each in (images, test_images)
    )
    masks, test_masks = masks.long(), test_masks.long()
    test_images = test_images.contiguous(memory_format=layout)
    model = UNet().to(memory_format=layout)
    # Evaluated as it is: the last batch is smaller, and would be compiled again.
    trained = torch.compile(model) if arguments.compiled else model

    def loss_of(chosen: torch.Tensor) -> torch.Tensor:
        inputs, truth = flipped(images[chosen], masks[chosen])
        return functional.cross_entropy(trained(inputs.contiguous(memory_format=layout)), truth)

    def iou() -> float:
        both = either = 0
        for some, truth in zip(test_images.split(BATCH), test_masks.split(BATCH), strict=True):
            found, is_cell = model(some).argmax(1) == 1, truth == 1
            both += int((found & is_cell).sum())
            either += int((found | is_cell).sum())
        return both / either

    common.train(
        model,
        len(images),
        loss_of,
        iou,
        batch=BATCH,
        epochs=EPOCHS,
        target=arguments.target,
    )


if __name__ == "__main__":
    main()
