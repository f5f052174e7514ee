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

ENTRY = "main"

_MESH = "sdy.mesh"

def extract(module: ir.Module, symbols: ir.SymbolTable, name: str) -> ir.Module:
    """A module of its own, in the same context, with a copy of @name as its public @main.

    Meshes come along, since shardings inside functions refer to them.
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
    if name != ENTRY:
        _rename_to_entry(extracted, name)
    with module.context:
        function = ir.SymbolTable(extracted.operation)[ENTRY]
        function.attributes["sym_visibility"] = ir.StringAttr.get("public")
    return extracted


def compile_extracted(
    module: ir.Module, options: Options, *, name: str
) -> tuple[ir.Module | None, Report]:
    """The compiled module and the report on it; None if XLA is to get the original.

    A fault of the compiler is a warning, and the program stays with XLA, unless `choose="ours"`
    asks for our kernels: then it is raised. `name` is the user's name for the function.
    """
    if options.choose == "xla":
        return None, Report.untouched('choose="xla" asks for it')
    try:
        entry_type = _entry_type(module)
        compiled = compile_module(module, options, entry=ENTRY)
        if compiled.module is module:
            return None, compiled.report
        if _entry_type(compiled.module) != entry_type:
            raise FrontendError(
                f"The compiled module's @{ENTRY} is {_entry_type(compiled.module)}, "
                f"the original is {entry_type}"
            )
        compiled.module.operation.verify()
        library.register_with_jax()
    except Exception as error:
        if options.choose == "ours":
            raise
        reason = f"the compiler failed with {type(error).__name__}: {error}"
        warnings.warn(
            f"hlo_mlc leaves {name} to XLA: {reason}", RuntimeWarning, stacklevel=2
        )
        return None, Report.untouched(reason)
    return compiled.module, compiled.report


def splice(
    module: ir.Module, symbols: ir.SymbolTable, name: str, compiled: ir.Module
) -> None:
    """Makes @name of the module call what `compiled` has as @main. Consumes `compiled`.

    The function itself stays, with a body of one call: JAX remembers it and may call it again.
    """
    for operation in compiled.body.operations:
        if operation.operation.name == _MESH:
            operation.operation.erase()
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


def _rename_to_entry(module: ir.Module, name: str) -> None:
    symbols = ir.SymbolTable(module.operation)
    if ENTRY in symbols:
        free = ENTRY
        while free in symbols:
            free += "_"
        _rename(module, symbols[ENTRY], free)
    _rename(module, symbols[name], ENTRY)


def _rename(module: ir.Module, function: func.FuncOp, name: str) -> None:
    with module.context:
        ir.SymbolTable.replace_all_symbol_uses(function.name.value, name, module.operation)
        ir.SymbolTable.set_symbol_name(function, name)


def _entry_type(module: ir.Module) -> ir.Type:
    return ir.SymbolTable(module.operation)[ENTRY].type
