"""Reads the collectives of a compiled program in XLA's text form (HLO).

Source: openxla.org/xla/operation_semantics for the operations. The text is no stable interface:
what cannot be read counts as nothing, and tests/aot compiles for TPUs and GPUs.
"""

import dataclasses
import functools
import itertools
import math
import re
from collections.abc import Iterator

BYTES = {"pred": 1} | {
    f"{kind}{bits}": bits // 8 for kind in ("s", "u", "f", "bf") for bits in (8, 16, 32, 64)
}
_ARRAY = re.compile(r"\b([a-z]+\d*)\[([\d,]*)\]")
_HEAD = re.compile(r"^(ENTRY )?%?([\w.\-]+) \(.*\{$")
_INSTRUCTION = re.compile(r"^\s+(ROOT )?%([\w.\-]+) = (.*)$")
_OPCODE = re.compile(r"^\s*([a-z][\w\-]*)\(")
_CALLED = re.compile(
    r"\b(?:calls|body|condition|to_apply|called_computations|branch_computations)=\{?(%[\w.\-]+(?:,"
    r" ?%[\w.\-]+)*)"
)
# Groups as axes of a mesh: mesh['data'=2,'space'=4] {'data','space':(1)2}, of `space` every two
# consecutive ones here.
_AXES = re.compile(r"replica_groups=mesh\[([^\]]*)\][^{]*\{([^}]*)\}")
_GROUPS = re.compile(r"replica_groups=(?:\[\d+,(\d+)\]|\{\{([\d,]+)\})")
_TRIPS = re.compile(r'"known_trip_count":\{"n":"?(\d+)')
_COLLECTIVES = (
    "all-reduce",
    "reduce-scatter",
    "all-gather",
    "all-to-all",
    "ragged-all-to-all",
    "collective-permute",
    "collective-broadcast",
)
_COMPUTES = ("fusion", "convolution", "dot", "custom-call", "while")


@dataclasses.dataclass(frozen=True)
class Instruction:
    """One line of a program.

    Attributes:
        name: unique in the program.
        type: of the result, as text.
        opcode: e.g. `fusion`.
        operands: the names of its operands.
        rest: the line after the operands: attributes, metadata, configuration; the number of a
            parameter, the value of a constant.
    """

    name: str
    type: str
    opcode: str
    operands: tuple[str, ...]
    rest: str

    @functools.cached_property
    def arrays(self) -> list[tuple[str, tuple[int, ...]]]:
        """Format and shape of each array of the result."""
        pairs = [(kind, integers(dims)) for kind, dims in _ARRAY.findall(self.type)]
        return [(kind, dims) for kind, dims in pairs if kind in BYTES]

    @property
    def values(self) -> int:
        """Bytes of the result's values, without padding."""
        return sum(BYTES[kind] * math.prod(dims) for kind, dims in self.arrays)

    @property
    def called(self) -> list[str]:
        """The names of the computations that it calls."""
        groups = _CALLED.findall(self.rest)
        return [name.strip().lstrip("%") for group in groups for name in group.split(",")]

    @property
    def group_size(self) -> int:
        """The number of devices that take part in a collective; 0 for all of them."""
        if (axes := _AXES.search(self.rest)) is not None:
            sizes = dict(re.findall(r"([\w.\-]+)'?=(\d+)", axes.group(1)))
            parts = re.findall(r"([\w.\-]+)'?(?::\(\d+\)(\d+))?", axes.group(2))
            return math.prod(int(part or sizes[name]) for name, part in parts)
        groups = _GROUPS.search(self.rest)
        if groups is None:
            return 0
        return int(groups.group(1)) if groups.group(1) else len(groups.group(2).split(","))

    def attribute(self, name: str) -> str:
        """Returns an attribute as text, empty if it has none."""
        match = re.search(rf"\b{name}=(\{{[^}}]*\}}|[^,\s]+)", self.rest)
        return match.group(1).strip("{}") if match else ""


@dataclasses.dataclass(frozen=True)
class Collective:
    """The collectives of one kind in a program.

    Attributes:
        kind: e.g. `all-reduce`.
        devices: that take part in one; 0 for all.
        count: of executions: a loop counts as often as it runs.
        bytes: of the results on one device, or of the operands if they are more.
        asynchronous: executions that start and finish in different places of the schedule.
        overlapped: executions with computation between the two.
    """

    kind: str
    devices: int
    count: int
    bytes: int
    asynchronous: int
    overlapped: int


class Program:
    """A compiled program of one device.

    Args:
        text: from `compiled.as_text()`, in the order of the schedule.
    """

    def __init__(self, text: str) -> None:
        self.text = text
        self.computations: dict[str, list[Instruction]] = {}
        self.entry = ""
        current: list[Instruction] | None = None
        for line in text.splitlines():
            if current is None:
                if (match := _HEAD.match(line)) is not None:
                    current = self.computations[match.group(2)] = []
                    self.entry = match.group(2) if match.group(1) else self.entry
            elif line.startswith("}"):
                current = None
            elif (instruction := _read(line)) is not None:
                current.append(instruction)
        self._named = {
            name: {each.name: each for each in body} for name, body in self.computations.items()
        }

    def scheduled(self, name: str = "", times: int = 1) -> Iterator[tuple[str, Instruction, int]]:
        """Yields what runs by itself, not inside a fusion: computation, instruction, and how often
        it runs.
        """
        name = name or self.entry
        for each in self.computations.get(name, ()):
            yield name, each, times
            if each.opcode in ("while", "call", "conditional", "async-start"):
                trips = self._trips(each) if each.opcode == "while" else 1
                for inner in each.called:
                    yield from self.scheduled(inner, times * trips)

    def _trips(self, loop: Instruction) -> int:
        """Returns how often a loop runs, 1 if the text does not show it: XLA:GPU notes it, XLA:TPU
        compares a counter from 0 with it.
        """
        if (match := _TRIPS.search(loop.rest)) is not None:
            return int(match.group(1))
        condition = self.computations.get(loop.attribute("condition").lstrip("%"), [])
        compared = condition[-1] if condition else loop
        if compared.opcode != "compare" or compared.attribute("direction") != "LT":
            return 1
        bound = next((each for each in condition if each.name == compared.operands[-1]), loop)
        return int(bound.rest) if bound.opcode == "constant" and bound.rest.isdecimal() else 1

    def inside(self, fusion: Instruction, times: int = 1) -> Iterator[tuple[str, Instruction, int]]:
        """Yields the instructions of a fusion as `scheduled` does."""
        for name in fusion.called:
            for each in self.computations.get(name, ()):
                yield name, each, times
                if each.opcode in ("fusion", "call"):
                    yield from self.inside(each, times)

    def operands(self, name: str, each: Instruction) -> list[Instruction]:
        """Returns the instructions of the computation `name` that compute operands of one."""
        known = self._named[name]
        return [known[operand] for operand in each.operands if operand in known]

    def collectives(self) -> list[Collective]:
        """Returns the collectives by kind, the one that moves the most bytes first."""
        groups: dict[tuple[str, int], list[Collective]] = {}
        for name, each, times in self.scheduled():
            collective = self._collective(each)
            if collective is None:
                continue
            starts, kind = each.opcode.endswith("-start"), collective.opcode.removesuffix("-start")
            operands = sum(operand.values for operand in self.operands(name, each))
            # The start of a collective returns its operands, too; for all-reduces not in every
            # version of XLA.
            results = each.values - (operands if starts and each.values > operands else 0)
            # As XLA:TPU writes it.
            if each.opcode == "fusion" and kind == "all-reduce" and results < operands:
                kind = "reduce-scatter"
            overlapped = times * (starts and self._computes_until_done(name, each))
            size = times * max(operands, results)
            key = (kind, collective.group_size)
            found = Collective(*key, times, size, times * starts, overlapped)
            groups.setdefault(key, []).append(found)
        sums = ("count", "bytes", "asynchronous", "overlapped")
        kinds = [
            Collective(*key, *(sum(getattr(each, field) for each in group) for field in sums))
            for key, group in groups.items()
        ]
        return sorted(kinds, key=lambda each: -each.bytes)

    def _collective(self, each: Instruction) -> Instruction | None:
        """Returns the collective that an instruction is, or that a fusion of XLA:TPU computes
        together with its user.
        """
        inner = self.inside(each) if "kind=kCustom" in each.rest else ()
        candidates = (each, *(instruction for _, instruction, _ in inner))
        return next(
            (one for one in candidates if one.opcode.removesuffix("-start") in _COLLECTIVES), None
        )

    def _computes_until_done(self, name: str, start: Instruction) -> bool:
        after = itertools.dropwhile(lambda each: each.name != start.name, self.computations[name])
        between = itertools.takewhile(
            lambda each: not (each.opcode.endswith("-done") and start.name in each.operands), after
        )
        return any(each.opcode in _COMPUTES for each in between)


def _read(line: str) -> Instruction | None:
    match = _INSTRUCTION.match(line)
    if match is None:
        return None
    name, text = match.group(2), match.group(3)
    end = _closing(text, 0) + 1 if text.startswith("(") else text.find(" ")
    opcode = _OPCODE.match(text[end:])
    if opcode is None:
        return None
    start = end + opcode.end() - 1
    stop = _closing(text, start)
    inside, rest = text[start + 1 : stop], text[stop + 1 :]
    if opcode.group(1) in ("parameter", "constant"):  # a number, or the value
        return Instruction(name, text[:end], opcode.group(1), (), inside)
    operands = tuple(re.findall(r"%([\w.\-]+)", inside))
    return Instruction(name, text[:end], opcode.group(1), operands, rest)


def integers(text: str) -> tuple[int, ...]:
    """Reads `16,8`."""
    return tuple(map(int, text.split(","))) if text else ()


def _closing(text: str, start: int) -> int:
    """Returns the position of the parenthesis that closes the one at `start`."""
    depth = 0
    for position in range(start, len(text)):
        depth += (text[position] == "(") - (text[position] == ")")
        if depth == 0:
            return position
    return len(text) - 1
