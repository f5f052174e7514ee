"""Linking an object file for where it will lie.

LLVM's linker (RuntimeDyld) maps each section wherever the system has room, and ends the process
when two of them are further apart than an instruction reaches, as it happens in a process that has
taken more than 2 GiB of addresses.  Here an object is one block, and what it calls of the process
it calls through jumps in that block, which reach everywhere.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from hlo_mlc.runtime.elf import PROGRAM, ObjectFile, Section
from hlo_mlc.runtime.relocations import MACHINES, Machine
from hlo_mlc.support.errors import CodegenError

_WRITABLE, _EXECUTABLE = 1, 4  # flags of a section
_RELOCATED_ONLY = ".data.rel.ro"  # which no code writes
# Nothing is thrown through kernels: runs with checks end by a long jump.
_UNWINDING = ".eh_frame"
# Of caches: data on the line of code would be read twice, as both.
_LINE_BYTES = 64
_JUMP_BYTES = 16
_PAGE_BYTES = 4096  # what a block is aligned to at least
_NOWHERE = np.iinfo(np.int64).min // 2


@dataclass(frozen=True, slots=True, eq=False)
class Block:
    """An object file as one block: where in it each loaded section lies, by its number, and each
    jump to a function of the process, by the number of the symbol that names it."""

    code: ObjectFile
    machine: Machine
    sections: Mapping[int, int]
    jumps: Mapping[int, int]
    size: int

    def offset(self, name: str) -> int:
        """Where what is called so begins.

        Raises: CodegenError if there is no such symbol.
        """
        symbol = self.code.symbols[self.code.defined(name)]
        number, value = int(symbol["section"]), int(symbol["value"])
        if number not in self.sections or not 0 <= value < self.code.sections[number].size:
            raise CodegenError(f"{name!r} is no part of the program")
        return self.sections[number] + value

    def linked(self, base: int, address_of: Callable[[str], int]) -> bytes:
        """What is to lie at `base`; `address_of` knows the functions of the process.

        Raises: CodegenError for what cannot be filled in.
        """
        image = np.zeros(self.size, np.uint8)
        for number, at in self.sections.items():
            section = self.code.sections[number]
            image[at : at + section.size] = np.frombuffer(section.content, np.uint8)
        for number, at in self.jumps.items():
            jump = self.machine.jump_to(address_of(self.code.symbol_name(number)))
            image[at : at + len(jump)] = np.frombuffer(jump, np.uint8)
        addresses = self._addresses(base)
        for number, rows in self.code.relocations:
            if number in self.sections:
                self._fill(image, base, number, rows, addresses)
        return image.tobytes()

    def _addresses(self, base: int) -> np.ndarray:
        """Of each symbol; negative for what is not loaded."""
        symbols = self.code.symbols
        count = len(self.code.sections)
        starts = np.full(count + 1, _NOWHERE)  # the last for what is no section's number
        for number, at in self.sections.items():
            starts[number] = base + at
        addresses = starts[np.minimum(symbols["section"], count)] + symbols["value"]
        for number, at in self.jumps.items():
            addresses[number] = base + at
        return addresses

    def _fill(
        self, image: np.ndarray, base: int, number: int, rows: np.ndarray, addresses: np.ndarray
    ) -> None:
        for type_ in sorted(set(rows["type"].tolist())):
            relocation = self.machine.relocations.get(type_)
            if relocation is None:
                raise CodegenError(f"there is no meaning for its relocations of type {type_}")
            chosen = rows[rows["type"] == type_]
            symbols, offsets = chosen["symbol"], chosen["offset"]
            width = relocation.kind.itemsize
            last = self.code.sections[number].size - width
            if (offsets < 0).any() or (offsets > last).any():
                raise CodegenError("it is damaged (a relocation lies outside of its section)")
            targets = addresses[symbols]
            if (targets < 0).any():
                name = self.code.symbol_name(int(symbols[targets < 0][0]))
                raise CodegenError(f"it refers to {name or 'a section'!r}, which is not loaded")
            if not relocation.calls and (self.code.symbols["section"][symbols] == 0).any():
                raise CodegenError("it refers to data of the process")
            at = offsets + self.sections[number]
            bytes_at = at[:, None] + np.arange(width)
            words = image[bytes_at].view(relocation.kind)[:, 0].astype(np.int64)
            filled = relocation.compute(targets + chosen["addend"], base + at, words)
            image[bytes_at] = filled.astype(relocation.kind).view(np.uint8).reshape(-1, width)


def block_of(code: ObjectFile) -> Block:
    """How an object file becomes one block: code first.

    Raises: CodegenError if it has what a kernel never has, such as variables.
    """
    machine = MACHINES.get(code.machine)
    if machine is None:
        raise CodegenError(
            f"it is for a processor (ELF machine {code.machine}) that has no linker here"
        )
    loaded = [number for number, section in enumerate(code.sections) if _is_part(section)]
    executable = [n for n in loaded if code.sections[n].flags & _EXECUTABLE]
    size = 0
    sections: dict[int, int] = {}
    for number in executable + [n for n in loaded if n not in executable]:
        section = code.sections[number]
        first_data = len(sections) == len(executable)
        size = _aligned(size, max(section.alignment, _LINE_BYTES if first_data else 1))
        sections[number] = size
        size += section.size
    jumps: dict[int, int] = {}
    for number in _undefined(code, sections):
        size = _aligned(size, _JUMP_BYTES)
        jumps[number] = size
        size += _JUMP_BYTES
    return Block(code, machine, sections, jumps, size)


def _is_part(section: Section) -> bool:
    if not section.is_loaded or section.name == _UNWINDING:
        return False
    if section.type != PROGRAM or (
        section.flags & _WRITABLE and not section.name.startswith(_RELOCATED_ONLY)
    ):
        raise CodegenError(f"its section {section.name} is neither code nor constants")
    if section.alignment > _PAGE_BYTES:
        raise CodegenError(
            f"its section {section.name} is to be aligned to {section.alignment} "
            f"bytes, expected at most {_PAGE_BYTES}"
        )
    return True


def _undefined(code: ObjectFile, sections: Mapping[int, int]) -> list[int]:
    """The symbols that these sections use and the object does not have."""
    missing: set[int] = set()
    for number, rows in code.relocations:
        if number in sections:
            used = rows["symbol"]
            missing.update(used[code.symbols["section"][used] == 0].tolist())
    return sorted(missing)


def _aligned(size: int, alignment: int) -> int:
    return -(-size // alignment) * alignment
