"""A program with all its floats in f64: the referee where two ways to compute it in fewer bits
differ."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo

from hlo_mlc.expr import dtypes
from hlo_mlc.expr.dtypes import TensorType
from hlo_mlc.frontend.types import read_literal, read_type, write_literal, write_type
from hlo_mlc.frontend.walking import operations
from hlo_mlc.ops.library_calls import target_in_f64

_WIDE = {
    **dict.fromkeys(dtypes.FLOATS_OF_A_BYTE, dtypes.F64),
    dtypes.F16: dtypes.F64,
    dtypes.BF16: dtypes.F64,
    dtypes.F32: dtypes.F64,
    dtypes.C64: dtypes.C128,
}
# What is about the bits of floats, or done by a function for one type, is done in that type.
_OF_ONE_TYPE = frozenset(
    ("stablehlo.bitcast_convert", "stablehlo.reduce_precision", "stablehlo.rng")
)
_TARGET = "call_target_name"


def widened(module: ir.Module) -> ir.Module | None:
    """A copy of a module that takes, computes and returns f64 in place of all floats of fewer bits;
    None where somebody else's code calls parts of it."""
    with module.context, ir.Location.unknown():
        copy = ir.Module.parse(module.operation.get_asm(enable_debug_info=False))
        found = operations(copy)
        if any("called_computations" in operation.attributes for operation in found):
            return None
        kept = [
            (operation, [value.type for value in (*operation.operands, *operation.results)])
            for operation in found
            if operation.name in _OF_ONE_TYPE or calls_of_one_type([operation])
        ]
        for operation in found:
            _widen(operation)
        for operation, types in kept:
            _keep(operation, types)
        copy.operation.verify()
        return copy


def calls_of_one_type(found: Iterable[ir.Operation]) -> list[str]:
    """The targets of the custom calls among these operations that f64 has no others for."""
    targets = (
        ir.StringAttr(operation.attributes[_TARGET]).value
        for operation in found
        if operation.name == "stablehlo.custom_call"
    )
    return [target for target in targets if not target_in_f64(target)]


def widened_array(array: np.ndarray) -> np.ndarray:
    """An argument or a result of the module, as its wide copy has it."""
    for narrow, wide in _WIDE.items():
        if array.dtype == narrow.numpy:
            return array.astype(wide.numpy)
    return array


def _wide(mlir_type: ir.Type) -> ir.Type:
    """The type itself, or what takes its place."""
    tensor = read_type(mlir_type, "d")
    if tensor is None or tensor.dtype not in _WIDE:
        return mlir_type
    return write_type(TensorType(tensor.shape, _WIDE[tensor.dtype]))


def _widen(operation: ir.Operation) -> None:
    if operation.name == "stablehlo.constant":
        _widen_constant(operation)
    if operation.name == "func.func":
        old = ir.FunctionType(ir.TypeAttr(operation.attributes["function_type"]).value)
        operation.attributes["function_type"] = ir.TypeAttr.get(
            ir.FunctionType.get(list(map(_wide, old.inputs)), list(map(_wide, old.results)))
        )
    if _TARGET in operation.attributes:
        wide = target_in_f64(ir.StringAttr(operation.attributes[_TARGET]).value)
        if wide:
            operation.attributes[_TARGET] = ir.StringAttr.get(wide)
    if "algorithm" in operation.attributes:  # of a dot product: the types that it is computed in
        del operation.attributes["algorithm"]
    arguments = (a for region in operation.regions for block in region for a in block.arguments)
    for value in (*operation.results, *arguments):
        value.set_type(_wide(value.type))


def _widen_constant(constant: ir.Operation) -> None:
    tensor = read_type(constant.results[0].type, "d")
    if tensor is None or tensor.dtype not in _WIDE:
        return
    literal, wide = read_literal(constant, tensor), _WIDE[tensor.dtype]
    if literal.size and not any(literal.strides):  # one element, which stays one
        value = np.broadcast_to(literal.flat[0].astype(wide.numpy), literal.shape)
    else:
        value = literal.astype(wide.numpy)
    constant.attributes["value"] = write_literal(value, wide)


def _keep(operation: ir.Operation, types: list[ir.Type]) -> None:
    """Gives an operation the types of its operands and results back, between conversions."""
    number = len(operation.operands)
    for n, (operand, kept) in enumerate(zip(operation.operands, types[:number], strict=True)):
        if operand.type != kept:
            with ir.InsertionPoint(operation):
                operation.operands[n] = stablehlo.convert(kept, operand)
    for result, kept in zip(operation.results, types[number:], strict=True):
        wide = result.type
        if wide != kept:
            with ir.InsertionPoint.after(operation):
                converted = stablehlo.convert(wide, result)
            result.replace_all_uses_except(converted, [converted.owner.operation])
            result.set_type(kept)
