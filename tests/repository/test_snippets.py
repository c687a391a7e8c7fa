"""The Python in README and documentation runs as printed, page by page, in an empty folder and a
process of its own.

So do the tutorials, from files to predictions, with their commands, and the commands that start
several processes.
"""

import contextlib
import itertools
import os
import pathlib
import re
import subprocess
import sys

import pytest
import timm_layout
from hub_server import Hub, serving

ROOT = pathlib.Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
TUTORIALS = [*sorted((ROOT / "docs" / "tutorials").glob("*.md")), ROOT / "docs" / "devices.md"]
# What a tutorial says there is at its end.
LEFT = {
    "stacks": [
        "run/plots/predictions.png",
        "counted/field-12-instances.tif",
        "counted/field-12-page2-overlay.png",
        "cells.csv",
        "cells-images.csv",
    ],
    "loop": ["checkpoints/44/_CHECKPOINT_METADATA", "checksums/44.json"],
    "photos": ["run/plots/confusion.png", "classes.csv"],
    "pretrained": ["run/config.yaml", "classes.csv", "repository/model.safetensors"],
    "notebook": ["digits-run/config.yaml"],
    "devices": ["run/summary.json", "eight/config.yaml", "job.sh"],
}


def blocks(page: pathlib.Path) -> list[str]:
    return [code for language, code in parts(page) if language == "python"]


def parts(page: pathlib.Path) -> list[tuple[str, str]]:
    return re.findall(
        r"^```(python|console)\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE
    )


def script(console: str) -> str:
    """Returns the commands of a console, which begin with a dollar sign.

    What they answer is left out.
    """
    commands = re.findall(r"^\$ ((?:.*\\\n)*.*)", console, re.MULTILINE)
    return "\n".join(["set -e", *commands])


def run(*words: str) -> str:
    environment = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"}
    environment["PATH"] = os.pathsep.join([os.path.dirname(sys.executable), environment["PATH"]])
    done = subprocess.run(words, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, f"{done.stdout[-1000:]}\n{done.stderr[-2000:]}"
    return done.stdout


@pytest.mark.slow
@pytest.mark.parametrize(
    "page", [page for page in PAGES if blocks(page)], ids=lambda page: page.name
)
def test_python_runs_as_printed(page: pathlib.Path) -> None:
    run(sys.executable, "-c", "\n".join(blocks(page)))


@pytest.mark.slow
@pytest.mark.parametrize("page", TUTORIALS, ids=lambda page: page.stem)
def test_tutorials_lead_from_files_to_predictions(
    page: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = parts(page)
    with contextlib.ExitStack() as stack:
        if page.stem == "pretrained":
            content = parts(page.with_name("photos.md"))[:1] + content
            files = timm_layout.files(timm_layout.random_arrays())
            hub = Hub({("timm/resnet18.a1_in1k", name): each for name, each in files.items()})
            monkeypatch.setenv("HF_ENDPOINT", stack.enter_context(serving(hub)).address)
            monkeypatch.setenv("HF_HUB_CACHE", "cache")
        said = said_by(content)
    for path in LEFT[page.stem]:
        assert pathlib.Path(path).is_file(), path
    if page.stem == "devices":  # it was stopped in between, and went on
        assert "exit code 75" in said
        assert '"resumed"' in pathlib.Path("run/history.jsonl").read_text()


def said_by(content: list[tuple[str, str]]) -> str:
    """Runs code and commands, and returns what they print."""
    said = ""
    for language, group in itertools.groupby(content, key=lambda part: part[0]):
        code = [text for _, text in group]
        words = (
            [sys.executable, "-c", "\n".join(code)]
            if language == "python"
            else ["bash", "-c", "\n".join(map(script, code))]
        )
        said += run(*words)
    return said


def test_every_tutorial_is_run() -> None:
    assert LEFT.keys() == {page.stem for page in TUTORIALS}
    assert script("$ a \\\n    b\nanswer\n$ c\n") == "set -e\na \\\n    b\nc"
