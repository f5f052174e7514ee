"""Loop programs as indented text: for people, golden tests, and as what is hashed.

The text is canonical: it says everything that a program computes, and equal programs have equal
texts.  Values that a statement uses more than once are named above it (`%0 = …`), so that the
text of a shared expression stays as small as the expression.
"""

from __future__ import annotations

from collections.abc import Sequence

from hlo_mlc.expr.combiner import Combiner
from hlo_mlc.expr.core import Buffer, Expr, spell_shared
from hlo_mlc.expr.dtypes import TensorType
from hlo_mlc.loops.core import (
    Accumulate,
    Allocate,
    Call,
    For,
    If,
    LoopKind,
    LoopProgram,
    Prefetch,
    Stmt,
    Store,
    While,
)
from hlo_mlc.loops.core import walk as walk_statements
from hlo_mlc.loops.rewrite import expressions

_INDENT = "  "
# A shared expression of at most this many nodes is written again where it is used: indices repeat
# in every access, and reading them in place is worth more than naming them.
_SMALL = 4
_SMALL_INDEX = 16


def program_text(program: LoopProgram) -> str:
    """The whole program: signature, memory, statements."""
    operands = ", ".join(map(_declaration, program.operands))
    results = ", ".join(map(_declaration, program.results))
    lines = [f"kernel {program.name}({operands}) -> ({results})"]
    lines += [
        f"{_INDENT}scratch {_declaration(b)} at byte {offset}" for b, offset in program.scratch
    ]
    lines += [
        f"{_INDENT}alias {result.name} = {operand.name}" for result, operand in program.aliases
    ]
    _write(program.body, 1, lines)
    called = dict.fromkeys(s.program for s in walk_statements(program.body) if isinstance(s, Call))
    return "\n".join(lines) + "\n" + "".join("\n" + program_text(p) for p in called)


def body_text(statements: tuple[Stmt, ...]) -> str:
    """Some statements alone."""
    lines: list[str] = []
    _write(statements, 0, lines)
    return "\n".join(lines) + "\n"


def headline(stmt: Stmt) -> str:
    """The first line of a statement, for messages."""
    return _lines(stmt)[-1]


def trail(around: Sequence[Stmt], stmt: Stmt) -> str:
    """The first lines of a statement and of those around it, for messages."""
    return "\n".join(_INDENT * n + headline(s) for n, s in enumerate((*around, stmt)))


def _declaration(buffer: Buffer) -> str:
    text = f"{buffer.name}: {TensorType(buffer.shape, buffer.dtype)}"
    if buffer.scope in ("stack", "register", "shared", "thread"):
        text += f" {buffer.scope}"
    return text


def _write(statements: tuple[Stmt, ...], depth: int, lines: list[str]) -> None:
    indent = _INDENT * depth
    for stmt in statements:
        lines += [indent + line for line in _lines(stmt)]
        match stmt:
            case For() | While() | Allocate():
                _write(stmt.body, depth + 1, lines)
            case If():
                _write(stmt.then, depth + 1, lines)
                if stmt.otherwise:
                    lines.append(f"{indent}else:")
                    _write(stmt.otherwise, depth + 1, lines)


def _lines(stmt: Stmt) -> list[str]:
    """The lets that the statement needs, then its own line."""
    match stmt:
        case For():
            lets, (extent,) = _spelled((stmt.extent,))
            kind = "" if stmt.kind is LoopKind.SERIAL else f" {stmt.kind.value}"
            return [*lets, f"for {stmt.var.name} in 0..{extent}{kind}:"]
        case While():
            lets, (condition,) = _spelled((stmt.condition,))
            return [*lets, f"while {condition}:"]
        case If():
            lets, (condition,) = _spelled((stmt.condition,))
            return [*lets, f"if {condition}:"]
        case Allocate():
            return [f"alloc {_declaration(stmt.buffer)}:"]
        case Store():
            lets, parts = _spelled(expressions(stmt))
            rank = len(stmt.indices)
            line = f"{stmt.buffer.name}[{', '.join(parts[:rank])}] = {parts[rank]}"
            return [*lets, line + _suffix(parts[rank + 1 :], " streaming" * stmt.streaming)]
        case Prefetch():
            lets, place = _spelled(stmt.indices)
            return [*lets, f"prefetch {stmt.buffer.name}[{', '.join(place)}] + {stmt.ahead}"]
        case Call():
            arguments = ", ".join(
                f"{b.name}[{', '.join(map(str, place))}]" if place else b.name
                for b, place in stmt.parts
            )
            return [f"call {stmt.program.name}({arguments})"]
        case Accumulate():
            lets, parts = _spelled(expressions(stmt))
            rank, count = len(stmt.indices), len(stmt.terms)
            place = f"[{', '.join(parts[:rank])}]"
            targets = ", ".join(b.name + place for b in stmt.buffers)
            terms = ", ".join(parts[rank : rank + count])
            line = f"{targets} <- {combiner_text(stmt.combiner)} {terms}"
            return [*lets, line + _suffix(parts[rank + count :], " atomic" * stmt.atomic)]
    raise TypeError(f"not a statement: {stmt!r}")


def combiner_text(combiner: Combiner) -> str:
    """`add` for a combiner that is one scalar op, else the function written out."""
    if combiner.name:
        return combiner.name
    lets, results = _spelled(combiner.results)
    parameters = ", ".join(f"{v.name}: {v.dtype}" for v in (*combiner.lhs, *combiner.rhs))
    body = "; ".join([*lets, ", ".join(results)])
    identity = (
        "" if combiner.identity is None else f" identity {', '.join(map(repr, combiner.identity))}"
    )
    return f"{{({parameters}) {body}{identity}}}"


def _suffix(guard: tuple[str, ...], hint: str) -> str:
    return (f" where {guard[0]}" if guard else "") + hint


def _spelled(roots: tuple[Expr, ...]) -> tuple[list[str], tuple[str, ...]]:
    """The texts of `roots`, and the named values they refer to."""
    return spell_shared(roots, _SMALL, _SMALL_INDEX)
