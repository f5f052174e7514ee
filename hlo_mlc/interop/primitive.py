"""The call primitive: a traced function that its lowering hands to our compiler as one piece."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import jax.extend.core as jex
import numpy as np
from jax.interpreters import mlir
from jaxlib.mlir import ir

from hlo_mlc.frontend.importer import DONATED
from hlo_mlc.frontend.types import literal_identity, read_type, write_literal
from hlo_mlc.interop import compat, compat_exports, compat_meshes
from hlo_mlc.interop.background import BACKGROUND
from hlo_mlc.interop.call_rules import register_call_rules
from hlo_mlc.interop.compiling import compile_function
from hlo_mlc.interop.devices import CPU, SHARDED, compiled_for
from hlo_mlc.interop.effects import around_effects
from hlo_mlc.interop.experimental_rules import register_experimental_rules
from hlo_mlc.interop.extraction import (
    MAIN,
    donate,
    extract,
    rename,
    rename_to_main,
    splice,
    write_in,
)
from hlo_mlc.interop.faults import Subject
from hlo_mlc.interop.function import PLATFORMS, Ledger, TracedFunction
from hlo_mlc.report import FAULT_ADVICE, LeftReport, Report
from hlo_mlc.support.collection import no_collection
from hlo_mlc.support.debug import Level, say
from hlo_mlc.support.faults import Contained
from hlo_mlc.support.lazy_imports import lazy_imports
from hlo_mlc.support.warning import is_internal
from hlo_mlc.support.wording import named_at, short_line

with lazy_imports():
    from hlo_mlc.interop import sharding

mlc_call_p = jex.Primitive("mlc_call")
"""`results = mlc_call(*args, call_jaxpr=closed jaxpr, function=TracedFunction)`."""


class _BodyCache(dict):
    """JAX's cache of lowered functions, for those that belong to the body of one call.

    Bodies share no functions with the program around them: a call inside a body is compiled as a
    part of it, the same call outside on its own.
    """

    def __init__(self) -> None:
        super().__init__()
        self.operations: dict[Any, Any] = {}
        self.compiled: dict[str, bool] = {}  # whether anything of a function was taken over


@dataclass(frozen=True, slots=True)
class _Lowering:
    """The lowering of a call: into which module, of which function, and what faults are told of."""

    module_context: mlir.ModuleContext
    function: TracedFunction
    subject: Subject

    def leave(self, reason: str, advice: str = FAULT_ADVICE) -> None:
        """Note that the call stays with XLA."""
        self.function.ledger.record(self.module_context.module, Report.untouched(reason, advice))

    def contained(self) -> Contained:
        """Leaves the call to XLA for what fails of ours."""
        return self.function.faults.contained(self.subject, self.leave)


@no_collection()
def _lower_call(
    ctx: mlir.LoweringRuleContext, *operands: Any, call_jaxpr: Any, function: TracedFunction
) -> Any:
    """Lowers a call; takes the function it calls through the compiler the first time."""
    module_context = ctx.module_context
    lower = mlir.core_call_lowering
    arguments = {"name": function.name, "call_jaxpr": call_jaxpr}
    if isinstance(module_context.cached_primitive_lowerings, _BodyCache):
        return lower(ctx, *operands, **arguments)
    line = compat.source_line(call_jaxpr)
    subject = Subject(
        function.name,
        function.options,
        lambda: str(call_jaxpr),
        None if line is None or is_internal(line[0]) else line,
    )
    lowering = _Lowering(module_context, function, subject)
    cache = mesh = None
    with lowering.contained():
        mesh = compat_meshes.mesh_of(module_context, call_jaxpr.in_avals)
        refusal = _why_not(ctx, call_jaxpr, function, mesh)
        if refusal is None:
            cache = _body_cache(module_context, operands, function)
        else:
            lowering.leave(refusal.reason, refusal.advice)
            say(
                Level.FUNCTIONS,
                function.options.debug,
                [f"{function.name} stays with XLA: {refusal.reason}"],
            )
    if cache is None:
        return lower(ctx, *operands, **arguments)
    if compat.has_effects(call_jaxpr):
        return _lower_around_effects(ctx, operands, call_jaxpr, lowering)
    body_context = module_context.replace(
        cached_primitive_lowerings=cache, lowering_cache=cache.operations
    )
    results = lower(ctx.replace(module_context=body_context), *operands, **arguments)
    with lowering.contained():
        (platform,) = ctx.platforms or module_context.platforms
        _take_over(lowering, cache, results, operands, platform, mesh)
    return results


def _lower_around_effects(
    ctx: mlir.LoweringRuleContext, operands: Sequence[Any], call_jaxpr: Any, lowering: _Lowering
) -> Any:
    """Lowers a call whose effects XLA keeps, with calls of their own for what lies between them."""
    module_context, function = ctx.module_context, lowering.function
    # In JAX's cache, as bodies are: a function is taken apart once for each program.
    known = module_context.cached_primitive_lowerings
    key = mlc_call_p, function, call_jaxpr
    if key not in known:
        parts: list[TracedFunction] = []

        def call(part: Any) -> tuple[Any, dict[str, Any]]:
            own = replace(
                function, name=f"{function.name}_{len(parts)}", ledger=Ledger(), settled=None
            )
            parts.append(own)
            return mlc_call_p, {"call_jaxpr": part, "function": own}

        known[key] = call_jaxpr, (), []
        with lowering.contained():
            known[key] = *around_effects(call_jaxpr, call), parts
    jaxpr, effects, parts = known[key]
    results = mlir.core_call_lowering(ctx, *operands, name=function.name, call_jaxpr=jaxpr)
    if effects:
        reports = [part.ledger.latest for part in parts if part.ledger.latest is not None]
        function.ledger.record(
            module_context.module,
            Report.of_parts(
                reports, [_kept(e.primitive.name, compat.equation_line(e)) for e in effects]
            ),
        )
    return results


def _kept(name: str, location: str) -> LeftReport:
    return LeftReport(
        f"jax.{name}",
        location,
        "it has side effects, whose order XLA keeps",
        named_at(name, short_line(location)),
    )


def _body_cache(
    module_context: mlir.ModuleContext, operands: Sequence[Any], function: TracedFunction
) -> _BodyCache:
    """The cache for what a call consists of: in JAX's own, because that lives and dies with the
    module.  What is compiled for some constants is called with no others."""
    constants = _constants(operands).items()
    return module_context.cached_primitive_lowerings.setdefault(
        (
            mlc_call_p,
            function,
            module_context.axis_context,
            tuple((number, literal_identity(constant)) for number, constant in constants),
        ),
        _BodyCache(),
    )


def _take_over(
    lowering: _Lowering,
    cache: _BodyCache,
    results: Any,
    operands: Sequence[Any],
    platform: str,
    mesh: Any | None,
) -> None:
    """Compiles the function that a call of the program's calls, unless that was done before, and
    puts what was compiled in its place, if that is anything."""
    module_context, function = lowering.module_context, lowering.function
    module, symbols = module_context.module, module_context.symbol_table
    call = _call(jax.tree.leaves(results)[0])
    symbol = call.attributes["callee"].value
    if symbol not in cache.compiled:
        cache.compiled[symbol] = False
        extracted = called(module, symbols, symbol, operands)
        if compat_exports.has_symbolic_sizes(module_context):
            extracted = with_known_sizes(extracted, symbol)
        if mesh is not None and not mesh.are_all_axes_auto:
            sharding.propagate_types(extracted, symbol)
        lowering = replace(lowering, subject=replace(lowering.subject, program=lambda: extracted))
        with lowering.contained():
            compiled, report = compile_function(
                extracted,
                lowering.subject,
                function.faults,
                entry=symbol,
                platform=compiled_for(platform, function.options) if mesh is None else SHARDED,
                settled=function.settled,
            )
            if (
                mesh is None
                and function.settled is not None
                and call.parent.attributes["sym_name"].value == MAIN
            ):
                report = BACKGROUND.follow(function, extracted, symbol, report)
            function.ledger.record(module, report)
            if compiled is not None:
                if mesh is not None:
                    sharding.make_partitionable(
                        compiled,
                        report,
                        function.options,
                        module_context,
                        mesh,
                        partial(function.faults.contained, lowering.subject, lambda _: None),
                    )
                splice(module, symbols, symbol, compiled)
                cache.compiled[symbol] = True
    if cache.compiled[symbol]:
        for number in _constants(operands):
            call.operands[number] = _placeholder(call.operands[number])


@dataclass(frozen=True, slots=True)
class _Refusal:
    """Why a call is left to XLA, and what its author may do about it ("" is nothing)."""

    reason: str
    advice: str = ""


def _why_not(
    ctx: mlir.LoweringRuleContext, call_jaxpr: Any, function: TracedFunction, mesh: Any | None
) -> _Refusal | None:
    """Why a call is left to XLA without a look at what it computes."""
    module_context = ctx.module_context
    if compat_exports.is_for_export(module_context) and not function.for_archive:
        return _Refusal(
            "jax.export takes no custom calls, and its files hold no machine code; "
            "hlo_mlc.export writes files with our kernels"
        )
    platforms = tuple(ctx.platforms or module_context.platforms)
    if len(platforms) != 1 or platforms[0] not in PLATFORMS:
        return _Refusal(
            f"it is lowered for {', '.join(platforms)}; what is lowered for one of "
            f"{', '.join(PLATFORMS)} alone is compiled"
        )
    if not call_jaxpr.out_avals and not compat.has_effects(call_jaxpr):
        return _Refusal("it has no results")
    if ctx.dim_var_values:
        return _Refusal("it is exported with symbolic shapes", "export it for sizes that are known")
    partitions = compat_meshes.partition_count(module_context.axis_context)
    if partitions > 1 and (mesh is None or platforms[0] != CPU):
        return _Refusal(
            f"it is partitioned over {partitions} devices outside shard_map, and neither its "
            "arguments nor the program's are known to be on one mesh of CPUs",
            "give it arguments with a NamedSharding, or use jax.shard_map and mlc_jit inside it",
        )
    return None


def _donations(operands: Sequence[Any]) -> dict[int, int]:
    """Which operands are donated arguments of the program, and for which of its results.

    That those are the results of the call is not known before the program is complete.  Where it
    is not so, XLA makes copies: nothing is wrong.
    """
    found = {}
    for number, value in enumerate(jax.tree.leaves(operands)):
        block = value.owner
        if not isinstance(block, ir.Block):
            continue
        program = block.owner.operation
        if program.name != "func.func" or program.attributes["sym_name"].value != MAIN:
            continue
        attributes = program.attributes["arg_attrs"][ir.BlockArgument(value).arg_number]
        if DONATED in attributes:
            found[number] = ir.IntegerAttr(attributes[DONATED]).value
    return found


def _constants(operands: Sequence[Any]) -> dict[int, ir.Operation]:
    """Which operands are constants of the program, such as arrays that the function has closed
    over, and the operations that they come from."""
    found = {}
    for number, value in enumerate(jax.tree.leaves(operands)):
        owner = value.owner
        if not isinstance(owner, ir.Block) and owner.operation.name == "stablehlo.constant":
            found[number] = owner.operation
    return found


def called(
    module: ir.Module, symbols: ir.SymbolTable, symbol: str, operands: Sequence[Any]
) -> ir.Module:
    """A module of its own with the function @symbol as it is called with such operands: those that
    are constants are written in, those that the program may overwrite are donated."""
    extracted = extract(module, symbols, symbol)
    donate(extracted, symbol, _donations(operands))
    write_in(extracted, symbol, _constants(operands))
    return extracted


def with_known_sizes(module: ir.Module, symbol: str) -> ir.Module:
    """The module with sizes in place of symbols in what it calls of exported functions."""
    rename_to_main(module, symbol)
    found = compat_exports.resolved(module)
    rename(found, MAIN, symbol)
    return found


def _placeholder(constant: ir.Value) -> ir.Value:
    """Zeros in place of a constant that nobody reads, as far as their type is one we know: XLA
    takes half a second with 64 MiB that are not all the same, be they read or not."""
    tensor = read_type(constant.type, "")
    if tensor is None:
        return constant
    zeros = np.broadcast_to(np.zeros((), tensor.dtype.numpy), tensor.shape)
    with constant.context, constant.owner.location, ir.InsertionPoint(constant.owner):
        return ir.Operation.create(
            "stablehlo.constant",
            [constant.type],
            attributes={"value": write_literal(zeros, tensor.dtype)},
        ).result


def _call(result: ir.Value) -> ir.Operation:
    """The call that computed a result, maybe with sharding operations behind it."""
    operation = result.owner
    while operation.name != "func.call":
        operation = operation.operands[0].owner
    return operation


register_call_rules(mlc_call_p)
register_experimental_rules(mlc_call_p)
mlir.register_lowering(mlc_call_p, _lower_call, cacheable=False)
