"""Instructions of LLVM IR, block by block, and the names in them.

They stay what they are until the whole function is spelled, so that nobody has to look into text
for what the emitter knows.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable

from hlo_mlc.codegen.cpu import types


class Kind(enum.Enum):
    """What an instruction does apart from giving a value."""

    COMPUTE = enum.auto()  # nothing: the value is made of operands, and of memory that stays as is
    READ = enum.auto()  # reads memory that may be written
    WRITE = enum.auto()  # writes memory, or calls what may
    HINT = enum.auto()  # nothing that any result depends on
    CONTROL = enum.auto()  # goes to another basic block
    LABEL = enum.auto()  # begins one


Instruction = tuple[str | None, int, Kind | int, tuple[str, ...]]
"""The name that it defines, if any; the lanes of that (0: no vector); its kind, or the alias class
of the buffer that it reads, which may be written; and its pieces of text, of which every second one
is an operand: a name, a literal or a label.

A plain tuple: one with named fields takes 0.25 µs more to make, 4 % of the time of printing."""


class Names:
    """Fresh names for a function, and its length so far."""

    def __init__(self) -> None:
        self.count = 0  # of the names given, each of which has an instruction sooner or later
        self.others = 0  # instructions that define nothing, and lines of functions that it needs

    @property
    def length(self) -> int:
        """The number of instructions that the function has for certain, those it depends on
        included."""
        return self.count + self.others

    def fresh(self) -> str:
        """A value's name."""
        self.count += 1
        return f"%v{self.count}"

    def label(self) -> str:
        """A basic block's name."""
        self.count += 1
        return f"b{self.count}"


class Block:
    """Instructions, and the label of the basic block that the last of them stands in."""

    __slots__ = ("instructions", "label", "names")

    def __init__(self, names: Names, label: str) -> None:
        self.names, self.label = names, label
        self.instructions: list[Instruction] = []

    def lines(self) -> list[str]:
        """The text of the instructions."""
        return [
            f"  {name} = {''.join(pieces)}"
            if name is not None
            else f"{'' if kind is Kind.LABEL else '  '}{''.join(pieces)}"
            for name, _, kind, pieces in self.instructions
        ]

    def define(self, *pieces: str, lanes: int = 0, kind: Kind | int = Kind.COMPUTE) -> str:
        """Emit an instruction, text and operands in turns, and return its result's name."""
        names = self.names
        count = names.count = names.count + 1
        name = f"%v{count}"
        self.instructions.append((name, lanes, kind, pieces))
        return name

    def select(self, of: str, condition: str, chosen: str, other: str, lanes: int = 0) -> str:
        """`chosen` in lanes where the condition holds, else the other operand."""
        truth = f"<{lanes} x i1>" if lanes else "i1"
        return self.define(
            f"select {truth} ", condition, f", {of} ", chosen, f", {of} ", other, lanes=lanes
        )

    def cast(self, instruction: str, source: str, value: str, to: str, lanes: int = 0) -> str:
        """An operand of one type as another."""
        return self.define(f"{instruction} {source} ", value, f" to {to}", lanes=lanes)

    def shuffle(self, of: str, length: int, a: str, b: str, picks: Iterable[int | None]) -> str:
        """The picked lanes of two vectors of `length`, counted through both; None is any."""
        whole, lanes = types.vector(of, length), tuple(picks)
        mask = types.shuffle_mask(lanes)
        return self.define(
            f"shufflevector {whole} ", a, f", {whole} ", b, f", {mask}", lanes=len(lanes)
        )

    def spread(self, of: str, value: str, lanes: int) -> str:
        """A vector with one value in all lanes."""
        whole = types.vector(of, lanes)
        first = self.define(f"insertelement {whole} poison, {of} ", value, ", i64 0", lanes=lanes)
        return self.define(
            f"shufflevector {whole} ",
            first,
            f", {whole} poison, <{lanes} x i32> zeroinitializer",
            lanes=lanes,
        )

    def name(self, name: str, *pieces: str, lanes: int = 0) -> None:
        """Emit an instruction whose result has a name already."""
        self.instructions.append((name, lanes, Kind.COMPUTE, pieces))

    def emit(self, *pieces: str, kind: Kind = Kind.WRITE) -> None:
        """Emit an instruction that has no result."""
        self.names.others += 1
        self.instructions.append((None, 0, kind, pieces))

    def start(self, label: str) -> None:
        """Begin a basic block; the one before has been ended."""
        self.instructions.append((None, 0, Kind.LABEL, ("", label, ":")))
        self.label = label

    def jump(self, label: str) -> None:
        """End a basic block."""
        self.emit("br label %", label, kind=Kind.CONTROL)

    def branch(self, condition: str, label: str, otherwise: str, weights: str = "") -> None:
        """End a basic block in one of two ways."""
        self.emit(
            "br i1 ",
            condition,
            ", label %",
            label,
            ", label %",
            otherwise,
            weights,
            kind=Kind.CONTROL,
        )
