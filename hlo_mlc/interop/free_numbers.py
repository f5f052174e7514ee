"""Floating-point numbers that follow from the sizes of arguments, such as the 150 of a mean.

    sum / convert(150)    ->    sum / n    with a parameter n, which is 150 in the end

While a program is compiled they are parameters: it is the same then for 150 rows and for 128, by
which would be multiplied, or for 1 and 2, of which nothing would be left.
"""

from __future__ import annotations

from collections.abc import Sequence

from jaxlib.mlir import ir

from hlo_mlc.frontend.walking import operations
from hlo_mlc.interop.extraction import function_named

_CALL, _NAME = "stablehlo.custom_call", "hlo_mlc.free_number"
_CONVERT, _CONSTANT = "stablehlo.convert", "stablehlo.constant"


def mark_numbers(module: ir.Module) -> None:
    """Marks in all functions what may follow from sizes, before these are known."""
    for conversion in filter(_may_follow_from_sizes, operations(module, _CONVERT)):
        number = conversion.results[0]
        readers = [(use.owner, use.operand_number) for use in number.uses]
        with module.context, conversion.location, ir.InsertionPoint(conversion):
            marker = ir.Operation.create(
                _CALL,
                [number.type],
                [number],
                {
                    "call_target_name": ir.StringAttr.get(_NAME),
                    "has_side_effect": ir.BoolAttr.get(False),
                },
            )
            marker.move_after(conversion)
        for reader, position in readers:
            reader.operands[position] = marker.results[0]


def without_marks(module: ir.Module) -> None:
    """Takes the marks out of a module."""
    for marker in filter(_is_mark, operations(module, _CALL)):
        marker.results[0].replace_all_uses_with(marker.operands[0])
        marker.erase()


def free_numbers(module: ir.Module, entry: str) -> list[ir.Operation]:
    """Makes parameters of @entry, its last ones, of what was marked and turned out to be constant;
    the operations that they stand for, which stay where they are."""
    function = function_named(module, entry)
    (body,) = function.regions[0].blocks
    numbers = []
    for marker in filter(_is_mark, operations(function, _CALL)):
        conversion = _maker(marker.operands[0])
        if conversion is not None and _is_known(conversion):
            parameter = body.add_argument(marker.results[0].type, marker.location)
            marker.results[0].replace_all_uses_with(parameter)
            marker.erase()
            numbers.append(conversion)
    without_marks(module)
    _set_parameters(function, [argument.type for argument in body.arguments])
    return numbers


def write_numbers(module: ir.Module, entry: str, numbers: Sequence[ir.Operation]) -> None:
    """Writes the numbers in again, in place of the last parameters of @entry."""
    function = function_named(module, entry)
    (body,) = function.regions[0].blocks
    first = len(body.arguments) - len(numbers)
    for position in reversed(range(len(numbers))):
        conversion = numbers[position]
        begin = ir.InsertionPoint.at_block_begin(body)
        converted = conversion.clone(ip=begin)
        constant = _maker(conversion.operands[0]).clone(ip=ir.InsertionPoint.at_block_begin(body))
        converted.operands[0] = constant.results[0]
        body.arguments[first + position].replace_all_uses_with(converted.results[0])
        body.erase_argument(first + position)
    _set_parameters(function, [argument.type for argument in body.arguments])


def _may_follow_from_sizes(operation: ir.Operation) -> bool:
    (given,), (made,) = (
        [ir.RankedTensorType(value.type) for value in values]
        for values in (operation.operands, operation.results)
    )
    return (
        given.rank == 0
        and isinstance(given.element_type, ir.IntegerType)
        and isinstance(made.element_type, ir.FloatType)
        and not _is_constant(operation.operands[0])
    )


def _maker(value: ir.Value) -> ir.Operation | None:
    """The operation that a value comes from; None for what a block is given."""
    return None if isinstance(value.owner, ir.Block) else value.owner.operation


def _is_constant(value: ir.Value) -> bool:
    maker = _maker(value)
    return maker is not None and maker.name == _CONSTANT


def _is_known(operation: ir.Operation) -> bool:
    return operation.name == _CONVERT and _is_constant(operation.operands[0])


def _is_mark(operation: ir.Operation) -> bool:
    return ir.StringAttr(operation.attributes["call_target_name"]).value == _NAME


def _set_parameters(function: ir.Operation, types: Sequence[ir.Type]) -> None:
    attributes = function.attributes
    with function.context:
        results = ir.FunctionType(ir.TypeAttr(attributes["function_type"]).value).results
        attributes["function_type"] = ir.TypeAttr.get(ir.FunctionType.get(list(types), results))
        if "arg_attrs" in attributes:
            described = [*attributes["arg_attrs"]][: len(types)]
            described += [ir.DictAttr.get({})] * (len(types) - len(described))
            attributes["arg_attrs"] = ir.ArrayAttr.get(described)
