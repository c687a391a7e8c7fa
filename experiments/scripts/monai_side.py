"""Trains MONAI's U-Net for some seconds, and predicts cells in test slices.

    python monai_side.py FILE SECONDS

FILE is the archive that isbi2012.py writes, with `images`, `masks` and `test`. The probability of
cells goes to `cells` of FILE with the ending .cells.npy. Importing and predicting do not count.

The network has as many channels as jaxdp's, and a training step takes as many tiles of the same
size, with MONAI's own flips, rotations, elastic deformation and loss. The learning rate is that of
MONAI's examples, and falls to 0 along a cosine.
"""

import math
import sys
import time

import numpy as np
import torch
from monai import losses, transforms
from monai.networks.nets.basic_unet import BasicUNet
from monai.utils.misc import set_determinism

CHANNELS = (16, 32, 64, 128, 256, 16)
SIDE, BATCH, RATE = 128, 8, 1e-3


def main() -> None:
    path, seconds = sys.argv[1], float(sys.argv[2])
    file = np.load(path)
    images = file["images"].astype(np.float32)
    mean, std = images.mean(), images.std()
    set_determinism(0)
    both = ("image", "mask")
    draw = transforms.Compose(
        [
            transforms.RandSpatialCropd(both, (SIDE, SIDE), random_size=False),
            transforms.RandFlipd(both, 0.5, 0),
            transforms.RandFlipd(both, 0.5, 1),
            transforms.RandRotate90d(both, 0.5),
            transforms.Rand2DElasticd(
                both,
                (32, 32),
                (1, 2),
                prob=0.5,
                mode=("bilinear", "nearest"),
                padding_mode="reflection",
            ),
        ]
    )
    examples = [
        {"image": (image[..., 0][None] - mean) / std, "mask": mask[None].astype(np.float32)}
        for image, mask in zip(images, file["masks"], strict=True)
    ]
    network = BasicUNet(2, 1, 2, features=CHANNELS)
    loss_of = losses.DiceCELoss(to_onehot_y=True, softmax=True)
    optimizer = torch.optim.AdamW(network.parameters(), RATE)
    order, steps = np.random.default_rng(0), 0
    start = time.monotonic()
    while (share := (time.monotonic() - start) / seconds) < 1:
        optimizer.param_groups[0]["lr"] = RATE * (1 + math.cos(math.pi * share)) / 2
        batch = [draw(examples[index]) for index in order.integers(len(examples), size=BATCH)]
        inputs, masks = (
            torch.stack([torch.as_tensor(each[key]) for each in batch]) for key in both
        )
        loss = loss_of(network(inputs), masks)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        steps += 1
    print(f"{steps} steps, loss {loss.item():.4f}")
    network.eval()
    found = []
    with torch.no_grad():
        for image in file["test"]:
            image = (torch.as_tensor(image[..., 0], dtype=torch.float32) - mean) / std
            total = torch.zeros(image.shape)
            for turns in range(4):
                for flip in ((), (0,)):
                    moved = torch.flip(torch.rot90(image, turns), flip)
                    cells = network(moved[None, None]).softmax(1)[0, 1]
                    total += torch.rot90(torch.flip(cells, flip), -turns)
            found.append(total.numpy() / 8)
    np.save(f"{path}.cells.npy", np.stack(found))


if __name__ == "__main__":
    main()
