"""Products of which one dimension lies in groups, one after the other, of sizes known at run time.

    ragged_dot(x[m,k], w[g,k,n], sizes[g])  ->  sum_g select(m is in g, dot_general(x, w), 0)
    ragged_dot(x[m,k], w[k,n], sizes[g])    ->  dot_general(select(k is in g, x, 0), …): [g,m,n]

What is in no group is 0, and what is in another group has no say, whatever it is.  Source: CHLO's
definition (ChloOps.td); JAX writes it for TPUs and GPUs.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import chlo, stablehlo

from hlo_mlc.frontend.shape_dialects import Rewrite
from hlo_mlc.frontend.writing import Sizes, Writer, in_stablehlo, with_sizes

_NUMBERS = "ragged_dot_dimension_numbers"
_PRECISION = "precision_config"


@dataclass(frozen=True, slots=True)
class _Groups:
    """The first place of each group, and the first behind it: [..., g]. The leading dimensions are
    those of an array before the one that lies in groups, if these have groups of their own."""

    writer: Writer
    starts: ir.Value
    ends: ir.Value

    def only(self, array: ir.Value, leading: Sequence[int], along: int, group: int) -> ir.Value:
        """The array with 0 at places `along` that are not in the group that `group` counts."""
        writer, sizes = self.writer, functools.partial(self.writer.sizes, array)
        rank = ir.RankedTensorType(self.ends.type).rank
        axes = (*leading, group) if rank > 1 else (group,)
        starts, ends = (
            writer.broadcast(limit, axes, array.type, sizes) for limit in (self.starts, self.ends)
        )
        places = writer.places(starts.type, along, sizes)
        inside = writer.same(
            "stablehlo.and",
            writer.compare(places, "GE", starts),
            writer.compare(places, "LT", ends),
        )
        zero = writer.filled(0, array.type, sizes)
        return writer.op("stablehlo.select", (inside, array, zero), array.type)


def _groups(writer: Writer, counts: ir.Value) -> _Groups:
    """Of which each begins where the one before it ends."""
    rank = ir.RankedTensorType(counts.type).rank
    *_, count = shape = list(ir.RankedTensorType(counts.type).shape)
    pairs = with_sizes(counts.type, [*shape, count])

    def sizes() -> Sizes:
        return [*writer.sizes(counts), writer.size(counts, rank - 1)]

    each = writer.broadcast(counts, (*range(rank - 1), rank), pairs, sizes)
    one, other = (writer.places(pairs, axis, sizes) for axis in (rank - 1, rank))
    zero = writer.filled(0, pairs, sizes)
    before = writer.op("stablehlo.select", (writer.compare(other, "LE", one), each, zero), pairs)
    ends = writer.sum(before, (rank,))
    return _Groups(writer, writer.same("stablehlo.subtract", ends, counts), ends)


def _ragged_dot(writer: Writer, operation: ir.Operation) -> ir.Value:
    lhs, rhs, counts = operation.operands
    numbers = chlo.RaggedDotDimensionNumbers(operation.attributes[_NUMBERS])
    batch = list(numbers.lhs_batching_dimensions), list(numbers.rhs_batching_dimensions)
    folded = list(numbers.lhs_contracting_dimensions), list(numbers.rhs_contracting_dimensions)
    (along,) = numbers.lhs_ragged_dimensions
    product = _Product(writer, operation, batch, folded)
    if along in batch[0]:
        return product.of(lhs, rhs, operation.results[0].type)
    groups = _groups(writer, counts)
    if along in folded[0]:
        place = folded[0].index(along)
        both = [
            groups.only(
                _in_front(writer, counts, array),
                [1 + d for d in (*own, *summed[:place])],
                1 + summed[place],
                0,
            )
            for array, own, summed in zip((lhs, rhs), batch, folded, strict=True)
        ]
        return product.behind_groups().of(*both, operation.results[0].type)
    free = [
        [d for d in range(ir.RankedTensorType(array.type).rank) if d not in (*own, *summed)]
        for array, own, summed in zip((lhs, rhs), batch, folded, strict=True)
    ]
    (of_groups,) = numbers.rhs_group_dimensions
    shape = [
        ir.RankedTensorType(array.type).shape[d]
        for array, axes in ((lhs, (*batch[0], *free[0])), (rhs, free[1]))
        for d in axes
    ]
    result = operation.results[0].type
    whole = product.of(lhs, rhs, with_sizes(result, shape))
    first, place = len(batch[0]), free[0].index(along)
    group = first + len(free[0]) + free[1].index(of_groups)
    only = groups.only(whole, range(first + place), first + place, group)
    total = writer.sum(only, (group,))
    return total if total.type == result else writer.reshaped(total, result, writer.sizes(total))


def _in_front(writer: Writer, counts: ir.Value, array: ir.Value) -> ir.Value:
    """The array once for each group: [g, ...]."""
    tensor, number = ir.RankedTensorType(array.type), ir.RankedTensorType(counts.type)
    return writer.broadcast(
        array,
        range(1, 1 + tensor.rank),
        with_sizes(array.type, [number.shape[-1], *tensor.shape]),
        lambda: [writer.size(counts, number.rank - 1), *writer.sizes(array)],
    )


@dataclass(frozen=True, slots=True)
class _Product:
    """Over the dimensions `folded` of both operands, of those `batch` each for itself."""

    writer: Writer
    operation: ir.Operation
    batch: tuple[list[int], list[int]]
    folded: tuple[list[int], list[int]]

    def behind_groups(self) -> _Product:
        """The same of operands that have groups in front, of which each is for itself."""
        batch = [[0, *(1 + d for d in one)] for one in self.batch]
        folded = [[1 + d for d in one] for one in self.folded]
        return _Product(self.writer, self.operation, tuple(batch), tuple(folded))

    def of(self, lhs: ir.Value, rhs: ir.Value, result: ir.Type) -> ir.Value:
        names = [one if isinstance(one, str) else one.name for one in self.operation.attributes]
        return self.writer.op(
            "stablehlo.dot_general",
            (lhs, rhs),
            result,
            dot_dimension_numbers=stablehlo.DotDimensionNumbers.get(*self.batch, *self.folded),
            **{
                name: in_stablehlo(self.operation.attributes[name])
                for name in names
                if name == _PRECISION
            },
        )


REWRITES: Mapping[str, Rewrite] = {"chlo.ragged_dot": _ragged_dot}
