"""How CUDA C++ spells scalar ops: one function or table row an op.

Ops that are not here are expanded by codegen/legalize, the same way as for CPUs.  Basic arithmetic
is what IEEE 754 says: code is compiled without contraction, and divisions and roots are rounded
correctly, which is CUDA's default.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from hlo_mlc.codegen.clike.spelling import Binding, cast, choice, infix, operand
from hlo_mlc.codegen.cuda import types
from hlo_mlc.expr import index
from hlo_mlc.expr.core import Apply, Const
from hlo_mlc.expr.dtypes import (
    BF16,
    BOOL,
    F16,
    F32,
    F64,
    I8,
    I16,
    I32,
    I64,
    INDEX,
    U8,
    U16,
    U32,
    U64,
    DType,
)
from hlo_mlc.expr.ops import OPS
from hlo_mlc.support.errors import CodegenError

_INFIX = {"add": "+", "sub": "-", "mul": "*", "div": "/", "and": "&", "or": "|", "xor": "^"}
_COMPARISONS = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}
# i1 values: the ring of add and mul is the lattice of or and and.
_BOOL = {"add": "|", "sub": "^", "mul": "&", "and": "&", "or": "|", "xor": "^", "max": "|",
         "min": "&"}
# f32, f64
_FUNCTIONS = {"sqrt": ("__fsqrt_rn", "sqrt"), "fma": ("__fmaf_rn", "fma"),
              "abs": ("fabsf", "fabs"), "floor": ("floorf", "floor"), "ceil": ("ceilf", "ceil"),
              "trunc": ("truncf", "trunc"), "round_even": ("rintf", "rint"),
              "max": ("mlc_max", "mlc_max"), "min": ("mlc_min", "mlc_min"),
              "is_finite": ("mlc_is_finite", "mlc_is_finite")}
_BITS = {(F32, I32): "__float_as_int", (F32, U32): "__float_as_uint",
         (I32, F32): "__int_as_float", (U32, F32): "__uint_as_float",
         (F64, I64): "__double_as_longlong", (I64, F64): "__longlong_as_double"}


def spell(node: Apply, args: Sequence[str]) -> str:
    """`op(args)` as a C++ expression.

    Raises: CodegenError for an op that codegen/legalize should have expanded.
    """
    op, dtype = node.op, node.args[0].dtype
    if op in ("select", "select_unlikely"):
        return choice(args[0], _as(node, 1, args), _as(node, 2, args))
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
        return _on_float(node, args)
    spelling = _INTEGER.get(op) if dtype.is_integer else None
    if spelling is None:
        raise CodegenError(
            f"Expected a scalar op that a GPU has, or one of its expansions, got {op} "
            f"({OPS[op].arity} operands) on {dtype}: codegen/legalize has not expanded it")
    return spelling(node, args)


def _as(node: Apply, position: int, args: Sequence[str]) -> str:
    """An operand of the node's own type: indices may be narrower."""
    part, text = node.args[position], args[position]
    if node.dtype is INDEX and types.type_of(part) != types.type_of(node):
        return cast(types.type_of(node), text)
    return text


def _on_index(node: Apply, args: Sequence[str]) -> str:
    """Index arithmetic does not overflow in the type of its result."""
    op, kind = node.op, types.type_of(node)
    wide = any(types.type_of(a) == "long long" for a in node.args)
    if op in ("min", "max"):
        if wide and kind == "int":
            first, second = (cast("long long", a) for a in args)
            return f"(int){op}({first}, {second})"
        return f"{op}({_as(node, 0, args)}, {_as(node, 1, args)})"
    if op in ("floordiv", "floormod"):
        name, symbol = ("mlc_floor_divide", "/") if op == "floordiv" else ("mlc_floor_modulo", "%")
        inner = types.type_of(node.args[0])
        text = infix(args[0], symbol, args[1]) if index.bounds(node.args[0])[0] >= 0 \
            else f"{name}<{inner}>({args[0]}, {args[1]})"
        return cast("int", text) if wide and kind == "int" else text
    if wide and kind == "int":
        return cast("int", infix(args[0], _INFIX[op], args[1]))
    return infix(_as(node, 0, args), _INFIX[op], _as(node, 1, args))


def _on_float(node: Apply, args: Sequence[str]) -> str:
    op = node.op
    if op == "neg":
        return f"-{operand(args[0], Binding.ATOM)}"
    if op in _FUNCTIONS:
        return f"{_FUNCTIONS[op][node.args[0].dtype is F64]}({', '.join(args)})"
    if op in ("add", "sub", "mul", "div"):
        return infix(args[0], _INFIX[op], args[1])
    raise CodegenError(
        f"Expected a scalar op that a GPU has, or one of its expansions, got {op} on "
        f"{node.args[0].dtype}: codegen/legalize has not expanded it")


# Integers: signed overflow has no meaning in C++, so arithmetic is done without sign.

Spelling = Callable[[Apply, Sequence[str]], str]


def _wrapping(node: Apply, args: Sequence[str]) -> str:
    dtype, symbol = node.dtype, _INFIX[node.op]
    if dtype in (U32, U64):
        return infix(args[0], symbol, args[1])
    first, second = (cast(types.unsigned_type(dtype), a) for a in args)
    return cast(types.element_type(dtype), infix(first, symbol, second))


def _logic(node: Apply, args: Sequence[str]) -> str:
    text = infix(args[0], _INFIX[node.op], args[1])
    return text if node.dtype.bits >= 32 else cast(types.element_type(node.dtype), text)


def _negate(node: Apply, args: Sequence[str]) -> str:
    return cast(types.element_type(node.dtype),
                infix("0", "-", cast(types.unsigned_type(node.dtype), args[0])))


def _absolute(node: Apply, args: Sequence[str]) -> str:
    return choice(infix(args[0], "<", "0"), _negate(node, args), args[0]) \
        if node.dtype.is_signed else args[0]


def _call(name: str) -> Spelling:
    def spelled(node: Apply, args: Sequence[str]) -> str:
        kind = types.element_type(node.dtype)
        return f"{name}<{kind}>({', '.join(args)})"

    return spelled


_SIGNED = {8: I8, 16: I16, 32: I32, 64: I64}
_UNSIGNED = {8: U8, 16: U16, 32: U32, 64: U64}


def _shift(name: str, kinds: dict[int, DType]) -> Spelling:
    """`kinds`: as what type the value is shifted."""
    def spelled(node: Apply, args: Sequence[str]) -> str:
        dtype, shifted = node.dtype, kinds[node.dtype.bits]
        amount = args[1] if dtype.bits >= 32 else infix(args[1], "&", str((1 << dtype.bits) - 1))
        if dtype not in (U32, U64):
            amount = cast(types.unsigned_type(dtype), amount)
        kind = types.element_type(shifted)
        if shifted is dtype:
            return f"{name}<{kind}>({args[0]}, {amount})"
        return cast(types.element_type(dtype), f"{name}<{kind}>({cast(kind, args[0])}, {amount})")

    return spelled


def _choose(symbol: str) -> Spelling:
    return lambda node, args: choice(infix(args[0], symbol, args[1]), args[0], args[1])


def _not(node: Apply, args: Sequence[str]) -> str:
    return cast(types.element_type(node.dtype), f"~{operand(args[0])}")


def _unsigned(node: Apply, x: str) -> str:
    """The bits of a value, in a type that is not promoted."""
    text = cast(types.unsigned_type(node.dtype), x)
    return text if node.dtype.bits >= 32 else infix(text, "&", f"{(1 << node.dtype.bits) - 1}u")


def _count_ones(node: Apply, args: Sequence[str]) -> str:
    name = "__popcll" if node.dtype.bits == 64 else "__popc"
    return cast(types.element_type(node.dtype), f"{name}({_unsigned(node, args[0])})")


def _count_leading_zeros(node: Apply, args: Sequence[str]) -> str:
    kind, x = types.element_type(node.dtype), _unsigned(node, args[0])
    if node.dtype.bits == 64:
        return cast(kind, f"__clzll({cast('long long', x)})")
    return cast(kind, infix(f"__clz({cast('int', x)})", "-", str(32 - node.dtype.bits)))


def _multiply_high(node: Apply, args: Sequence[str]) -> str:
    if node.dtype in (U32, U64):
        return f"{'__umulhi' if node.dtype is U32 else '__umul64hi'}({args[0]}, {args[1]})"
    first, second = (cast("unsigned", a) for a in args)
    shifted = infix(infix(first, "*", second), ">>", str(node.dtype.bits))
    return cast(types.element_type(node.dtype), shifted)


_INTEGER: dict[str, Spelling] = {
    "add": _wrapping, "sub": _wrapping, "mul": _wrapping, "and": _logic, "or": _logic,
    "xor": _logic, "neg": _negate, "abs": _absolute, "not": _not, "div": _call("mlc_divide"),
    "rem": _call("mlc_remainder"), "max": _choose(">"), "min": _choose("<"),
    "shl": _shift("mlc_shift_left", _UNSIGNED),
    "shr_logical": _shift("mlc_shift_right_logical", _UNSIGNED),
    "shr_arithmetic": _shift("mlc_shift_right_arithmetic", _SIGNED), "popcnt": _count_ones,
    "clz": _count_leading_zeros, "mul_high": _multiply_high,
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
        lowest, highest = (types.literal(Const(v, to)) for v in _range(to))
        kind = types.element_type(to)
        return f"mlc_saturate<{kind}, {types.element_type(source)}>({x}, {lowest}, {highest})"
    return cast(types.type_of(node), x)


def _range(dtype: DType) -> tuple[int, int]:
    if dtype.is_signed:
        return -(1 << dtype.bits - 1), (1 << dtype.bits - 1) - 1
    return 0, (1 << dtype.bits) - 1


def _bitcast(node: Apply, x: str) -> str:
    source, to = node.args[0].dtype, node.dtype
    if (source, to) in _BITS:
        return f"{_BITS[source, to]}({x})"
    if source is F64:
        return cast(types.element_type(to), f"__double_as_longlong({x})")
    if to is F64:
        return f"__longlong_as_double({cast('long long', x)})"
    return cast(types.element_type(to), x)
