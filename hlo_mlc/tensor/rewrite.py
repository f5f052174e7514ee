"""Rewriting stages: other variables, other buffers, loads replaced by what was stored."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from types import MappingProxyType

from hlo_mlc.expr.build import FALSE, TRUE, load, substitute, transform
from hlo_mlc.expr.core import Buffer, Expr, Load, Var
from hlo_mlc.expr.refine import refine
from hlo_mlc.support.errors import VerifyError
from hlo_mlc.tensor.classify import walks_columns
from hlo_mlc.tensor.core import Assign, Branch, Loop, Nest, Stage, Step


def map_expressions(stage: Stage, rewrite: Callable[[Expr], Expr]) -> Stage:
    """The stage with every expression rewritten; axes and buffers written stay."""

    def assign(a: Assign) -> Assign:
        return Assign(
            a.buffer,
            tuple(rewrite(i) for i in a.indices),
            rewrite(a.value),
            None if a.guard is None else rewrite(a.guard),
        )

    sort = stage.sort and replace(
        stage.sort, keys=tuple(map(rewrite, stage.sort.keys)), at=rewrite(stage.sort.at)
    )
    return replace(
        stage,
        assigns=tuple(assign(a) for a in stage.assigns),
        along=tuple(assign(a) for a in stage.along),
        sort=sort,
        procedure=stage.procedure and stage.procedure.mapped(rewrite),
        terms=tuple(rewrite(t) for t in stage.terms),
        initial=tuple(rewrite(i) for i in stage.initial),
    )


def with_parts(
    step: Loop | Branch,
    inner: Callable[[tuple[Step, ...]], Iterable[Step]],
    condition: Callable[[Expr], Expr] = lambda e: e,
) -> Loop | Branch:
    """A loop or a branch with other steps inside, and another condition if it has one."""
    if isinstance(step, Branch):
        return Branch(
            condition(step.condition), tuple(inner(step.then)), tuple(inner(step.otherwise))
        )
    return replace(
        step,
        body=tuple(inner(step.body)),
        test=tuple(inner(step.test)),
        condition=None if step.condition is None else condition(step.condition),
    )


def refined(step: Step) -> Step:
    """The step with its expressions refined (expr/refine.py)."""
    if not isinstance(step, Nest):
        return with_parts(step, lambda steps: map(refined, steps))

    def stage(s: Stage) -> Stage:
        inner = (*s.axes[-1:], *s.reduce_axes[-1:])
        # A fold of one row after the other goes through all terms of one before the next.
        nested = len(s.axes) == 1 and not walks_columns(s)
        better = dict(zip(s.expressions, refine(s.expressions, inner, nested), strict=True))
        if all(e is form for e, form in better.items()):
            return s
        return map_expressions(s, lambda e: better[e])

    return replace(step, stages=tuple(map(stage, step.stages)))


def rename_axes(stage: Stage, mapping: Mapping[Var, Var]) -> Stage:
    """The stage with other loop variables of the same extents.

    Raises: VerifyError for a variable of another extent, which would leave its buffers.
    """
    for old, new in mapping.items():
        if old.extent != new.extent:
            raise VerifyError(
                f"stage {stage.name}: expected {old} to become an axis of "
                f"{old.extent} points as well, got {new} of {new.extent}"
            )
    memo: dict[Expr, Expr] = {}
    return _on_axes(map_expressions(stage, lambda e: substitute(e, mapping, memo)), mapping)


def replace_loads(stage: Stage, values: Mapping[Buffer, Callable[[Load], Expr | None]]) -> Stage:
    """The stage with loads of these buffers replaced, all at once, where there is an expression for
    them."""
    memo: dict[Expr, Expr] = {}

    def rule(node: Expr) -> Expr | None:
        if not isinstance(node, Load):
            return None
        value = values.get(node.source)
        return None if value is None else value(node)

    return map_expressions(stage, lambda e: transform(e, rule, memo))


def replace_buffers(
    step: Step,
    mapping: Mapping[Buffer, Buffer],
    memo: dict[Expr, Expr] | None = None,
    axes: Mapping[Var, Expr] = MappingProxyType({}),
) -> Step:
    """The step reading and writing other buffers of the same shapes, or of those that go with other
    `axes`; where one of these is no variable, stages do not walk over it."""
    memo = {} if memo is None else memo
    rule = _renaming(mapping, axes)

    def rewrite(e: Expr) -> Expr:
        return transform(e, rule, memo)

    if isinstance(step, Nest):
        return Nest(
            tuple(
                _on_axes(_on_buffers(map_expressions(s, rewrite), mapping), axes)
                for s in step.stages
            ),
            len(_walked(step.stages[0].axes[: step.shared], axes)),
            tuple(mapping.get(b, b) for b in step.private),
        )
    return with_parts(
        step, lambda steps: (replace_buffers(s, mapping, memo, axes) for s in steps), rewrite
    )


def renamed(
    step: Step,
    buffers: Mapping[Buffer, Buffer],
    fresh: Callable[[str], str],
    outer: Mapping[Var, Var] = MappingProxyType({}),
) -> Step:
    """The step on other buffers of the same shapes, with all its variables renamed, in order of
    appearance, to fresh("i"), …; `outer` are the new counters of the loops around it.

    Afterwards the stages of a nest have no variables in common but the shared axes.
    """
    if isinstance(step, Loop):
        counter = _renamed(step.counter, fresh("n"))
        inner = {**outer, step.counter: counter}
        body = tuple(renamed(s, buffers, fresh, inner) for s in step.body)
        test = tuple(renamed(s, buffers, fresh, outer) for s in step.test)
        condition = step.condition and transform(step.condition, _renaming(buffers, outer))
        return Loop(body, counter, step.trip_count, test, condition)
    if isinstance(step, Branch):
        return with_parts(
            step,
            lambda steps: (renamed(s, buffers, fresh, outer) for s in steps),
            lambda e: transform(e, _renaming(buffers, outer)),
        )
    common: dict[Var, Var] = {}
    stages = []
    for stage in step.stages:
        names = {
            v: common.get(v) or _renamed(v, fresh("i"))
            for v in (*stage.axes, *stage.reduce_axes, *stage.accumulators)
        }
        common = common or {v: names[v] for v in stage.axes[: step.shared]}
        # Both at once: going through every expression takes most of the time of making a kernel.
        rule, memo = _renaming(buffers, {**outer, **names}), {}
        new = map_expressions(stage, lambda e, rule=rule, memo=memo: transform(e, rule, memo))
        stages.append(replace(_on_axes(_on_buffers(new, buffers), names), name=fresh("s")))
    return Nest(tuple(stages), step.shared, tuple(buffers.get(b, b) for b in step.private))


def reading(e: Expr, buffers: Mapping[Buffer, Buffer]) -> Expr:
    """The expression reading other buffers of the same shapes."""
    return transform(e, _renaming(buffers, {}))


def _renaming(
    buffers: Mapping[Buffer, Buffer], variables: Mapping[Var, Expr]
) -> Callable[[Expr], Expr | None]:
    def rule(node: Expr) -> Expr | None:
        if isinstance(node, Var):
            return variables.get(node)
        if isinstance(node, Load) and node.source in buffers:
            return load(buffers[node.source], node.indices, node.guard, node.default)
        return None

    return rule


def _on_axes(stage: Stage, mapping: Mapping[Var, Expr]) -> Stage:
    """The stage walking over other variables, its expressions being in them already."""
    scan, sort = stage.scan, stage.sort
    return replace(
        stage,
        axes=_walked(stage.axes, mapping),
        scan=scan and replace(scan, axis=mapping.get(scan.axis, scan.axis)),
        sort=sort and replace(sort, place=mapping.get(sort.place, sort.place)),
        reduce_axes=_walked(stage.reduce_axes, mapping),
        accumulators=_walked(stage.accumulators, mapping),
    )


def _walked(group: tuple[Var, ...], mapping: Mapping[Var, Expr]) -> tuple[Var, ...]:
    """The variables that replace some others."""
    return tuple(new for v in group if isinstance(new := mapping.get(v, v), Var))


def _on_buffers(stage: Stage, mapping: Mapping[Buffer, Buffer]) -> Stage:
    """The stage writing other buffers, its expressions reading them already."""

    def assigns(group: tuple[Assign, ...]) -> tuple[Assign, ...]:
        return tuple(replace(a, buffer=mapping.get(a.buffer, a.buffer)) for a in group)

    return replace(
        stage,
        assigns=assigns(stage.assigns),
        along=assigns(stage.along),
        overwrites=tuple(mapping.get(b, b) for b in stage.overwrites),
    )


def _renamed(var: Var, name: str) -> Var:
    return Var(name, var.dtype, var.extent)


def replace_variable(step: Step, old: Var, new: Expr, memo: dict[Expr, Expr] | None = None) -> Step:
    """The step with a variable of the loops around it replaced."""
    memo = {} if memo is None else memo

    def rewrite(e: Expr) -> Expr:
        return substitute(e, {old: new}, memo)

    if isinstance(step, Nest):
        return replace(step, stages=tuple(map_expressions(s, rewrite) for s in step.stages))
    return with_parts(
        step, lambda steps: (replace_variable(s, old, new, memo) for s in steps), rewrite
    )


def without_impossible(steps: Iterable[Step]) -> tuple[Step, ...]:
    """The steps without assignments whose guard is always false, and without guards that are always
    true."""
    kept = (_possible(step) for step in steps)
    return tuple(step for step in kept if step is not None)


def _possible(step: Step) -> Step | None:
    if isinstance(step, Nest):
        stages = tuple(
            replace(s, assigns=assigns)
            for s in step.stages
            if (assigns := _happening(s.assigns)) or s.along
        )
        return replace(step, stages=stages) if stages else None
    if isinstance(step, Branch) and not (
        without_impossible(step.then) or without_impossible(step.otherwise)
    ):
        return None
    if isinstance(step, Loop) and step.condition is None and not without_impossible(step.body):
        return None
    return with_parts(step, without_impossible)


def _happening(assigns: Iterable[Assign]) -> tuple[Assign, ...]:
    return tuple(
        replace(a, guard=None) if a.guard is TRUE else a for a in assigns if a.guard is not FALSE
    )
