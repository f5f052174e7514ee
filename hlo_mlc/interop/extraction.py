"""A function of a StableHLO module: taken out with all that it calls, compiled, put back."""

from __future__ import annotations

import warnings

from jax.interpreters import mlir
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import func

from hlo_mlc.compiler import compile_module
from hlo_mlc.report import Report
from hlo_mlc.runtime import library
from hlo_mlc.support.errors import FrontendError
from hlo_mlc.support.options import Options

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
        callees = _callees(copy) - seen
        pending += callees
        seen |= callees
    with module.context:
        _function(extracted, name).attributes["sym_visibility"] = ir.StringAttr.get("public")
    return extracted


def rename_to_main(module: ir.Module, name: str) -> None:
    """Gives @name the name @main, and a @main that is another function some other name."""
    if name == MAIN:
        return
    symbols = ir.SymbolTable(module.operation)
    if MAIN in symbols:
        free = MAIN
        while free in symbols:
            free += "_"
        _rename(module, MAIN, free)
    _rename(module, name, MAIN)


def compile_extracted(
    module: ir.Module, options: Options, *, entry: str
) -> tuple[ir.Module | None, Report]:
    """The compiled module and the report on it; None if XLA is to get the original.

    A fault of the compiler is a warning, and the program stays with XLA, unless `choose="ours"`
    asks for our kernels: then it is raised.
    """
    if options.choose == "xla":
        return None, Report.untouched('choose="xla" asks for it')
    try:
        expected = _function(module, entry).type
        compiled = compile_module(module, options, entry=entry)
        if compiled.module is module:
            return None, compiled.report
        got = _function(compiled.module, entry).type
        if got != expected:
            raise FrontendError(f"compilation made @{entry} a {got}, expected {expected}")
        compiled.module.operation.verify()
        library.register_with_jax()
    except Exception as error:
        if options.choose == "ours":
            raise
        reason = f"the compiler failed with {type(error).__name__}: {error}"
        warnings.warn(
            f"hlo_mlc leaves {entry} to XLA: {reason}", RuntimeWarning, stacklevel=2
        )
        return None, Report.untouched(reason)
    return compiled.module, compiled.report


def splice(
    module: ir.Module, symbols: ir.SymbolTable, name: str, compiled: ir.Module
) -> None:
    """Makes @name of the module call what is @name in `compiled`. Consumes `compiled`.

    The function itself stays, with a body of one call: JAX remembers it and may call it again.
    """
    for operation in list(compiled.body.operations):
        if operation.operation.name == _MESH:
            operation.operation.erase()
    rename_to_main(compiled, name)
    target = mlir.merge_mlir_modules(module, f"mlc_{name}", compiled, dst_symtab=symbols)
    function = symbols[name]
    body = function.regions[0].blocks[0]
    for operation in reversed(list(body.operations)):
        operation.operation.erase()
    with ir.InsertionPoint(body), function.location:
        call = func.CallOp(
            function.type.results, ir.FlatSymbolRefAttr.get(target), list(body.arguments)
        )
        func.ReturnOp(call.results)


def _callees(function: ir.Operation) -> set[str]:
    """The functions that the operations of a function refer to."""
    names: set[str] = set()

    def visit(operation: ir.Operation) -> ir.WalkResult:
        attributes = operation.attributes
        match operation.name:
            case "func.call":
                names.add(attributes["callee"].value)
            case "stablehlo.composite":
                names.add(attributes["decomposition"].value)
            case "stablehlo.custom_call" if "called_computations" in attributes:
                names.update(symbol.value for symbol in attributes["called_computations"])
        return ir.WalkResult.ADVANCE

    function.walk(visit)
    return names


def _rename(module: ir.Module, name: str, to: str) -> None:
    function = _function(module, name)
    with module.context:
        ir.SymbolTable.replace_all_symbol_uses(name, to, module.operation)
        ir.SymbolTable.set_symbol_name(function, to)


def _function(module: ir.Module, name: str) -> func.FuncOp:
    return ir.SymbolTable(module.operation)[name]
