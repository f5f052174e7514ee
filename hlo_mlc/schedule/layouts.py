"""Schedule primitives that say how private buffers lie in memory: pad, transform_layout."""

from __future__ import annotations

import math
from dataclasses import replace

from hlo_mlc.expr import build, index
from hlo_mlc.expr.core import Buffer, Expr
from hlo_mlc.loops.core import Allocate, LoopProgram, walk
from hlo_mlc.loops.rewrite import redirect, with_body
from hlo_mlc.schedule.storage import refuse_large
from hlo_mlc.support.errors import ScheduleError
from hlo_mlc.tensor.access import linearize


def pad(program: LoopProgram, name: str, elements: int, dimension: int = -1) -> LoopProgram:
    """Let the rows of a private buffer be longer than what they hold.

        alloc a: 32x32xf32 stack:        alloc a: 32x33xf32 stack:
          …a[i, j]…                  ->    …a[i, j]…

    So the elements of a column are in different banks of a GPU's shared memory, or in different
    sets of a cache.  Another `dimension` than the last one is padded in the same way.  TVM:
    storage_align; Halide: align_storage.
    """
    if elements < 1:
        raise ScheduleError(f"pad: expected at least one element for {name!r}, got {elements}")
    found = _private_arrays(program, "pad", name)
    if any(not -1 <= dimension < len(b.shape) for b in found):
        raise ScheduleError(f"pad: {name!r} has no dimension {dimension}")
    wide = {
        b: replace(
            b,
            shape=tuple(
                size + elements * (n == dimension % len(b.shape)) for n, size in enumerate(b.shape)
            ),
        )
        for b in found
    }
    for stmt in walk(program.body):
        if isinstance(stmt, Allocate) and stmt.buffer in wide:
            refuse_large("pad", stmt, wide[stmt.buffer])
    return with_body(program, redirect(program.body, wide))


def transform_layout(
    program: LoopProgram, name: str, parts: tuple[int, ...], order: tuple[str, ...]
) -> LoopProgram:
    """Cut the dimensions of a private buffer into parts, and put these into another order.

        alloc a: 8x6xf32 stack:        alloc a: 4x4x3xf32 stack:
          …a[i, j]…               ->     …a[floordiv(i, 2), floordiv(j, 3) + floormod(i, 2) * 2,
                                            floormod(j, 3)]…

    The `parts` are (4, 2, 2, 3) here, and their `order` is ("0", "1 2", "3"): a dimension each, but
    for those that are one together.  One part may be 0: as many as there are, of each array of that
    name.  TVM: transform_layout.
    """
    groups = [[int(n) for n in group.split()] for group in order]
    if sorted(n for group in groups for n in group) != [*range(len(parts))]:
        raise ScheduleError(
            f"transform_layout: expected {len(parts)} parts of {name!r} in some "
            f"order, got {', '.join(order)}"
        )
    for array in _private_arrays(program, "transform_layout", name):
        program = _laid_out(program, array, parts, groups)
    return program


def _laid_out(
    program: LoopProgram, array: Buffer, parts: tuple[int, ...], groups: list[list[int]]
) -> LoopProgram:
    """The program with one private array in another layout."""
    known = math.prod(filter(None, parts))
    parts = tuple(n or max(1, array.size // known) for n in parts)
    owners = _parts_of(array.shape, parts)
    if owners is None:
        raise ScheduleError(
            f"transform_layout: {array.name!r} does not consist of parts of "
            f"{'x'.join(map(str, parts))}"
        )

    def place(indices: tuple[Expr, ...]) -> tuple[Expr, ...]:
        only = {v: index.constant(0) for i in indices for v in i.free if v.extent == 1}
        known = [build.substitute(i, only) for i in indices]  # so that parts are told apart
        digits = [
            known[d] // inside % size for size, (d, inside) in zip(parts, owners, strict=True)
        ]
        return tuple(
            [linearize([digits[n] for n in group], [parts[n] for n in group]) for group in groups]
        )

    shape = tuple(math.prod(parts[n] for n in group) for group in groups)
    return with_body(program, redirect(program.body, {array: replace(array, shape=shape)}, place))


def _parts_of(shape: tuple[int, ...], parts: tuple[int, ...]) -> list[tuple[int, int]] | None:
    """The dimension that each part is of, and how many elements there are in one of it; None where
    they are not those of the shape."""
    found: list[tuple[int, int]] = []
    rest = list(parts)
    for d, extent in enumerate(shape):
        own: list[int] = []
        while rest and (math.prod(own) < extent or (d == len(shape) - 1)):
            own.append(rest.pop(0))
        if math.prod(own) != extent:
            return None
        found += [(d, math.prod(own[n + 1 :])) for n in range(len(own))]
    return None if rest else found


def _private_arrays(program: LoopProgram, primitive: str, name: str) -> list[Buffer]:
    """The private arrays of that name.

    Raises: ScheduleError where there is none.
    """
    private = {s.buffer for s in walk(program.body) if isinstance(s, Allocate) and s.buffer.shape}
    found = [b for b in private if b.name == name]
    if not found:
        known = ", ".join(sorted(b.name for b in private)) or "none"
        raise ScheduleError(f"{primitive}: no private array is called {name!r}; there are: {known}")
    return found
