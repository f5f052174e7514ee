"""A function of a StableHLO module: taken out with all that it calls, and put back."""

from __future__ import annotations

from collections.abc import Mapping

from jax.interpreters import mlir
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import func

from hlo_mlc.frontend.importer import DONATED
from hlo_mlc.frontend.walking import operations

MAIN = "main"
"""The name of the function that XLA runs."""

_MESH = "sdy.mesh"


def extract(module: ir.Module, symbols: ir.SymbolTable, name: str) -> ir.Module:
    """A module of its own, in the same context, with copies of @name and of all that it calls.

    @name is public there. Meshes come along, since shardings inside functions refer to them.
    """
    with module.context, ir.Location.unknown():
        extracted = ir.Module.create()
    end = ir.InsertionPoint(extracted.body)
    for operation in module.body.operations:
        if operation.operation.name == _MESH:
            operation.operation.clone(ip=end)
    pending, seen = [name], {name}
    while pending:
        symbol = pending.pop()
        copy = symbols[symbol].operation.clone(ip=end)
        callees = [callee for callee in _callees(copy) if callee not in seen]
        pending += callees
        seen.update(callees)
    with module.context:
        function_named(extracted, name).attributes["sym_visibility"] = ir.StringAttr.get("public")
    return extracted


def donate(module: ir.Module, name: str, donations: Mapping[int, int]) -> None:
    """Marks parameters of @name, and no others, as donated for results of the same type."""
    function = function_named(module, name)
    inputs, results = function.type.inputs, function.type.results
    described = (
        list(function.attributes["arg_attrs"])
        if "arg_attrs" in function.attributes
        else [{}] * len(inputs)
    )
    with module.context:
        number = ir.IntegerType.get_signless(32)
        for parameter, attributes in enumerate(described):
            new = {one: attributes[one] for one in _names(attributes) if one != DONATED}
            result = donations.get(parameter, len(results))
            if result < len(results) and inputs[parameter] == results[result]:
                new[DONATED] = ir.IntegerAttr.get(number, result)
            described[parameter] = ir.DictAttr.get(new)
        function.attributes["arg_attrs"] = ir.ArrayAttr.get(described)


def write_in(module: ir.Module, name: str, constants: Mapping[int, ir.Operation]) -> None:
    """Has @name compute with constants in place of parameters, which stay, unused."""
    body = function_named(module, name).regions[0].blocks[0]
    for parameter, constant in constants.items():
        copy = constant.clone(ip=ir.InsertionPoint.at_block_begin(body))
        body.arguments[parameter].replace_all_uses_with(copy.results[0])


def _names(attributes: ir.DictAttr | dict[str, ir.Attribute]) -> list[str]:
    return [one if isinstance(one, str) else one.name for one in attributes]


def rename_to_main(module: ir.Module, name: str) -> None:
    """Gives @name the name @main, and a @main that is another function some other name."""
    if name == MAIN:
        return
    symbols = ir.SymbolTable(module.operation)
    if MAIN in symbols:
        free = MAIN
        while free in symbols:
            free += "_"
        rename(module, MAIN, free)
    rename(module, name, MAIN)


def standalone(module: ir.Module, name: str) -> ir.Module:
    """A copy of @name that XLA can run by itself: as @main, with nothing donated or sharded."""
    copy = extract(module, ir.SymbolTable(module.operation), name)
    rename_to_main(copy, name)
    attributes = function_named(copy, MAIN).attributes
    for described in ("arg_attrs", "res_attrs"):
        if described in attributes:
            del attributes[described]
    return copy


def splice(module: ir.Module, symbols: ir.SymbolTable, name: str, compiled: ir.Module) -> None:
    """Makes @name of the module call what is @name in `compiled`. Consumes `compiled`.

    The function itself stays, with a body of one call: JAX remembers it and may call it again.
    Where anything fails, the module is as it was.
    """
    for operation in list(compiled.body.operations):
        if operation.operation.name == _MESH:
            operation.operation.erase()
    donate(compiled, name, {})  # which only says something about the function that XLA runs
    rename_to_main(compiled, name)
    function = symbols[name]
    body = function.regions[0].blocks[0]
    *computing, terminator = body.operations
    known = len(module.body.operations)
    try:
        target = mlir.merge_mlir_modules(module, f"mlc_{name}", compiled, dst_symtab=symbols)
        with ir.InsertionPoint.at_block_begin(body), function.location:
            call = func.CallOp(
                function.type.results, ir.FlatSymbolRefAttr.get(target), list(body.arguments)
            )
    except BaseException:
        for operation in reversed(list(module.body.operations)[known:]):
            symbols.erase(operation)
        raise
    for number, result in enumerate(call.results):
        terminator.operands[number] = result
    for operation in reversed(computing):
        operation.operation.erase()


def _callees(function: ir.Operation) -> tuple[str, ...]:
    """The functions that the operations of a function refer to, each once, in the order that every
    process has them in."""
    names: list[str] = []
    for operation in operations(function):
        attributes = operation.attributes
        match operation.name:
            case "func.call":
                names.append(attributes["callee"].value)
            case "stablehlo.composite":
                names.append(attributes["decomposition"].value)
            case "stablehlo.custom_call" if "called_computations" in attributes:
                names.extend(symbol.value for symbol in attributes["called_computations"])
    return tuple(dict.fromkeys(names))


def rename(module: ir.Module, name: str, to: str) -> None:
    function = function_named(module, name)
    with module.context:
        ir.SymbolTable.replace_all_symbol_uses(name, to, module.operation)
        ir.SymbolTable.set_symbol_name(function, to)


def function_named(module: ir.Module, name: str) -> func.FuncOp:
    """The function @name of the module."""
    return ir.SymbolTable(module.operation)[name]
