"""Shows predictions as a table and writes masks, images and instance labels as files."""

import math
import pathlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import rich.console
import rich.table
from PIL import Image
from PIL.PngImagePlugin import PngInfo

from jaxdp.config.values import MaskValues
from jaxdp.data import tiff
from jaxdp.reporting import pictures
from jaxdp.rundir.read import Row
from jaxdp.rundir.write import replacing
from jaxdp.text.messages import printable

_LEAST_SHARE = (
    0.0005  # share of pixels for a class in the table, because a smaller share would read 0.0%
)


def print_table(rows: Sequence[Row]) -> None:
    """Prints a table with a row for each image. Long names are wrapped, never shortened."""
    cells = [{"file": printable(row["file"])} | _cells(row) for row in rows]
    table = rich.table.Table()
    for title in cells[0]:
        table.add_column(title, overflow="fold")
    for texts in cells:
        table.add_row(*texts.values())
    rich.console.Console(highlight=False, markup=False, emoji=False).print(table)


def _cells(row: Row) -> dict[str, str]:
    """Returns the cells of a table for an image, by the titles of the columns."""
    if "heads" in row:
        return {
            f"{head}: {title}": text
            for head, part in row["heads"].items()
            for title, text in _cells(part).items()
        }
    if "classes" in row:
        titles = ["most likely class", "second", "third"]
        titles += [f"{rank}th" for rank in range(4, len(row["classes"]) + 1)]
        texts = [f"{item['class']}: {item['probability']:.1%}" for item in row["classes"]]
        return dict(zip(titles, texts, strict=False))
    if "labels" in row:
        texts = (f"{item['class']}: {item['probability']:.1%}" for item in row["labels"])
        return {"labels": ", ".join(texts)}
    if "values" in row:
        return {name: f"{value:,.6g}" for name, value in row["values"].items()}
    if "size" not in row:  # of a task of one's own
        return {name: str(value) for name, value in row.items() if name != "file"}
    height, width = row["size"]
    cells = {"size": f"{height}x{width}"}
    if "objects" in row:
        area = f"{row['mean_area_pixels']:.1f}"
        return cells | {"objects": f"{row['objects']:,}", "mean area in pixels": area}
    if "shares" in row:
        shares = sorted(row["shares"].items(), key=lambda item: -item[1])
        texts = [f"{name}: {share:.1%}" for name, share in shares if share >= _LEAST_SHARE]
        return cells | {"share of the pixels": ", ".join(texts)}
    levels = {"lowest": str(row["lowest"]), "highest": str(row["highest"])}
    return cells | {"mean": f"{row['mean']:.1f}"} | levels


def write_stack(
    path: pathlib.Path, stack: tuple[Sequence[np.ndarray], Sequence[tiff.Plane]]
) -> None:
    """Writes instance labels, uint16 (H, W), as a TIFF file, which ImageJ opens as it opens the
    file of the images: with the axes T, Z and C, and the pixel size.

    Pages without axes become slices. Pages of several sizes are written without these facts.

    Args:
        stack: the labels, and facts of the images if they are from a TIFF file.
    """
    import tifffile

    pages, planes = stack
    sizes, facts = (planes[0].pixel_size, planes[0].facts) if planes else ([], {})
    places = [tuple(index or 0 for index in plane.place) for plane in planes] or [(0, 0, 0)]
    lengths = [max(indices) + 1 for indices in zip(*places, strict=True)]
    if len({*places}) == math.prod(lengths) == len(pages):
        pages = [pages[index] for index in sorted(range(len(pages)), key=places.__getitem__)]
    else:
        lengths = [1, len(pages), 1]
    shape = *lengths, *pages[0].shape
    description = tifffile.imagej_description(shape, axes="TZCYX", **facts)
    if len({page.shape for page in pages}) > 1:
        sizes, description = [], None
    resolution: Any = [tiff.UNITS[facts["unit"]] / size for size in reversed(sizes)] or None
    with replacing(path) as file, tifffile.TiffWriter(file) as writer:
        for page in pages:
            writer.write(
                page,
                photometric="minisblack",
                compression="zlib",
                metadata=None,
                description=description,
                resolution=resolution,
                resolutionunit="NONE",
            )
            description = None


def write_mask(
    directory: pathlib.Path,
    name: pathlib.PurePath,
    image: np.ndarray,
    mask: np.ndarray,
    names: Sequence[str],
    values: MaskValues | None = None,
) -> Row:
    """Writes a mask with the values of masks in training, and the image overlaid with the mask.

    Args:
        image: uint8 (H, W, 1 or 3).
        mask: class numbers, uint8 (H, W).
        names: of the classes, which are the description of the PNG file.
        values: value of `--mask-values`. Numbers are written unchanged. Colours are the palette of
            the class numbers. Without values, the palette is for viewing.

    Returns:
        The two paths, for the row of the image.
    """
    stored: Sequence[int] = range(len(names))
    picture, palette = Image.fromarray(mask), pictures.class_colors(len(names))
    if values is not None and values.values is not None:
        if values.colours:
            palette = np.array(values.values, ">u4").view(np.uint8).reshape(-1, 4)[:, 1:]
        else:
            stored, palette = values.values, None
            dtype = np.uint8 if max(stored) < 256 else np.uint16
            picture = Image.fromarray(np.array(stored, dtype)[mask])
    if palette is not None:
        picture.putpalette(palette.tobytes())
    about = PngInfo()
    described = (f"{value}: {name}" for value, name in zip(stored, names, strict=True))
    about.add_text("Description", ", ".join(described))
    overlay = pictures.overlay(image, mask, len(names))
    return {
        "mask": save(picture, directory / f"{name}-mask.png", about),
        "overlay": save(overlay, directory / f"{name}-overlay.png"),
    }


def save(picture: Image.Image, path: pathlib.Path, about: PngInfo | None = None) -> str:
    """Writes a picture as PNG, and returns its path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as file:
        picture.save(file, format="PNG", pnginfo=about)
    return str(path)
