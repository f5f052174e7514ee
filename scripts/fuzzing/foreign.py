"""Ops of StableHLO and CHLO that JAX itself writes for nothing, other frameworks do.

Printed at the head of a program that has some: it needs JAX alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import jax
import jax.numpy as jnp
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
}


def foreign(op: str, *operands: jax.Array) -> jax.Array:
    """The op on these operands; of a `map` the scalar function is tanh(x) * y."""
    return _PRIMITIVES[op].bind(*map(jnp.asarray, operands))


def _primitive(op: str) -> core.Primitive:
    made = core.Primitive(op)

    @made.def_abstract_eval
    def _type(*operands: jax.core.ShapedArray) -> jax.core.ShapedArray:
        last = operands[-1]
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
            regions=int(op == "stablehlo.map"),
        )
        if op == "stablehlo.map":
            scalars = [ir.RankedTensorType.get((), o.type.element_type) for o in operands]
            body = written.regions[0].blocks.append(*scalars)
            with ir.InsertionPoint(body):
                stablehlo.return_(
                    [stablehlo.multiply(stablehlo.tanh(body.arguments[0]), body.arguments[1])]
                )
        return written.results

    def batched(operands: Sequence[jax.Array], axes: Sequence) -> tuple[jax.Array, int | None]:
        size = next(o.shape[a] for o, a in zip(operands, axes, strict=True) if a is not None)
        result = made.bind(
            *(batching.bdim_at_front(o, a, size) for o, a in zip(operands, axes, strict=True))
        )
        return result, 0 if result.ndim else None

    made.def_impl(lambda *operands: jax.jit(partial(made.bind))(*operands))
    mlir.register_lowering(made, lowered)
    batching.primitive_batchers[made] = batched
    return made


_PRIMITIVES = {op: _primitive(op) for op in ATTRIBUTES}
