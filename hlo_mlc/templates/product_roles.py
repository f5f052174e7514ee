"""What the axes of a matrix product are to a register tile, and which products are added up in
pairs.
"""

from __future__ import annotations

import math
from dataclasses import replace

from hlo_mlc.expr.core import Apply
from hlo_mlc.expr.dtypes import I16, I32, holds
from hlo_mlc.target.cpu import PAIR, CpuTarget
from hlo_mlc.templates.product import reads_vectors_along
from hlo_mlc.tensor.classify import Contraction, contraction, stride
from hlo_mlc.tensor.core import Stage

# Vectors that printers put into memory in turns (codegen/cpu/strides.py); instructions to store an
# element of a vector alone.
SHUFFLED = 4
STORED_ALONE = 2
# Rows from which on it pays to lay factors out for products that are added up in pairs:
# 512 and 1024 square took 0.5 of the time, 12 to 32 x 1024 x 1024 0.55 to 0.75, 8 0.92, 4 1.08;
# without an instruction that adds the sum, too, 0.42 with AVX2 (16 and 8 rows 0.76 and 0.89), 0.48
# with AVX-512, 0.7 with SSE4.2.
PAIRED_ROWS = 8


def register_roles(stage: Stage, lanes: int) -> Contraction:
    """The roles of a product's axes: columns are what goes into vectors.

    As a rule that is the axis along which results lie side by side.  Where they are few, vectors
    along the rows take fewer instructions if the left factor lies along these, though results are
    shuffled then, or stored one by one: a million points times 3 x 3, from three rows of a million,
    took 0.6 of the time.
    """
    roles = contraction(stage)
    rows, columns = roles.rows[-1], roles.columns[-1]
    if not columns.extent < lanes <= rows.extent or not reads_vectors_along(roles.lhs, rows):
        return roles
    depth = math.prod(v.extent for v in roles.summed)
    in_turns = columns.extent <= SHUFFLED and all(
        stride(a, rows) == columns.extent for a in stage.assigns
    )
    stored = columns.extent * (columns.extent if in_turns else STORED_ALONE * lanes)
    if columns.extent * depth + stored >= lanes * (depth + 1):
        return roles
    return replace(roles, rows=roles.columns, columns=roles.rows, lhs=roles.rhs, rhs=roles.lhs)


def lanes_of(stage: Stage, target: CpuTarget) -> int:
    """How many sums of a product a vector holds."""
    return max(1, target.vector_bytes // stage.accumulators[0].dtype.bytes)


def adds_pairs(stage: Stage, target: CpuTarget) -> bool:
    """Whether products of what i16 holds are added up as i32, of which the target does two at once
    where both factors are laid out for that."""
    roles = register_roles(stage, lanes_of(stage, target))
    return (
        target.has_pairs
        and stage.accumulators[0].dtype is I32
        and len(roles.summed) == 1
        and roles.summed[0].extent >= PAIR
        and roles.rows[-1].extent >= PAIRED_ROWS
        and all(
            isinstance(one, Apply)
            and one.op == "convert"
            and one.args[0].dtype.is_integer
            and holds(I16, one.args[0].dtype)
            for one in (roles.lhs, roles.rhs)
        )
    )
