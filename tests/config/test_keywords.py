"""The keywords of `Trainer` for type checkers are those of its settings."""

import inspect
import pathlib
import runpy
import subprocess
import sys

import pytest

import jaxdp
from jaxdp.config.keywords import TrainKeywords

WRITER = pathlib.Path(__file__).parents[2] / "docs" / "trainer_keywords.py"


def test_the_keywords_are_those_of_the_settings() -> None:
    file = pathlib.Path(inspect.getfile(TrainKeywords))
    assert file.read_text() == runpy.run_path(str(WRITER))["generated"](), "run nox -s keywords"


MISTAKES = """import jaxdp

trainer = jaxdp.Trainer("cnn", "digits", epocs=3)
trainer = jaxdp.Trainer("cnn", "digits", epochs="x", batch_norm="global", image_size=8)
trainer.fit(epochs=3, learning_rate=0.1)
trainer.fit(epochs="x")
"""


def test_a_type_checker_finds_wrong_keywords(tmp_path: pathlib.Path) -> None:
    pytest.importorskip("pyright")
    (tmp_path / "mistakes.py").write_text(MISTAKES)
    source = pathlib.Path(jaxdp.__file__).parent.parent
    (tmp_path / "pyrightconfig.json").write_text(f'{{"extraPaths": ["{source}"]}}')
    found = subprocess.run(
        [sys.executable, "-m", "pyright", "--pythonpath", sys.executable, "mistakes.py"],
        cwd=tmp_path, capture_output=True, text=True,
    )  # fmt: skip
    if " errors, " not in found.stdout:
        reason = (found.stdout + found.stderr).strip().splitlines() or ["nothing was printed"]
        pytest.skip(f"pyright, which downloads Node.js, does not run here: {reason[-1]}")
    lines = [line for line in found.stdout.splitlines() if " error: " in line]
    assert [line.split(":")[1] for line in lines] == ["3", "4", "6"], found.stdout
    assert "epocs" in lines[0]
