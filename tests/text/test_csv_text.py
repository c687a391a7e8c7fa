"""Tables in which no text is a formula to a spreadsheet, and which are read back as they were."""

import pytest

from jaxdp.text import csv_text

FORMULAS = ["=1+1", "-cmd", "+a", "@SUM(A1)", "\t=1", "\r=1", "'=1", "''=1", "-1+1", "=", "-"]
OTHERS = ["", "a", "a=b", "'a", "''", "-1.5", "+1e5", "-inf", " =1", 'a, "b"', "a\nb", "写真"]


@pytest.mark.parametrize("text", FORMULAS)
def test_a_formula_becomes_text(text: str) -> None:
    written = csv_text.write([["file", text], [text, "x"]])
    assert written.replace('"', "").startswith(f"file,'{text}\r\n'{text},x")
    assert csv_text.read(written) == [["file", text], [text, "x"]]


@pytest.mark.parametrize("text", OTHERS)
def test_all_else_stays(text: str) -> None:
    written = csv_text.write([["file", text]])
    assert "'" not in written or "'" in text
    assert csv_text.read(written) == [["file", text]]


def test_numbers_stay_numbers() -> None:
    assert csv_text.write([["a", -1, -0.5, 2]]) == "a,-1,-0.5,2\r\n"


def test_what_is_no_csv() -> None:
    with pytest.raises(ValueError, match="unexpected end of data"):
        csv_text.read('a,"b')
