"""Where a scalar op is written: the block, the target, the types and the number of lanes."""

from __future__ import annotations

import functools
from typing import NamedTuple

from hlo_mlc.codegen.cpu import conversions, types
from hlo_mlc.codegen.cpu.block import Block
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
        return types.spread(
            types.literal(value, self.dtype), types.register_type(self.dtype), self.lanes
        )

    def op(self, instruction: str, x: str, y: str | None = None) -> str:
        """An instruction on one or two operands of the site's type: `add`, `icmp eq`, …"""
        head = _head(instruction, self.dtype, self.lanes)
        if y is None:
            return self.block.define(head, x, lanes=self.lanes)
        return self.block.define(head, x, ", ", y, lanes=self.lanes)

    def call(self, intrinsic: str, x: str, *others: str) -> str:
        """An intrinsic with operands and result of the site's type."""
        head, between = _call(intrinsic, self.dtype, self.lanes)
        pieces = [head, x]
        for y in others:
            pieces += (between, y)
        return self.block.define(*pieces, ")", lanes=self.lanes)

    def magnitude(self, x: str) -> str:
        """Of a signed integer: its absolute value, the smallest one being its own."""
        head, _ = _call("abs", self.dtype, self.lanes)
        return self.block.define(head, x, ", i1 false)", lanes=self.lanes)

    def select(self, condition: str, on_true: str, on_false: str, tags: str = "") -> str:
        head, between = _choice(self.dtype, self.lanes)
        return self.block.define(
            head, condition, between, on_true, between, on_false, tags, lanes=self.lanes
        )

    def as_integer(self) -> Site:
        """The same site for the bits of its floats."""
        return self._replace(dtype=conversions.BITS[self.dtype.bits])

    def bits(self, x: str) -> str:
        return self.block.cast("bitcast", self.type, x, self.as_integer().type, self.lanes)

    def from_bits(self, x: str) -> str:
        return self.block.cast("bitcast", self.as_integer().type, x, self.type, self.lanes)


@functools.cache
def _head(instruction: str, dtype: DType, lanes: int) -> str:
    """What stands before the operands of an instruction."""
    return f"{instruction} {types.registers(dtype, lanes)} "


@functools.cache
def _call(intrinsic: str, dtype: DType, lanes: int) -> tuple[str, str]:
    """What stands before the operands of an intrinsic, and between them."""
    kind, suffix = types.registers(dtype, lanes), types.suffix(types.register_type(dtype), lanes)
    return f"call {kind} @llvm.{intrinsic}.{suffix}({kind} ", f", {kind} "


@functools.cache
def _choice(dtype: DType, lanes: int) -> tuple[str, str]:
    """What stands before the condition of a choice, and before what is chosen from."""
    return f"select {types.vector('i1', lanes)} ", f", {types.registers(dtype, lanes)} "
