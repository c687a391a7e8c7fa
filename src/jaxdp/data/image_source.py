"""Defines a source of encoded images, each with a label, a vector or an encoded mask."""

import abc
import dataclasses

import numpy as np

from jaxdp.config import DataConfig
from jaxdp.data import image_file
from jaxdp.data.dataset import VECTOR_FIELDS
from jaxdp.data.image_file import Data
from jaxdp.data.instances import instance_labels
from jaxdp.data.resize import Resize
from jaxdp.data.source import BadExample, BaseSource, Example


@dataclasses.dataclass(frozen=True, kw_only=True)
class ImageSource(BaseSource):
    """Images that are decoded when they are read.

    Attributes:
        task: `classification`, `segmentation` or one of `VECTOR_FIELDS`.
        channels: number of channels to which all images are decoded; None for grey or colour, as
            stored.
        dtype: the dtype that all images must have.
        config: has `--mask-values` and `--instances`.
        resize: how images with labels will be resized.
    """

    task: str
    channels: int | None
    dtype: str
    config: DataConfig
    resize: Resize | None = None

    @abc.abstractmethod
    def stored(self, index: int) -> tuple[Data, int | np.ndarray | Data]:
        """Returns an image as stored, and its label, its vector or its mask as stored."""

    def __getitem__(self, index: int) -> Example:
        return self.decoded(index, *self.stored(index))

    def decoded(self, index: int, image: Data, target: int | np.ndarray | Data) -> Example:
        """Returns an example from what is stored."""
        if isinstance(target, int):
            example: Example = {"labels": target}
        elif isinstance(target, np.ndarray):
            example = {VECTOR_FIELDS[self.task][0]: target}
        else:
            example = {"masks": self.decode_mask(target, self._where(index, target))}
        where = self._where(index, image)
        pixels, _ = image_file.read_image(image, where, self.channels, self.dtype, self.resize)
        return example | {"images": pixels}

    def decode_mask(self, mask: Data, where: object) -> np.ndarray:
        """Returns the class numbers, or the instance labels, of a stored mask."""
        if self.config.instances:
            return instance_labels(image_file.read_mask(mask, where), where)
        return image_file.decode_mask(mask, where, self.config.mask_values)

    def stored_mask(self, index: int) -> tuple[np.ndarray, str]:
        mask = self.stored(index)[1]
        assert not isinstance(mask, int | np.ndarray)
        where = self._where(index, mask)
        declared = self.config.instances or self.config.mask_values is not None
        return (self.decode_mask if declared else image_file.read_mask)(mask, where), str(where)

    def _where(self, index: int, data: Data) -> object:
        return self.name(index) if isinstance(data, bytes) else data

    def _label(self, index: int) -> int:
        try:
            label = self.stored(index)[1]
        except BadExample:
            return -1
        assert isinstance(label, int)
        return label

    def resized_to(self, resize: Resize | None) -> "ImageSource":
        # Images with masks are resized from their full size.
        return dataclasses.replace(self, resize=None if self.task == "segmentation" else resize)
