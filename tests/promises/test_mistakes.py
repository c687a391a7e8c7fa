"""A mistake on the command line is one line that names field, value and remedy, and exit code 2.

`mistakes.txt` has a command and a part of its line in each line; `9{400}` stands for 400 nines.
"""

import importlib
import importlib.util
import pathlib
import re

import pytest

TABLE = pathlib.Path(__file__).with_name("mistakes.txt")
MISTAKES = [line.split(" => ") for line in TABLE.read_text().splitlines()]


@pytest.mark.parametrize(("command", "message"), MISTAKES)
def test_a_mistake_is_one_line(
    command: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    if re.search("--strategy exact", command) and importlib.util.find_spec("ray") is None:
        pytest.skip("needs Ray: pip install '.[ray]'")
    long = re.sub(r"(.)\{(\d+)\}", lambda match: match[1] * int(match[2]), command)
    name, *words = long.split()
    assert importlib.import_module(f"jaxdp.{name}").main(words) == 2
    captured = capsys.readouterr()
    (line,) = captured.err.splitlines()
    assert line.startswith(f"jaxdp.{name}: error: ")
    assert message in line
    assert captured.out == ""
    assert not list(pathlib.Path().rglob("*.jsonl"))
