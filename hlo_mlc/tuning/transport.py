"""Kernels on their way to another process.

Expressions are interned, so they cannot be copied like other data: they travel as a table in which
each one names its operands by number, operands first, and are interned again on arrival. What
arrives is equal to what was sent, and has the same text.
"""

from __future__ import annotations

import io
import pickle
from dataclasses import fields
from typing import Any

from hlo_mlc.expr.core import Apply, Const, Expr, Load, Var, walk
from hlo_mlc.tensor.core import Nest, Stage


def pack(content: object) -> bytes:
    """Any data that holds expressions, as bytes for a process of our own (never for a file that
    somebody else may have written: reading it runs what it says)."""
    structure = io.BytesIO()
    packer = _Packer(structure)
    packer.dump(content)
    return pickle.dumps((packer.rows, structure.getvalue()), pickle.HIGHEST_PROTOCOL)


def unpack(data: bytes) -> Any:
    """What was packed."""
    rows, structure = pickle.loads(data)
    nodes: list[Expr] = []
    for kind, *parts in rows:
        nodes.append(_READERS[kind](nodes, *parts))
    return _Unpacker(io.BytesIO(structure), nodes).load()


class _Packer(pickle.Pickler):
    """Writes the number of an expression in its place."""

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file, pickle.HIGHEST_PROTOCOL)
        self.rows: list[tuple] = []
        self._numbers: dict[Expr, int] = {}

    def persistent_id(self, obj: object) -> int | None:
        if not isinstance(obj, Expr):
            return None
        for node in walk(obj):
            if node not in self._numbers:
                self.rows.append(self._row(node))
                self._numbers[node] = len(self.rows) - 1
        return self._numbers[obj]

    def reducer_override(self, obj: object) -> Any:
        """Stages and nests are made anew: what was derived from them is derived there again."""
        if isinstance(obj, Stage | Nest):
            return type(obj), tuple(getattr(obj, f.name) for f in fields(obj) if f.init)
        return NotImplemented

    def _row(self, node: Expr) -> tuple:
        number = self._numbers
        match node:
            case Const():
                return "const", node.value, node.dtype
            case Var():
                return "var", node.name, node.dtype, node.extent
            case Apply():
                return "apply", node.op, [number[a] for a in node.args], node.dtype
            case Load():
                guarded = () if node.guard is None else (number[node.guard], number[node.default])
                return "load", node.source, [number[i] for i in node.indices], guarded
        raise TypeError(f"not an expression: {node!r}")


class _Unpacker(pickle.Unpickler):
    """Puts the expressions back."""

    def __init__(self, file: io.BytesIO, nodes: list[Expr]) -> None:
        super().__init__(file)
        self._nodes = nodes

    def persistent_load(self, pid: int) -> Expr:
        return self._nodes[pid]


_READERS = {
    "const": lambda nodes, value, dtype: Const(value, dtype),
    "var": lambda nodes, name, dtype, extent: Var(name, dtype, extent),
    "apply": lambda nodes, op, args, dtype: Apply(op, tuple(nodes[a] for a in args), dtype),
    "load": lambda nodes, source, indices, guarded: Load(
        source, tuple(nodes[i] for i in indices), *(nodes[g] for g in guarded)
    ),
}
