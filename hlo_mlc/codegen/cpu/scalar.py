"""How the CPU spells scalar ops: one function or table row an op, for scalars and vectors alike.

Ops that are not here (exp, sin, pow, … of f32; all arithmetic of f16 and bf16) are expanded by
codegen/legalize into those that are.  Operands arrive as text of the result's number of lanes.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence

from hlo_mlc.codegen.cpu import conversions, division, types
from hlo_mlc.codegen.cpu.site import Site
from hlo_mlc.expr.dtypes import BOOL, F32, DType, Kind
from hlo_mlc.expr.ops import OPS
from hlo_mlc.support.errors import CodegenError

Spelling = Callable[..., str]

_FLOAT = {"add": "fadd", "sub": "fsub", "mul": "fmul", "div": "fdiv", "neg": "fneg", "rem": "frem"}
_INTEGER = {op: op for op in ("add", "sub", "mul", "and", "or", "xor")}
# i1 values: the ring of add and mul is the lattice of or and and.
_BOOL = {
    "add": "or",
    "sub": "xor",
    "mul": "and",
    "and": "and",
    "or": "or",
    "xor": "xor",
    "max": "or",
    "min": "and",
}
_FLOAT_COMPARISONS = {"eq": "oeq", "ne": "une", "lt": "olt", "le": "ole", "gt": "ogt", "ge": "oge"}
_SIGNED_COMPARISONS = {"eq": "eq", "ne": "ne", "lt": "slt", "le": "sle", "gt": "sgt", "ge": "sge"}
_UNSIGNED_COMPARISONS = {"eq": "eq", "ne": "ne", "lt": "ult", "le": "ule", "gt": "ugt", "ge": "uge"}
_FLOAT_INTRINSICS = {"abs": "fabs", "sqrt": "sqrt"}
# What it depends on is data, so that a branch would be taken back again and again.
_UNPREDICTABLE = ", !unpredictable !0"


@functools.cache
def _instruction(op: str, dtype: DType) -> str | None:
    """The LLVM instruction that an op is, where it is one."""
    if dtype.kind is Kind.BOOL:
        return _BOOL.get(op) or _compare("icmp", _UNSIGNED_COMPARISONS, op)
    if dtype.is_float:
        return _FLOAT.get(op) or _compare("fcmp", _FLOAT_COMPARISONS, op)
    comparisons = _SIGNED_COMPARISONS if dtype.is_signed else _UNSIGNED_COMPARISONS
    return _INTEGER.get(op) or _compare("icmp", comparisons, op)


def _compare(instruction: str, predicates: dict[str, str], op: str) -> str | None:
    return f"{instruction} {predicates[op]}" if op in predicates else None


def spell(op: str, site: Site, args: Sequence[str]) -> str:
    """Write `op(args)`; returns the operand that holds the result.

    Raises: CodegenError for an op that codegen/legalize should have expanded.
    """
    if site.dtype.is_narrow_float and op not in _MOVES:
        raise CodegenError(
            f"Expected {op} on {site.dtype} to be computed in f32: such ops are expanded by "
            f"codegen/legalize, which has not seen this one"
        )
    instruction = _instruction(op, site.dtype)
    if instruction is not None:
        return site.op(instruction, *args)
    if op in _FLOAT_INTRINSICS and site.dtype.is_float:
        return site.call(_FLOAT_INTRINSICS[op], *args)
    spelling = _SPELLINGS.get(op)
    if spelling is None:
        raise CodegenError(
            f"Expected a scalar op that a CPU has, or one of its expansions, got {op} "
            f"({OPS[op].arity} operands) on {site.dtype}: codegen/legalize has not expanded it"
        )
    return spelling(site, *args)


# Choice and bits


def _select(site: Site, condition: str, on_true: str, on_false: str) -> str:
    return site._replace(dtype=site.result).select(condition, on_true, on_false)


def _not(site: Site, x: str) -> str:
    return site.op("xor", x, site.literal(True if site.dtype is BOOL else -1))


def _shift(instruction: str) -> Spelling:
    def spelled(site: Site, x: str, amount: str) -> str:
        width = site.literal(site.dtype.bits)
        if instruction == "ashr":  # an over-long shift leaves the sign, as the longest one does
            longest = site.literal(site.dtype.bits - 1)
            return site.op("ashr", x, site.call("umin", amount, longest))
        shifted = site.op(instruction, x, amount)
        return site.select(site.op("icmp ult", amount, width), shifted, site.literal(0))

    return spelled


def _count_leading_zeros(site: Site, x: str) -> str:
    return site.block.define(
        f"call {site.type} @llvm.ctlz.{site.suffix}({site.type} ",
        x,
        ", i1 false)",
        lanes=site.lanes,
    )


def _multiply_high(site: Site, x: str, y: str) -> str:
    bits = site.dtype.bits
    narrow, wide = site.type, types.vector(f"i{2 * bits}", site.lanes)
    define = site.block.define
    x, y = (define(f"zext {narrow} ", v, f" to {wide}", lanes=site.lanes) for v in (x, y))
    product = define(f"mul {wide} ", x, ", ", y, lanes=site.lanes)
    high = define(
        f"lshr {wide} ",
        product,
        f", {types.spread(str(bits), f'i{2 * bits}', site.lanes)}",
        lanes=site.lanes,
    )
    return define(f"trunc {wide} ", high, f" to {narrow}", lanes=site.lanes)


# Integers


def _negate(site: Site, x: str) -> str:
    return site.op("sub", site.literal(0), x)


def _absolute(site: Site, x: str) -> str:
    return site.magnitude(x) if site.dtype.is_signed else x


# Floats


def _extremum(op: str) -> Spelling:
    """NaN if an operand is; -0 is less than +0."""
    beats = "ogt" if op == "max" else "olt"

    def spelled(site: Site, x: str, y: str) -> str:
        if not site.dtype.is_float:
            order = "s" if site.dtype.is_signed else "u"
            if site.lanes:
                return site.call(order + op, x, y)
            # Of single numbers LLVM makes a branch in some loops, unless it is told how that ends.
            better = site.op(f"icmp {order}{beats[1:]}", x, y)
            return site.select(better, x, y, _UNPREDICTABLE)
        if types.is_literal(y):
            if y == site.literal(math.nan):
                return y
            # One comparison and one choice, which keep x where that is NaN; on x86 together one
            # instruction unless y is the zero that wins against the other one.
            winning_zero = site.literal(0.0 if op == "max" else -0.0)
            comparison = beats.replace("t", "e") if y == winning_zero else beats
            return site.select(site.op(f"fcmp {comparison}", y, x), y, x)
        if op == "max" and _has_range(site):
            largest = _range_maximum(site, x, y)
            return site.select(site.op("fcmp uno", x, y), site.op("fadd", x, y), largest)
        # Each way round x86 gives y where one is NaN or both are equal, or x: no comparison.
        one = site.select(site.op(f"fcmp {beats}", x, y), x, y)
        other = site.select(site.op(f"fcmp {beats}", y, x), y, x)
        if op == "min":  # or keeps a NaN, and the sign of a zero
            return _combined(site, "or", one, other)
        both, unordered = _combined(site, "and", one, other), site.op("fcmp uno", x, y)
        if site.target.vector_bytes == 64:  # an addition under a mask
            return site.select(unordered, site.op("fadd", x, y), both)
        integers, flags = site.as_integer(), types.vector("i1", site.lanes)
        nan = site.block.cast("sext", flags, unordered, integers.type, site.lanes)
        return site.from_bits(integers.op("or", site.bits(both), nan))

    return spelled


def _combined(site: Site, op: str, x: str, y: str) -> str:
    """A logical operation on the bits of two floats."""
    return site.from_bits(site.as_integer().op(op, site.bits(x), site.bits(y)))


def _has_range(site: Site) -> bool:
    """Whether the target has AVX-512's VRANGE for this type: full vectors of f32 or f64."""
    target = site.target
    return target.is_x86 and target.vector_bytes == 64 and site.dtype.bits * site.lanes == 512


def _range_maximum(site: Site, x: str, y: str) -> str:
    """The larger of two numbers, +0 being larger than -0, in one instruction.

    Source: Intel SDM, VRANGEPS: operation 01 (maximum), sign 01 (that of the result).
    """
    kind, whole = "ps" if site.dtype is F32 else "pd", site.type
    return site.block.define(
        f"call {whole} @llvm.x86.avx512.mask.range.{kind}.512({whole} ",
        x,
        f", {whole} ",
        y,
        f", i32 5, {whole} zeroinitializer, i{site.lanes} -1, i32 4)",
        lanes=site.lanes,
    )


def _ldexp(site: Site, x: str, exponent: str) -> str:
    """VSCALEF.

    Source: Intel SDM, VSCALEFPS: x * 2**floor(exponent), rounded once.
    """

    def scaled(register: Site, x: str, exponent: str) -> str:
        size, whole = register.lanes * register.dtype.bits, register.type
        mask, mode = f"i{max(8, register.lanes)} -1", ", i32 4" if size == 512 else ""
        kind = "ps" if register.dtype is F32 else "pd"
        return register.block.define(
            f"call {whole} @llvm.x86.avx512.mask.scalef.{kind}.{size}({whole} ",
            x,
            f", {whole} ",
            exponent,
            f", {whole} zeroinitializer, {mask}{mode})",
            lanes=register.lanes,
        )

    return _by_registers(site, (x, exponent), scaled)


def pick(site: Site, x: str, entries: Sequence[str]) -> str:
    """VPERMPS: of 16 literals, those that the last four bits of each lane say."""
    table = f"<{', '.join(f'float {entry}' for entry in entries)}>"

    def picked(register: Site, x: str) -> str:
        whole, numbers = register.type, register.as_integer().type
        return register.block.define(
            f"call {whole} @llvm.x86.avx512.permvar.sf.512({whole} ",
            table,
            f", {numbers} ",
            register.bits(x),
            ")",
            lanes=register.lanes,
        )

    return _by_registers(site, (x,), picked, smallest=512)


def _by_registers(
    site: Site, values: Sequence[str], write: Callable[..., str], smallest: int = 128
) -> str:
    """What `write` makes of values in the smallest register that holds the lanes, or in several
    large ones."""
    define, bits = site.block.define, site.dtype.bits
    if site.lanes * bits > 512:
        half = site._replace(lanes=site.lanes // 2)
        parts = [
            _by_registers(
                half,
                [_resized(site, v, range(first, first + half.lanes)) for v in values],
                write,
                smallest,
            )
            for first in (0, half.lanes)
        ]
        return site.block.shuffle(
            types.register_type(site.dtype), half.lanes, *parts, range(site.lanes)
        )
    size = next(size for size in (128, 256, 512) if max(site.lanes * bits, smallest) <= size)
    register = site._replace(lanes=size // bits)
    if not site.lanes:
        values = [
            define(
                f"insertelement {register.type} zeroinitializer, {site.type} ",
                v,
                ", i64 0",
                lanes=register.lanes,
            )
            for v in values
        ]
        return define(f"extractelement {register.type} ", write(register, *values), ", i64 0")
    if site.lanes == register.lanes:
        return write(register, *values)
    lanes = [min(n, site.lanes) for n in range(register.lanes)]
    result = write(register, *(_resized(site, v, lanes) for v in values))
    return _resized(register, result, range(site.lanes))


def _resized(site: Site, value: str, lanes: Sequence[int]) -> str:
    """These lanes of a vector; those from `site.lanes` on are zeros."""
    return site.block.shuffle(
        types.register_type(site.dtype), site.lanes, value, "zeroinitializer", lanes
    )


def _fma(site: Site, x: str, y: str, z: str) -> str:
    if site.target.has_fma:
        return site.call("fma", x, y, z)
    return site.op("fadd", site.op("fmul", x, y), z)


def _is_finite(site: Site, x: str) -> str:
    """Below infinity once the sign is gone."""
    integers = site.as_integer()
    pattern = conversions.INFINITY_BITS[site.dtype]
    magnitude = integers.op(
        "and",
        site.bits(x) if site.dtype.bits >= 32 else x,
        integers.literal((1 << (site.dtype.bits - 1)) - 1),
    )
    return integers.op("icmp ult", magnitude, integers.literal(pattern))


def _round_even(site: Site, x: str) -> str:
    if site.target.has_rounding:
        return site.call("roundeven", x)
    # Floats from 2**(precision - 1) up are integers, and adding that makes the rest integers.
    magic = site.literal(2.0**23 if site.dtype is F32 else 2.0**52)
    magnitude = site.call("fabs", x)
    rounded = site.op("fsub", site.op("fadd", magnitude, magic), magic)
    small = site.op("fcmp olt", magnitude, magic)
    return site.select(small, site.call("copysign", rounded, x), x)


def _floor(site: Site, x: str) -> str:
    if site.target.has_rounding:
        return site.call("floor", x)
    rounded = _round_even(site, x)
    lower = site.op("fsub", rounded, site.literal(1.0))
    return site.select(site.op("fcmp ogt", rounded, x), lower, rounded)


def _ceil(site: Site, x: str) -> str:
    if site.target.has_rounding:
        return site.call("ceil", x)
    rounded = _round_even(site, x)
    higher = site.op("fadd", rounded, site.literal(1.0))
    result = site.select(site.op("fcmp olt", rounded, x), higher, rounded)
    return site.call("copysign", result, x)


def _trunc(site: Site, x: str) -> str:
    if site.target.has_rounding:
        return site.call("trunc", x)
    return site.call("copysign", _floor(site, site.call("fabs", x)), x)


def _convert(site: Site, x: str) -> str:
    return conversions.convert(site.block, site.target, x, site.dtype, site.result, site.lanes)


def _convert_in_range(site: Site, x: str) -> str:
    if not (site.dtype.is_float and site.result.is_integer):
        return _convert(site, x)
    return conversions.truncate_in_range(site.block, x, site.dtype, site.result, site.lanes)


def _bitcast(site: Site, x: str) -> str:
    to = types.vector(types.register_type(site.result), site.lanes)
    return x if to == site.type else site.block.cast("bitcast", site.type, x, to, site.lanes)


# Ops on f16 and bf16 that need no arithmetic in them.
_MOVES = frozenset(("convert", "bitcast", "is_finite"))

_SPELLINGS: dict[str, Spelling] = {
    "select": _select,
    "select_unlikely": _select,
    "not": _not,
    "shl": _shift("shl"),
    "shr_logical": _shift("lshr"),
    "shr_arithmetic": _shift("ashr"),
    "popcnt": lambda site, x: site.call("ctpop", x),
    "clz": _count_leading_zeros,
    "mul_high": _multiply_high,
    "div": division.divide,
    "rem": division.remainder,
    "neg": _negate,
    "abs": _absolute,
    "max": _extremum("max"),
    "min": _extremum("min"),
    "fma": _fma,
    "ldexp": _ldexp,
    "is_finite": _is_finite,
    "round_even": _round_even,
    "floor": _floor,
    "ceil": _ceil,
    "trunc": _trunc,
    "convert": _convert,
    "convert_in_range": _convert_in_range,
    "bitcast": _bitcast,
}
