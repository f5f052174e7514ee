"""How a matrix product is shared out: factors to tiles in shared memory, results to warps."""

from __future__ import annotations

import math
from dataclasses import dataclass

from hlo_mlc.expr.core import Apply, Expr, Var, loads
from hlo_mlc.expr.dtypes import BF16, F16, F32, DType
from hlo_mlc.loops import matrices
from hlo_mlc.target.cuda import VECTOR_BYTES, WARP
from hlo_mlc.templates.base import Parameters
from hlo_mlc.tensor.classify import Contraction, stride


@dataclass(frozen=True, slots=True)
class Side:
    """A factor: what is kept of it, and how its tile [outer, inner] lies in shared memory.

    `axes` are its rows or columns.  Memory is read along `inner`, which is the depth or these axes;
    with `turned` the tile lies the other way round.
    """

    name: str
    value: Expr
    axes: tuple[Var, ...]
    along_depth: bool
    width: int  # elements read at once
    turned: bool


def side_of(name: str, value: Expr, axes: tuple[Var, ...], roles: Contraction,
            with_tensor_cores: bool) -> Side:
    """How to bring in the factor `value` of a product."""
    votes = sum((stride(access, roles.summed[-1]) == 1) - (stride(access, axes[-1]) == 1)
                for access in loads(value))
    along_depth = votes > 0
    last = roles.summed[-1] if along_depth else axes[-1]
    width = 1
    if any(stride(access, last) == 1 for access in loads(value)):
        widest = max(value.dtype.bytes, *(access.dtype.bytes for access in loads(value)))
        width = math.gcd(VECTOR_BYTES // widest, last.extent)
    return Side(name, value, axes, along_depth, width, along_depth and not with_tensor_cores)


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
        fitting = [(d, a) for d in (1, 2, 4, 8, 16) for a in (1, 2, 4, 8, 16)
                   if d * a <= warps and rows % (d * unit[0]) == columns % (a * unit[1]) == 0]
        down, across = max(fitting, key=lambda f: (
            f[0] * f[1], -(rows // f[0] + columns // f[1]), f))
        return Shape(rows, columns, down, across)
