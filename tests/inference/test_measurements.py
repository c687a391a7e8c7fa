"""Tables of objects and of images, and label files that ImageJ opens as it opens their source."""

import pathlib
from typing import Any

import numpy as np
import pytest
import tifffile
from drawn_cells import arrays, cells, image_of, perfect
from PIL import Image
from skimage import measure

from jaxdp.data import image_file
from jaxdp.inference import files, measurements
from jaxdp.inference.results import Results
from jaxdp.tasks import InstanceSegmentation

TASK = InstanceSegmentation(3)


SAVED: dict[str, Any] = {
    "imagej": {
        "imagej": True,
        "resolution": (2.0, 4.0),
        "metadata": {"axes": "TZYX", "unit": "micron"},
    },
    "ome": {
        "ome": True,
        "metadata": {
            "axes": "TZYX",
            "PhysicalSizeX": 500.0,
            "PhysicalSizeXUnit": "nm",
            "PhysicalSizeY": 0.25,
        },
    },
    "plain": {"photometric": "minisblack", "resolution": (2.0, 4.0)},
}


def tables() -> tuple[Any, Any]:
    pandas = pytest.importorskip("pandas", reason="needs ray[train]")
    return pandas.read_csv("a.csv"), pandas.read_csv("a-images.csv")


def predicted(
    stack: np.ndarray, objects: np.ndarray, *, unread: tuple[int, ...] = ()
) -> tuple[Any, Any]:
    """Writes results of the pages of `a.tif` with these objects; returns the tables of objects and
    of images.
    """
    results = Results(arrays().describe(), TASK, csv="a.csv", output_dir="out", top_k=1)
    results.create_folders()
    for file in files.find(["a.tif"]):
        page = file.picture.page or 0
        if page in unread:
            results.leave_out(str(file))
            continue
        image = np.atleast_3d(stack[page])
        row = results.add(file, image, perfect(objects[page]))
        assert row["instances"] == "out/a-instances.tif"
        assert pathlib.Path(row["overlay"]).is_file()
    results.finish(table=False)
    return tables()


@pytest.mark.parametrize("program", SAVED)
def test_objects_are_measured_as_scikit_image_measures_the_labels_written(program: str) -> None:
    """Page 0 has no object; pages 3 and 5, the last, cannot be read."""
    objects = np.stack([cells(number) for number in range(6)])
    objects[0] = 0
    stack = np.stack([image_of(each) for each in objects])
    tifffile.imwrite("a.tif", stack.reshape(2, 3, 24, 24), **SAVED[program])
    table, images = predicted(stack, objects, unread=(3, 5))
    assert images.pop("warning").isna().all()
    with tifffile.TiffFile("out/a-instances.tif") as written:
        labels = written.asarray().reshape(stack.shape)
        assert (labels.dtype, len(written.pages)) == (np.uint16, 6)
        assert len({(page.shape, page.dtype, page.compression) for page in written.pages}) == 1
    assert [page.any() for page in labels] == [False, True, True, False, True, False]
    assert {path.name for path in pathlib.Path("out").iterdir()} == {
        "a-instances.tif",
        *(f"a-page{page}-overlay.png" for page in (0, 1, 2, 4)),
    }

    known = program != "plain"
    assert table.columns.tolist()[:6] == ["file", "page", "t", "z", "objects", "label"]
    assert table.columns.tolist()[15:17] == ["touches_edge", "area_um2"]
    assert {table[name].dtype for name in ("page", "objects", "label")} == {np.dtype("int64")}
    assert images.page.dtype == np.dtype("int64")
    expected = [(page, each) for page in (1, 2, 4) for each in range(1, labels[page].max() + 1)]
    assert list(zip(table.page, table.label, strict=True)) == expected
    size = (0.25, 0.5) if known else (np.nan, np.nan)
    assert {*table.pop("file"), *images.pop("file")} == {"a.tif"}
    for row in table.to_dict("records"):
        page, label = row["page"], row["label"]
        [region] = measure.regionprops((labels[page] == label).astype(int), stack[page])
        [metric] = measure.regionprops(
            (labels[page] == label).astype(int), spacing=size if known else (1, 1)
        )
        top, left, bottom, right = region.bbox
        values = stack[page][labels[page] == label]
        expected = {
            "page": page,
            "label": label,
            "t": page // 3 if known else np.nan,
            "z": page % 3 if known else np.nan,
            "objects": labels[page].max(),
            "area_pixels": region.area,
            **dict(zip(("centroid_y", "centroid_x"), region.centroid, strict=True)),
            **dict(zip(("top", "left", "bottom", "right"), region.bbox, strict=True)),
            "eccentricity": region.eccentricity,
            "mean_intensity_0": values.mean(),
            "touches_edge": float(0 in (top, left) or 24 in (bottom, right)),
            "area_um2": region.area * size[0] * size[1],
            "centroid_y_um": metric.centroid[0] if known else np.nan,
            "centroid_x_um": metric.centroid[1] if known else np.nan,
            "top_um": top * size[0],
            "left_um": left * size[1],
            "bottom_um": bottom * size[0],
            "right_um": right * size[1],
            "perimeter_pixels": region.perimeter,
            "major_axis_pixels": region.axis_major_length,
            "minor_axis_pixels": region.axis_minor_length,
            "solidity": region.solidity,
            "integrated_intensity_0": values.sum(),
            "pixel_height_um": size[0],
            "pixel_width_um": size[1],
        }
        assert row == pytest.approx(expected, rel=1e-8, nan_ok=True)
        assert row["integrated_intensity_0"] == values.sum()  # not only nearly
    assert set(table.touches_edge) == {0, 1}

    for row, page in zip(images.to_dict("records"), range(6), strict=True):
        area, count = np.count_nonzero(labels[page]), labels[page].max()
        mean = area / count if count else np.nan
        expected = {
            "t": page // 3 if known else np.nan,
            "z": page % 3 if known else np.nan,
            "objects": count,
            "mean_area_pixels": mean,
            "total_area_pixels": area,
            "mean_area_um2": mean * size[0] * size[1],
            "total_area_um2": area * size[0] * size[1],
            "pixel_height_um": size[0],
            "pixel_width_um": size[1],
        }
        if page in (3, 5):
            expected = dict.fromkeys(expected, np.nan)
        expected |= {"page": page}
        assert row == pytest.approx(expected, rel=1e-8, nan_ok=True)


def test_a_table_without_objects_and_one_of_a_picture_can_be_read() -> None:
    objects = cells(1)[None]
    Image.fromarray(image_of(objects[0])).save("a.png")
    results = Results(arrays().describe(), TASK, csv="a.csv", output_dir=None, top_k=1)
    for path, each in (("a.png", objects[0]), ("a.png", 0 * objects[0])):
        [file] = files.find([path])
        results.add(file, image_of(objects[0])[..., None], perfect(each), "too bright, it seems")
    results.finish(table=False)
    table, images = tables()
    assert images.warning.tolist() == 2 * ["too bright, it seems"]
    assert (table.page.dtype, set(table.page)) == (np.dtype("int64"), {0})
    assert images.objects.tolist() == [len(table), 0]
    assert images.objects.dtype == images.page.dtype == np.dtype("int64")
    assert table.t.isna().all()
    assert np.isnan(images.mean_area_pixels[1])


def calibration(path: str) -> tuple[Any, ...]:
    """Axes, sides, metadata and densities, as tifffile reads them."""
    with tifffile.TiffFile(path) as file:
        metadata = file.imagej_metadata or {}
        facts = {name: value for name, value in metadata.items() if name not in ("ImageJ", "loop")}
        resolution = file.pages.first.get_resolution()
        return file.series[0].axes, file.series[0].shape, facts, np.round(resolution, 6).tolist()


@pytest.mark.parametrize(
    ("axes", "sides", "facts"),
    [
        ("TZYX", (2, 3), {"unit": "micron", "spacing": 1.5, "finterval": 30.0}),
        ("TZYX", (3, 2), {"unit": "nm"}),
        ("ZYX", (3,), {"unit": r"\u00B5m", "spacing": 2.0}),
        ("TYX", (4,), {"unit": "um", "fps": 7.0, "tunit": "min"}),
        ("YX", (), {"unit": "mm"}),
        ("TZYX", (2, 2), {}),
    ],
)
def test_labels_are_the_same_hyperstack_in_imagej(
    axes: str, sides: tuple[int, ...], facts: dict[str, Any]
) -> None:
    objects = np.stack([cells(number) for number in range(int(np.prod(sides)))])
    stack = np.stack([image_of(each) for each in objects])
    resolution = {"resolution": (2.0, 4.0)} if facts else {}
    metadata = {"axes": axes, **facts}
    stored = stack.reshape(*sides, 24, 24)
    tifffile.imwrite("a.tif", stored, imagej=True, metadata=metadata, **resolution)
    predicted(stack, objects)
    assert calibration("out/a-instances.tif") == calibration("a.tif")
    written = tifffile.imread("out/a-instances.tif").reshape(-1, 24, 24)
    expected = [TASK.label(perfect(each)) for each in objects]
    np.testing.assert_array_equal(written, expected)
    again = image_file.planes_of(image_file.Picture(pathlib.Path("out/a-instances.tif")))
    first = image_file.planes_of(image_file.Picture(pathlib.Path("a.tif")))
    # In the order T, Z, C also if its source has another.
    assert [each.pixel_size for each in again] == [each.pixel_size for each in first]


@pytest.mark.parametrize(
    ("options", "facts", "density"),
    [
        (
            {
                "ome": True,
                "metadata": {
                    "axes": "TZYX",
                    **{"PhysicalSizeX": 500.0, "PhysicalSizeXUnit": "nm"},
                    **{"PhysicalSizeY": 0.25, "PhysicalSizeYUnit": "µm"},
                    **{"PhysicalSizeZ": 0.002, "PhysicalSizeZUnit": "mm"},
                    **{"TimeIncrement": 1500.0, "TimeIncrementUnit": "ms"},
                },
            },
            {"unit": "um", "spacing": 2.0, "finterval": 1.5},
            (2, 4),
        ),
        ({"resolution": (2e4, 4e4), "resolutionunit": "CENTIMETER"}, {"unit": "cm"}, (2e4, 4e4)),
        ({"resolution": (300, 300), "resolutionunit": "INCH"}, {}, (1, 1)),
    ],
)
def test_labels_have_the_pixel_size_of_other_files(
    options: dict[str, Any], facts: dict[str, Any], density: tuple[float, float]
) -> None:
    objects = np.stack([cells(number) for number in range(6)])
    stack = np.stack([image_of(each) for each in objects])
    stored = stack.reshape(2, 3, 24, 24)
    tifffile.imwrite("a.tif", stored, photometric="minisblack", **options)
    predicted(stack, objects)
    axes, sides, found, resolution = calibration("out/a-instances.tif")
    assert (axes, sides[:-2]) == (("TZYX", (2, 3)) if "ome" in options else ("ZYX", (6,)))
    assert found == found | facts
    assert ("unit" in found) == ("unit" in facts)
    assert resolution == pytest.approx(density, rel=1e-6)


def test_letters_that_tiff_cannot_hold_are_left_out() -> None:
    """ImageJ itself escapes them, and other programs do not."""
    text = "ImageJ=1.53\nimages=2\nslices=2\nunit=µm\nzunit=Å\nspacing=3\n"
    stack = np.stack([image_of(cells(number)) for number in range(2)])
    with tifffile.TiffWriter("a.tif") as writer:
        for page, description in zip(stack, (text.encode("latin-1"), None), strict=True):
            writer.write(page, description=description, metadata=None, resolution=(2, 4))
    predicted(stack, np.stack([cells(number) for number in range(2)]))
    axes, _, facts, resolution = calibration("out/a-instances.tif")
    assert (axes, resolution) == ("ZYX", [2, 4])
    assert facts == facts | {"unit": "um", "spacing": 3}
    assert "zunit" not in facts


def test_objects_of_a_pixel_and_of_a_row_are_measured() -> None:
    labels = np.zeros((9, 9), np.uint16)
    labels[2, 2], labels[5, 1:8], labels[8, 8] = 1, 2, 3
    image = np.full((9, 9, 2), 2**16 - 1, np.uint16)
    names = measurements.columns(2)[1:]
    _, objects = measurements.measurements(labels, image, None)
    rows = [dict(zip(names, cells, strict=True)) for cells in objects]
    assert [row["area_pixels"] for row in rows] == ["1", "7", "1"]
    assert [row["solidity"] for row in rows] == ["1", "1", "1"]
    assert rows[1]["integrated_intensity_1"] == str(7 * (2**16 - 1))
    assert rows[0]["pixel_width_um"] == rows[0]["area_um2"] == ""


@pytest.mark.parametrize(
    ("axes", "sides", "options", "expected"),
    [
        # two channels are one image
        ("TZCYX", (2, 3, 2), {"imagej": True}, ("TZYX", (2, 3))),
        ("TCYX", (4, 2), {"imagej": True}, ("TYX", (4,))),
        # OME's other orders
        ("ZTYX", (3, 2), {"ome": True}, ("TZYX", (2, 3))),
        ("QYX", (3,), {}, ("ZYX", (3,))),
    ],
)
def test_the_axes_of_other_stacks(
    axes: str, sides: tuple[int, ...], options: dict[str, Any], expected: tuple[str, Any]
) -> None:
    count = int(np.prod(sides))
    stored = np.stack([image_of(cells(number)) for number in range(count)])
    tifffile.imwrite(
        "a.tif",
        stored.reshape(*sides, 24, 24),
        photometric="minisblack",
        metadata={"axes": axes},
        **options,
    )
    planes = image_file.planes_of(image_file.Picture(pathlib.Path("a.tif")))
    objects = np.stack([cells(number) for number in range(len(planes))])
    table, images = predicted(stored[: len(planes)], objects)
    with tifffile.TiffFile("out/a-instances.tif") as file:
        assert (file.series[0].axes, file.series[0].shape[:-2]) == expected
        written = file.asarray()
    assert set(table.page) == set(range(len(planes)))
    for row in images.to_dict("records"):
        place = [int(row[axis]) for axis in "tz" if not np.isnan(row[axis])]
        found = written[tuple(place)] if place else written[row["page"]]
        expected_labels = TASK.label(perfect(objects[row["page"]]))
        np.testing.assert_array_equal(found, expected_labels)


def test_labels_of_pages_that_differ_in_size_are_plain_pages() -> None:
    with tifffile.TiffWriter("a.tif") as writer:
        for number, side in enumerate((24, 32)):
            writer.write(image_of(cells(number, side, side)), metadata=None)
    results = Results(arrays().describe(), TASK, csv=None, output_dir="out", top_k=1)
    for number, file in enumerate(files.find(["a.tif"])):
        objects = cells(number, *[(24, 32)[number]] * 2)
        results.add(file, image_of(objects)[..., None], perfect(objects))
    results.finish(table=False)
    with tifffile.TiffFile("out/a-instances.tif") as file:
        assert [page.shape for page in file.pages] == [(24, 24), (32, 32)]
        assert not file.is_imagej
