"""A StableHLO program as an operation of JAX, for calls of it inside functions that JAX traces."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NoReturn

import jax
import jax.extend.core as jex
from jax.interpreters import ad, batching, mlir
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import func

from hlo_mlc.frontend.types import listed_elements
from hlo_mlc.interop import compat_exports
from hlo_mlc.interop.arguments import ArgumentType
from hlo_mlc.interop.devices import CPU
from hlo_mlc.interop.extraction import MAIN, function_named
from hlo_mlc.support.errors import UsageError

Shapes = tuple[tuple[int, ...], ...]
Execute = Callable[[Sequence[Any]], tuple[jax.Array, ...]]
"""What runs a program on its arguments."""

_MOST_CONSTANTS = 1 << 20

program_call_p = jex.Primitive("stablehlo_program")
"""`results = program_call(*args, program=Program)`."""
program_call_p.multiple_results = True


@dataclass(frozen=True, slots=True, eq=False)
class Program:
    """A program with an entry @main, whose users know it as `name`. Identity is equality."""

    name: str
    module: Callable[[Shapes], ir.Module]  # for arguments of such shapes
    results: Callable[[Shapes], tuple[ArgumentType, ...]]
    run: Execute

    def __repr__(self) -> str:
        return f"@{self.name}"

    def traceable(self) -> Callable[..., tuple[jax.Array, ...]]:
        """The function for JAX to trace."""

        def call(*arrays: Any) -> tuple[jax.Array, ...]:
            return tuple(program_call_p.bind(*arrays, program=self))

        call.__name__ = call.__qualname__ = self.name
        return call


def compile_as_jit(
    name: str, module: ir.Module, arguments: Sequence[ArgumentType], results: Sequence[ArgumentType]
) -> Execute | None:
    """A program compiled by `jax.jit`, whose calls take a fraction of the time of those past it.

    None where that may run it elsewhere than on the one CPU, or with narrower types, and where
    there is so much in it that the copies of it take longer than calls will save.
    """
    if (
        jax.device_count() > 1
        or jax.default_backend() != CPU
        or _constant_elements(module) > _MOST_CONSTANTS
        or any(
            jax.dtypes.canonicalize_dtype(one.dtype) != one.dtype for one in (*arguments, *results)
        )
    ):
        return None
    program = Program(name, lambda _: module, lambda _: tuple(results), _never_run)

    types = (jax.ShapeDtypeStruct(one.shape, one.dtype) for one in arguments)
    compiled = jax.jit(program.traceable(), keep_unused=True).lower(*types).compile()

    def execute(arrays: Sequence[Any]) -> tuple[jax.Array, ...]:
        if not jax.config.jax_disable_jit:
            return compiled(*arrays)
        with jax.disable_jit(False):  # it is compiled already
            return compiled(*arrays)

    return execute


def _constant_elements(module: ir.Module) -> int:
    """Those of the constants of @main, but for one that is repeated."""
    return sum(
        listed_elements(op.operation)
        for op in function_named(module, MAIN).entry_block
        if op.operation.name == "stablehlo.constant"
    )


def _never_run(arrays: Sequence[Any]) -> NoReturn:
    raise AssertionError("it is compiled before it is called")


def _abstract_eval(*avals: Any, program: Program) -> list[jax.core.ShapedArray]:
    """Raises: UsageError for results of types that JAX does not have as it is set up."""
    results = program.results(_shapes(avals))
    for result in results:
        if jax.dtypes.canonicalize_dtype(result.dtype) != result.dtype:
            raise UsageError(
                f"@{program.name} returns {result}: inside of other functions it "
                "takes 64-bit types, jax.config.update('jax_enable_x64', True)"
            )
    return [jax.core.ShapedArray(result.shape, result.dtype) for result in results]


def _lower(
    ctx: mlir.LoweringRuleContext, *operands: ir.Value, program: Program
) -> Sequence[ir.Value]:
    """A call of the program's functions, which come along once for each set of shapes."""
    module_context = ctx.module_context
    shapes = _shapes(ctx.avals_in)
    known = module_context.cached_primitive_lowerings
    key = (program_call_p, program, shapes)
    if key not in known:
        written = io.BytesIO()
        program.module(shapes).operation.write_bytecode(written)
        copy = ir.Module.parse(written.getvalue(), module_context.context)
        types = function_named(copy, MAIN).type.results
        symbol = mlir.merge_mlir_modules(
            module_context.module, program.name, copy, dst_symtab=module_context.symbol_table
        )
        known[key] = symbol, list(types)
    symbol, types = known[key]
    return func.CallOp(types, ir.FlatSymbolRefAttr.get(symbol), list(operands)).results


def _refuse_derivative(primals: Any, tangents: Any, *, program: Program) -> NoReturn:
    raise UsageError(
        f"@{program.name} is a StableHLO program, of which there is no derivative: export that of "
        "the function it was made of, jax.vjp or jax.value_and_grad, as a program of its own"
    )


def _run(*args: Any, program: Program) -> Sequence[jax.Array]:
    return program.run(args)


def _shapes(avals: Sequence[Any]) -> Shapes:
    return tuple(tuple(aval.shape) for aval in avals)


program_call_p.def_impl(_run)
program_call_p.def_abstract_eval(_abstract_eval)
mlir.register_lowering(program_call_p, _lower, cacheable=False)
batching.primitive_batchers[program_call_p] = partial(compat_exports.map_calls, program_call_p)
ad.primitive_jvps[program_call_p] = _refuse_derivative
