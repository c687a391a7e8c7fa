"""Reads and writes amounts as people do."""

import re

_FACTORS = {
    "": 1,
    "k": 10**3,
    "M": 10**6,
    "G": 10**9,
    "T": 10**12,
    "Ki": 2**10,
    "Mi": 2**20,
    "Gi": 2**30,
    "Ti": 2**40,
}


def bytes_text(count: float | int | None) -> str:
    """Returns e.g. `212 KiB` or `1.4 MiB`, and `?` for an unknown amount."""
    if count is None:
        return "?"
    power = max(index for index in range(5) if abs(count) >= 1024**index or index == 0)
    value = count / 1024**power
    return (
        f"{count:.0f} B"
        if power == 0
        else f"{value:.{0 if value >= 100 else 1}f} {' KMGT'[power]}iB"
    )


def parse_bytes(text: str) -> int:
    """Reads `11GiB`, `40GB` or a plain number of bytes.

    Raises ValueError for anything else, for 0, and for what no memory has.
    """
    match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)\s*([kMGT]?i?)B?", text.strip())
    if match is None or match[2] not in _FACTORS or not 0 < float(match[1]) < 2**60:
        raise ValueError(text)
    return int(float(match[1]) * _FACTORS[match[2]])
