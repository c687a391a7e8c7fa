"""Datasets of PyTorch train as the arrays that they hold do."""

import numpy as np
import pytest

import jaxdp

torch = pytest.importorskip("torch", reason="PyTorch is not installed; `nox -s reference` has it")


@pytest.mark.parametrize("channels", [1, 3])
def test_a_dataset_of_tensors_is_that_of_its_arrays(channels: int) -> None:
    labels = np.arange(40) % 4
    images = np.random.default_rng(0).integers(0, 255, (40, 9, 7, channels), dtype=np.uint8)
    tensors = torch.utils.data.TensorDataset(
        torch.from_numpy(images).permute(0, 3, 1, 2), torch.from_numpy(labels)
    )
    parts = torch.utils.data.random_split(
        tensors, [30, 10], generator=torch.Generator().manual_seed(0)
    )
    data = jaxdp.data.from_dataset(parts[0], test=parts[1])
    for split, part in zip(("train", "test"), parts, strict=True):
        for index, stored in enumerate(part.indices):
            example = getattr(data, split)[index]
            np.testing.assert_array_equal(example["images"], images[stored])
            assert example["labels"] == labels[stored]


def test_masks_of_whole_numbers_are_classes() -> None:
    images = torch.rand(12, 1, 16, 16, generator=torch.Generator().manual_seed(0))
    masks = (images[:, 0] > 0.5).long()
    pairs = torch.utils.data.TensorDataset(images, masks)
    data = jaxdp.data.from_dataset(pairs, task="segmentation", test=pairs)
    assert (data.num_classes, data.dtype, data.image_shape) == (2, "float32", (16, 16, 1))
    np.testing.assert_array_equal(data.train[3]["masks"], masks[3].numpy())
