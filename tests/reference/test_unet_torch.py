"""U-Net agrees with PyTorch in logits, gradients and running statistics.

The references are written from the paper here.

The names are those of the common PyTorch U-Net, so this tests the table of names, too. Runs in `nox
-s reference`.
"""

import pytest
from flax import nnx

from jaxdp import models
from jaxdp.models.reference_weights import Place, Table, reference_names

torch = pytest.importorskip("torch", reason="PyTorch is not installed; `nox -s reference` has it")
functional = torch.nn.functional


class DoubleConv(torch.nn.Module):
    def __init__(self, inputs: int, middle: int, outputs: int) -> None:
        super().__init__()
        layers = []
        for fan_in, fan_out in ((inputs, middle), (middle, outputs)):
            layers += [
                torch.nn.Conv2d(fan_in, fan_out, 3, padding=1, bias=False),
                torch.nn.BatchNorm2d(fan_out),
                torch.nn.ReLU(),
            ]
        self.double_conv = torch.nn.Sequential(*layers)

    def forward(self, x):
        return self.double_conv(x)


class Down(torch.nn.Module):
    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.maxpool_conv = torch.nn.Sequential(
            torch.nn.MaxPool2d(2), DoubleConv(inputs, outputs, outputs)
        )

    def forward(self, x):
        return self.maxpool_conv(x)


class Up(torch.nn.Module):
    def __init__(self, skip: int, outputs: int, bilinear: bool) -> None:
        super().__init__()
        self.up = (
            torch.nn.Upsample(scale_factor=2, mode="bilinear", align_corners=True)
            if bilinear
            else torch.nn.ConvTranspose2d(2 * skip, skip, 2, 2)
        )
        self.conv = DoubleConv(2 * skip, skip, outputs)

    def forward(self, x, skip):
        x = self.up(x)
        rows, columns = (
            theirs - ours for theirs, ours in zip(skip.shape[2:], x.shape[2:], strict=True)
        )
        x = functional.pad(x, [columns // 2, columns - columns // 2, rows // 2, rows - rows // 2])
        return self.conv(torch.cat([skip, x], 1))


class Reference(torch.nn.Module):
    def __init__(self, base: int, levels: int, bilinear: bool) -> None:
        super().__init__()
        self.levels = levels
        self.inc = DoubleConv(3, base, base)
        for level in range(1, levels + 1):
            outputs = base * 2**level
            self.add_module(
                f"down{level}",
                Down(outputs // 2, outputs // 2 if bilinear and level == levels else outputs),
            )
            skip = base * 2 ** (levels - level)
            self.add_module(
                f"up{level}", Up(skip, skip // 2 if bilinear and level < levels else skip, bilinear)
            )
        self.outc = torch.nn.ModuleDict({"conv": torch.nn.Conv2d(base, 5, 1)})

    def forward(self, x):
        maps = [self.inc(x)]
        for level in range(1, self.levels + 1):
            maps.append(self.get_submodule(f"down{level}")(maps[-1]))
        x = maps.pop()
        for level in range(1, self.levels + 1):
            x = self.get_submodule(f"up{level}")(x, maps.pop())
        return self.outc["conv"](x)


class Plain(torch.nn.Module):
    """The forms without batch norm: the paper's, and the one that resizes.

    Attributes are called as ours.
    """

    def __init__(
        self, blocks: list[tuple[int, int, int]], ups: list[tuple[int, int]], padding: int
    ) -> None:
        super().__init__()
        self.levels = len(blocks) // 2

        def block(channels: tuple[int, int, int]):
            pairs = (channels[:2], channels[1:])
            return torch.nn.ModuleDict(
                {
                    "convs": torch.nn.ModuleList(
                        [torch.nn.Conv2d(*pair, 3, padding=padding) for pair in pairs]
                    )
                }
            )

        self.encoder = torch.nn.ModuleList(map(block, blocks[: self.levels + 1]))
        self.decoder = torch.nn.ModuleList(map(block, blocks[self.levels + 1 :]))
        self.up_convs = torch.nn.ModuleList([torch.nn.ConvTranspose2d(*pair, 2, 2) for pair in ups])
        self.head = torch.nn.Conv2d(blocks[-1][-1], 5, 1)

    def forward(self, x):
        maps = []
        for level, block in enumerate(self.encoder):
            for conv in block["convs"]:
                x = torch.relu(conv(x))
            if level < self.levels:
                maps.append(x)
                x = functional.max_pool2d(x, 2)
        for level, block in enumerate(self.decoder):
            skip = maps.pop()
            if self.up_convs:
                x = self.up_convs[level](x)
                top, left = (
                    (theirs - ours) // 2
                    for theirs, ours in zip(skip.shape[2:], x.shape[2:], strict=True)
                )
                skip = skip[:, :, top : top + x.shape[2], left : left + x.shape[3]]
            else:
                x = functional.interpolate(x, skip.shape[2:], mode="bilinear")
            x = torch.cat([skip, x], 1)
            for conv in block["convs"]:
                x = torch.relu(conv(x))
        return self.head(x)


def names_alike(model: nnx.Module) -> Table:
    """Returns the table for a reference whose attributes are called as ours."""
    table = {}
    for path, variable in nnx.to_flat_state(nnx.state(model, nnx.Param)):
        *parts, last = path
        # The kernel of an up-convolution is (in, out, height, width).
        axes = (2, 3, 0, 1) if "up_convs" in path else (2, 3, 1, 0)
        name = ".".join(map(str, [*parts, "weight" if last == "kernel" else "bias"]))
        table[name] = Place(tuple(path), axes if variable.ndim == 4 else (0,))
    return table


def create(**kwargs):
    return models.create("unet", num_classes=5, in_channels=3, rngs=nnx.Rngs(0), **kwargs)


@pytest.mark.parametrize("upsampling", ["transposed", "bilinear"])
@pytest.mark.parametrize("size", [(16, 24), (19, 22), (23, 15)])
def test_the_common_form_agrees(assert_agreement, upsampling: str, size: tuple[int, int]) -> None:
    torch.manual_seed(0)
    model = create(base_channels=4, levels=3, upsampling=upsampling)
    reference = Reference(4, 3, upsampling == "bilinear")
    images, labels = torch.randn(4, 3, *size), torch.randint(0, 5, (4, *size))
    assert_agreement(reference, model, reference_names(model), images, labels)


@pytest.mark.parametrize(
    ("kwargs", "bottom", "ups", "padding", "size"),
    [
        ({"upsampling": "resize"}, [(6, 12, 6), (12, 12, 6), (9, 6, 3)], [], 1, (16, 16)),
        ({"upsampling": "resize"}, [(6, 12, 6), (12, 12, 6), (9, 6, 3)], [], 1, (19, 14)),
        (
            {"padding": "valid"},
            [(6, 12, 12), (12, 6, 6), (6, 3, 3)],
            [(12, 6), (6, 3)],
            0,
            (44, 48),
        ),
        (
            {"padding": "valid"},
            [(6, 12, 12), (12, 6, 6), (6, 3, 3)],
            [(12, 6), (6, 3)],
            0,
            (47, 50),
        ),
    ],
)
def test_the_forms_without_batch_norm_agree(
    assert_agreement, kwargs: dict, bottom, ups, padding: int, size: tuple[int, int]
) -> None:
    torch.manual_seed(0)
    model = create(base_channels=3, levels=2, **kwargs)
    reference = Plain([(3, 3, 3), (3, 6, 6), *bottom], ups, padding)
    images = torch.randn(2, 3, *size)
    labels = torch.randint(0, 5, (2, *reference(images).shape[2:]))
    assert_agreement(reference, model, names_alike(model), images, labels)
