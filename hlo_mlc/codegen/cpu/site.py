"""Where a scalar op is written: the block, the target, the types and the number of lanes."""

from __future__ import annotations

from typing import NamedTuple

from hlo_mlc.codegen.cpu import conversions, types
from hlo_mlc.codegen.cpu.function import Block
from hlo_mlc.expr.dtypes import DType
from hlo_mlc.target.cpu import CpuTarget


class Site(NamedTuple):
    """Where and for which type an op is written: `dtype` is that of the first operand."""

    block: Block
    target: CpuTarget
    dtype: DType
    result: DType
    lanes: int

    @property
    def type(self) -> str:
        return types.registers(self.dtype, self.lanes)

    @property
    def suffix(self) -> str:
        return types.suffix(types.register_type(self.dtype), self.lanes)

    def literal(self, value: int | float) -> str:
        return types.spread(types.literal(value, self.dtype),
                            types.register_type(self.dtype), self.lanes)

    def op(self, instruction: str, *args: str) -> str:
        """An instruction on operands of the site's type: `add`, `icmp eq`, …"""
        return self.block.define(f"{instruction} {self.type} {', '.join(args)}")

    def call(self, intrinsic: str, *args: str) -> str:
        """An intrinsic with operands and result of the site's type."""
        operands = ", ".join(f"{self.type} {a}" for a in args)
        return self.block.define(f"call {self.type} @llvm.{intrinsic}.{self.suffix}({operands})")

    def select(self, condition: str, on_true: str, on_false: str) -> str:
        return self.block.define(f"select {types.vector('i1', self.lanes)} {condition}, "
                                 f"{self.type} {on_true}, {self.type} {on_false}")

    def as_integer(self) -> Site:
        """The same site for the bits of its floats."""
        return self._replace(dtype=conversions.BITS[self.dtype.bits])

    def bits(self, x: str) -> str:
        return self.block.define(f"bitcast {self.type} {x} to {self.as_integer().type}")

    def from_bits(self, x: str) -> str:
        return self.block.define(f"bitcast {self.as_integer().type} {x} to {self.type}")
