"""The only way from loops to code: nothing is printed that was not proved."""

from __future__ import annotations

from hlo_mlc.expr.core import loads
from hlo_mlc.loops.core import Call, LoopProgram, walk
from hlo_mlc.loops.coverage import gaps
from hlo_mlc.loops.guarding import with_guards
from hlo_mlc.loops.proof import Proof
from hlo_mlc.loops.rewrite import inline_calls, with_body
from hlo_mlc.loops.signature import surveyed
from hlo_mlc.loops.verify import verify
from hlo_mlc.support.errors import VerifyError

# A guard around an index that is loaded itself may need another one: of lists of lists.
_ROUNDS = 4


def prove(program: LoopProgram) -> tuple[LoopProgram, Proof]:
    """The program, with guards where bounds could not be proved, and a record of these guards.

    Raises: VerifyError where a rule is broken or cannot be shown to hold.
    """
    survey = surveyed(program)
    for gap in gaps(program, survey):
        raise VerifyError(
            f"kernel {program.name}: expected that {gap.text}, but {gap.problem.value}"
        )
    guarded: dict[str, None] = {}
    for _ in range(_ROUNDS):
        report = verify(program, survey)
        if report.open:
            raise VerifyError(f"kernel {program.name}: could not prove that {report.open[0]}")
        if not report.unbounded:
            return program, Proof(tuple(guarded))
        if any(isinstance(stmt, Call) for stmt in walk(program.body)):
            # Guards are for the buffers of the calls.
            program = with_body(program, inline_calls(program.body))
        else:
            inner = {
                place: text
                for place, text in report.unbounded.items()
                if not any(
                    (load.source, load.indices) in report.unbounded
                    for i in place[1]
                    for load in loads(i)
                )
            }
            guarded.update(dict.fromkeys(inner.values()))
            program = with_guards(program, inner.keys())
        survey = surveyed(program)
    raise VerifyError(
        f"kernel {program.name}: could not prove that {next(iter(guarded))}, nor guard it"
    )
