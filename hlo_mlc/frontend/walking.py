"""The operations of MLIR modules, those inside of others included."""

from __future__ import annotations

from jaxlib.mlir import ir


def operations(
    within: ir.Module | ir.Operation | ir.OpView | ir.Block, *names: str
) -> list[ir.Operation]:
    """All of them, or those of these names, in the order of the text but for those that hold
    others, which come after these."""
    found: list[ir.Operation] = []

    def visit(operation: ir.Operation) -> ir.WalkResult:
        if not names or operation.name in names:
            found.append(operation)
        return ir.WalkResult.ADVANCE

    for one in within.operations if isinstance(within, ir.Block) else [within]:
        one.operation.walk(visit)
    return found
