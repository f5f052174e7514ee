"""Which outer values the regions of an MLIR operation use, and where."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from jaxlib.mlir import ir


@dataclass(frozen=True, slots=True, eq=False)
class CapturedUse:
    """Operand `index` of `operation`, inside a region, is `value`, defined outside the region."""

    operation: ir.Operation
    index: int
    value: ir.Value


def captured_uses(operation: ir.Operation) -> list[CapturedUse]:
    """All uses of outer values in the regions of `operation`, each op before its own regions."""
    defined: set[ir.Value] = set()
    inner = list(_inside(operation, defined))
    return [
        CapturedUse(user, index, value)
        for user in inner
        for index, value in enumerate(user.operands)
        if value not in defined
    ]


def _inside(operation: ir.Operation, defined: set[ir.Value]) -> Iterator[ir.Operation]:
    for region in operation.regions:
        for block in region.blocks:
            defined.update(block.arguments)
            for op in block.operations:
                inner = op.operation
                defined.update(inner.results)
                yield inner
                yield from _inside(inner, defined)
