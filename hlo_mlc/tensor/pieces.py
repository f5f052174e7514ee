"""Programs cut into pieces that run one after the other; between two pieces, devices combine their
partial folds.

    a[i] = tanh(sum over k of x[i, k])   ->   t[i] = sum over k of x[i, k];  add t over k
                                              a[i] = tanh(t[i])
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from hlo_mlc.expr.build import load, substitute
from hlo_mlc.expr.core import Buffer, Expr, Var
from hlo_mlc.tensor.canonical import stages, written
from hlo_mlc.tensor.core import Assign, Nest, Stage, Step, TensorProgram
from hlo_mlc.tensor.liveness import step_reads
from hlo_mlc.tensor.rewrite import map_expressions
from hlo_mlc.tensor.sharding import Factor, all_stages, folded_as_is, part_of


@dataclass(frozen=True, slots=True)
class Piece:
    """What one device computes between two times that it waits for the others.

    `joins`: what is to be folded over devices then, over which factors, and what folds it.
    """

    steps: tuple[Step, ...]
    operands: tuple[Buffer, ...]
    results: tuple[Buffer, ...]
    aliases: tuple[tuple[Buffer, Buffer], ...]
    joins: tuple[tuple[Buffer, tuple[Factor, ...], str], ...]


def pieces(
    program: TensorProgram, parts: Mapping[Factor, int]
) -> tuple[TensorProgram, tuple[Piece, ...]]:
    """What one device computes if factors are cut into so many parts, each of which divides its
    extent; and its pieces, as few as can be, in order.

        a[i] = tanh(sum over k of x[i, k])     ->     t[i] = sum over k of x[i, k]; add t over k
                                                      a[i] = tanh(t[i])
    """
    local = part_of(program, parts)
    cut = {axis: factor for factor in parts for axis in factor.axes}
    over = {
        here: tuple(dict.fromkeys(cut[a] for a in whole.reduce_axes if a in cut))
        for whole, here in zip(all_stages(program), all_stages(local), strict=True)
    }
    if not any(over.values()):
        piece = Piece(local.steps, local.operands, local.results, local.aliases, ())
        return local, (piece,)
    known: dict[Buffer, int] = {}  # how many waits come before what is in a buffer
    groups: dict[int, list[Step]] = {}
    joins: dict[Buffer, tuple[tuple[Factor, ...], str]] = {}
    for step in local.steps:
        placed: dict[int, list[Stage]] = {}
        for stage in stages(step):
            at = max((known.get(b, 0) for b in stage.inputs), default=0)
            known.update(dict.fromkeys(stage.outputs, at))
            if not over[stage]:
                placed.setdefault(at, []).append(stage)
                continue
            fold, rest = stage, None
            if folded_as_is(stage) is None:
                fold, rest = in_two(stage, len(joins))
            joined = folded_as_is(fold)
            joins.update((b, (over[stage], op)) for b, op in joined.items())
            known.update(dict.fromkeys(joined, at + 1))
            placed.setdefault(at, []).append(fold)
            if rest is not None:
                known.update(dict.fromkeys(rest.outputs, at + 1))
                placed.setdefault(at + 1, []).append(rest)
        for at, group in placed.items():
            groups.setdefault(at, []).append(part_of_nest(step, group))
    return local, tuple(_in_order(local, [groups[at] for at in sorted(groups)], joins))


def in_two(stage: Stage, number: int) -> tuple[Stage, Stage]:
    """The folds of a stage alone, in buffers numbered from there on, and a stage that computes its
    results from them."""
    read_on = frozenset[Var]().union(
        *(e.free for store in stage.assigns for e in (store.value, store.guard) if e is not None)
    )
    folds = {
        a: Buffer(f"w{number + n}", a.dtype, tuple(axis.extent for axis in stage.axes))
        for n, a in enumerate(stage.accumulators)
        if a in read_on
    }
    read: dict[Expr, Expr] = {a: load(b, stage.axes) for a, b in folds.items()}
    rest = map_expressions(
        Stage(stage.name, stage.axes, stage.assigns), lambda e: substitute(e, read)
    )
    rest = replace(rest, overwrites=tuple(b for b in stage.overwrites if b in rest.inputs))
    return replace(
        stage, overwrites=(), assigns=tuple(Assign(b, stage.axes, a) for a, b in folds.items())
    ), rest


def part_of_nest(nest: Nest, group: Sequence[Stage]) -> Nest:
    """Some stages of a nest, as they are or in two, as a nest of their own."""
    if len(group) == 1:
        return Nest(tuple(group), len(group[0].axes))
    others = {b for s in nest.stages if s not in group for b in (*s.inputs, *s.outputs)}
    return Nest(tuple(group), nest.shared, tuple(b for b in nest.private if b not in others))


def _in_order(
    local: TensorProgram,
    groups: Sequence[Sequence[Step]],
    joins: Mapping[Buffer, tuple[tuple[Factor, ...], str]],
) -> Iterator[Piece]:
    """The steps of each group as a piece."""
    reads = [{b for s in steps for b in step_reads(s)} for steps in groups]
    for number, steps in enumerate(groups):
        made = written(steps)
        wanted = {*local.results}.union(*reads[number + 1 :])
        aliases = tuple((r, o) for r, o in local.aliases if r in made and o in reads[number])
        operands = tuple(
            dict.fromkeys(
                b for step in steps for s in stages(step) for b in s.inputs if b not in made
            )
        )
        yield Piece(
            tuple(steps),
            operands,
            tuple(b for b in made if b in wanted),
            aliases,
            tuple((b, *joins[b]) for b in made if b in joins),
        )
