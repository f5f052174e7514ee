"""Loops built by hand: of scans, attention and sorting, which are no rewrites of a naive nest."""

from __future__ import annotations

from collections.abc import Callable

from hlo_mlc.expr import index
from hlo_mlc.expr.core import Expr, Var
from hlo_mlc.loops.core import LoopKind, Stmt
from hlo_mlc.loops.rewrite import loop
from hlo_mlc.templates.base import even_groups, worth_a_task


def across(
    name: str,
    width: int,
    lanes: int,
    body: Callable[[Expr], tuple[Stmt, ...]],
    kind: LoopKind = LoopKind.UNROLL,
) -> tuple[Stmt, ...]:
    """`body(column)` for each of `width` columns: whole vectors, then the rest under a mask."""
    whole, rest = divmod(width, lanes)
    result: tuple[Stmt, ...] = ()
    if whole:
        result += (
            loop(
                f"{name}v",
                whole,
                kind,
                lambda v: (
                    loop(
                        f"{name}l",
                        lanes,
                        LoopKind.VECTORIZE,
                        lambda lane: body(
                            index.add(index.multiply(v, index.constant(lanes)), lane)
                        ),
                    ),
                ),
            ),
        )
    if rest:
        result += (
            loop(
                f"{name}r",
                rest,
                LoopKind.VECTORIZE,
                lambda lane: body(index.add(index.constant(whole * lanes), lane)),
            ),
        )
    return result


def parallel_tasks(
    name: str, tasks: int, group: int, task: Callable[[Expr], tuple[Stmt, ...]]
) -> tuple[Stmt, ...]:
    """`task(number)` for each of `tasks`: groups of so many at most, all as large, in parallel, or
    all of them one after the other if `group` is 0."""
    if not group or tasks == 1:
        return (loop(f"{name}_task", tasks, LoopKind.SERIAL, task),)
    group = even_groups(tasks, group)
    if group == 1:
        return (loop(f"{name}_group", tasks, LoopKind.PARALLEL, task),)

    def run(g: Var) -> tuple[Stmt, ...]:
        first = index.multiply(g, index.constant(group))
        count = index.minimum(index.constant(group), index.subtract(index.constant(tasks), first))
        return (
            loop(
                f"{name}_task",
                count,
                LoopKind.SERIAL,
                lambda t: task(bounded(index.add(first, t), tasks)),
            ),
        )

    return (loop(f"{name}_group", -(-tasks // group), LoopKind.PARALLEL, run),)


def shared_out(
    name: str, tasks: int, total: int, task: Callable[[Expr], tuple[Stmt, ...]]
) -> tuple[Stmt, ...]:
    """The same in groups that are worth a task of the pool, for tasks of `total` work in all."""
    return parallel_tasks(name, tasks, worth_a_task(tasks, total), task)


def bounded(e: Expr, extent: int) -> Expr:
    """`e`, which the count of its loop keeps below `extent`, in a form that shows it."""
    _, high = index.bounds(e)
    return e if high < extent else index.minimum(e, index.constant(extent - 1))
