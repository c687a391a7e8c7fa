"""Writes the tables of the benchmarks between two comments of a Markdown file."""

import datetime
import importlib.metadata
import os
import pathlib
import platform


def machine(*packages: str) -> str:
    """Returns today's date, the processor and the versions of packages."""
    versions = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in packages)
    info = pathlib.Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    pairs = (line.split(":", 1) for line in lines if ":" in line)
    found = {key.strip(): value.strip() for key, value in pairs}
    cores = f"{os.cpu_count()} cores of {found.get('model name', platform.processor())}"
    # A virtual machine may name no generation, and some are three times as fast as others.
    if "cpu family" in found:
        cores += f" (family {found['cpu family']}, model {found['model']})"
    return f"{datetime.date.today().isoformat()}, {cores}, {versions}."


def write(path: pathlib.Path, name: str, table: str) -> None:
    """Raises ValueError if the file holds no place for the table of this name."""
    begin, end = (f"<!-- {name}: {word} -->" for word in ("begin", "end"))
    text = path.read_text()
    if text.count(begin) != 1 or text.count(end) != 1:
        raise ValueError(f"{path} must hold {begin} and {end} once each")
    before, rest = text.split(begin)
    path.write_text(f"{before}{begin}\n{table.strip()}\n{end}{rest.split(end)[1]}")
