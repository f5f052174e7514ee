"""Sorting: `sort` (attributes `dimension`, `is_stable`) by a comparator that reads like a list of
keys, and `top_k` (`k`), which is the beginning of one.

A comparator is told apart into keys: unsigned integers whose order is the order of elements.  All
sorts are stable, whether that is asked for or not.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hlo_mlc.expr.build import apply, const, substitute
from hlo_mlc.expr.core import Apply, Expr, Var
from hlo_mlc.expr.dtypes import BOOL, F16, I32, U8, U16, U32, U64
from hlo_mlc.expr.evaluate import evaluate
from hlo_mlc.graph.core import Node
from hlo_mlc.ops.bits import total_order_key
from hlo_mlc.ops.definition import Indices, OpDef, OpKind, Read, Sorted
from hlo_mlc.ops.regions import inline_scalar_graph, supports_scalar_graph
from hlo_mlc.tensor.combine import combiner_variables

Arrays = Sequence[np.ndarray]
_UNSIGNED = {8: U8, 16: U16, 32: U32, 64: U64}
_LONGEST = (1 << 31) - 1  # elements of a row: positions have 32 bits
_TOO_LONG = f"rows of more than {_LONGEST} elements stay with XLA"
_OTHER = "its comparator is not `lt` or `gt` of one key after the other"


def unsigned_key(e: Expr) -> Expr:
    """An unsigned integer in the order of `e`; among floats zeros are equal, and so are NaNs, which
    come last."""
    if e.dtype is BOOL:
        return apply("convert", e, dtype=U8)
    if e.dtype.is_float:
        # Some of a byte have one zero, and NaN in the place of the other; all are numbers of f16.
        return _key_of_float(apply("convert", e, dtype=F16) if e.dtype.bits == 8 else e)
    if not e.dtype.is_signed:
        return e
    unsigned = _UNSIGNED[e.dtype.bits]
    return apply("bitcast", e, dtype=unsigned) ^ (1 << (e.dtype.bits - 1))


def _key_of_float(x: Expr) -> Expr:
    """The magnitude above or below the middle, by the sign; a NaN is above all."""
    unsigned = _UNSIGNED[x.dtype.bits]
    middle, infinite = (
        const(n, unsigned)
        for n in (
            1 << (x.dtype.bits - 1),
            int(np.array(np.inf, x.dtype.numpy).view(unsigned.numpy)),
        )
    )
    raw = apply("bitcast", x, dtype=unsigned)
    magnitude = raw & ~middle
    sign = 0 - apply("shr_logical", raw, const(x.dtype.bits - 1, unsigned))
    signed = (magnitude ^ sign) - sign
    return apply("select", apply("gt", magnitude, infinite), ~const(0, unsigned), signed + middle)


def _with_equal_zeros(x: Expr) -> Expr:
    """The order that JAX gives floats, in its own words."""
    zero = const(0.0, x.dtype)
    whole = apply("select", apply("eq", x, zero), zero, x)
    return total_order_key(apply("select", apply("ne", x, x), const(np.nan, x.dtype), whole))


def keys_of(before: Expr, lhs: tuple[Var, ...], rhs: tuple[Var, ...]) -> tuple[Expr, ...] | None:
    """The keys, over `lhs`, of a comparator that says whether `lhs` comes before `rhs`; None for
    one that does not read like

        a < b   |   a < b or (a == b and the same of the next keys)
    """
    found: list[Expr] = []
    while True:
        first, rest = before, None
        if isinstance(before, Apply) and before.op == "or":
            for one, other in (before.args, before.args[::-1]):
                if isinstance(other, Apply) and other.op == "and":
                    first, rest = one, other
        key = _key(first, lhs, rhs)
        if key is None:
            return None
        found.append(key)
        if rest is None:
            return tuple(found)
        tied = [
            (equal, more) for equal, more in (rest.args, rest.args[::-1]) if _is_tie(equal, first)
        ]
        if not tied:
            return None
        before = tied[0][1]


def _key(less: Expr, lhs: tuple[Var, ...], rhs: tuple[Var, ...]) -> Expr | None:
    if not isinstance(less, Apply) or less.op not in ("lt", "gt"):
        return None
    low, high = less.args if less.op == "lt" else less.args[::-1]
    for mine, theirs in ((low, high), (high, low)):
        if _is_other_side(mine, theirs, lhs, rhs):
            floats = (v for v in mine.free if v.dtype.is_float)
            e = next((v for v in floats if mine is _with_equal_zeros(v)), mine)
            return unsigned_key(e) if mine is low else ~unsigned_key(e)
    return None


def _is_tie(equal: Expr, less: Apply) -> bool:
    """Whether two elements are equal where neither comes first by `less`."""
    return isinstance(equal, Apply) and equal.op == "eq" and set(equal.args) == set(less.args)


def _is_other_side(mine: Expr, theirs: Expr, lhs: tuple[Var, ...], rhs: tuple[Var, ...]) -> bool:
    """Whether the one says of `lhs` what the other says of `rhs`."""
    return (
        bool(mine.free)
        and mine.free <= set(lhs)
        and substitute(mine, dict(zip(lhs, rhs, strict=True))) is theirs
    )


def _sides(node: Node) -> tuple[tuple[Var, ...], tuple[Var, ...]]:
    return combiner_variables([v.type.dtype for v in node.operands])


def _keys(node: Node) -> tuple[tuple[Var, ...], tuple[Expr, ...] | None]:
    lhs, rhs = _sides(node)
    arguments = tuple(v for pair in zip(lhs, rhs, strict=True) for v in pair)
    (before,) = inline_scalar_graph(node.regions[0], arguments)
    return lhs, keys_of(before, lhs, rhs)


def _supports(node: Node) -> str:
    if reason := supports_scalar_graph(node.regions[0]):
        return reason
    shape = node.operands[0].type.shape
    if not shape:
        return "a scalar needs no sorting"
    if shape[_axis(node)] > _LONGEST:
        return _TOO_LONG
    return "" if _keys(node)[1] is not None else _OTHER


def _axis(node: Node) -> int:
    rank = len(node.operands[0].type.shape)
    return node.attributes.get("dimension", -1) % rank


def _sort(node: Node, reads: Sequence[Read]) -> Sorted:
    axis = _axis(node)
    lhs, keys = _keys(node)

    def over(terms: tuple[Expr, ...]) -> tuple[Expr, ...]:
        return tuple(substitute(k, dict(zip(lhs, terms, strict=True))) for k in keys)

    return Sorted(
        axis,
        node.operands[0].type.shape[axis],
        lambda indices: tuple(read(indices) for read in reads),
        over,
    )


def _sort_reference(node: Node, operands: Arrays) -> tuple[np.ndarray, ...]:
    lhs, keys = _keys(node)
    known = dict(zip(lhs, operands, strict=True))
    axis = _axis(node)
    values = [np.broadcast_to(evaluate(k, known), operands[0].shape) for k in keys]
    order = np.lexsort(values[::-1], axis)
    return tuple(np.take_along_axis(x, order, axis) for x in operands)


def _supports_top_k(node: Node) -> str:
    dtype = node.operands[0].type.dtype
    if not (dtype.is_float or dtype.is_integer):
        return f"elements of type {dtype} have no order"
    if node.results[1].type.dtype is not I32 or not node.attributes.get("largest", True):
        return "it is not the largest elements and their positions in 32 bits that are asked for"
    return _TOO_LONG if node.operands[0].type.shape[-1] > _LONGEST else ""


def _largest_first(x: Expr) -> Expr:
    """In total order, so that -0 is smaller than 0, and a NaN the largest but for its sign."""
    return ~unsigned_key(total_order_key(x) if x.dtype.is_float else x)


def _top_k(node: Node, reads: Sequence[Read]) -> Sorted:
    shape = node.operands[0].type.shape

    def terms(indices: Indices) -> tuple[Expr, ...]:
        return reads[0](indices), apply("convert", indices[-1], dtype=I32)

    return Sorted(len(shape) - 1, shape[-1], terms, lambda terms: (_largest_first(terms[0]),))


def _top_k_reference(node: Node, operands: Arrays) -> tuple[np.ndarray, ...]:
    (x,), k = operands, node.attributes["k"]
    (lhs,), _ = combiner_variables([node.operands[0].type.dtype])
    key = evaluate(_largest_first(lhs), {lhs: x})
    order = np.argsort(key, -1, kind="stable")[..., :k]
    return np.take_along_axis(x, order, -1), order.astype(np.int32)


def _example(operands: Sequence[str], body: str, dimension: int = -1) -> str:
    """`body` computes %r from %x0, %y0, %x1, %y1, …"""
    dtypes = [f"tensor<{o.rpartition('x')[2]}>" for o in operands]
    types = ", ".join(f"tensor<{o}>" for o in operands)
    arguments = ", ".join(f"%a{k}: tensor<{o}>" for k, o in enumerate(operands))
    pairs = ", ".join(f"%x{k}: {t}, %y{k}: {t}" for k, t in enumerate(dtypes))
    names = ", ".join(f"%a{k}" for k in range(len(operands)))
    many = len(operands) > 1
    results = ", ".join(f"%s#{k}" for k in range(len(operands))) if many else "%s"
    count = f":{len(operands)}" if many else ""
    return f"""
func.func @main({arguments}) -> ({types}) {{
  %s{count} = "stablehlo.sort"({names}) ({{
  ^bb0({pairs}):
{body}
    stablehlo.return %r : tensor<i1>
  }}) {{dimension = {dimension} : i64, is_stable = true}} : ({types}) -> ({types})
  return {results} : {types}
}}
"""


def _compare(name: str, direction: str, k: int, dtype: str, kind: str) -> str:
    t = f"tensor<{dtype}>"
    return (
        f"    %{name} = stablehlo.compare {direction}, %x{k}, %y{k}, {kind} : "
        f"({t}, {t}) -> tensor<i1>"
    )


_BY_TWO = "\n".join(
    (
        _compare("l", "GT", 0, "i8", "SIGNED"),
        _compare("e", "EQ", 0, "i8", "SIGNED"),
        _compare("n", "LT", 1, "f32", "TOTALORDER"),
        "    %t = stablehlo.and %e, %n : tensor<i1>",
        "    %r = stablehlo.or %l, %t : tensor<i1>",
    )
)


def _top_k_example(operand: str, k: int) -> str:
    shape, dtype = operand.rpartition("x")[::2]
    head = "x".join([*shape.split("x")[:-1], str(k)])
    return f"""
func.func @main(%a: tensor<{operand}>) -> (tensor<{head}x{dtype}>, tensor<{head}xi32>) {{
  %v, %i = chlo.top_k(%a, k = {k}) : tensor<{operand}> -> (tensor<{head}x{dtype}>,
      tensor<{head}xi32>)
  return %v, %i : tensor<{head}x{dtype}>, tensor<{head}xi32>
}}
"""


DEFINITIONS: tuple[OpDef, ...] = (
    OpDef(
        "stablehlo.sort",
        OpKind.SORT,
        _sort_reference,
        _sort,
        _supports,
        (
            _example(["5x7xf32"], _compare("r", "LT", 0, "f32", "TOTALORDER"), 1),
            _example(["9x4xi32"], _compare("r", "GT", 0, "i32", "SIGNED"), 0),
            _example(["300xui8"], _compare("r", "LT", 0, "ui8", "UNSIGNED")),
            _example(["3x130xbf16"], _compare("r", "GT", 0, "bf16", "TOTALORDER")),
            _example(["2x3x70xf64"], _compare("r", "LT", 0, "f64", "TOTALORDER")),
            _example(["6x90xi8", "6x90xf32"], _BY_TWO),
            _example(["11xi8", "11xf32"], _BY_TWO),
            _example(["1xi64"], _compare("r", "LT", 0, "i64", "SIGNED")),
            _example(["3x0xi16"], _compare("r", "LT", 0, "i16", "SIGNED")),
        ),
    ),
    OpDef(
        "chlo.top_k",
        OpKind.SORT,
        _top_k_reference,
        _top_k,
        _supports_top_k,
        (
            _top_k_example("3x9xf32", 2),
            _top_k_example("700xi32", 3),
            _top_k_example("2x3x5xf16", 5),
            _top_k_example("4x600xf64", 1),
            _top_k_example("4x70xui8", 7),
        ),
    ),
)
