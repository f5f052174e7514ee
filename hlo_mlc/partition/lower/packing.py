"""Constant factors of products, in the layout that a register tile reads them in.

    y[m, n] = sum over k: x[m, k] * c[k, n]
        ->  y[m, 64 j + i] = sum over k: x[m, k] * p[j, k, i]

A tile walks down some columns of a constant.  In rows of thousands of columns, the next step lies
in another page; in a panel it follows at once.  So does it where the constant is the transpose of
the factor.  The panels are put together while compiling, and replace the constant if the kernel
is taken.

2 to 16 rows by 1024 x 4096 took 0.5 to 0.6 of the time, 0.2 to 0.5 where c was transposed.

So are filters of many channels, which each call would lay out otherwise: 3 x 3 of 512 by 512 took
0.4 to 0.5 of the time on images of 7 x 7, of 256 by 256 0.85 on 14 x 14, of 128 by 128 that have
channels first 0.75 on 28 x 28.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

import numpy as np

from hlo_mlc.expr.build import load, substitute, variable
from hlo_mlc.expr.core import Buffer, Const, Expr, Load, Var, loads
from hlo_mlc.partition.work import multiplies
from hlo_mlc.templates.window_roles import windowed_product
from hlo_mlc.tensor.classify import Contraction, contraction, slides, stride
from hlo_mlc.tensor.core import Nest, Stage, Step
from hlo_mlc.tensor.rewrite import map_expressions, replace_loads, with_parts

# Columns of a panel, the first that divides the columns: what tiles of two to four vectors of any
# width divide in turn.
WIDTHS = (64, 48, 32)
# Constants with fewer bytes stay in the caches, and few columns are one panel anyway (captured_head
# of the bench).
LEAST_BYTES, LEAST_COLUMNS = 128 * 1024, 128
# Columns of one axis from which on it pays to keep only them side by side (captured_head).
SIDE_BY_SIDE = 32


@dataclass(frozen=True, slots=True)
class Panels:
    """The dimensions of a constant in another order, `column` last and cut into pieces of `width`.

    The number of a piece comes after `before`, unless there is one only; `after` comes then.
    """

    before: tuple[int, ...]
    after: tuple[int, ...]
    column: int
    width: int

    def shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        """The shape of the panels of a constant."""
        pieces = shape[self.column] // self.width
        return (
            *(shape[d] for d in self.before),
            *((pieces,) if pieces > 1 else ()),
            *(shape[d] for d in self.after),
            self.width,
        )

    def of(self, constant: np.ndarray) -> np.ndarray:
        """The panels of a constant, as a view of it."""
        shape, c = constant.shape, self.column
        pieces = constant.reshape(*shape[:c], shape[c] // self.width, self.width, *shape[c + 1 :])
        order = [d + (d > c) for d in (*self.before, *self.after)]
        order.insert(len(self.before), c)
        return pieces.transpose(*order, c + 1).reshape(self.shape(shape))

    def place(self, indices: Sequence[Expr], piece: Expr | None, within: Expr) -> tuple[Expr, ...]:
        """Where an element is: in which piece of the columns, at which of its columns."""
        return (
            *(indices[d] for d in self.before),
            *(() if piece is None else (piece,)),
            *(indices[d] for d in self.after),
            within,
        )


def pack(
    steps: Sequence[Step], constants: Collection[Buffer]
) -> tuple[list[Step], dict[Buffer, tuple[Buffer, Panels]]]:
    """The steps reading panels where those are worth it: new buffers, and what of which constant
    is in each.  Other readers of a constant find it as it was."""
    made: dict[tuple[Buffer, Panels], Buffer] = {}
    packed = [_packed(step, constants, made) for step in steps]
    return packed, {new: key for key, new in made.items()}


def _packed(
    step: Step, constants: Collection[Buffer], made: dict[tuple[Buffer, Panels], Buffer]
) -> Step:
    if not isinstance(step, Nest):
        return with_parts(step, lambda steps: (_packed(s, constants, made) for s in steps))
    read = _factor(step, constants)
    panels = read and _panels(read, step.stages[0])
    if not panels:
        return step
    constant = read.source
    name, shape = f"{constant.name}_panels{len(made)}", panels.shape(constant.shape)
    new = Buffer(name, constant.dtype, shape, constant.scope)
    return _reading(step, read, panels, made.setdefault((constant, panels), new))


def _factor(nest: Nest, constants: Collection[Buffer]) -> Load | None:
    """Where a product reads a constant, column by column."""
    stage = nest.stages[0]
    if len(nest.stages) > 1 or not multiplies(stage) or not stage.axes:
        return None
    roles = _roles(stage)
    if roles is None and slides(stage):
        return None
    for factor in stage.terms[0].args if roles is None else (roles.rhs,):
        found = [x for x in loads(factor) if x.source in constants]
        if len(found) == 1 and found[0].guard is None:
            return found[0]
    return None


def _roles(stage: Stage) -> Contraction | None:
    """Those of a product of rows by columns, be the rows in windows or not."""
    return windowed_product(stage) if slides(stage) else contraction(stage)


def _panels(read: Load, stage: Stage) -> Panels | None:
    """The panels that a constant is best read from: None if it is best read as it is."""
    roles, shape = _roles(stage), read.source.shape
    column = stage.axes[-1] if roles is None else roles.columns[-1]
    at = {i: d for d, i in enumerate(read.indices) if isinstance(i, Var) and i.extent == shape[d]}
    if column not in at or len(at) != sum(not isinstance(i, Const) for i in read.indices):
        return None
    if roles is None and stride(read, column) != 1:
        return None  # one row by a transposed constant goes along both
    if len(stage.axes) > 1 and column.extent < SIDE_BY_SIDE:
        return None
    after = tuple(at[v] for v in stage.reduce_axes if v in at)
    before = tuple(d for d in range(len(shape)) if d not in (*after, at[column]))
    width = _width(read.source, column.extent)
    order = [d for d in (*before, *after, at[column]) if shape[d] > 1]
    in_order = order == sorted(order)
    return None if in_order and width == column.extent else Panels(before, after, at[column], width)


def _width(constant: Buffer, columns: int) -> int:
    if constant.bytes < LEAST_BYTES or columns <= LEAST_COLUMNS:
        return columns
    return next((width for width in WIDTHS if columns % width == 0), columns)


def _reading(nest: Nest, read: Load, panels: Panels, buffer: Buffer) -> Nest:
    """The product that reads the panels in `buffer`, piece by piece of its columns."""
    (stage,) = nest.stages
    column = read.indices[panels.column]
    pieces = column.extent // panels.width
    piece = variable(f"{column.name}_panel", pieces) if pieces > 1 else None
    within = column if piece is None else variable(f"{column.name}_column", panels.width)
    new = load(buffer, panels.place(read.indices, piece, within))
    stage = replace_loads(stage, {read.source: lambda x: new if x is read else None})
    if piece is None:
        return replace(nest, stages=(stage,))
    whole = piece * panels.width + within
    memo: dict[Expr, Expr] = {}
    stage = map_expressions(stage, lambda e: substitute(e, {column: whole}, memo))
    at = stage.axes.index(column)
    axes = (*stage.axes[:at], piece, within, *stage.axes[at + 1 :])
    return replace(nest, stages=(replace(stage, axes=axes),), shared=len(axes))
