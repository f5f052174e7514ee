"""Nests that differ only in the names of their buffers and variables, such as the copies of an
unrolled loop body: what is derived of one holds for all of them."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator

from hlo_mlc.expr.core import Apply, Buffer, Const, Expr, Load, Var, walk
from hlo_mlc.tensor.core import Nest, Stage, Step


def share_alike(steps: Iterable[Step]) -> None:
    """Let all nests that are equal up to names, those inside loops and branches included, share one
    cache of derived facts."""
    nests = [*_nests(steps)]
    if len(nests) < 2:
        return
    first: dict[Hashable, Nest] = {}
    for nest in nests:
        outline = outline_of(nest)
        known = nest if outline is None else first.setdefault(outline, nest)
        if known is not nest:
            nest.shares(known)


def _nests(steps: Iterable[Step]) -> Iterator[Nest]:
    for step in steps:
        if isinstance(step, Nest):
            yield step
        else:
            yield from _nests(step.inner)


def outline_of(nest: Nest) -> Hashable | None:
    """Everything about a nest except its names, which are numbered in order of appearance; None for
    a nest with a procedure, which is long and seldom the same as another."""
    if any(stage.procedure is not None for stage in nest.stages):
        return None
    numbers: dict[Expr | Buffer, int] = {}
    outline: list[Hashable] = [nest.shared]
    for stage in nest.stages:
        _add(stage, numbers, outline)
    outline += [numbers[buffer] for buffer in nest.private]
    return tuple(outline)


def _add(stage: Stage, numbers: dict[Expr | Buffer, int], outline: list[Hashable]) -> None:
    """Append a stage to the outline, and number the buffers and variables that it names."""
    for node in (*stage.axes, *stage.reduce_axes, *stage.accumulators, *walk(*stage.expressions)):
        if node in numbers:
            continue
        below = tuple([numbers[child] for child in node.children])
        if isinstance(node, Apply):
            outline.append((node.op, node.dtype, below))
        elif isinstance(node, Load):
            buffer = _numbered(node.source, numbers, outline)
            outline.append((buffer, node.guard is None, below))
        elif isinstance(node, Var):
            outline.append((node.dtype, node.extent))
        else:
            assert isinstance(node, Const)
            outline.append(node)
        numbers[node] = len(numbers)
    stores = (*stage.along, *stage.assigns)
    scan, sort = stage.scan, stage.sort
    outline.append(
        (
            tuple([numbers[v] for v in (*stage.axes, *stage.reduce_axes, *stage.accumulators)]),
            (len(stage.axes), len(stage.reduce_axes), len(stage.along)),
            tuple([numbers[e] for e in stage.expressions]),
            tuple([(_numbered(a.buffer, numbers, outline), a.guard is None) for a in stores]),
            tuple([_numbered(buffer, numbers, outline) for buffer in stage.overwrites]),
            stage.combiner,
            scan and (numbers[scan.axis], scan.reverse),
            sort and (numbers[sort.place], len(sort.keys)),
            stage.trips,
        )
    )


def _numbered(buffer: Buffer, numbers: dict[Expr | Buffer, int], outline: list[Hashable]) -> int:
    """The number of a buffer, assigned at its first occurrence."""
    number = numbers.get(buffer)
    if number is None:
        outline.append((buffer.dtype, buffer.shape, buffer.scope))
        number = numbers[buffer] = len(numbers)
    return number
