"""All families of steps: how often each is drawn and how many values it gives."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from fuzzing import (
    arrays,
    carried,
    contracted,
    control,
    elementwise,
    folds,
    functions,
    general,
    indexed,
    integers,
    joined,
    layouts,
    matrices,
    narrow,
    seldom,
    together,
    transformed,
)
from fuzzing.draws import Again, Draws
from fuzzing.program import Operand, Program, Text, types_of


@dataclass(frozen=True, slots=True)
class Family:
    """`write(draw)` gives the expression of a step."""

    write: Callable[[Draws], str]
    weight: int
    results: int = 1


FAMILIES: Mapping[str, Family] = {
    "unary": Family(elementwise.unary, 12),
    "binary": Family(elementwise.binary, 14),
    "compare": Family(elementwise.compare, 2),
    "where": Family(elementwise.where, 6),
    "clip": Family(elementwise.clip, 2),
    "convert": Family(elementwise.convert, 4),
    "few_bits": Family(narrow.few_bits, 3),
    "invert": Family(elementwise.invert, 1),
    "classify": Family(elementwise.classify, 2),
    "bitcast": Family(elementwise.bitcast, 1),
    "random_bits": Family(elementwise.random_bits, 1),
    "complex": Family(elementwise.complex_numbers, 3),
    "reduction": Family(folds.reduction, 8),
    "several_reductions": Family(folds.several_reductions, 3, results=2),
    "variadic_reduction": Family(folds.variadic_reduction, 1, results=2),
    "norm": Family(folds.norm, 7),
    "product": Family(folds.product, 7),
    "pairs": Family(folds.pairs, 3),
    "convolution": Family(folds.convolution, 4),
    "window": Family(folds.window, 4),
    "cumulative": Family(folds.scan, 4),
    "difference": Family(folds.difference, 1),
    "fourier": Family(folds.fourier, 1),
    "concatenate": Family(arrays.concatenate, 8),
    "stack": Family(arrays.stack, 2),
    "pad": Family(arrays.pad, 6),
    "cut": Family(arrays.cut, 6),
    "move": Family(arrays.move, 9),
    "gather": Family(arrays.gather, 5),
    "update": Family(arrays.update, 5),
    "dynamic": Family(arrays.dynamic, 3),
    "order": Family(arrays.order, 3),
    "keys": Family(arrays.keys, 1, results=2),
    "largest": Family(arrays.largest, 1, results=2),
    "split": Family(arrays.split, 2, results=2),
    "one_hot": Family(arrays.one_hot, 1),
    "fori": Family(control.fori, 3),
    "while_two": Family(control.while_two, 3, results=2),
    "while_data": Family(control.while_data, 1, results=2),
    "scan": Family(control.scan, 3, results=2),
    "conditional": Family(control.conditional, 2),
    "switch": Family(control.switch, 1),
    "branches_in_loop": Family(control.branches_in_loop, 2, results=2),
    "flags": Family(control.flags, 2, results=2),
    "masked": Family(control.masked, 1, results=2),
    "nested": Family(control.nested, 2),
    "mapped": Family(control.mapped, 1),
    "matrices": Family(matrices.matrices, 2),
    "mapped_control": Family(transformed.mapped_control, 2),
    "mapped_indexing": Family(transformed.mapped_indexing, 2),
    "derivative": Family(transformed.derivative, 2),
    "associative": Family(transformed.associative, 1),
    "segments": Family(transformed.segments, 1),
    "joined": Family(joined.joined, 6),
    "summaries": Family(joined.summaries, 4),
    "woven": Family(joined.woven, 2),
    "written": Family(joined.written, 3),
    "contraction": Family(contracted.contraction, 3),
    "weights": Family(contracted.weights, 1),
    "pooled": Family(contracted.pooled, 2),
    "cell": Family(carried.cell, 3, results=2),
    "walk": Family(carried.walk, 3),
    "indexed": Family(indexed.indexed, 2),
    "scattered": Family(indexed.scattered, 2),
    "library": Family(indexed.library, 3),
    "corners": Family(integers.corners, 4),
    "rounded": Family(integers.rounded, 3),
    "laid_out": Family(layouts.laid_out, 3),
    "transform": Family(layouts.transform, 1),
    "many_axes": Family(layouts.many_axes, 3),
    "running": Family(together.running, 2),
    "nested_scans": Family(together.nested_scans, 3, results=2),
    "sorted_in_loop": Family(together.sorted_in_loop, 2, results=2),
    "keys_in_loop": Family(together.keys_in_loop, 1),
    "placed": Family(transformed.placed, 4),
    "function": Family(functions.function, 8),
    "gathered": Family(general.gathered, 4),
    "put": Family(general.put, 4),
    "general_product": Family(general.general_product, 4),
    "folded_together": Family(general.folded_together, 3, results=2),
    "chosen": Family(general.chosen, 2),
    "generated": Family(general.generated, 1, results=2),
    "deep": Family(control.deep, 4),
    "lax_function": Family(seldom.lax_function, 8),
    "lax_image": Family(seldom.lax_image, 2),
    "lax_matrix": Family(seldom.lax_matrix, 2),
    "foreign_function": Family(seldom.foreign_function, 3),
    "put_together": Family(seldom.put_together, 2, results=2),
}
OF_THE_LARGEST = frozenset(
    (
        "unary",
        "binary",
        "where",
        "convert",
        "reduction",
        "several_reductions",
        "norm",
        "window",
        "cumulative",
        "difference",
        "concatenate",
        "pad",
        "cut",
        "move",
        "gather",
        "update",
        "order",
    )
)
"""Those of which the reference makes no loop over elements or rows."""
CONTROL = frozenset(
    (
        "fori",
        "while_two",
        "while_data",
        "scan",
        "conditional",
        "switch",
        "branches_in_loop",
        "flags",
        "masked",
        "nested",
        "mapped",
        "cell",
        "walk",
        "nested_scans",
        "sorted_in_loop",
        "keys_in_loop",
        "deep",
    )
)


def text_of(program: Program) -> Text:
    """The lines of its steps, from the choices they recorded.

    Raises: UnfitError where a step does not apply to what its operands have become.
    """
    values: dict[str, Operand] = {i.name: i for i in program.inputs}
    lines = []
    for step in program.steps:
        draw = Again(step, values, program.x64)
        expression = FAMILIES[step.family].write(draw)
        operands = [values[name] for name in dict.fromkeys(draw.operands)]
        for value in types_of(expression, operands, step.results):
            values[value.name] = value
        lines.append(f"{', '.join(step.results)} = {expression}")
    return Text(tuple(lines), values)
