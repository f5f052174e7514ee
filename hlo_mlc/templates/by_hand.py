"""Loops built by hand: of scans, attention and sorting, which are no rewrites of a naive nest."""

from __future__ import annotations

from collections.abc import Callable

from hlo_mlc.expr import index
from hlo_mlc.expr.core import Expr, Var
from hlo_mlc.loops.core import For, LoopKind, Stmt
from hlo_mlc.loops.rewrite import loop, serial
from hlo_mlc.templates.base import even_groups, worth_a_task


def across(
    name: str,
    width: int,
    lanes: int,
    body: Callable[[Expr], tuple[Stmt, ...]],
    kind: LoopKind = LoopKind.UNROLL,
) -> tuple[Stmt, ...]:
    """`body(column)` for each of `width` columns: whole vectors, then the rest under a mask."""
    names = (f"{name}v", f"{name}l", f"{name}r")
    return _in_parts(names, width, lanes, (kind, LoopKind.VECTORIZE), body)


def in_blocks(
    name: str, count: int, most: int, body: Callable[[Expr], tuple[Stmt, ...]]
) -> tuple[Stmt, ...]:
    """`body(number)` for so many, written out some at a time."""
    kinds = (LoopKind.SERIAL, LoopKind.UNROLL)
    return _in_parts((f"{name}s", name, name), count, most, kinds, body)


def _in_parts(
    names: tuple[str, str, str],
    count: int,
    size: int,
    kinds: tuple[LoopKind, LoopKind],
    body: Callable[[Expr], tuple[Stmt, ...]],
) -> tuple[Stmt, ...]:
    """`body(number)` for so many: a loop of parts that are whole, and what is left over."""
    (of_parts, part, left), (outer, inner) = names, kinds
    whole, rest = divmod(count, size)

    def at(number: Expr) -> For:
        first = number * size
        return loop(part, size, inner, lambda i: body(first + i))

    def behind(i: Var) -> tuple[Stmt, ...]:
        return body(whole * size + i)

    return (
        *((loop(of_parts, whole, outer, lambda number: (at(number),)),) if whole else ()),
        *((loop(left, rest, inner, behind),) if rest else ()),
    )


def parallel_tasks(
    name: str, tasks: int, group: int, task: Callable[[Expr], tuple[Stmt, ...]]
) -> tuple[Stmt, ...]:
    """`task(number)` for each of `tasks`: groups of so many at most, all as large, in parallel, or
    all of them one after the other if `group` is 0."""
    if not group or tasks == 1:
        return (serial(f"{name}_task", tasks, task),)
    group = even_groups(tasks, group)
    if group == 1:
        return (loop(f"{name}_group", tasks, LoopKind.PARALLEL, task),)

    return (in_groups(name, tasks, group, lambda number, g: task(number)),)


def in_groups(
    name: str, tasks: int, size: int, task: Callable[[Expr, Var], tuple[Stmt, ...]]
) -> For:
    """`task(number, group)` for each of `tasks`: groups of so many in parallel, the last of which
    may be smaller."""

    def run(g: Var) -> tuple[Stmt, ...]:
        first = g * size
        count = index.minimum(size, tasks - first)

        def one(t: Var) -> tuple[Stmt, ...]:
            return task(bounded(first + t, tasks), g)

        return (serial(f"{name}_task", count, one),)

    return loop(f"{name}_group", -(-tasks // size), LoopKind.PARALLEL, run)


def shared_out(
    name: str, tasks: int, total: int, task: Callable[[Expr], tuple[Stmt, ...]]
) -> tuple[Stmt, ...]:
    """The same in groups that are worth a task of the pool, for tasks of `total` work in all."""
    return parallel_tasks(name, tasks, worth_a_task(tasks, total), task)


def bounded(e: Expr, extent: int) -> Expr:
    """`e`, which the count of its loop keeps below `extent`, in a form that shows it."""
    _, high = index.bounds(e)
    return e if high < extent else index.minimum(e, extent - 1)
