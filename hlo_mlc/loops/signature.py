"""The rules of a loop program's own buffers: names, scopes, the arena, what calls are given."""

from __future__ import annotations

import itertools

from hlo_mlc.expr.core import Buffer
from hlo_mlc.loops.accesses import Survey
from hlo_mlc.loops.core import Call, LoopProgram, walk
from hlo_mlc.loops.text import headline
from hlo_mlc.support.errors import VerifyError

ALIGNMENT = 64  # bytes: a cache line, and the widest vector


def aligned(size: int) -> int:
    """A number of bytes, rounded up to where the next buffer may begin."""
    return -(-size // ALIGNMENT) * ALIGNMENT


def check_signature(program: LoopProgram, survey: Survey) -> tuple[Buffer, ...]:
    """The buffers that all of a program can see, whose names, scopes and memory keep the rules.

    Raises: VerifyError where they do not.
    """
    scratch = tuple(b for b, _ in program.scratch)
    visible = (*program.operands, *program.results, *scratch)
    names: set[str] = set()
    for buffer in visible:
        if buffer.name in names:
            raise VerifyError(f"kernel {program.name}: two buffers are called {buffer.name}")
        names.add(buffer.name)
    for buffers, scope in (
        (program.operands, "operand"),
        (program.results, "result"),
        (scratch, "scratch"),
    ):
        for buffer in buffers:
            if buffer.scope != scope:
                raise VerifyError(f"kernel {program.name}: expected scope {scope}, got {buffer!r}")
    for buffer, offset in program.scratch:
        if offset < 0 or offset % ALIGNMENT:
            raise VerifyError(
                f"kernel {program.name}: expected an offset that is a multiple "
                f"of {ALIGNMENT}, got {offset} for {buffer!r}"
            )
    for result, operand in program.aliases:
        if result not in program.results or operand not in program.operands:
            raise VerifyError(
                f"kernel {program.name}: expected an alias of a result and an "
                f"operand, got {result!r} and {operand!r}"
            )
    _check_arena(program, survey)
    return visible


def _check_arena(program: LoopProgram, survey: Survey) -> None:
    """Scratch buffers that share bytes are not in use at the same time."""
    placed = dict(program.scratch)
    if len(placed) < 2:
        return
    lives: dict[Buffer, tuple[int, int]] = {}
    for n, stmt in enumerate(program.body):
        begin, end, _ = survey.spans[stmt]
        used = {a.buffer for a in survey.found[begin:end]}.union(
            *(s.buffers for s in walk((stmt,)) if isinstance(s, Call))
        )
        for buffer in used & placed.keys():
            first, _ = lives.get(buffer, (n, n))
            lives[buffer] = first, n
    spans = sorted((placed[b], placed[b] + b.bytes, *life, b.name) for b, life in lives.items())
    for n, (_, end, first, last, name) in enumerate(spans):
        for _, _, begins, ends, other in itertools.takewhile(
            lambda span, end=end: span[0] < end, spans[n + 1 :]
        ):
            if first <= ends and begins <= last:
                raise VerifyError(
                    f"kernel {program.name}: {name} and {other} share bytes "
                    "of the arena while both are in use"
                )


def surveyed(program: LoopProgram) -> Survey:
    """The accesses of a program, whose calls fit the programs that they call.

    Raises: VerifyError where one does not.
    """
    for stmt in walk(program.body):
        if isinstance(stmt, Call):
            _check_call(program, stmt)
    return Survey.of(program, called=bool(program.aliases))


def _check_call(program: LoopProgram, call: Call) -> None:
    callee = call.program
    if callee.scratch:
        raise VerifyError(
            f"kernel {program.name}: expected {callee.name} to need no scratch, got "
            f"{callee.scratch[0][0]!r} in `{headline(call)}`"
        )
    if len(call.places) > len(callee.operands) or any(
        not 0 <= n < extent
        for buffer, place in call.parts
        for n, extent in itertools.zip_longest(place, buffer.shape[: len(place)], fillvalue=-1)
    ):
        raise VerifyError(
            f"kernel {program.name}: expected parts of operands, got `{headline(call)}`"
        )
    wanted = [(b.shape, b.dtype) for b in (*callee.operands, *callee.results)]
    if wanted != [(b.shape[len(place) :], b.dtype) for b, place in call.parts]:
        raise VerifyError(
            f"kernel {program.name}: expected buffers like "
            f"{(*callee.operands, *callee.results)}, got {call.buffers} in "
            f"`{headline(call)}`"
        )
