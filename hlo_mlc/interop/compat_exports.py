"""What JAX knows of exported functions and their symbolic sizes: from inside of it."""

from __future__ import annotations

import dataclasses
import io
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import jax
import jax.extend.core as jex
from jax._src.export import _export
from jax._src.interpreters import batching, mlir
from jaxlib.mlir import ir


def is_for_export(module_context: Any) -> bool:
    """Whether `jax.export` asks for the module that is being lowered."""
    return module_context.lowering_parameters.for_export


def has_symbolic_sizes(module_context: Any) -> bool:
    """Whether the module that is being lowered calls exported functions with symbolic sizes."""
    return module_context.shape_poly_state.uses_dim_vars


def resolved(module: ir.Module) -> ir.Module:
    """The module, whose @main has arguments of known sizes, with all others that follow from them,
    in the same context; what it asserts of them holds.

    Raises: ValueError where some do not follow, or what it asserts does not hold.
    """
    found = io.BytesIO()
    mlir.refine_polymorphic_shapes(module).operation.write_bytecode(found)
    with module.context:
        return ir.Module.parse(found.getvalue())


def symbols_of(exported: jax.export.Exported) -> dict[str, bool]:
    """The symbols in the sizes of an exported function's arguments, and of each whether some
    argument begins with it."""
    found: dict[str, bool] = {}
    for aval in exported.in_avals:
        for position, size in enumerate(aval.shape):
            for name in sorted(size._get_vars()) if jax.export.is_symbolic_dim(size) else ():
                found[name] = found.get(name, False) or position == 0
    return found


def with_sizes(
    exported: jax.export.Exported, sizes: Mapping[str, int]
) -> list[jax.ShapeDtypeStruct] | None:
    """The types of an exported function's arguments with these sizes for its symbols; None where
    it is not for such."""
    try:
        types = [
            jax.ShapeDtypeStruct(
                [
                    size._evaluate(sizes) if jax.export.is_symbolic_dim(size) else size
                    for size in aval.shape
                ],
                aval.dtype,
            )
            for aval in exported.in_avals
        ]
        args, kwargs = jax.tree.unflatten(exported.in_tree, types)
        jax.eval_shape(exported.call, *args, **kwargs)
    except (TypeError, ValueError):
        return None
    return types


def refusing_vjp(
    exported: jax.export.Exported, refuse: Callable[[Any], Any]
) -> jax.export.Exported:
    """The exported function, which calls `refuse` where JAX asks for a derivative of a higher
    order than it has."""
    given = exported._get_vjp
    derivative = refuse if given is None else lambda it: refusing_vjp(given(it), refuse)
    return dataclasses.replace(exported, _get_vjp=derivative)


def map_calls_of_exported_functions() -> None:
    """Has `vmap` of an exported function call it for one element after the other, unless JAX knows
    better: without, it is an error."""
    primitive = _export.call_exported_p
    if primitive not in batching.fancy_primitive_batchers:
        batching.primitive_batchers[primitive] = partial(map_calls, primitive)


def map_calls(
    primitive: jex.Primitive, args: Sequence[Any], dims: Sequence[Any], **params: Any
) -> tuple[list[Any], list[int]]:
    """A batching rule: calls with one element of the batch after the other."""
    is_mapped = [dim is not None for dim in dims]
    mapped = [
        jax.numpy.moveaxis(arg, dim, 0)
        for arg, dim, chosen in zip(args, dims, is_mapped, strict=True)
        if chosen
    ]

    def call(elements: Sequence[Any]) -> list[Any]:
        remaining = iter(elements)
        operands = [
            next(remaining) if chosen else arg for arg, chosen in zip(args, is_mapped, strict=True)
        ]
        return primitive.bind(*operands, **params)

    results = jax.lax.map(call, mapped)
    return results, [0] * len(results)
