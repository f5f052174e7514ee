"""Writing expressions: what is used several times, or is long, gets a name; the rest nests."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from hlo_mlc.codegen.clike.dialect import Dialect
from hlo_mlc.codegen.clike.spelling import Binding, binding, choice
from hlo_mlc.codegen.legalize import is_data, legalize
from hlo_mlc.expr import core, index
from hlo_mlc.expr.core import Apply, Buffer, Const, Expr, Load, Var
from hlo_mlc.expr.dtypes import INDEX

# Characters of an expression that is still written in the place where it is used.
_SHORT = 56


class Place(NamedTuple):
    """Where a buffer lies: the name of its first element's pointer, or of the variable that
    holds its only element; `owned` first axes are those of the threads, and not in memory.
    `is_constant` is memory that nobody writes while the function runs."""

    name: str
    is_scalar: bool = False
    owned: int = 0
    is_constant: bool = False


class Memory:
    """The buffers that code can reach, and the legal forms of expressions, for one kernel."""

    def __init__(self, places: Mapping[Buffer, Place], dialect: Dialect) -> None:
        self.places, self.dialect = dict(places), dialect
        self._legal: dict[Expr, Expr] = {}

    def legalized(self, node: Expr) -> Expr:
        """`node` in terms of ops that the language has."""
        return legalize(node, self.dialect.abilities, self._legal) if is_data(node) else node


def offset(buffer: Buffer, place: Place, indices: Sequence[Expr]) -> Expr:
    """Elements from the start of a buffer's memory."""
    total: Expr = index.constant(0)
    for i, stride in list(zip(indices, buffer.element_strides, strict=True))[place.owned :]:
        total = total + i * stride
    return total


class Lines:
    """Indented lines, and names that are not taken yet."""

    def __init__(self) -> None:
        self.text: list[str] = []
        self.depth = 1
        self._taken: set[str] = set()
        self._temporaries = itertools.count()

    def emit(self, line: str) -> None:
        self.text.append(self.indented(line))

    def indented(self, line: str) -> str:
        return "  " * self.depth + line

    def fresh(self, prefix: str) -> str:
        """`prefix`, with a number if that was given out before."""
        numbered = (f"{prefix}_{n}" for n in itertools.count(1))
        return self._first_free(itertools.chain((prefix,), numbered))

    def temporary(self) -> str:
        """v0, v1, …"""
        return self._first_free(f"v{n}" for n in self._temporaries)

    def named(self, kind: str, text: str) -> str:
        """The name of a constant with this value."""
        name = self.temporary()
        self.emit(f"const {kind} {name} = {text};")
        return name

    def _first_free(self, names: Iterable[str]) -> str:
        name = next(name for name in names if name not in self._taken)
        self._taken.add(name)
        return name


class Values:
    """Writes the expressions of one statement.

    `variables` are the texts of variables; `given` those of other expressions that stand
    somewhere already (elements of loaded vectors).
    """

    def __init__(
        self,
        memory: Memory,
        lines: Lines,
        variables: Mapping[Var, str],
        given: Mapping[Expr, str] | None = None,
    ) -> None:
        self.memory, self.lines, self.variables = memory, lines, variables
        self.dialect = memory.dialect
        self.texts: dict[Expr, str] = dict(given or {})

    def write(self, *roots: Expr) -> list[str]:
        """The texts of the roots, after the lines that they need."""
        legal = [self.memory.legalized(root) for root in roots]
        uses = core.uses_of(legal, core.walk(*legal))
        for root in legal:
            self._node(root, uses)
        return [self.texts[root] for root in legal]

    def _node(self, root: Expr, uses: Mapping[Expr, int]) -> None:
        stack = [root]
        while stack:
            node = stack[-1]
            pending = () if node in self.texts else [c for c in _eager(node) if c not in self.texts]
            if pending:
                stack += reversed(pending)
                continue
            stack.pop()
            if node not in self.texts:
                self.texts[node] = self._spell(node, uses)

    def _spell(self, node: Expr, uses: Mapping[Expr, int]) -> str:
        match node:
            case Const():
                return self.dialect.literal(node)
            case Var():
                return self.variables[node]
            case Load():
                return self._name(node, self._load(node), uses)
            case Apply() if node.op == "select_unlikely" and _is_long(node.args[1]):
                return self._branch(node, uses)
        return self._name(node, self.dialect.spell(node, [self.texts[a] for a in node.args]), uses)

    def _name(self, node: Expr, text: str, uses: Mapping[Expr, int]) -> str:
        used = uses.get(node, 1)
        if "(" not in text and binding(text) is Binding.ATOM:
            return text
        if len(text) <= _SHORT and used == 1:
            return text
        if node.dtype is INDEX and used == 1 and isinstance(node, Apply):
            return text
        return self.lines.named(self.dialect.type_of(node), text)

    def _load(self, node: Load) -> str:
        text = self.element(node.source, node.indices)
        if node.guard is None:
            return text
        return choice(self.texts[node.guard], text, self.texts[node.default])

    def element(self, buffer: Buffer, indices: Sequence[Expr]) -> str:
        """An element of a buffer, to be read or written; the indices are legal and simple."""
        place = self.memory.places[buffer]
        if place.is_scalar:
            return place.name
        position = offset(buffer, place, [self.memory.legalized(i) for i in indices])
        inner = Values(self.memory, self.lines, self.variables, self.texts)
        (text,) = inner.write(position)
        return f"{place.name}[{text}]"

    def _branch(self, node: Apply, uses: Mapping[Expr, int]) -> str:
        """select_unlikely: the rare side is computed only where it is needed."""
        condition, slow, fast = node.args
        name = self.lines.temporary()
        self.lines.emit(f"{self.dialect.type_of(node)} {name} = {self.texts[fast]};")
        self.lines.emit(f"if ({self.texts[condition]}) {{")
        self.lines.depth += 1
        inner = Values(self.memory, self.lines, self.variables, self.texts)
        inner._node(slow, uses)
        self.lines.emit(f"{name} = {inner.texts[slow]};")
        self.lines.depth -= 1
        self.lines.emit("}")
        return name


def identifier(name: str) -> str:
    """A name of ours as one of the language's."""
    return re.sub(r"\W", "_", name)


def _eager(node: Expr) -> tuple[Expr, ...]:
    """What is computed in any case before `node`."""
    if isinstance(node, Apply):
        if node.op == "select_unlikely" and _is_long(node.args[1]):
            return node.args[0], node.args[2]
        return node.args
    if isinstance(node, Load):
        guard = () if node.guard is None else (node.guard, node.default)
        # Index arithmetic is written with the access; the loads in it come before.
        return (*guard, *(inner for i in node.indices for inner in _outermost_loads(i)))
    return ()


def _outermost_loads(root: Expr) -> list[Load]:
    found, stack = [], [root]
    while stack:
        node = stack.pop()
        if isinstance(node, Load):
            found.append(node)
        else:
            stack += node.children
    return found


def _is_long(node: Expr) -> bool:
    return not isinstance(node, Const | Var)
