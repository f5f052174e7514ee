"""How a matrix product is shared out: factors to tiles in shared memory, results to warps."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from hlo_mlc.expr import build
from hlo_mlc.expr.build import variable
from hlo_mlc.expr.core import Apply, Expr, Var, loads
from hlo_mlc.expr.dtypes import BF16, F16, F32, DType
from hlo_mlc.loops import matrices
from hlo_mlc.target.cuda import VECTOR_BYTES, WARP
from hlo_mlc.templates.base import Parameters, decoded
from hlo_mlc.templates.cuda.base import below, product
from hlo_mlc.tensor.access import conjunction, masked
from hlo_mlc.tensor.classify import Contraction, contraction, stride
from hlo_mlc.tensor.core import Assign, Stage


@dataclass(frozen=True, slots=True)
class Side:
    """A factor: what is kept of it, and how its tile [outer, inner] lies in shared memory.

    Memory is read along `inner`, which is the depth or the axes of its rows or columns; with
    `turned` the tile lies the other way round.
    """

    value: Expr
    along_depth: bool
    width: int  # elements read at once
    turned: bool


def side_of(
    value: Expr, axes: tuple[Var, ...], roles: Contraction, with_tensor_cores: bool
) -> Side:
    """How to bring in the factor `value` of a product."""
    votes = sum(
        (stride(access, roles.summed[-1]) == 1) - (stride(access, axes[-1]) == 1)
        for access in loads(value)
    )
    along_depth = votes > 0
    last = roles.summed[-1] if along_depth else axes[-1]
    width = 1
    if any(stride(access, last) == 1 for access in loads(value)):
        widest = max(value.dtype.bytes, *(access.dtype.bytes for access in loads(value)))
        width = math.gcd(VECTOR_BYTES // widest, last.extent)
    return Side(value, along_depth, width, along_depth and not with_tensor_cores)


def kept_factors(roles: Contraction, accumulator: DType) -> tuple[Expr, Expr, bool]:
    """What of the factors is kept in shared memory, and whether tensor cores multiply it."""
    lhs, rhs = roles.lhs, roles.rhs
    if accumulator is not F32:
        return lhs, rhs, False
    inner = [e.args[0] for e in (lhs, rhs) if isinstance(e, Apply) and e.op == "convert"]
    kinds = {e.dtype for e in inner}
    if len(inner) == 2 and len(kinds) == 1 and kinds <= {BF16, F16}:
        return inner[0], inner[1], True
    return lhs, rhs, matrices.is_tf32(lhs) and matrices.is_tf32(rhs)


def in_whole_tiles(stage: Stage, factors: tuple[Expr, Expr], tile: tuple[int, int, int]) -> Stage:
    """The same product of one axis of rows, one of columns, and one that is summed along, all of
    them whole multiples of a tile's: zeros stand where there are no factors, and what comes of
    these is not stored."""
    roles = contraction(stage)
    along = (roles.rows, roles.columns, roles.summed)
    m, n, k = axes = [
        variable(letter, -(-product(vs) // size) * size)
        for letter, vs, size in zip("mnk", along, tile, strict=True)
    ]
    place, exists = {}, {}
    for axis, vs in zip(axes, along, strict=True):
        place.update(decoded(vs, axis))
        exists[axis] = below(axis, product(vs))
    accumulator = stage.accumulators[0].dtype
    term = build.apply(
        "mul",
        *(
            build.apply(
                "convert",
                masked(
                    build.substitute(e, place),
                    build.all_of(exists[axis], exists[k]),
                    build.const(0, e.dtype),
                ),
                dtype=accumulator,
            )
            for e, axis in zip(factors, (m, n), strict=True)
        ),
    )

    def moved(a: Assign) -> Assign:
        guard = conjunction(exists[m], exists[n], a.guard and build.substitute(a.guard, place))
        return Assign(
            a.buffer,
            tuple(build.substitute(i, place) for i in a.indices),
            build.substitute(a.value, place),
            None if guard is build.TRUE else guard,
        )

    return replace(
        stage,
        axes=(*roles.batch, m, n),
        reduce_axes=(k,),
        terms=(term,),
        assigns=tuple(map(moved, stage.assigns)),
    )


@dataclass(frozen=True, slots=True)
class Unit:
    """The rows and columns that a warp multiplies at once, and how its lanes share them."""

    rows: int
    columns: int
    inner_rows: int  # of lanes if these are inside, else of elements of a lane
    inner_columns: int  # of elements of a lane, which are neighbours
    lanes_inside: bool
    order: tuple[str, ...]  # of the parts, warps by lanes by units by elements

    @staticmethod
    def of(with_tensor_cores: bool) -> Unit:
        """That of an instruction of the tensor cores; else 4 x 8 lanes of 4 x 4 elements."""
        if with_tensor_cores:
            order = ("0 4", "3 6", "1", "5", "2 7")
            return Unit(matrices.ROWS, matrices.COLUMNS, 8, 2, True, order)
        return Unit(16, 32, 4, 4, False, ("0 4", "2 6", "1", "5", "3 7"))

    def parts(self, shape: Shape) -> tuple[int, ...]:
        """Those of a tile's rows and columns: warps, units, and what is in these."""
        return (
            shape.down,
            shape.rows // (shape.down * self.rows),
            self.rows // self.inner_rows,
            self.inner_rows,
            shape.across,
            shape.columns // (shape.across * self.columns),
            self.columns // self.inner_columns,
            self.inner_columns,
        )


@dataclass(frozen=True, slots=True)
class Shape:
    """How warps, and their lanes, share a tile of results."""

    rows: int
    columns: int
    down: int  # warps one below the other
    across: int  # and side by side

    @staticmethod
    def of(parameters: Parameters, unit: tuple[int, int], most_sums: int) -> Shape:
        """As square parts as `unit` of a warp (rows, columns) and the number of warps allow."""
        rows, columns = parameters["rows"], parameters["columns"]
        warps = max(parameters["warps"], rows * columns // (WARP * most_sums))
        fitting = [
            (d, a)
            for d in (1, 2, 4, 8, 16)
            for a in (1, 2, 4, 8, 16)
            if d * a <= warps and rows % (d * unit[0]) == columns % (a * unit[1]) == 0
        ]
        down, across = max(
            fitting, key=lambda f: (f[0] * f[1], -(rows // f[0] + columns // f[1]), f)
        )
        return Shape(rows, columns, down, across)
