"""Kernels: the unit of scheduling, tuning and caching, named by what they compute."""

from __future__ import annotations

import hashlib
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from hlo_mlc.support.lazy_imports import lazy_imports

with lazy_imports():
    from hlo_mlc.tensor import canonical, text

if TYPE_CHECKING:
    from hlo_mlc.expr.core import Buffer
    from hlo_mlc.tensor.core import Step, TensorProgram


@dataclass(frozen=True, slots=True, eq=False)
class Kernel:
    """A tensor program in canonical form, and the buffers of the graph that it stands on.

    `name` is what people call it (naming.py).  Equal kernels may have different ones, from
    different lines; their fingerprints are equal.
    """

    program: TensorProgram
    fingerprint: str  # hash of the canonical text; equal kernels have equal fingerprints
    inputs: tuple[Buffer, ...]  # the graph's buffers, in calling order
    outputs: tuple[Buffer, ...]
    name: str


class RecalledKernel(Kernel):
    """A kernel of a program that was compiled by another process: known by its fingerprint and by
    what people call it, and made again where somebody asks for more."""

    __slots__ = ("_again",)

    def __init__(self, fingerprint: str, name: str, again: Callable[[], Kernel]) -> None:
        for attribute, value in (("fingerprint", fingerprint), ("name", name), ("_again", again)):
            object.__setattr__(self, attribute, value)

    def __getattr__(self, attribute: str) -> Any:
        """What was not given: Python asks here for slots that are empty."""
        if attribute not in Kernel.__slots__:
            raise AttributeError(f"a kernel has no {attribute}")
        return getattr(self._again(), attribute)


def make_kernel(
    steps: Sequence[Step],
    inputs: Sequence[Buffer],
    outputs: Sequence[Buffer],
    aliases: Sequence[tuple[Buffer, Buffer]] = (),
) -> Kernel:
    """The kernel that runs `steps` on the graph's buffers.

    `aliases`: results and the operands whose memory they may take over (fuse/donation.py).
    """
    program = canonical.canonical("kernel", steps, inputs, outputs, aliases=aliases)
    digest = hashlib.sha256(text.program_text(program).encode()).hexdigest()[:24]
    known = _programs.setdefault(digest, replace(program, name=f"k_{digest}"))
    return Kernel(known, digest, tuple(inputs), tuple(outputs), known.name)


_programs: weakref.WeakValueDictionary[str, TensorProgram] = weakref.WeakValueDictionary()
"""Those of kernels that somebody has: what equal ones ask of their stages and nests is found once.
"""
