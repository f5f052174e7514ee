"""How C spells scalar ops: one function or table row an op.

Ops that are not here are expanded by codegen/legalize, as for a processor without fused
multiply-add.  Signed overflow has no meaning in C, so integers are computed without sign.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from hlo_mlc.codegen.c import types
from hlo_mlc.codegen.clike.dialect import Dialect
from hlo_mlc.codegen.clike.spelling import Binding, cast, choice, infix, operand
from hlo_mlc.expr import index
from hlo_mlc.expr.core import Apply
from hlo_mlc.expr.dtypes import BF16, BOOL, F16, F32, F64, INDEX, U32, U64, DType
from hlo_mlc.expr.ops import OPS
from hlo_mlc.support.errors import CodegenError

_INFIX = {"add": "+", "sub": "-", "mul": "*", "div": "/", "and": "&", "or": "|", "xor": "^"}
_COMPARISONS = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}
# i1 values: the ring of add and mul is the lattice of or and and.
_BOOL = {"add": "|", "sub": "^", "mul": "&", "and": "&", "or": "|", "xor": "^", "max": "|",
         "min": "&"}
# f32, f64
_FUNCTIONS = {"sqrt": ("sqrtf", "sqrt"), "abs": ("fabsf", "fabs"),
              "fma": ("mlc_multiply_add_f32", "mlc_multiply_add_f64"),
              "floor": ("floorf", "floor"), "ceil": ("ceilf", "ceil"),
              "trunc": ("truncf", "trunc"), "round_even": ("rintf", "rint"),
              "max": ("mlc_max_f32", "mlc_max_f64"), "min": ("mlc_min_f32", "mlc_min_f64"),
              "is_finite": ("isfinite", "isfinite")}


def spell(node: Apply, args: Sequence[str]) -> str:
    """`op(args)` as an expression of C.

    Raises: CodegenError for an op that codegen/legalize should have expanded.
    """
    op, dtype = node.op, node.args[0].dtype
    if op in ("select", "select_unlikely"):
        return choice(args[0], args[1], args[2])
    if op in _COMPARISONS:
        return infix(args[0], _COMPARISONS[op], args[1])
    if op in ("convert", "convert_in_range"):
        return _convert(node, args[0])
    if op == "bitcast":
        return _bitcast(node, args[0])
    if dtype is INDEX:
        return _on_index(node, args)
    if dtype is BOOL:
        return f"!{operand(args[0])}" if op == "not" else infix(args[0], _BOOL[op], args[1])
    if dtype in (F32, F64):
        if op == "neg":
            return f"-{operand(args[0], Binding.ATOM)}"
        if op in _FUNCTIONS:
            return f"{_FUNCTIONS[op][dtype is F64]}({', '.join(args)})"
        if op in ("add", "sub", "mul", "div"):
            return infix(args[0], _INFIX[op], args[1])
    spelling = _INTEGER.get(op) if dtype.is_integer else None
    if spelling is None:
        raise CodegenError(
            f"Expected a scalar op that C has, or one of its expansions, got {op} "
            f"({OPS[op].arity} operands) on {dtype}: codegen/legalize has not expanded it")
    return spelling(node, args)


# Places: their arithmetic does not overflow in the type of its result.

_PLACES = {"min": "mlc_smaller", "max": "mlc_larger", "floordiv": "mlc_floor_divide",
           "floormod": "mlc_floor_modulo"}


def _on_index(node: Apply, args: Sequence[str]) -> str:
    op, kind = node.op, types.type_of(node)
    if op in ("floordiv", "floormod") and index.bounds(node.args[0])[0] >= 0:
        text = infix(args[0], "/" if op == "floordiv" else "%", args[1])
        return cast("int", text) if kind == "int" and _is_wide(node) else text
    if op in _PLACES:
        text = f"{_PLACES[op]}({', '.join(args)})"
        return cast("int", text) if kind == "int" else text
    if kind == "int":
        text = infix(args[0], _INFIX[op], args[1])
        return cast("int", text) if _is_wide(node) else text
    return infix(cast(kind, args[0]) if types.type_of(node.args[0]) == "int" else args[0],
                 _INFIX[op], args[1])


def _is_wide(node: Apply) -> bool:
    return any(types.type_of(a) == "long long" for a in node.args)


# Integers

Spelling = Callable[[Apply, Sequence[str]], str]


def _wrapping(node: Apply, args: Sequence[str]) -> str:
    dtype, symbol = node.dtype, _INFIX[node.op]
    if dtype in (U32, U64):
        return infix(args[0], symbol, args[1])
    first, second = (cast(types.wrapping_type(dtype), a) for a in args)
    return cast(types.element_type(dtype), infix(first, symbol, second))


def _logic(node: Apply, args: Sequence[str]) -> str:
    text = infix(args[0], _INFIX[node.op], args[1])
    return text if node.dtype.bits >= 32 else cast(types.element_type(node.dtype), text)


def _negate(node: Apply, args: Sequence[str]) -> str:
    return cast(types.element_type(node.dtype),
                infix("0", "-", cast(types.wrapping_type(node.dtype), args[0])))


def _absolute(node: Apply, args: Sequence[str]) -> str:
    return choice(infix(args[0], "<", "0"), _negate(node, args), args[0]) \
        if node.dtype.is_signed else args[0]


def _signed_or_not(name: str) -> Spelling:
    def spelled(node: Apply, args: Sequence[str]) -> str:
        sign = "signed" if node.dtype.is_signed else "unsigned"
        return cast(types.element_type(node.dtype), f"{name}_{sign}({', '.join(args)})")

    return spelled


def _shift(name: str, is_signed: bool) -> Spelling:
    def spelled(node: Apply, args: Sequence[str]) -> str:
        unsigned, bits = types.unsigned_type(node.dtype), node.dtype.bits
        x = cast(unsigned[1:] if is_signed else unsigned, args[0])
        return cast(types.element_type(node.dtype),
                    f"{name}({x}, {cast(unsigned, args[1])}, {bits})")

    return spelled


def _choose(symbol: str) -> Spelling:
    return lambda node, args: choice(infix(args[0], symbol, args[1]), args[0], args[1])


def _not(node: Apply, args: Sequence[str]) -> str:
    return cast(types.element_type(node.dtype), f"~{operand(args[0])}")


def _count_ones(node: Apply, args: Sequence[str]) -> str:
    return cast(types.element_type(node.dtype),
                f"__builtin_popcountll({cast(types.unsigned_type(node.dtype), args[0])})")


def _count_leading_zeros(node: Apply, args: Sequence[str]) -> str:
    x = cast(types.unsigned_type(node.dtype), args[0])
    return cast(types.element_type(node.dtype), f"mlc_leading_zeros({x}, {node.dtype.bits})")


def _multiply_high(node: Apply, args: Sequence[str]) -> str:
    if node.dtype in (U32, U64):
        return f"mlc_multiply_high_u{node.dtype.bits}({args[0]}, {args[1]})"
    first, second = (cast("uint32_t", a) for a in args)
    shifted = infix(infix(first, "*", second), ">>", str(node.dtype.bits))
    return cast(types.element_type(node.dtype), shifted)


_INTEGER: Mapping[str, Spelling] = {
    "add": _wrapping, "sub": _wrapping, "mul": _wrapping, "and": _logic, "or": _logic,
    "xor": _logic, "neg": _negate, "abs": _absolute, "not": _not,
    "div": _signed_or_not("mlc_divide"), "rem": _signed_or_not("mlc_remainder"),
    "max": _choose(">"), "min": _choose("<"), "shl": _shift("mlc_shift_left", False),
    "shr_logical": _shift("mlc_shift_right_logical", False),
    "shr_arithmetic": _shift("mlc_shift_right_arithmetic", True),
    "popcnt": _count_ones, "clz": _count_leading_zeros, "mul_high": _multiply_high,
}


# Changes of type

def _convert(node: Apply, x: str) -> str:
    source, to = node.args[0].dtype, node.dtype
    if to is BOOL:
        return infix(x, "!=", "0")
    if to in (F16, BF16):
        return f"mlc_to_{to}({x})"
    if source in (F16, BF16):
        return f"mlc_from_{source}({x})"
    if source.is_float and to.is_integer and node.op == "convert":
        return cast(types.element_type(to), _saturated(to, x))
    return cast(types.type_of(node), x)


def _saturated(to: DType, x: str) -> str:
    if to.is_signed:
        return f"mlc_saturate_signed({x}, INT{to.bits}_MIN, INT{to.bits}_MAX)"
    return f"mlc_saturate_unsigned({x}, UINT{to.bits}_MAX)"


def _bitcast(node: Apply, x: str) -> str:
    source, to = node.args[0].dtype, node.dtype
    if source in (F32, F64) and to not in (F32, F64):
        return cast(types.element_type(to), f"mlc_bits_of_{source}({x})")
    if to in (F32, F64) and source not in (F32, F64):
        return f"mlc_{to}_of_bits({cast(types.unsigned_type(to), x)})"
    return cast(types.element_type(to), x)


C = Dialect(types.element_type, types.literal, spell,
            fused={F32: "mlc_multiply_add_f32", F64: "mlc_multiply_add_f64"}, has_fma=False)
