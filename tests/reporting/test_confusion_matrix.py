"""A confusion matrix is legible for few and many classes, and what no font has is no error."""

import itertools
import pathlib
import warnings

import numpy as np
import pytest
from matplotlib.figure import Figure

from jaxdp.reporting import confusion, plots


@pytest.fixture
def figures(monkeypatch: pytest.MonkeyPatch) -> list[Figure]:
    """Every figure that is written."""
    found: list[Figure] = []
    save = confusion.pictures.save
    monkeypatch.setattr(
        confusion.pictures,
        "save",
        lambda figure, path, **how: (found.append(figure), save(figure, path, **how))[1],
    )
    return found


def labels(figure: Figure) -> tuple[list[str], list[str]]:
    axes = figure.axes[0]
    return tuple(
        [tick.get_text() for tick in ticks]
        for ticks in (axes.get_xticklabels(), axes.get_yticklabels())
    )  # pyright: ignore


def overlaps(figure: Figure) -> bool:
    """Whether names beside the matrix overlap one another, as they were drawn."""
    axes = figure.axes[0]
    tops, lefts = (
        sorted(tick.get_window_extent().get_points()[:, dim].tolist() for tick in ticks)
        for dim, ticks in ((1, axes.get_yticklabels()), (0, axes.get_xticklabels()))
    )
    return any(
        high > low for each in [tops, lefts] for (_, high), (low, _) in itertools.pairwise(each)
    )


@pytest.mark.parametrize(("count", "every"), [(4, 1), (30, 1), (31, 1), (100, 2), (1000, 17)])
def test_it_is_legible_for_few_and_for_many_classes(
    count: int, every: int, figures: list[Figure]
) -> None:
    matrix = np.diag(np.arange(1.0, count + 1))
    matrix[0, 1] = 7
    names = [f"a class {index}" for index in range(count)]
    drawing = confusion.plot(
        matrix,
        names,
        pathlib.Path("c.png"),
        title="resnet-18 on folder:my photos, 16 devices, shard_map, batch norm group:32",
    )
    (figure,) = figures
    assert drawing.dtype == np.uint8
    title = figure._suptitle.get_window_extent()  # pyright: ignore
    assert title.x0 >= 0
    assert title.x1 <= drawing.shape[1]
    assert labels(figure) == (names[::every], names[::every])
    assert not overlaps(figure)
    assert min(drawing.shape[:2]) >= (1400 if count > 30 else 440)
    cells = [text.get_text() for text in figure.axes[0].texts]
    assert sorted(cells) == ([] if count > 30 else sorted([*map(str, range(1, count + 1)), "7"]))
    assert ("counts are in confusion.csv" in figure.get_suptitle()) == (count > 30)
    axes = figure.axes[0]
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("predicted class", "actual class")


def test_long_names_are_shortened_and_dollars_are_no_mathematics(figures: list[Figure]) -> None:
    confusion.plot(
        np.eye(2), ["x" * 60, "$a$ \\frac{"], pathlib.Path("c.png"), title="folder:$x_$y_{"
    )
    (figure,) = figures
    assert labels(figure)[0] == ["x" * 23 + "…", "$a$ \\frac{"]
    drawn = [
        text._preprocess_math(text.get_text())[:2]  # pyright: ignore
        for text in figure.axes[0].get_xticklabels()
    ]
    assert drawn[1] == ("$a$ \\frac{", False)


def test_names_that_no_font_has_are_drawn_without_a_warning() -> None:
    """U+10FFFF is no character, so that no font has it."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        names = ["cat", "\U0010ffff", "a\U0010ffff\u3000", "on two\nlines"]
        confusion.plot(np.eye(4), names, pathlib.Path("c.png"), title="folder:\U0010ffff\t$")
        row = {"step": 1, "split": "train", "loss": 1.0}
        unknown = "\U0010ffff $"
        plots.plot_curves([row], pathlib.Path("p.png"), title=unknown, metric_name=unknown)


def test_no_class_is_a_formula_in_the_table() -> None:
    path, names = pathlib.Path("plots/confusion.csv"), ["=1+1", "'=a", "-1"]
    confusion.write(np.eye(3), names, path)
    assert path.read_text().splitlines() == [
        "actual,predicted,images",
        "'=1+1,'=1+1,1",
        "''=a,''=a,1",
        "-1,-1,1",
    ]
