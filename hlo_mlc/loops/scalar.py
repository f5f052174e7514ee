"""Scalar expressions as Python functions, for the loop interpreter.

Index values are Python integers, all others NumPy scalars of their element type.  What an op
means stays with expr/ops.py: only ops that NumPy scalars compute identically are written in
place, because calling the general function costs several microseconds.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from types import CodeType

import numpy as np

from hlo_mlc.expr.core import Apply, Buffer, Const, Expr, Load, Var, walk
from hlo_mlc.expr.dtypes import BOOL, F32, F64, INDEX
from hlo_mlc.expr.ops import compute
from hlo_mlc.support.errors import VerifyError

# What a compiled function gets: the values of the variables, by slot.
Frame = list[int]
Compiled = Callable[[Frame], tuple | None]

_SYMBOLS = {
    "add": "+",
    "sub": "-",
    "mul": "*",
    "div": "/",
    "and": "&",
    "or": "|",
    "xor": "^",
    "eq": "==",
    "ne": "!=",
    "lt": "<",
    "le": "<=",
    "gt": ">",
    "ge": ">=",
    "floordiv": "//",
    "floormod": "%",
}
_COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge")


class Compiler:
    """Turns expressions into functions of a frame; one for a whole program."""

    def __init__(
        self, arrays: Mapping[tuple[Buffer, Var | None], np.ndarray], slots: Mapping[Var, int]
    ) -> None:
        """`arrays`: the memory of a buffer; with a lane variable, of one that every lane has for
        itself, the lanes being its first axis."""
        self._arrays, self._slots = arrays, slots
        self._lane: Var | None = None
        self._names: dict[str, object] = {}

    def compile(
        self,
        values: Sequence[Expr],
        guard: Expr | None = None,
        target: tuple[Buffer, tuple[Expr, ...]] | None = None,
        lane: Var | None = None,
        where: str = "",
    ) -> Compiled:
        """A function that gives the place in the array of `target`, then `values`; None where
        `guard` is false, and then nothing else is evaluated.  `lane` is the variable of the
        vector loop around.

        Raises, when run: VerifyError for an access outside of its buffer, naming `where`.
        """
        self._lane = lane
        self._names = {"out_of_bounds": _out_of_bounds}
        lines: list[str] = []
        texts: dict[Expr, str] = {}
        if guard is not None:
            self._emit([guard], texts, lines, where)
            lines += [f"if not {texts[guard]}:", "  return None"]
        buffer, indices = target if target is not None else (None, ())
        self._emit([*indices, *values], texts, lines, where)
        results = [texts[v] for v in values]
        if buffer is not None:
            parts = [texts[i] for i in indices]
            lines += self._check(buffer, parts, where)
            results.insert(0, self._place(buffer, parts, where))
        lines.append(f"return ({', '.join(results)},)")
        source = "\n  ".join(["def function(frame):", *lines])
        exec(_code(source), self._names)
        return self._names["function"]

    def _emit(
        self, roots: Sequence[Expr], texts: dict[Expr, str], lines: list[str], where: str
    ) -> None:
        for node in walk(*roots):
            if node in texts:
                continue
            name = f"t{len(texts)}"
            match node:
                case Const():
                    texts[node] = self._constant(node)
                    continue
                case Var():
                    if node not in self._slots:
                        raise VerifyError(f"variable {node.name} is not bound in: {where}")
                    texts[node] = f"frame[{self._slots[node]}]"
                    continue
                case Apply():
                    lines.append(f"{name} = {self._apply(node, [texts[a] for a in node.args])}")
                case Load():
                    lines += self._load(node, name, texts, where)
            texts[node] = name

    def _constant(self, node: Const) -> str:
        if node.dtype is INDEX or node.dtype is BOOL:
            return f"({node.value})"
        return self._bind(np.asarray(node.value).astype(node.dtype.numpy)[()])

    def _bind(self, value: object) -> str:
        name = f"g{len(self._names)}"
        self._names[name] = value
        return name

    def _load(self, node: Load, name: str, texts: Mapping[Expr, str], where: str) -> list[str]:
        parts = [texts[i] for i in node.indices]
        array = self._bind(self._find(node.source, where)[0])
        lines = [
            *self._check(node.source, parts, where),
            f"{name} = {array}[{self._place(node.source, parts, where)}]",
        ]
        if node.guard is None:
            return lines
        return [
            f"if {texts[node.guard]}:",
            *("  " + line for line in lines),
            "else:",
            f"  {name} = {texts[node.default]}",
        ]

    def _find(self, buffer: Buffer, where: str) -> tuple[np.ndarray, bool]:
        """The array behind a buffer, and whether each lane has its own part of it."""
        if self._lane is not None and (buffer, self._lane) in self._arrays:
            return self._arrays[buffer, self._lane], True
        if (buffer, None) not in self._arrays:
            raise VerifyError(f"buffer {buffer!r} does not exist in: {where}")
        return self._arrays[buffer, None], False

    def _place(self, buffer: Buffer, parts: list[str], where: str) -> str:
        own = [f"frame[{self._slots[self._lane]}]"] if self._find(buffer, where)[1] else []
        return f"({', '.join([*own, *parts])}{',' * (len(own) + len(parts) == 1)})"

    def _check(self, buffer: Buffer, parts: list[str], where: str) -> list[str]:
        if not parts:
            return []
        array, private = self._find(buffer, where)
        shape = array.shape[private:]
        inside = " and ".join(f"0 <= {i} < {n}" for i, n in zip(parts, shape, strict=True))
        message = self._bind((buffer, where))
        return [f"if not ({inside}):", f"  out_of_bounds({message}, ({', '.join(parts)},))"]

    def _apply(self, node: Apply, args: list[str]) -> str:
        op, dtype = node.op, node.args[-1].dtype
        symbol = _SYMBOLS.get(op)
        if op in ("select", "select_unlikely"):
            return f"({args[1]} if {args[0]} else {args[2]})"
        if dtype is INDEX:
            if op in ("add", "mul", "floordiv", "floormod") or op in _COMPARISONS:
                return f"{args[0]} {symbol} {args[1]}"
            if op in ("min", "max"):
                return f"{op}({args[0]}, {args[1]})"
        elif dtype is BOOL:
            if op in ("and", "or", "xor"):
                return f"{args[0]} {symbol} {args[1]}"
            if op == "not":
                return f"not {args[0]}"
        elif op in ("add", "sub", "mul") or op in _COMPARISONS:
            return f"{args[0]} {symbol} {args[1]}"
        elif dtype in (F32, F64):
            if op == "div":
                return f"{args[0]} / {args[1]}"
            if op in ("max", "min", "larger", "neg", "abs") or (op == "fma" and dtype is F32):
                return f"{self._bind(_FLOAT[op])}({', '.join(args)})"
        if op == "convert":
            if node.dtype is INDEX and dtype.is_integer:
                return f"int({args[0]})"
            if node.dtype in (F32, F64) and dtype in (F32, F64):
                return f"{self._bind(node.dtype.numpy.type)}({args[0]})"
        return f"{self._bind(_general(node))}({', '.join(args)})"


@lru_cache(maxsize=1024)
def _code(source: str) -> CodeType:
    """Python's code of a function: loops have many that differ in what names stand for only."""
    return compile(source, "<loops>", "exec")


def _general(node: Apply) -> Callable[..., object]:
    """The op's definition, applied to scalars."""
    op, to = node.op, node.dtype
    types = [a.dtype.numpy for a in node.args]

    def function(*args: object) -> object:
        result = compute(op, [np.asarray(a, t) for a, t in zip(args, types, strict=True)], to)[()]
        return int(result) if to is INDEX else result

    return function


def _maximum(x: np.floating, y: np.floating) -> np.floating:
    if x > y or x != x:
        return x
    return y if y > x or y != y or math.copysign(1, x) < 0 else x


def _minimum(x: np.floating, y: np.floating) -> np.floating:
    if x < y or x != x:
        return x
    return y if y < x or y != y or math.copysign(1, x) > 0 else x


def _fma(x: np.float32, y: np.float32, z: np.float32) -> np.float32:
    """x * y + z rounded once: the f64 sum, made odd where it is inexact, rounds correctly."""
    product, addend = float(x) * float(y), float(z)
    total = product + addend
    shadow = total - product
    error = (product - (total - shadow)) + (addend - shadow)
    if (
        error != 0
        and math.isfinite(total)
        and struct.unpack("<q", struct.pack("<d", total))[0] & 1 == 0
    ):
        total = math.nextafter(total, math.copysign(math.inf, error))
    return np.float32(total)


_FLOAT: dict[str, Callable[..., object]] = {
    "max": _maximum,
    "min": _minimum,
    "larger": lambda x, y: y if y > x else x,
    "neg": lambda x: -x,
    "abs": abs,
    "fma": _fma,
}


def _out_of_bounds(access: tuple[Buffer, str], indices: tuple[int, ...]) -> None:
    buffer, where = access
    raise VerifyError(
        f"access outside of {buffer!r}: expected indices below "
        f"{buffer.shape}, got {tuple(map(int, indices))} in: {where}"
    )


def combine(
    results: Sequence[Expr], lhs: Sequence[Var], rhs: Sequence[Var]
) -> Callable[[Sequence, Sequence], tuple]:
    """A combiner as a function of two tuples of values."""
    slots = {v: n for n, v in enumerate((*lhs, *rhs))}
    function = Compiler({}, slots).compile(results, where="combiner")
    return lambda a, b: function([*a, *b])
