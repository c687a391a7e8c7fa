"""Reads and formats amounts of bytes, and formats the time."""

import datetime
import re

_POWERS = " KMGT"


def time_text() -> str:
    """Returns the present time in UTC to the second (ISO 8601)."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


def bytes_text(count: float | int | None) -> str:
    """Returns e.g. `212 KiB` or `1.4 MiB`, and `?` for an unknown amount."""
    if count is None:
        return "?"
    if abs(count) < 1024:
        return f"{count:.0f} B"
    power = max(power for power in range(1, 5) if abs(count) >= 1024**power)
    value = count / 1024**power
    return f"{value:.{0 if value >= 100 else 1}f} {_POWERS[power]}iB"


def parse_bytes(text: str) -> int:
    """Reads `11GiB`, `40GB` or a plain number of bytes.

    Raises ValueError for anything else, for 0, and for impossible amounts.
    """
    match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)\s*(k|[MGT]|[KMGT]i|)B?", text.strip())
    if match is None or not 0 < float(match[1]) < 2**60:
        raise ValueError(text)
    base = 1024 if match[2].endswith("i") else 1000
    return int(float(match[1]) * base ** _POWERS.index(match[2][:1].upper() or " "))
