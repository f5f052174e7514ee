"""Index arithmetic: i64 for what is the same in all lanes; vectors in i32 where the values fit.

Index values never overflow, so sums and products may be computed in fewer bits than their
operands have, and everything that depends on unrolled variables only is a number here.
"""

from __future__ import annotations

from collections.abc import Sequence

from hlo_mlc.codegen.cpu import conversions, types
from hlo_mlc.codegen.cpu.function import Function, Value
from hlo_mlc.expr import index
from hlo_mlc.expr.core import Apply, Expr
from hlo_mlc.expr.dtypes import BOOL, I32, I64, INDEX
from hlo_mlc.support.errors import CodegenError
from hlo_mlc.target.cpu import CpuTarget

_WIDE, _SMALL = "i64", "i32"
_COMPARISONS = {"eq": "eq", "ne": "ne", "lt": "slt", "le": "sle", "gt": "sgt", "ge": "sge"}
_FOLDS = {
    "add": int.__add__,
    "sub": int.__sub__,
    "mul": int.__mul__,
    "floordiv": int.__floordiv__,
    "floormod": int.__mod__,
    "min": min,
    "max": max,
    "neg": int.__neg__,
    "eq": int.__eq__,
    "ne": int.__ne__,
    "lt": int.__lt__,
    "le": int.__le__,
    "gt": int.__gt__,
    "ge": int.__ge__,
}


def fits_small(node: Expr) -> bool:
    """Whether an index value needs no more than 32 bits."""
    if isinstance(node, Apply) and node.op in ("convert", "convert_in_range"):
        source = node.args[0].dtype
        if source.kind is BOOL.kind or (source.is_integer and source is not INDEX):
            return source.bits < 32 or source is I32
    if isinstance(node, Apply) and node.op in ("min", "max") and all(map(fits_small, node.args)):
        return True  # clamped from both sides, although the first side alone is no bound
    low, high = index.bounds(node)
    return low >= -(1 << 31) and high < 1 << 31


def resize(function: Function, value: Value, element: str) -> Value:
    """An index value in another width."""
    if value.element == element:
        return value
    if types.is_literal(value.text) and not value.lanes:
        return value._replace(element=element)
    key = ("resize", value.text, element)
    known = function.memo.get(key)
    if known is None:
        instruction = "trunc" if element == _SMALL else "sext"
        text = function.at(value.depth).cast(
            instruction, value.type, value.text, types.vector(element, value.lanes), value.lanes
        )
        known = function.remember(key, value._replace(text=text, element=element))
    return known


def apply(function: Function, target: CpuTarget, node: Apply, args: Sequence[Value]) -> Value:
    """An op with an index among its operands or as its result."""
    depth = max(a.depth for a in args)
    lanes = max(a.lanes for a in args)
    reads = frozenset().union(*(a.reads for a in args))
    block = function.at(depth)
    if node.op in ("convert", "convert_in_range"):
        if node.args[0].dtype is INDEX:
            text = _from_index(function, target, node, args[0], depth)
            return Value(text, types.register_type(node.dtype), lanes, depth, reads)
        element = _SMALL if lanes and fits_small(node) else _WIDE
        text = _to_index(function, target, node, args[0], element, depth)
        return Value(text, element, lanes, depth, reads)
    if node.op in _FOLDS and not lanes and all(types.is_literal(a.text) for a in args):
        folded = _FOLDS[node.op](*(int(a.text) for a in args))
        return Value(
            types.literal(folded, node.dtype), types.register_type(node.dtype), 0, depth, reads
        )
    if node.op in _COMPARISONS:
        left, right, element = _same_width(function, args, node.args if lanes else ())
        whole = types.vector(element, lanes)
        text = block.define(
            f"icmp {_COMPARISONS[node.op]} {whole} ",
            function.widen(left, lanes),
            ", ",
            function.widen(right, lanes),
            lanes=lanes,
        )
        return Value(text, "i1", lanes, depth, reads)
    element = _SMALL if lanes and fits_small(node) else _WIDE
    if node.op in ("select", "select_unlikely"):
        return _select(function, args, element, lanes, depth, reads)
    if node.op in ("floordiv", "floormod", "min", "max"):  # their operands must be whole
        *args, _ = _same_width(function, args)
        work = args[0].element if element == _SMALL else element
    else:
        work = element
    texts = [function.widen(resize(function, a, work), lanes) for a in args]
    text = _arithmetic(function, node, texts, work, lanes, depth)
    return resize(function, Value(text, work, lanes, depth, reads), element)


def _same_width(
    function: Function, args: Sequence[Value], nodes: Sequence[Expr] = ()
) -> tuple[Value, Value, str]:
    """Two values in one width: the smaller one if both have it, or are `nodes` that fit in it."""
    small = all(
        a.element == _SMALL
        or (types.is_literal(a.text) and not a.lanes and -(1 << 31) <= int(a.text) < 1 << 31)
        for a in args
    ) or (nodes and all(map(fits_small, nodes)))
    element = _SMALL if small else _WIDE
    left, right = (resize(function, a, element) for a in args)
    return left, right, element


def _select(
    function: Function,
    args: Sequence[Value],
    element: str,
    lanes: int,
    depth: int,
    reads: frozenset[int],
) -> Value:
    condition, *arms = args
    whole = types.vector(element, lanes)
    chosen, other = (function.widen(resize(function, a, element), lanes) for a in arms)
    text = function.at(depth).select(whole, function.widen(condition, lanes), chosen, other, lanes)
    return Value(text, element, lanes, depth, reads)


def _arithmetic(
    function: Function, node: Apply, args: Sequence[str], element: str, lanes: int, depth: int
) -> str:
    define = function.at(depth).define
    whole = types.vector(element, lanes)
    match node.op:
        case "add" | "mul":
            # Addresses of lanes that are switched off may leave the range: no `nsw` there.
            flags = "" if lanes else " nsw"
            return define(f"{node.op}{flags} {whole} ", args[0], ", ", args[1], lanes=lanes)
        case "min" | "max":
            return define(
                f"call {whole} @llvm.s{node.op}.{types.suffix(element, lanes)}({whole} ",
                args[0],
                f", {whole} ",
                args[1],
                ")",
                lanes=lanes,
            )
        case "floordiv":
            return _floor_divide(function, node, args[0], element, lanes, depth)
        case "floormod":
            return _floor_modulo(function, node, args[0], element, lanes, depth)
    raise CodegenError(f"{node.op} has no meaning for an index")


def _floor_divide(
    function: Function, node: Apply, x: str, element: str, lanes: int, depth: int
) -> str:
    define = function.at(depth).define
    whole = types.vector(element, lanes)
    divisor = node.args[1].value
    by = types.spread(str(divisor), element, lanes)
    if index.bounds(node.args[0])[0] >= 0:
        return define(f"udiv {whole} ", x, ", ", by, lanes=lanes)
    if divisor & (divisor - 1) == 0:
        shift = types.spread(str(divisor.bit_length() - 1), element, lanes)
        return define(f"ashr {whole} ", x, f", {shift}", lanes=lanes)
    zero = types.spread("0", element, lanes)
    negative = define(f"icmp slt {whole} ", x, ", ", zero, lanes=lanes)
    lowered = define(
        f"sub {whole} ", x, f", {types.spread(str(divisor - 1), element, lanes)}", lanes=lanes
    )
    start = define(
        f"select {types.vector('i1', lanes)} ",
        negative,
        f", {whole} ",
        lowered,
        f", {whole} ",
        x,
        lanes=lanes,
    )
    return define(f"sdiv {whole} ", start, ", ", by, lanes=lanes)


def _floor_modulo(
    function: Function, node: Apply, x: str, element: str, lanes: int, depth: int
) -> str:
    define = function.at(depth).define
    whole = types.vector(element, lanes)
    divisor = node.args[1].value
    if divisor & (divisor - 1) == 0:
        return define(
            f"and {whole} ", x, f", {types.spread(str(divisor - 1), element, lanes)}", lanes=lanes
        )
    by = types.spread(str(divisor), element, lanes)
    if index.bounds(node.args[0])[0] >= 0:
        return define(f"urem {whole} ", x, ", ", by, lanes=lanes)
    quotient = _floor_divide(function, node, x, element, lanes, depth)
    product = define(f"mul {whole} ", quotient, ", ", by, lanes=lanes)
    return define(f"sub {whole} ", x, ", ", product, lanes=lanes)


def _from_index(
    function: Function, target: CpuTarget, node: Apply, value: Value, depth: int
) -> str:
    source = I32 if value.element == _SMALL else I64
    return conversions.convert(
        function.at(depth), target, value.text, source, node.dtype, value.lanes
    )


def _to_index(
    function: Function, target: CpuTarget, node: Apply, value: Value, element: str, depth: int
) -> str:
    to = I32 if element == _SMALL else I64
    source, block = node.args[0].dtype, function.at(depth)
    if node.op == "convert_in_range" and source.is_float:
        return conversions.truncate_in_range(block, value.text, source, to, value.lanes)
    return conversions.convert(block, target, value.text, source, to, value.lanes)
