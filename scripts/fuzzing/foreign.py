"""Ops of StableHLO and CHLO that JAX itself writes for nothing, other frameworks do.

Printed at the head of a program that has some: it needs JAX alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import jax
import jax.numpy as jnp
from jax import lax
from jax.extend import core
from jax.interpreters import batching, mlir
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo

ATTRIBUTES = {
    "chlo.is_inf": "{}",
    "chlo.is_pos_inf": "{}",
    "chlo.is_neg_inf": "{}",
    "chlo.tan": "{}",
    "stablehlo.logistic": "{}",
    "stablehlo.map": "{dimensions = array<i64: [AXES]>}",
    "stablehlo.get_dimension_size": "{dimension = [LAST] : i64}",
    "stablehlo.cholesky": "{lower = true}",
    "stablehlo.triangular_solve": "{left_side = true, lower = true, unit_diagonal = false, "
    "transpose_a = #stablehlo<transpose NO_TRANSPOSE>}",
    "stablehlo.scatter": "{scatter_dimension_numbers = #stablehlo.scatter<inserted_window_dims = "
    "[0], scatter_dims_to_operand_dims = [0], index_vector_dim = 1>, indices_are_sorted = false, "
    "unique_indices = false}",
}
SCALAR_FUNCTIONS = {
    "stablehlo.map": lambda x, y: [stablehlo.multiply(stablehlo.tanh(x), y)],
    "stablehlo.scatter": lambda x, y, u, v: [stablehlo.add(x, u), stablehlo.maximum(y, v)],
}


def foreign(op: str, *operands: jax.Array) -> jax.Array | list[jax.Array]:
    """The op on these operands; a `scatter` is of numbers into two arrays."""
    return _PRIMITIVES[op].bind(*map(jnp.asarray, operands))


def _primitive(op: str) -> core.Primitive:
    made = core.Primitive(op)
    made.multiple_results = op == "stablehlo.scatter"

    @made.def_abstract_eval
    def _type(*operands: jax.core.ShapedArray) -> object:
        last = operands[-1]
        if made.multiple_results:
            return [jax.core.ShapedArray(o.shape, o.dtype) for o in operands[:2]]
        if op == "stablehlo.get_dimension_size":
            return jax.core.ShapedArray((), jnp.int32)
        return jax.core.ShapedArray(last.shape, bool if "inf" in op else last.dtype)

    def lowered(context: mlir.LoweringRuleContext, *operands: ir.Value) -> Sequence[ir.Value]:
        rank = context.avals_in[-1].ndim
        text = ATTRIBUTES[op].replace("[AXES]", ", ".join(map(str, range(rank))))
        attributes = ir.DictAttr(ir.Attribute.parse(text.replace("[LAST]", str(rank - 1))))
        results = [
            ir.RankedTensorType.get(a.shape, mlir.dtype_to_ir_type(a.dtype))
            for a in context.avals_out
        ]
        written = ir.Operation.create(
            op,
            results,
            operands,
            {a.name: a.attr for a in attributes},
            regions=int(op in SCALAR_FUNCTIONS),
        )
        if op in SCALAR_FUNCTIONS:
            taken = [o for n, o in enumerate(operands) if not made.multiple_results or n != 2]
            scalars = [ir.RankedTensorType.get((), o.type.element_type) for o in taken]
            body = written.regions[0].blocks.append(*scalars)
            with ir.InsertionPoint(body):
                stablehlo.return_(SCALAR_FUNCTIONS[op](*body.arguments))
        return written.results

    def batched(operands: Sequence[jax.Array], axes: Sequence) -> tuple:
        size = next(o.shape[a] for o, a in zip(operands, axes, strict=True) if a is not None)
        moved = [batching.bdim_at_front(o, a, size) for o, a in zip(operands, axes, strict=True)]
        if made.multiple_results:
            return lax.map(lambda one: made.bind(*one), moved), [0, 0]
        result = made.bind(*moved)
        return result, 0 if result.ndim else None

    made.def_impl(lambda *operands: jax.jit(partial(made.bind))(*operands))
    mlir.register_lowering(made, lowered)
    batching.primitive_batchers[made] = batched
    return made


_PRIMITIVES = {op: _primitive(op) for op in ATTRIBUTES}
