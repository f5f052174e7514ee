"""Reading relocatable object files: sections, symbols, and what is to be filled in where.

Source: System V Application Binary Interface, chapters 4 and 5.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

import numpy as np

from hlo_mlc.support.errors import CodegenError

MAGIC = b"\x7fELF"
MACHINE = slice(18, 20)  # where the header says what machine the file is for

_KIND = slice(4, 6)
_64_BITS_LITTLE_ENDIAN = b"\x02\x01"
_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SECTION = struct.Struct("<IIQQQQIIQQ")
_RELOCATABLE = 1  # type of file

PROGRAM = 1  # type of a section that holds code or data
_SYMBOLS, _RELOCATIONS = 2, 4  # and of those that hold what is said of it
_IN_MEMORY, _GLOBAL = 2, 1  # flag of a section, binding of a symbol

SYMBOL = np.dtype(
    [
        ("name", "<u4"),
        ("info", "u1"),
        ("other", "u1"),
        ("section", "<u2"),
        ("value", "<i8"),
        ("size", "<u8"),
    ]
)
RELOCATION = np.dtype([("offset", "<i8"), ("type", "<u4"), ("symbol", "<u4"), ("addend", "<i8")])


@dataclass(frozen=True, slots=True)
class Section:
    """A part of the program."""

    name: str
    type: int
    flags: int
    alignment: int
    size: int
    content: bytes

    @property
    def is_loaded(self) -> bool:
        """Whether it is there when the program runs."""
        return bool(self.flags & _IN_MEMORY) and self.size > 0


@dataclass(frozen=True, slots=True, eq=False)
class ObjectFile:
    """An object file; sections and symbols by their numbers in it, both from 1 on."""

    machine: int
    sections: tuple[Section, ...]
    symbols: np.ndarray  # of SYMBOL
    relocations: tuple[tuple[int, np.ndarray], ...]  # a section's number, and its RELOCATIONs
    names: bytes  # of the symbols

    def symbol_name(self, number: int) -> str:
        """What a symbol is called."""
        return _text(self.names, int(self.symbols["name"][number]))

    def defined(self, name: str) -> int:
        """The number of the symbol that is seen from outside under this name.

        Raises: CodegenError if there is none.
        """
        known = (self.symbols["info"] >> 4 == _GLOBAL) & (self.symbols["section"] > 0)
        for number in np.flatnonzero(known).tolist():
            if self.symbol_name(number) == name:
                return number
        raise CodegenError(f"there is no symbol {name!r} in it")


def read_object(data: bytes) -> ObjectFile:
    """What an object file holds.

    Raises: CodegenError for anything else, and for a damaged one.
    """
    if data[: len(MAGIC)] != MAGIC or data[_KIND] != _64_BITS_LITTLE_ENDIAN:
        raise CodegenError("it is no ELF file of 64 bits, least significant byte first")
    try:
        return _read(data)
    except (ValueError, IndexError, OverflowError, struct.error) as error:
        raise CodegenError(f"it is damaged ({error})") from error


def _read(data: bytes) -> ObjectFile:
    (_, kind, machine, _, _, _, start, _, _, _, _, _, count, names) = _HEADER.unpack_from(data)
    if kind != _RELOCATABLE:
        raise CodegenError(f"it is an ELF file of type {kind}, expected {_RELOCATABLE}, an object")
    headers = [
        _SECTION.unpack_from(data, start + number * _SECTION.size) for number in range(count)
    ]
    called = _bytes(data, headers[names])
    sections = [_section(data, called, header) for header in headers]
    relocations: list[tuple[int, np.ndarray]] = []
    symbols, symbol_names = np.empty(0, SYMBOL), b""
    for header in headers:
        _, type_, _, _, offset, size, link, about, _, _ = header
        if type_ == _SYMBOLS:
            symbols = _table(data, SYMBOL, offset, size)
            symbol_names = _bytes(data, headers[link])
        elif type_ == _RELOCATIONS and headers[about][2] & _IN_MEMORY:
            relocations.append((about, _table(data, RELOCATION, offset, size)))
    if any((rows["symbol"] >= len(symbols)).any() for _, rows in relocations):
        raise ValueError("a relocation is for no symbol")
    return ObjectFile(machine, tuple(sections), symbols, tuple(relocations), symbol_names)


def _section(data: bytes, names: bytes, header: tuple[int, ...]) -> Section:
    name, type_, flags, _, _, size, _, _, alignment, _ = header
    content = _bytes(data, header) if type_ == PROGRAM else b""
    return Section(_text(names, name), type_, flags, max(alignment, 1), size, content)


def _table(data: bytes, row: np.dtype, offset: int, size: int) -> np.ndarray:
    return np.frombuffer(data, row, size // row.itemsize, offset)


def _bytes(data: bytes, header: tuple[int, ...]) -> bytes:
    offset, size = header[4:6]
    if offset + size > len(data):
        raise ValueError("a section ends after the file")
    return data[offset : offset + size]


def _text(names: bytes, offset: int) -> str:
    return names[offset:].partition(b"\0")[0].decode(errors="replace")
