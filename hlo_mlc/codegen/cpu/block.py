"""Lines of LLVM IR, block by block, and the names in them."""

from __future__ import annotations


class Names:
    """Names that a function has not used yet."""

    def __init__(self) -> None:
        self.count = 0  # of the names given

    def fresh(self) -> str:
        """A value's name."""
        self.count += 1
        return f"%v{self.count}"

    def label(self) -> str:
        """A basic block's name."""
        self.count += 1
        return f"b{self.count}"


class Block:
    """Lines, and the label of the basic block that the last of them stands in."""

    __slots__ = ("label", "lines", "names")

    def __init__(self, names: Names, label: str) -> None:
        self.names, self.label, self.lines = names, label, []

    def define(self, instruction: str) -> str:
        """Emit an instruction and return its result's name."""
        names = self.names
        names.count += 1
        name = f"%v{names.count}"
        self.lines.append(f"  {name} = {instruction}")
        return name

    def emit(self, line: str) -> None:
        self.lines.append("  " + line)

    def start(self, label: str) -> None:
        """Begin a basic block; the one before has been ended."""
        self.lines.append(f"{label}:")
        self.label = label
