"""What a linker fills into machine code, for the processors that we generate code for.

Sources: System V ABI, AMD64 supplement, section 4.4; ELF for the Arm 64-bit Architecture, section
5.7.  S is the address of the symbol, A the addend, P the place that is filled in.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from hlo_mlc.support.errors import CodegenError

_WORD, _LONG = np.dtype("<u4"), np.dtype("<u8")

# Of S + A, P, and what is there now: what is to be there.
_Compute = Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray]


@dataclass(frozen=True, slots=True)
class Relocation:
    """One way to fill in an address; `calls` if it is the target of a call or a jump, which may go
    there by way of other code."""

    kind: np.dtype
    compute: _Compute
    calls: bool = False


@dataclass(frozen=True, slots=True)
class Machine:
    """How code for a processor is linked: by the numbers of relocations, and with which code a
    function is called that may be far away (its address follows)."""

    relocations: Mapping[int, Relocation]
    far_jump: bytes

    def jump_to(self, address: int) -> bytes:
        """Code that goes on at an address, wherever that is; 8 bytes of alignment suffice."""
        return self.far_jump + struct.pack("<Q", address)


def _within(bits: int, values: np.ndarray) -> np.ndarray:
    if ((values < -(1 << bits - 1)) | (values >= 1 << bits - 1)).any():
        raise CodegenError(f"addresses in it are too far apart for {bits} bits")
    return values


def _absolute(values: np.ndarray, places: np.ndarray, words: np.ndarray) -> np.ndarray:
    return values


def _relative(values: np.ndarray, places: np.ndarray, words: np.ndarray) -> np.ndarray:
    return _within(32, values - places)


def _far_relative(values: np.ndarray, places: np.ndarray, words: np.ndarray) -> np.ndarray:
    return values - places


def _filled(words: np.ndarray, shift: int, bits: int, values: np.ndarray) -> np.ndarray:
    mask = (1 << bits) - 1
    return words & ~(mask << shift) | (values & mask) << shift


def _page(values: np.ndarray, places: np.ndarray, words: np.ndarray) -> np.ndarray:
    """Of ADRP: how many pages of 4 KiB lie between, its two lowest bits apart from the others."""
    pages = _within(21, (values >> 12) - (places >> 12))
    return _filled(_filled(words, 29, 2, pages), 5, 19, pages >> 2)


def _in_page(scale: int) -> _Compute:
    """Of an ADD, or of a load or store of `1 << scale` bytes: where in its page an address is."""

    def compute(values: np.ndarray, places: np.ndarray, words: np.ndarray) -> np.ndarray:
        if (values & (1 << scale) - 1).any():
            raise CodegenError(f"an address in it is no multiple of {1 << scale}")
        return _filled(words, 10, 12, (values & 0xFFF) >> scale)

    return compute


def _branch(values: np.ndarray, places: np.ndarray, words: np.ndarray) -> np.ndarray:
    return _filled(words, 0, 26, _within(28, values - places) >> 2)


_X86_64 = Machine(
    {
        1: Relocation(_LONG, _absolute),  # R_X86_64_64
        2: Relocation(_WORD, _relative),  # R_X86_64_PC32
        4: Relocation(_WORD, _relative, calls=True),  # R_X86_64_PLT32
        24: Relocation(_LONG, _far_relative),  # R_X86_64_PC64
    },
    far_jump=bytes.fromhex("ff25 0000 0000"),
)  # jmp *(%rip)

_AARCH64 = Machine(
    {
        257: Relocation(_LONG, _absolute),  # R_AARCH64_ABS64
        260: Relocation(_LONG, _far_relative),  # R_AARCH64_PREL64
        261: Relocation(_WORD, _relative),  # R_AARCH64_PREL32
        275: Relocation(_WORD, _page),  # R_AARCH64_ADR_PREL_PG_HI21
        277: Relocation(_WORD, _in_page(0)),  # R_AARCH64_ADD_ABS_LO12_NC
        278: Relocation(_WORD, _in_page(0)),  # R_AARCH64_LDST8_ABS_LO12_NC
        282: Relocation(_WORD, _branch, calls=True),  # R_AARCH64_JUMP26
        283: Relocation(_WORD, _branch, calls=True),  # R_AARCH64_CALL26
        284: Relocation(_WORD, _in_page(1)),  # R_AARCH64_LDST16_ABS_LO12_NC
        285: Relocation(_WORD, _in_page(2)),  # R_AARCH64_LDST32_ABS_LO12_NC
        286: Relocation(_WORD, _in_page(3)),  # R_AARCH64_LDST64_ABS_LO12_NC
        299: Relocation(_WORD, _in_page(4)),  # R_AARCH64_LDST128_ABS_LO12_NC
    },
    far_jump=struct.pack("<II", 0x58000050, 0xD61F0200),
)  # ldr x16, .+8; br x16

MACHINES: Mapping[int, Machine] = {62: _X86_64, 183: _AARCH64}
"""By the number of the machine in an ELF header."""
