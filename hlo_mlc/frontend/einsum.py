"""Sums of products by letters, and selections of rows: what StableHLO has given up.

    einsum(x, y, "abd,bc->ca")               ->  transpose(dot_general(sum(x, d), y))
    unary_einsum(x, "iij->j")                ->  sum(select(i == k, x, 0))
    torch_index_select(x, places, dim = 1)   ->  gather(x, places)

`...` stands for all other dimensions, which count from the last; of those a size of 1 is as long as
it has to be.  Places beyond the ends are the ends.  Source: StableHLO's definitions (einsum,
unary_einsum, torch_index_select), which refer to TensorFlow's and PyTorch's.
"""

from __future__ import annotations

import functools
import string
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo

from hlo_mlc.frontend.shape_dialects import Rewrite
from hlo_mlc.frontend.writing import Writer, integer_array, integers, with_elements, with_sizes
from hlo_mlc.support.errors import UnsupportedOpError

_REST = "..."


@dataclass(frozen=True, slots=True)
class _Array:
    """An array, and a letter (or a number from the last, of `...`) for each of its dimensions."""

    value: ir.Value
    letters: tuple[str, ...]

    def axes(self, letters: Sequence[str]) -> list[int]:
        return [self.letters.index(letter) for letter in letters]

    def sizes(self, axes: Sequence[int]) -> list[int]:
        """As types say them."""
        return [ir.RankedTensorType(self.value.type).shape[axis] for axis in axes]


def _einsum(writer: Writer, operation: ir.Operation) -> ir.Value:
    config = ir.StringAttr(operation.attributes["einsum_config"]).value
    *terms, wanted = _read(
        operation.name,
        config,
        [ir.RankedTensorType(operand.type).rank for operand in operation.operands],
    )
    arrays = [_Array(value, term) for value, term in zip(operation.operands, terms, strict=True)]
    if missing := set(wanted).difference(*terms):
        raise UnsupportedOpError(
            operation.name, f"{config} has {', '.join(sorted(missing))} in the result only"
        )
    arrays = [_without_repeats(writer, array) for array in _without_ones(writer, arrays)]
    arrays = [
        _summed(
            writer,
            array,
            {
                *wanted,
                *(letter for other in arrays if other is not array for letter in other.letters),
            },
        )
        for array in arrays
    ]
    result = operation.results[0].type
    found = arrays[0] if len(arrays) == 1 else _product(writer, *arrays, wanted, result)
    return _transposed(writer, found, wanted, result)


def _read(op: str, config: str, ranks: Sequence[int]) -> list[tuple[str, ...]]:
    """The letters of each operand, and of the result."""
    left, arrow, right = config.replace(" ", "").partition("->")
    terms = left.split(",")
    if len(terms) != len(ranks):
        raise UnsupportedOpError(op, f"{config} is of {len(terms)} operands, not {len(ranks)}")
    longest = 0
    for term, rank in zip(terms, ranks, strict=True):
        rest = rank - len(term.replace(_REST, ""))
        if (
            rest < 0
            or (rest and _REST not in term)
            or set(term.replace(_REST, "")) - set(string.ascii_letters)
        ):
            raise UnsupportedOpError(op, f"{term} in {config} says nothing of {rank} dimensions")
        longest = max(longest, rest)
    if not arrow:  # those that are there once, in the order of the alphabet
        once = Counter(left.replace(_REST, "").replace(",", ""))
        right = (_REST if longest else "") + "".join(
            sorted(letter for letter, count in once.items() if count == 1)
        )
    return [
        *(
            _letters(term, rank - len(term.replace(_REST, "")))
            for term, rank in zip(terms, ranks, strict=True)
        ),
        _letters(right, longest),
    ]


def _letters(term: str, rest: int) -> tuple[str, ...]:
    before, dots, behind = term.partition(_REST)
    return (*before, *(str(n) for n in range(rest if dots else 0, 0, -1)), *behind)


def _without_ones(writer: Writer, arrays: Sequence[_Array]) -> list[_Array]:
    """Those of `...` that have a size of 1 where the other operand has another are left out."""
    sizes = [dict(zip(a.letters, a.sizes(range(len(a.letters))), strict=True)) for a in arrays]
    found = []
    for array, own in zip(arrays, sizes, strict=True):
        kept = [
            axis
            for axis, letter in enumerate(array.letters)
            if not (
                letter.isdigit()
                and own[letter] == 1
                and any(other.get(letter, 1) != 1 for other in sizes)
            )
        ]
        value = (
            array.value
            if len(kept) == len(array.letters)
            else writer.reshaped(
                array.value,
                with_sizes(array.value.type, array.sizes(kept)),
                [writer.size(array.value, axis) for axis in kept],
            )
        )
        found.append(_Array(value, tuple(array.letters[axis] for axis in kept)))
    return found


def _without_repeats(writer: Writer, array: _Array) -> _Array:
    """The diagonal of dimensions that have the same letter: all else is nothing, and summed up."""
    letters = list(array.letters)
    for letter in {one for one, count in Counter(letters).items() if count > 1}:
        while letters.count(letter) > 1:
            value = array.value
            first = letters.index(letter)
            second = letters.index(letter, first + 1)
            sizes = functools.partial(writer.sizes, value)
            along = [
                writer.places(with_elements(value.type, integers()), axis, sizes)
                for axis in (first, second)
            ]
            is_on_it = writer.compare(along[0], "EQ", along[1])
            zero = writer.filled(0, value.type, sizes)
            only = writer.op("stablehlo.select", (is_on_it, value, zero), value.type)
            del letters[second]
            array = _Array(writer.sum(only, (second,)), tuple(letters))
    return array


def _summed(writer: Writer, array: _Array, wanted: set[str]) -> _Array:
    """Over dimensions that nothing else has."""
    alone = [letter for letter in array.letters if letter not in wanted]
    if not alone:
        return array
    return _Array(
        writer.sum(array.value, array.axes(alone)),
        tuple(letter for letter in array.letters if letter in wanted),
    )


def _product(
    writer: Writer, one: _Array, other: _Array, wanted: Sequence[str], like: ir.Type
) -> _Array:
    """Of both, over the dimensions that both have and the result has not."""
    both = [letter for letter in one.letters if letter in other.letters]
    batch = [letter for letter in both if letter in wanted]
    folded = [letter for letter in both if letter not in wanted]
    free = [[letter for letter in array.letters if letter not in both] for array in (one, other)]
    numbers = stablehlo.DotDimensionNumbers.get(
        lhs_batching_dimensions=one.axes(batch),
        rhs_batching_dimensions=other.axes(batch),
        lhs_contracting_dimensions=one.axes(folded),
        rhs_contracting_dimensions=other.axes(folded),
    )
    sizes = [*one.sizes(one.axes([*batch, *free[0]])), *other.sizes(other.axes(free[1]))]
    return _Array(
        writer.op(
            "stablehlo.dot_general",
            (one.value, other.value),
            with_sizes(like, sizes),
            dot_dimension_numbers=numbers,
        ),
        (*batch, *free[0], *free[1]),
    )


def _transposed(writer: Writer, array: _Array, wanted: Sequence[str], result: ir.Type) -> ir.Value:
    order = array.axes(wanted)
    value = array.value
    if order != sorted(order):
        value = writer.op(
            "stablehlo.transpose",
            (value,),
            with_sizes(value.type, array.sizes(order)),
            permutation=integer_array(order),
        )
    return value if value.type == result else writer.reshaped(value, result, writer.sizes(value))


def _selected(writer: Writer, operation: ir.Operation) -> ir.Value:
    array, places = operation.operands
    rank, count = (ir.RankedTensorType(v.type).rank for v in (array, places))
    dim, batch = (
        ir.IntegerAttr(operation.attributes[name]).value for name in ("dim", "batch_dims")
    )
    dim, batch = dim + rank * (dim < 0), batch + count * (batch < 0)
    shared, alone = list(range(batch)), {*range(batch), dim}
    numbers = stablehlo.GatherDimensionNumbers.get(
        offset_dims=[
            d if d < dim else d + count - batch - 1 for d in range(rank) if d not in alone
        ],
        collapsed_slice_dims=[dim],
        operand_batching_dims=shared,
        start_indices_batching_dims=shared,
        start_index_map=[dim],
        index_vector_dim=count,
    )
    result = operation.results[0].type
    if ir.RankedTensorType(array.type).has_static_shape:
        sizes = [
            1 if d in alone else size
            for d, size in enumerate(ir.RankedTensorType(array.type).shape)
        ]
        return writer.op(
            "stablehlo.gather",
            (array, places),
            result,
            dimension_numbers=numbers,
            slice_sizes=integer_array(sizes),
        )
    said = writer.joined(
        [writer.integer(1) if d in alone else writer.size(array, d) for d in range(rank)]
    )
    return writer.op(
        "stablehlo.dynamic_gather", (array, places, said), result, dimension_numbers=numbers
    )


REWRITES: Mapping[str, Rewrite] = {
    "stablehlo.einsum": _einsum,
    "stablehlo.unary_einsum": _einsum,
    "stablehlo.torch_index_select": _selected,
}
