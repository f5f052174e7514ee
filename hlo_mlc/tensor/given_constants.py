"""Constants that become operands, so that programs which differ in them alone are one.

    y[i] = x[i] / 150     ->     y[i] = x[i] / c[0]     with c = [150]

How many rows there are is in the constants of a program as well: a mean divides by it. Which of
them come from it nobody can tell, so all do that arithmetic on floats has, but for such as every
program is full of, which better code is made of.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import TypeGuard

import numpy as np

from hlo_mlc.expr import index
from hlo_mlc.expr.build import apply, load, transform
from hlo_mlc.expr.core import Apply, Buffer, Const, Expr, walk
from hlo_mlc.expr.dtypes import BF16, F16, F32, F64, DType
from hlo_mlc.expr.ops import OPS, Accuracy
from hlo_mlc.tensor.core import Assign, Nest, Stage, TensorProgram
from hlo_mlc.tensor.sharding import all_stages

_KEPT = frozenset((0.0, 0.5, 1.0, 2.0, math.inf))
"""Magnitudes that say nothing of a number of rows, or of 1 or 2 of them."""

_DTYPES = (F32, F64, BF16, F16)


def with_constants_given(program: TensorProgram) -> tuple[TensorProgram, dict[Buffer, np.ndarray]]:
    """The program that reads constants from operands, its last, and what these hold; a program
    with loops or branches as it is."""
    if not all(isinstance(step, Nest) for step in program.steps):
        return program, {}
    found: dict[DType, dict[Const, None]] = {}
    for root in (e for stage in all_stages(program) for e in _values(stage)):
        for constant in _given_in(root):
            found.setdefault(constant.dtype, {})[constant] = None
    if not found:
        return program, {}
    operands = {
        dtype: Buffer(f"c{n}", dtype, (len(found[dtype]),)) for n, dtype in enumerate(found)
    }
    given: dict[Expr, Expr] = {
        c: load(operands[dtype], (index.constant(k),))
        for dtype, some in found.items()
        for k, c in enumerate(some)
    }
    memo: dict[Expr, Expr] = {}

    def reading(e: Expr) -> Expr:
        return given.get(e) or transform(e, lambda node: _reading(node, given), memo)

    steps = tuple(
        replace(step, stages=tuple(_with_values(s, reading) for s in step.stages))
        for step in program.steps
    )
    tables = {
        operands[dtype]: np.array([c.value for c in some]).astype(dtype.numpy)
        for dtype, some in found.items()
    }
    return replace(program, operands=(*program.operands, *tables), steps=steps), tables


def _values(stage: Stage) -> Iterator[Expr]:
    yield from stage.terms
    yield from (store.value for store in (*stage.along, *stage.assigns))


def _with_values(stage: Stage, rewrite: Callable[[Expr], Expr]) -> Stage:
    def stores(group: tuple[Assign, ...]) -> tuple[Assign, ...]:
        return tuple(replace(store, value=rewrite(store.value)) for store in group)

    return replace(
        stage,
        terms=tuple(map(rewrite, stage.terms)),
        along=stores(stage.along),
        assigns=stores(stage.assigns),
    )


def _given_in(root: Expr) -> Iterator[Const]:
    """The constants in an expression that become operands."""
    if _is_given(root):
        yield root
    for node in walk(root):
        if isinstance(node, Apply) and _is_arithmetic(node.op):
            yield from filter(_is_given, node.args)


def _is_arithmetic(op: str) -> bool:
    """Whether constants that it has may be of a number of rows: sums, products, quotients, and
    which of them is taken. Functions, and limits that values are held to, are left as they are."""
    about = OPS[op]
    return op == "select" or (about.strict and about.accuracy is Accuracy.ROUNDED)


def _is_given(e: Expr) -> TypeGuard[Const]:
    return (
        isinstance(e, Const)
        and e.dtype in _DTYPES
        and not math.isnan(e.value)
        and abs(e.value) not in _KEPT
    )


def _reading(node: Expr, given: Mapping[Expr, Expr]) -> Expr | None:
    if isinstance(node, Apply) and _is_arithmetic(node.op) and any(map(_is_given, node.args)):
        return apply(node.op, *(given.get(e, e) for e in node.args), dtype=node.dtype)
    return None
