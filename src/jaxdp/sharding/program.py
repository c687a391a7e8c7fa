"""Reads the collectives of a compiled program in XLA's text form (HLO).

Source: openxla.org/xla/operation_semantics for the operations. The text is no stable interface:
what cannot be read counts as nothing, and tests/aot compiles for TPUs and GPUs.
"""

import dataclasses
import itertools
import math
import re
from collections.abc import Collection, Iterator

BYTES = {"pred": 1} | {
    f"{kind}{bits}": bits // 8 for kind in ("s", "u", "f", "bf") for bits in (8, 16, 32, 64)
}
_COMPUTATION = re.compile(r"^(ENTRY )?%?([\w.\-]+) \([^\n]*\{\n(.*?)^\}", re.MULTILINE | re.DOTALL)
# Name, type of the result, opcode, what is in the parentheses, and what follows them.
_INSTRUCTION = re.compile(
    r"\s+(?:ROOT )?%([\w.\-]+) = (.*?) ([a-z][\w\-]*)\((.*?)\)(?:, (.*))?$", re.DOTALL
)
_ARRAY = re.compile(r"\b([a-z]+\d*)\[([\d,]*)\]")
_CALLS = ("calls", "body", "condition", "to_apply", "called_computations", "branch_computations")
# Groups as axes of a mesh: mesh['data'=2,'space'=4] {'data','space':(1)2}, where groups of `space`
# are every two consecutive devices.
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
SCHEDULED = ("while", "call", "conditional", "async-start")
FUSED = ("fusion", "call")


@dataclasses.dataclass(frozen=True)
class Instruction:
    """One line of a program.

    Attributes:
        name: unique in the program.
        type: of the result, as text.
        opcode: e.g. `fusion`.
        inside: the operands as text, the number of a parameter, or the value of a constant.
        rest: the line after that: attributes, metadata, configuration.
    """

    name: str
    type: str
    opcode: str
    inside: str
    rest: str

    @property
    def operands(self) -> list[str]:
        """The names of its operands."""
        return re.findall(r"%([\w.\-]+)", self.inside)

    @property
    def arrays(self) -> list[tuple[str, tuple[int, ...]]]:
        """Format and shape of each array of the result."""
        pairs = _ARRAY.findall(self.type)
        return [(kind, integers(dims)) for kind, dims in pairs if kind in BYTES]

    @property
    def values(self) -> int:
        """Bytes of the result's values, without padding."""
        return sum(BYTES[kind] * math.prod(dims) for kind, dims in self.arrays)

    @property
    def called(self) -> list[str]:
        """The names of the computations that it calls."""
        names = (name for key in _CALLS for name in self.attribute(key).split(","))
        return [name.strip(" %") for name in names if name]

    @property
    def group_size(self) -> int:
        """The number of devices that take part in a collective; 0 for all of them."""
        if axes := _AXES.search(self.rest):
            sizes = dict(re.findall(r"([\w.\-]+)'?=(\d+)", axes[1]))
            parts = re.findall(r"([\w.\-]+)'?(?::\(\d+\)(\d+))?", axes[2])
            return math.prod(int(part or sizes[name]) for name, part in parts)
        if groups := _GROUPS.search(self.rest):
            return int(groups[1]) if groups[1] else len(groups[2].split(","))
        return 0

    def attribute(self, name: str) -> str:
        """Returns an attribute as text, empty if it has none."""
        match = re.search(rf"\b{name}=(\{{[^}}]*\}}|[^,\s]+)", self.rest)
        return match[1].strip("{}") if match else ""


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

    Attributes:
        computations: instructions by name, in the order of the schedule, by computation.
        entry: name of the computation that runs first.

    Args:
        text: from `compiled.as_text()`.
    """

    def __init__(self, text: str) -> None:
        self.text, self.entry = text, ""
        self.computations: dict[str, dict[str, Instruction]] = {}
        for entry, name, body in _COMPUTATION.findall(text):
            matches = map(_INSTRUCTION.match, body.splitlines())
            instructions = [Instruction(*match.groups("")) for match in matches if match]
            self.computations[name] = {each.name: each for each in instructions}
            self.entry = name if entry else self.entry

    def walk(
        self, names: Collection[str], opcodes: Collection[str] = SCHEDULED, times: int = 1
    ) -> Iterator[tuple[str, Instruction, int]]:
        """Yields computation, instruction, and how often it runs.

        Args:
            names: of the computations to begin with.
            opcodes: of instructions whose computations are entered: `SCHEDULED` for what runs by
                itself, `FUSED` for what runs inside a fusion.
            times: how often these computations run.
        """
        for name in names:
            for each in self.computations.get(name, {}).values():
                yield name, each, times
                if each.opcode in opcodes:
                    trips = self._trips(each) if each.opcode == "while" else 1
                    yield from self.walk(each.called, opcodes, times * trips)

    def _trips(self, loop: Instruction) -> int:
        """Returns how often a loop runs, 1 if the text does not show it: XLA:GPU notes it, XLA:TPU
        compares a counter from 0 with it.
        """
        if match := _TRIPS.search(loop.rest):
            return int(match[1])
        condition = self.computations.get(loop.attribute("condition").strip("%"), {})
        for each in condition.values():
            if each.opcode == "compare" and each.attribute("direction") == "LT":
                bound = condition.get(each.operands[-1])
                if bound is not None and bound.opcode == "constant" and bound.inside.isdecimal():
                    return int(bound.inside)
        return 1

    def operands(self, name: str, each: Instruction) -> list[Instruction]:
        """Returns the instructions of the computation `name` that compute operands of one."""
        known = self.computations[name]
        return [known[operand] for operand in each.operands if operand in known]

    def collectives(self) -> list[Collective]:
        """Returns the collectives by kind, the one that moves the most bytes first."""
        groups: dict[tuple[str, int], list[tuple[int, ...]]] = {}
        for name, each, times in self.walk([self.entry]):
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
            overlaps = starts and self._computes_until_done(name, each)
            counts = (1, max(operands, results), starts, overlaps)
            group = groups.setdefault((kind, collective.group_size), [])
            group.append(tuple(times * count for count in counts))
        kinds = [
            Collective(*key, *map(sum, zip(*group, strict=True))) for key, group in groups.items()
        ]
        return sorted(kinds, key=lambda each: -each.bytes)

    def _collective(self, each: Instruction) -> Instruction | None:
        """Returns the collective that an instruction is, or that a fusion of XLA:TPU computes
        together with its user.
        """
        inner = self.walk(each.called, FUSED) if "kind=kCustom" in each.rest else ()
        candidates = (each, *(instruction for _, instruction, _ in inner))
        return next(
            (one for one in candidates if one.opcode.removesuffix("-start") in _COLLECTIVES), None
        )

    def _computes_until_done(self, name: str, start: Instruction) -> bool:
        body = self.computations[name].values()
        after = itertools.dropwhile(lambda each: each.name != start.name, body)
        between = itertools.takewhile(
            lambda each: not (each.opcode.endswith("-done") and start.name in each.operands), after
        )
        return any(each.opcode in _COMPUTES for each in between)


def integers(text: str) -> tuple[int, ...]:
    """Reads `16,8`."""
    return tuple(map(int, text.split(","))) if text else ()
