"""Which faults did the tests inject, how often, and what came of them? `pytest
--fault-table[=FILE]` prints it as a table.

A test says what it injected, once it has checked the outcome:

    def test_...(record_fault: RecordFault) -> None:
        record_fault("a full disk while saving", outcome="exit code 1, the next start continues")

or, where the test itself is all there is to say, is marked `@pytest.mark.fault(name, outcome,
steps_lost)`.

With FILE, the part of that Markdown file between two comments is written again;
`--fault-table-name` says which ones. `--faults-only` leaves out tests that inject no fault.
"""

import collections
import datetime
import importlib.metadata
import os
import pathlib
import platform
from collections.abc import Callable, Iterable
from typing import Any

import pytest

_PROPERTY = "fault"


RecordFault = Callable[..., None]


def _note(item: pytest.Item, name: str, times: int, outcome: str, steps_lost: int | None) -> None:
    # Plain values: under xdist they travel with the test's report.
    value = {"name": name, "times": times, "outcome": outcome, "steps_lost": steps_lost}
    item.user_properties.append((_PROPERTY, value))


@pytest.fixture
def record_fault(request: pytest.FixtureRequest) -> RecordFault:
    """Notes a fault that this test injected, for `--fault-table`.

    The table says which tests failed. Arguments of what it returns: the name of
    the fault (equal ones are one row), how often it was injected, the outcome, and the steps lost
    beyond the last complete checkpoint (None where nothing is continued, or no step was done).
    """

    def record(name: str, times: int = 1, outcome: str = "", steps_lost: int | None = 0) -> None:
        if times:
            _note(request.node, name, times, outcome, steps_lost)

    return record


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not config.getoption("--faults-only"):
        return

    def injects(item: pytest.Item) -> bool:
        marked = item.get_closest_marker("fault") is not None
        return marked or "record_fault" in getattr(item, "fixturenames", [])

    config.hook.pytest_deselected(items=[item for item in items if not injects(item)])
    items[:] = filter(injects, items)


def pytest_runtest_setup(item: pytest.Item) -> None:
    for mark in item.iter_markers("fault"):
        name, outcome, steps_lost = mark.args
        _note(item, name, 1, outcome, steps_lost)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--faults-only", action="store_true", help="leave out tests that inject no fault"
    )
    parser.addoption(
        "--fault-table-name", default="fault", help="of the table in FILE (default: %(default)s)"
    )
    parser.addoption(
        "--random-faults",
        type=int,
        default=200,
        help="over the whole matrix (default: %(default)s)",
    )
    parser.addoption(
        "--random-faults-seed",
        type=int,
        default=0,
        help="from which the moments and kinds of faults are drawn",
    )
    parser.addoption(
        "--fault-table",
        metavar="FILE",
        nargs="?",
        const="",
        default=None,
        help=(
            "print what the tests injected and what came of it; with FILE, also write it there,"
            " between two comments"
        ),
    )


def pytest_terminal_summary(terminalreporter: Any, exitstatus: int, config: pytest.Config) -> None:
    target = config.getoption("--fault-table")
    # A worker of xdist knows its own tests alone.
    if target is None or hasattr(config, "workerinput"):
        return
    reports = [
        report for kind in ("passed", "failed") for report in terminalreporter.stats.get(kind, [])
    ]
    table = create_table(report for report in reports if report.when == "call")
    terminalreporter.section("faults injected")
    terminalreporter.write_line(table)
    if target and (exitstatus or config.getoption("collectonly")):  # also where none was collected
        terminalreporter.write_line(f"{target} stays as it was: not all tests passed")
    elif target:
        # Tests change their folder, an invocation has one.
        path = config.invocation_params.dir / target
        write_table(path, table, config)
        terminalreporter.write_line(f"written to {target}")


def create_table(reports: Iterable[Any]) -> str:
    """Returns a Markdown table of the faults that the reports of tests carry, in the order of their
    names.
    """
    outcomes: dict[str, collections.Counter[str]] = collections.defaultdict(collections.Counter)
    lost: dict[str, set[int]] = collections.defaultdict(set)
    for report in reports:
        for key, value in report.user_properties:
            if key == _PROPERTY:
                name = value["name"]
                outcomes[name][
                    value["outcome"] if report.passed else f"**failed**: {report.nodeid}"
                ] += value["times"]
                if value["steps_lost"] is not None:
                    lost[name].add(value["steps_lost"])
    lines = [
        "| fault | times injected | outcomes | steps lost beyond the last checkpoint |",
        "|---|---|---|---|",
    ]
    for name in sorted(outcomes):
        counts = outcomes[name]
        texts = [
            f"{text} ({count})" if len(counts) > 1 else text
            for text, count in sorted(counts.items())
        ]
        steps = str(max(lost[name])) if lost[name] else "–"
        lines.append(f"| {name} | {counts.total()} | {'; '.join(texts)} | {steps} |")
    return "\n".join(lines)


def write_table(path: pathlib.Path, table: str, config: pytest.Config) -> None:
    """Raises UsageError if the comments are not there."""
    name, text = config.getoption("--fault-table-name"), path.read_text()
    begin, end = f"<!-- {name} table: begin -->", f"<!-- {name} table: end -->"
    if text.count(begin) != 1 or text.count(end) != 1:
        raise pytest.UsageError(f"--fault-table={path}: it must hold {begin} and {end} once each")
    before, rest = text.split(begin)
    after = rest.split(end)[1]
    versions = f"Python {platform.python_version()}, JAX {importlib.metadata.version('jax')}"
    when = datetime.datetime.now(datetime.UTC).date()
    path.write_text(
        f"{before}{begin}\n{table}\n\nWritten on {when}: {os.cpu_count()} cores"
        f" ({platform.machine()}), {versions}.\n{end}{after}"
    )
