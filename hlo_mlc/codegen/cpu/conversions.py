"""Changes of type, with the results of expr/ops.py: wrapping, saturating, rounding to even."""

from __future__ import annotations

from hlo_mlc.codegen.cpu import types
from hlo_mlc.codegen.cpu.block import Block
from hlo_mlc.expr.dtypes import BF16, BOOL, F16, F32, F64, I32, U8, U16, U32, U64, DType
from hlo_mlc.target.cpu import CpuTarget

BITS = {8: U8, 16: U16, 32: U32, 64: U64}
"""The integer that holds a float's bits."""

INFINITY_BITS = {F16: 0x7C00, BF16: 0x7F80, F32: 0x7F800000, F64: 0x7FF0000000000000}


def convert(block: Block, target: CpuTarget, x: str, source: DType, to: DType, lanes: int) -> str:
    """`x` of type `source` as a value of type `to`."""
    if source is to:
        return x
    if to is BOOL:
        return _to_bool(block, x, source, lanes)
    if to.is_narrow_float:
        return _to_narrow(block, target, x, source, to, lanes)
    if source.is_narrow_float:
        wide = widen_f16(block, target, x, lanes) if source is F16 else widen_bf16(block, x, lanes)
        return convert(block, target, wide, F32, to, lanes)
    from_type, to_type = _type(source, lanes), _type(to, lanes)
    if source is BOOL and to.is_float:
        one, zero = _literal(1.0, to, lanes), _literal(0.0, to, lanes)
        return block.define(
            f"select {from_type} ", x, f", {to_type} ", one, f", {to_type} ", zero, lanes=lanes
        )
    if source.is_float and to.is_float:
        instruction = "fpext" if to.bits > source.bits else "fptrunc"
    elif to.is_float:
        instruction = "sitofp" if source.is_signed else "uitofp"
    elif source.is_float:
        return _saturate(block, x, source, to, lanes)
    elif to.bits == source.bits:
        return x
    elif to.bits < source.bits:
        instruction = "trunc"
    else:
        instruction = "sext" if source.is_signed else "zext"
    return block.cast(instruction, from_type, x, to_type, lanes)


def truncate_in_range(block: Block, x: str, source: DType, to: DType, lanes: int) -> str:
    """A float known to fit, rounded toward zero: the machine's own conversion."""
    instruction = "fptosi" if to.is_signed else "fptoui"
    return block.cast(instruction, _type(source, lanes), x, _type(to, lanes), lanes)


def _type(dtype: DType, lanes: int) -> str:
    return types.vector(types.register_type(dtype), lanes)


def _literal(value: int | float, dtype: DType, lanes: int) -> str:
    return types.spread(types.literal(value, dtype), types.register_type(dtype), lanes)


def _to_bool(block: Block, x: str, source: DType, lanes: int) -> str:
    kind = _type(source, lanes)
    if source.is_narrow_float:
        magnitude = block.define(f"and {kind} ", x, ", ", _integer(0x7FFF, 16, lanes), lanes=lanes)
        return block.define(
            f"icmp ne {kind} ", magnitude, ", ", _integer(0, 16, lanes), lanes=lanes
        )
    compare = "fcmp une" if source.is_float else "icmp ne"
    return block.define(f"{compare} {kind} ", x, ", ", _literal(0, source, lanes), lanes=lanes)


def _saturate(block: Block, x: str, source: DType, to: DType, lanes: int) -> str:
    """Float to integer: out-of-range values give the nearest integer, NaN gives 0.

    The machine's own conversion between two choices; LLVM's intrinsic for it goes lane by lane.
    """
    lowest = -(1 << to.bits - 1) if to.is_signed else 0
    beyond = 1 << (to.bits - 1 if to.is_signed else to.bits)
    kind, whole = _type(source, lanes), _type(to, lanes)

    def compare(relation: str, y: str, limit: str) -> str:
        return block.define(f"fcmp {relation} {kind} ", y, ", ", limit, lanes=lanes)

    low, end, zero = (_literal(float(v), source, lanes) for v in (lowest, beyond, 0))
    raised = block.select(kind, compare("ogt", x, low), x, low, lanes)  # NaN becomes the lowest
    below = compare("olt", raised, end)
    inside = block.select(kind, below, raised, zero, lanes)
    if to.bits < 32:
        wide = block.cast("fptosi", kind, inside, _type(I32, lanes), lanes)
        number = block.cast("trunc", _type(I32, lanes), wide, whole, lanes)
    else:
        instruction = "fptosi" if to.is_signed else "fptoui"
        number = block.cast(instruction, kind, inside, whole, lanes)
    number = block.select(whole, below, number, _literal(beyond - 1, to, lanes), lanes)
    nan = compare("uno", x, x)
    return block.select(whole, nan, _literal(0, to, lanes), number, lanes)


# Narrow floats.  Source of the bit manipulations: IEEE 754 formats; F. Giesen,
# "Half to float done quic", for the subnormal f16.


def _integer(value: int, bits: int, lanes: int) -> str:
    return types.spread(str(value), f"i{bits}", lanes)


class _Words:
    """Writing arithmetic on the bits of f32."""

    def __init__(self, block: Block, lanes: int) -> None:
        self.block, self.lanes = block, lanes
        self.words, self.floats = types.vector("i32", lanes), types.vector("float", lanes)

    def op(self, instruction: str, x: str, y: int | str) -> str:
        operand = _integer(y, 32, self.lanes) if isinstance(y, int) else y
        return self.block.define(f"{instruction} {self.words} ", x, ", ", operand, lanes=self.lanes)

    def select(self, condition: str, on_true: int | str, on_false: int | str) -> str:
        chosen, other = (
            _integer(x, 32, self.lanes) if isinstance(x, int) else x for x in (on_true, on_false)
        )
        return self.block.select(self.words, condition, chosen, other, self.lanes)

    def bits(self, x: str) -> str:
        return self.block.cast("bitcast", self.floats, x, self.words, self.lanes)

    def float(self, x: str) -> str:
        return self.block.cast("bitcast", self.words, x, self.floats, self.lanes)

    def float_op(self, instruction: str, x: str, value: float) -> str:
        operand = _literal(value, F32, self.lanes)
        return self.block.define(
            f"{instruction} {self.floats} ", x, ", ", operand, lanes=self.lanes
        )

    def from_halves(self, x: str) -> str:
        return self.block.cast("zext", types.vector("i16", self.lanes), x, self.words, self.lanes)

    def to_halves(self, x: str) -> str:
        return self.block.cast("trunc", self.words, x, types.vector("i16", self.lanes), self.lanes)


def widen_bf16(block: Block, x: str, lanes: int) -> str:
    """bf16 to f32: the upper half of the bits."""
    words = _Words(block, lanes)
    return words.float(words.op("shl", words.from_halves(x), 16))


def widen_f16(block: Block, target: CpuTarget, x: str, lanes: int) -> str:
    """f16 to f32, exact."""
    if target.has_f16c:
        half = block.cast(
            "bitcast", types.vector("i16", lanes), x, types.vector("half", lanes), lanes
        )
        return block.cast(
            "fpext", types.vector("half", lanes), half, types.vector("float", lanes), lanes
        )
    words = _Words(block, lanes)
    half = words.from_halves(x)
    sign = words.op("shl", words.op("and", half, 0x8000), 16)
    magnitude = words.op("and", half, 0x7FFF)
    shifted = words.op("shl", magnitude, 13)
    normal = words.op("add", shifted, 112 << 23)  # the difference of the exponents' biases
    special = words.op("add", shifted, 224 << 23)
    # A subnormal: put under the leading one of 2**-14 and take that away again.
    scaled = words.float(words.op("add", shifted, 113 << 23))
    subnormal = words.bits(words.float_op("fsub", scaled, 2.0**-14))
    result = words.select(words.op("icmp ugt", magnitude, 0x7BFF), special, normal)
    result = words.select(words.op("icmp ult", magnitude, 0x0400), subnormal, result)
    return words.float(words.op("or", result, sign))


def _to_narrow(
    block: Block, target: CpuTarget, x: str, source: DType, to: DType, lanes: int
) -> str:
    if source is F64 and to is F16:
        single = _to_odd(block, x, lanes)
    else:  # through f32 as NumPy goes, so that some f64 and large integers round twice
        single = convert(block, target, x, source, F32, lanes)
    if to is F16:
        return _narrow_f16(block, target, single, lanes)
    return narrow_bf16(block, single, lanes)


def _to_odd(block: Block, x: str, lanes: int) -> str:
    """f64 to f32, inexact results made odd, so that rounding once more gives the right result."""
    doubles, singles = types.vector("double", lanes), types.vector("float", lanes)
    words = _Words(block, lanes)
    nearest = block.cast("fptrunc", doubles, x, singles, lanes)
    back = block.cast("fpext", singles, nearest, doubles, lanes)
    bits = words.bits(nearest)
    head = f"call {doubles} @llvm.fabs.{types.suffix('double', lanes)}({doubles} "
    magnitude, of_x = (block.define(head, v, ")", lanes=lanes) for v in (back, x))
    above = block.define(f"fcmp ogt {doubles} ", magnitude, ", ", of_x, lanes=lanes)
    inexact = block.define(f"fcmp one {doubles} ", back, ", ", x, lanes=lanes)
    toward_zero = words.select(above, words.op("sub", bits, 1), bits)
    return words.float(words.select(inexact, words.op("or", toward_zero, 1), bits))


def narrow_bf16(block: Block, x: str, lanes: int, looks_for_nans: bool = True) -> str:
    """f32 to bf16, to nearest, ties to even; what that makes of some NaNs is no NaN unless it looks
    for them (nans.py).

    AVX512-BF16 has an instruction for it, which flushes subnormals: not the same on all levels.
    """
    words = _Words(block, lanes)
    bits = words.bits(x)
    odd = words.op("and", words.op("lshr", bits, 16), 1)
    rounded = words.op("add", words.op("add", bits, 0x7FFF), odd)
    if looks_for_nans:
        quiet = words.op("or", bits, 0x400000)
        nan = block.define(f"fcmp uno {words.floats} ", x, ", ", x, lanes=lanes)
        rounded = words.select(nan, quiet, rounded)
    return words.to_halves(words.op("lshr", rounded, 16))


def _narrow_f16(block: Block, target: CpuTarget, x: str, lanes: int) -> str:
    """f32 to f16, to nearest, ties to even."""
    if target.has_f16c:
        half = block.cast(
            "fptrunc", types.vector("float", lanes), x, types.vector("half", lanes), lanes
        )
        return block.cast(
            "bitcast", types.vector("half", lanes), half, types.vector("i16", lanes), lanes
        )
    words = _Words(block, lanes)
    bits = words.bits(x)
    sign = words.op("lshr", words.op("and", bits, -0x80000000), 16)
    magnitude = words.op("and", bits, 0x7FFFFFFF)
    odd = words.op("and", words.op("lshr", magnitude, 13), 1)
    rebased = words.op("add", magnitude, 0xFFF - (112 << 23))
    normal = words.op("lshr", words.op("add", rebased, odd), 13)
    # A subnormal: adding 0.5 rounds at the place of its last bit.
    shifted = words.float_op("fadd", words.float(magnitude), 0.5)
    subnormal = words.op("sub", words.bits(shifted), 126 << 23)
    nan = words.op("icmp ugt", magnitude, 0x7F800000)
    infinite = words.select(nan, 0x7E00, 0x7C00)
    result = words.select(words.op("icmp ult", magnitude, 0x38800000), subnormal, normal)
    result = words.select(words.op("icmp uge", magnitude, 0x47800000), infinite, result)
    return words.to_halves(words.op("or", result, sign))
