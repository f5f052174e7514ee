"""What all statements of a kernel are written with: lines, names of variables, places of buffers,
and updates of elements."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from hlo_mlc.codegen.clike.dialect import index_type
from hlo_mlc.codegen.clike.spelling import Binding, operand
from hlo_mlc.codegen.clike.values import Lines, Memory, Values, identifier
from hlo_mlc.expr.core import Apply, Expr, Var
from hlo_mlc.loops.core import Accumulate, For, Store


class Writer:
    """The state of writing one function."""

    def __init__(self, memory: Memory) -> None:
        self.memory, self.dialect = memory, memory.dialect
        self.lines = Lines()
        self.variables: dict[Var, str] = {}

    def bind(self, var: Var, text: str) -> None:
        """Say what a variable is called here."""
        self.variables[var] = text

    def values(self, given: Mapping[Expr, str] | None = None) -> Values:
        """What writes the expressions of one statement."""
        return Values(self.memory, self.lines, self.variables, given)

    @contextmanager
    def braces(self, head: str) -> Iterator[None]:
        self.lines.emit(f"{head} {{")
        self.lines.depth += 1
        yield
        self.lines.depth -= 1
        self.lines.emit("}")

    @contextmanager
    def where(self, condition: str) -> Iterator[None]:
        """What happens only where a condition holds, if there is any."""
        if not condition:
            yield
            return
        with self.braces(f"if ({condition})"):
            yield

    @contextmanager
    def guarded(self, guard: Expr | None) -> Iterator[None]:
        """What happens only where the guard holds."""
        with self.where("" if guard is None else self.values().write(guard)[0]):
            yield

    @contextmanager
    def iterations(self, stmt: For, before: str = "") -> Iterator[None]:
        """What happens in each iteration of a loop, one after the other; `before` is said of it."""
        (extent,) = self.values().write(stmt.extent)
        name, kind = self.lines.fresh(identifier(stmt.var.name)), index_type(stmt.var)
        self.bind(stmt.var, name)
        if before:
            self.lines.emit(before)
        with self.braces(f"for ({kind} {name} = 0; {name} < {operand(extent)}; ++{name})"):
            yield

    @contextmanager
    def rounds(self, condition: Expr) -> Iterator[None]:
        """What happens again and again while a condition holds."""
        with self.braces("while (true)"):
            (text,) = self.values().write(condition)
            self.lines.emit(f"if (!{operand(text, Binding.ATOM)}) break;")
            yield

    def store(self, stmt: Store) -> None:
        with self.guarded(stmt.guard):
            values = self.values()
            (value,) = values.write(stmt.value)
            self.lines.emit(f"{values.element(stmt.buffer, stmt.indices)} = {value};")

    def accumulate(self, stmt: Accumulate) -> None:
        with self.guarded(stmt.guard):
            self.update(stmt, self.values())

    def update(self, stmt: Accumulate, values: Values) -> None:
        """An update, all of whose loads `values` may know already."""
        factors = self._factors(stmt)
        if factors is not None:
            x, y = values.write(*factors)
            target = values.element(stmt.buffers[0], stmt.indices)
            function = self.dialect.fused[factors[0].dtype]
            self.lines.emit(f"{target} = {function}({x}, {y}, {target});")
            return
        terms = values.write(*stmt.terms)
        targets = [values.element(b, stmt.indices) for b in stmt.buffers]
        if not stmt.combiner.name:  # a combiner may use its operands several times
            terms = self._named(stmt.combiner.rhs, terms)
        self.combine(stmt, targets, terms, targets)

    def _factors(self, stmt: Accumulate) -> tuple[Expr, Expr] | None:
        """A product that is added to a float sum is rounded together with the sum."""
        term = self.memory.legalized(stmt.terms[0]) if stmt.combiner.name == "add" else None
        if isinstance(term, Apply) and term.op == "mul" and term.dtype in self.dialect.fused:
            return term.args
        return None

    def combine(
        self, stmt: Accumulate, lhs: Sequence[str], rhs: Sequence[str], targets: Sequence[str]
    ) -> None:
        """targets = combiner(lhs, rhs)"""
        combiner = stmt.combiner
        operands = dict(zip((*combiner.lhs, *combiner.rhs), (*lhs, *rhs), strict=True))
        results = Values(self.memory, self.lines, operands).write(*combiner.results)
        if len(results) > 1:
            results = self._named(combiner.lhs, results)
        for target, result in zip(targets, results, strict=True):
            self.lines.emit(f"{target} = {result};")

    def _named(self, variables: Sequence[Var], texts: Sequence[str]) -> list[str]:
        """Constants with these values, of the types of these variables."""
        return [
            self.lines.named(self.dialect.element_type(var.dtype), text)
            for var, text in zip(variables, texts, strict=True)
        ]
