"""The arrays that a call of a function hands to what is compiled of it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import func

from hlo_mlc.interop import compat
from hlo_mlc.interop.arguments import ArgumentType, argument_types
from hlo_mlc.interop.devices import CPU
from hlo_mlc.interop.extraction import MAIN, extract, function_named
from hlo_mlc.interop.primitive import called


@dataclass(frozen=True, slots=True)
class Part:
    """What is compiled as one: the function @entry of a module, and the arguments that a call of
    the whole gives it; None where they are not known."""

    module: ir.Module
    entry: str
    given: list[np.ndarray] | None


def parts_of_call(
    jitted: Any, args: Sequence[Any], kwargs: dict[str, Any], platform: str = CPU
) -> list[Part]:
    """What `mlc_jit` compiles of a function for such arguments on a platform: one part, none where
    it computes nothing, or several with what acts between them."""
    lowered = jitted.choosing("xla").trace(*args, **kwargs).lower(lowering_platforms=(platform,))
    program = lowered.compiler_ir()
    calls = called_functions(program)
    given = None
    if len(calls) == 1 and not calls_back(program, MAIN):
        given = given_operands(program, (*jitted.args, *args), kwargs, platform)
    symbols = ir.SymbolTable(program.operation)
    entries = [call.attributes["callee"].value for call in calls]
    return [
        Part(called(program, symbols, entry, list(call.operands)), entry, given)
        for entry, call in zip(entries, calls, strict=True)
    ]


def called_functions(program: ir.Module) -> list[ir.Operation]:
    """The calls of what is compiled: the one in @main or, where its function acts (it prints, or
    calls back), those of the parts around that."""
    symbols = ir.SymbolTable(program.operation)
    found: list[ir.Operation] = []

    def look_in(function: ir.Operation) -> None:
        for operation in _operations(function):
            if operation.name == "func.call":
                callee = symbols[operation.attributes["callee"].value].operation
                if any(map(_acts, _reached(callee, symbols))):
                    look_in(callee)
                else:
                    found.append(operation)

    look_in(function_named(program, MAIN).operation)
    return found


def calls_back(program: ir.Module, entry: str) -> bool:
    """Whether @entry calls functions of this process, which only the program that JAX has made can:
    it keeps them alive."""
    symbols = ir.SymbolTable(program.operation)
    return any(
        operation.name == "stablehlo.custom_call"
        and "python" in operation.attributes["call_target_name"].value
        for operation in _reached(symbols[entry].operation, symbols)
    )


def _acts(operation: ir.Operation) -> bool:
    return operation.name == "stablehlo.custom_call" and (
        "has_side_effect" in operation.attributes and operation.attributes["has_side_effect"].value
    )


def _reached(function: ir.Operation, symbols: ir.SymbolTable) -> Iterator[ir.Operation]:
    """The operations of a function, and of those that it calls."""
    pending, seen = [function], set()
    while pending:
        for operation in _operations(pending.pop()):
            yield operation
            if operation.name == "func.call":
                name = operation.attributes["callee"].value
                if name not in seen:
                    seen.add(name)
                    pending.append(symbols[name].operation)


def _operations(operation: ir.Operation) -> Iterator[ir.Operation]:
    for region in operation.regions:
        for block in region:
            for inner in block.operations:
                yield inner.operation
                yield from _operations(inner.operation)


def given_operands(
    program: ir.Module, args: Sequence[Any], kwargs: Mapping[str, Any], platform: str
) -> list[np.ndarray] | None:
    """What the call in @main is given when the program is called with these arguments; None unless
    all that it takes are arrays or numbers."""
    values = matched_arrays(argument_types(program, MAIN, MAIN), jax.tree.leaves((args, kwargs)))
    if values is None:
        return None
    main = extract(program, ir.SymbolTable(program.operation), MAIN)
    _return_operands(main)
    return [np.asarray(result) for result in compat.compile_for(main, platform)(values)]


def _return_operands(program: ir.Module) -> None:
    """Makes @main return what it gives to its call."""
    (call,) = called_functions(program)
    main = function_named(program, MAIN)
    (body,) = main.regions[0].blocks
    operands = list(call.operands)
    with program.context, ir.Location.unknown():
        body.operations[len(body.operations) - 1].operation.erase()
        with ir.InsertionPoint(body):
            func.ReturnOp(operands)
        results = [operand.type for operand in operands]
        main.attributes["function_type"] = ir.TypeAttr.get(
            ir.FunctionType.get(main.type.inputs, results)
        )
    for described in ("arg_attrs", "res_attrs"):
        if described in main.attributes:
            del main.attributes[described]


def matched_arrays(types: Sequence[ArgumentType], leaves: Sequence[Any]) -> list[np.ndarray] | None:
    """The leaves that a program takes, which are those of its types in their order: it takes no
    static ones and none that it does not use. None if that leaves a doubt."""
    arrays = [_array(leaf) for leaf in leaves]
    first = _in_order(types, arrays)
    last = _in_order(types[::-1], arrays[::-1])
    if first is None or last is None:
        return None
    same = all(a is b for a, b in zip(first, reversed(last), strict=True))
    return first if same else None


def _in_order(
    types: Iterable[ArgumentType], arrays: Iterable[np.ndarray | None]
) -> list[np.ndarray] | None:
    remaining = iter(arrays)
    found = []
    for expected in types:
        fitting = (a for a in remaining if a is not None and expected.accepts(a))
        array = next(fitting, None)
        if array is None:
            return None
        found.append(array)
    return found


def _array(leaf: Any) -> np.ndarray | None:
    """A leaf as JAX takes it; None for the type of an argument, and what is no array."""
    if isinstance(leaf, jax.ShapeDtypeStruct):
        return None
    try:
        if isinstance(leaf, jax.Array) and jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            leaf = jax.random.key_data(leaf)
        array = np.asarray(leaf)
        return array.astype(jax.dtypes.canonicalize_dtype(array.dtype), copy=False)
    except (TypeError, ValueError):
        return None
