"""What the verifier of loops leaves open."""

from __future__ import annotations

from hlo_mlc.loops.core import LoopProgram
from hlo_mlc.loops.verify import verify


def unproven(program: LoopProgram) -> tuple[str, ...]:
    """All that verifying the program neither proves nor refutes, for people."""
    report = verify(program)
    return (*dict.fromkeys(report.unbounded.values()), *report.open)
