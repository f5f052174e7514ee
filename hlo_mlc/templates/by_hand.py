"""Loops built by hand: of scans, attention and sorting, which are no rewrites of a naive nest."""

from __future__ import annotations

from collections.abc import Callable

from hlo_mlc.expr import index
from hlo_mlc.expr.build import const, load
from hlo_mlc.expr.core import Buffer, Expr, Var
from hlo_mlc.loops.core import Accumulate, For, If, LoopKind, Stmt, Store
from hlo_mlc.loops.rewrite import Steps, loop, serial
from hlo_mlc.templates.base import even_groups, worth_a_task
from hlo_mlc.tensor.combine import named_combiner


def read(buffer: Buffer, *at: Expr | int) -> Expr:
    """A load of one element."""
    return load(buffer, _indices(at))


def store(buffer: Buffer, value: Expr | int, *at: Expr | int, guard: Expr | None = None) -> Store:
    """A store of `value` to one element, where the guard holds."""
    return Store(buffer, _indices(at), _value(value, buffer), guard)


def fold(op: str, buffer: Buffer, value: Expr | int, *at: Expr | int) -> Accumulate:
    """An update of one element by the op of itself and `value`."""
    combiner = named_combiner(op, buffer.dtype)
    return Accumulate((buffer,), _indices(at), combiner, (_value(value, buffer),))


def _value(value: Expr | int, buffer: Buffer) -> Expr:
    return const(value, buffer.dtype) if isinstance(value, int) else value


def _indices(at: tuple[Expr | int, ...]) -> tuple[Expr, ...]:
    return tuple(index.constant(i) if isinstance(i, int) else i for i in at)


def across(
    name: str,
    width: int,
    lanes: int,
    body: Callable[[Expr], Steps],
    kind: LoopKind = LoopKind.UNROLL,
) -> tuple[Stmt, ...]:
    """`body(column)` for each of `width` columns: whole vectors, then the rest under a mask."""
    names = (f"{name}v", f"{name}l", f"{name}r")
    return _nested(names, width, lanes, (kind, LoopKind.VECTORIZE), body)


def in_blocks(name: str, count: int, most: int, body: Callable[[Expr], Steps]) -> tuple[Stmt, ...]:
    """`body(number)` for so many numbers, in unrolled blocks."""
    kinds = (LoopKind.SERIAL, LoopKind.UNROLL)
    return _nested((f"{name}s", name, name), count, most, kinds, body)


def _nested(
    names: tuple[str, str, str],
    count: int,
    size: int,
    kinds: tuple[LoopKind, LoopKind],
    body: Callable[[Expr], Steps],
) -> tuple[Stmt, ...]:
    """`body(number)` for so many: a loop of parts that are whole, and what is left over."""
    (of_parts, part, left), (outer, inner) = names, kinds
    whole, rest = divmod(count, size)

    def at(number: Expr) -> For:
        first = number * size
        return loop(part, size, inner, lambda i: body(first + i))

    def behind(i: Var) -> Steps:
        return body(whole * size + i)

    return (
        *((loop(of_parts, whole, outer, at),) if whole else ()),
        *((loop(left, rest, inner, behind),) if rest else ()),
    )


def in_parts(
    name: str, count: int, size: int, body: Callable[[Expr, int], tuple[Stmt, ...]]
) -> tuple[Stmt, ...]:
    """`body(first, length)` for parts of so many: a loop of those that are whole, and the rest."""
    whole, rest = divmod(count, size)
    return (
        *((serial(name, whole, lambda n: body(n * size, size)),) if whole else ()),
        *(body(index.constant(whole * size), rest) if rest else ()),
    )


def one_of_parts(
    number: Expr, count: int, size: int, body: Callable[[Expr, int], tuple[Stmt, ...]]
) -> tuple[Stmt, ...]:
    """`body(first, length)` for the part of that number, which may be the last, shorter one."""
    whole, rest = divmod(count, size)
    last = body(index.constant(whole * size), rest) if rest else ()
    if not whole:
        return last
    full = body(index.minimum(number, whole - 1) * size, size)
    return (If(index.compare("lt", number, whole), full, last),) if rest else full


def parallel_tasks(
    name: str, tasks: int, group: int, task: Callable[[Expr], Steps]
) -> tuple[Stmt, ...]:
    """`task(number)` for each of `tasks`: groups of so many at most, all as large, in parallel, or
    all of them one after the other if `group` is 0."""
    if not group or tasks == 1:
        return (serial(f"{name}_task", tasks, task),)
    group = even_groups(tasks, group)
    if group == 1:
        return (loop(f"{name}_group", tasks, LoopKind.PARALLEL, task),)

    return (in_groups(name, tasks, group, lambda number, g: task(number)),)


def in_groups(name: str, tasks: int, size: int, task: Callable[[Expr, Var], Steps]) -> For:
    """`task(number, group)` for each of `tasks`: groups of so many in parallel, the last of which
    may be smaller."""

    def run(g: Var) -> Stmt:
        first = g * size
        count = index.minimum(size, tasks - first)

        def one(t: Var) -> Steps:
            return task(bounded(first + t, tasks), g)

        return serial(f"{name}_task", count, one)

    return loop(f"{name}_group", -(-tasks // size), LoopKind.PARALLEL, run)


def shared_out(
    name: str, tasks: int, total: int, task: Callable[[Expr], Steps]
) -> tuple[Stmt, ...]:
    """The same in groups that are worth a task of the pool, for tasks of `total` work in all."""
    return parallel_tasks(name, tasks, worth_a_task(tasks, total), task)


def bounded(e: Expr, extent: int) -> Expr:
    """`e`, which its loop's trip count keeps below `extent`, written so that its bounds show it."""
    _, high = index.bounds(e)
    return e if high < extent else index.minimum(e, extent - 1)
