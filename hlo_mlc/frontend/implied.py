"""Operations that say less than those of JAX, or more at once: what they mean, written out.

CHLO's broadcast operands to each other, and have constants of the shape of others; normalizations
over a batch are sums and what is computed of them.  Source: CHLO's definitions (ChloOps.td);
batch_norm_* in StableHLO's specification.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence

from jaxlib.mlir import ir

from hlo_mlc.frontend.shape_dialects import Rewrite, broadcast_sizes
from hlo_mlc.frontend.writing import Writer, in_stablehlo
from hlo_mlc.ops.registry import DEFINITIONS

BROADCASTING = "chlo.broadcast_"
_DIMENSIONS = "broadcast_dimensions"


def broadcasting(name: str) -> Rewrite:
    """`chlo.broadcast_add(x, y)` -> `add(broadcast_in_dim(x), broadcast_in_dim(y))`"""
    op = name.replace(BROADCASTING, "stablehlo.")
    if op not in DEFINITIONS:
        op = name.replace(BROADCASTING, "chlo.")

    def rewrite(writer: Writer, operation: ir.Operation) -> ir.Value:
        result, attributes = operation.results[0].type, _attributes(operation)
        stated = attributes.pop(_DIMENSIONS, None)
        operands = list(operation.operands)
        axes = [
            _axes(ir.RankedTensorType(operand.type).rank, ir.RankedTensorType(result).rank, stated)
            for operand in operands
        ]

        @functools.cache
        def sizes() -> Sequence[ir.Value]:
            one = writer.integer(1)
            return broadcast_sizes(
                writer,
                [
                    _spread(writer.sizes(operand), places, result, one)
                    for operand, places in zip(operands, axes, strict=True)
                ],
            )

        return writer.op(
            op,
            [
                writer.broadcast(operand, places, result, sizes)
                for operand, places in zip(operands, axes, strict=True)
            ],
            result,
            **attributes,
        )

    return rewrite


def _attributes(operation: ir.Operation) -> dict[str, ir.Attribute]:
    """With enumerations in StableHLO's words."""
    names = [one if isinstance(one, str) else one.name for one in operation.attributes]
    return {name: in_stablehlo(operation.attributes[name]) for name in names}


def _axes(rank: int, of_result: int, stated: ir.Attribute | None) -> tuple[int, ...]:
    """The dimensions of the result that those of an operand are."""
    if stated is not None and rank < of_result and len(list(stated)) == rank:
        return tuple(stated)
    return tuple(range(of_result - rank, of_result))


def _spread(
    sizes: Sequence[ir.Value], axes: Sequence[int], result: ir.Type, one: ir.Value
) -> list[ir.Value]:
    found = [one] * ir.RankedTensorType(result).rank
    for axis, size in zip(axes, sizes, strict=True):
        found[axis] = size
    return found


def _constant(writer: Writer, operation: ir.Operation) -> ir.Value:
    return writer.constant(operation.attributes["value"])


def _constant_like(writer: Writer, operation: ir.Operation) -> ir.Value | None:
    (like,), result = operation.operands, operation.results[0].type
    element = ir.RankedTensorType(result).element_type
    if isinstance(element, ir.ComplexType):
        return None
    number = writer.number(operation.attributes["value"].value, element)
    return writer.broadcast(number, (), result, lambda: writer.sizes(like))


class _Normalization:
    """What the three have in common: an operand with a dimension of features, and vectors of these.
    Numbers of fewer bits than 32 are computed in f32."""

    def __init__(self, writer: Writer, operation: ir.Operation) -> None:
        self.writer = writer
        self.types = [result.type for result in operation.results]
        self.axis = ir.IntegerAttr(operation.attributes["feature_index"]).value
        narrow = ir.RankedTensorType(operation.operands[0].type).element_type
        self.element = narrow if str(narrow) in ("f32", "f64") else ir.F32Type.get()
        self.operand, *self.vectors = [
            writer.converted(operand, self.element) for operand in operation.operands
        ]
        self.epsilon = operation.attributes["epsilon"].value
        rank = ir.RankedTensorType(self.operand.type).rank
        self.others = tuple(d for d in range(rank) if d != self.axis)

    def spread(self, vector: ir.Value) -> ir.Value:
        """A number for each feature, along all other dimensions."""
        return self.writer.broadcast(
            vector, (self.axis,), self.operand.type, lambda: self.writer.sizes(self.operand)
        )

    def filled(self, number: ir.Value, vector: ir.Value) -> ir.Value:
        return self.writer.broadcast(number, (), vector.type, lambda: self.writer.sizes(vector))

    def count(self, vector: ir.Value) -> ir.Value:
        """How many elements each feature has, for each."""
        total = self.writer.integer(1)
        for axis in self.others:
            total = self.writer.same(
                "stablehlo.multiply", total, self.writer.size(self.operand, axis)
            )
        return self.filled(self.writer.converted(total, self.element), vector)

    def mean(self, array: ir.Value) -> ir.Value:
        total = self.writer.sum(array, self.others)
        return self.writer.same("stablehlo.divide", total, self.count(total))

    def reciprocal_deviation(self, variance: ir.Value) -> ir.Value:
        epsilon = self.filled(self.writer.number(self.epsilon, self.element), variance)
        return self.writer.same(
            "stablehlo.rsqrt", self.writer.same("stablehlo.add", variance, epsilon)
        )

    def normalized(
        self, scale: ir.Value, offset: ir.Value, mean: ir.Value, variance: ir.Value
    ) -> ir.Value:
        writer = self.writer
        factor = writer.same("stablehlo.multiply", scale, self.reciprocal_deviation(variance))
        centered = writer.same("stablehlo.subtract", self.operand, self.spread(mean))
        scaled = writer.same("stablehlo.multiply", centered, self.spread(factor))
        return writer.same("stablehlo.add", scaled, self.spread(offset))

    def results(self, *found: ir.Value) -> list[ir.Value]:
        return [
            self.writer.converted(value, ir.RankedTensorType(wanted).element_type)
            for value, wanted in zip(found, self.types, strict=True)
        ]


def _inference(writer: Writer, operation: ir.Operation) -> Sequence[ir.Value]:
    norm = _Normalization(writer, operation)
    return norm.results(norm.normalized(*norm.vectors))


def _training(writer: Writer, operation: ir.Operation) -> Sequence[ir.Value]:
    norm = _Normalization(writer, operation)
    mean = norm.mean(norm.operand)
    centered = writer.same("stablehlo.subtract", norm.operand, norm.spread(mean))
    variance = norm.mean(writer.same("stablehlo.multiply", centered, centered))
    return norm.results(norm.normalized(*norm.vectors, mean, variance), mean, variance)


def _gradient(writer: Writer, operation: ir.Operation) -> Sequence[ir.Value]:
    """`scale / s * (g - mean(g) - n * mean(g * n))`, where n are the operand's elements normalized
    and s their deviation."""
    norm = _Normalization(writer, operation)
    scale, mean, variance, gradient = norm.vectors
    apart = norm.reciprocal_deviation(variance)
    centered = writer.same("stablehlo.subtract", norm.operand, norm.spread(mean))
    elements = writer.same("stablehlo.multiply", centered, norm.spread(apart))
    of_offset = writer.sum(gradient, norm.others)
    of_scale = writer.sum(writer.same("stablehlo.multiply", gradient, elements), norm.others)
    count = norm.count(of_offset)
    means = [
        norm.spread(writer.same("stablehlo.divide", total, count))
        for total in (of_offset, of_scale)
    ]
    rest = writer.same(
        "stablehlo.subtract",
        writer.same("stablehlo.subtract", gradient, means[0]),
        writer.same("stablehlo.multiply", elements, means[1]),
    )
    factor = norm.spread(writer.same("stablehlo.multiply", scale, apart))
    return norm.results(writer.same("stablehlo.multiply", factor, rest), of_scale, of_offset)


REWRITES: Mapping[str, Rewrite] = {
    "chlo.constant": _constant,
    "chlo.constant_like": _constant_like,
    "stablehlo.batch_norm_inference": _inference,
    "stablehlo.batch_norm_training": _training,
    "stablehlo.batch_norm_grad": _gradient,
}
