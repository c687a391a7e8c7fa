"""Amounts are written and read as people do."""

import pytest

from jaxdp.text.units import bytes_text, parse_bytes


def test_bytes_are_written_in_binary_units() -> None:
    sizes = {
        0: "0 B",
        1023: "1023 B",
        1024: "1.0 KiB",
        17424: "17.0 KiB",
        212 * 2**10: "212 KiB",
        25_276_502_016: "23.5 GiB",
    }
    assert {count: bytes_text(count) for count in sizes} == sizes
    assert bytes_text(None) == "?"


def test_sizes_as_people_write_them() -> None:
    assert [parse_bytes(text) for text in ("11GiB", "40GB", "1.5Mi", "1000")] == [
        11 * 2**30,
        40 * 10**9,
        1572864,
        1000,
    ]
    for text in ("11 apples", "0", "one", "-1", "1PiB"):
        with pytest.raises(ValueError, match=text):
            parse_bytes(text)
