"""Rewriting stages: other variables, other buffers, loads replaced by what was stored."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from hlo_mlc.expr.build import load, substitute, transform
from hlo_mlc.expr.core import Buffer, Expr, Load, Var
from hlo_mlc.expr.refine import refine
from hlo_mlc.tensor.core import Assign, Loop, Nest, Stage, Step


def map_expressions(stage: Stage, rewrite: Callable[[Expr], Expr]) -> Stage:
    """The stage with every expression rewritten; axes and buffers written stay."""

    def assign(a: Assign) -> Assign:
        return Assign(a.buffer, tuple(rewrite(i) for i in a.indices), rewrite(a.value),
                      None if a.guard is None else rewrite(a.guard))

    return replace(stage, assigns=tuple(assign(a) for a in stage.assigns),
                   along=tuple(assign(a) for a in stage.along),
                   terms=tuple(rewrite(t) for t in stage.terms),
                   initial=tuple(rewrite(i) for i in stage.initial))


def refined(step: Step) -> Step:
    """The step with its expressions in better forms (expr/refine.py)."""
    if isinstance(step, Loop):
        return replace(step, body=tuple(map(refined, step.body)),
                       test=tuple(map(refined, step.test)))

    def stage(s: Stage) -> Stage:
        inner = (*s.axes[-1:], *s.reduce_axes[-1:])
        better = dict(zip(s.expressions, refine(s.expressions, inner), strict=True))
        return map_expressions(s, lambda e: better[e])

    return replace(step, stages=tuple(map(stage, step.stages)))


def rename_axes(stage: Stage, mapping: Mapping[Var, Var]) -> Stage:
    """The stage with other loop variables of the same extents."""
    memo: dict[Expr, Expr] = {}
    renamed = map_expressions(stage, lambda e: substitute(e, mapping, memo))
    scan = stage.scan and replace(stage.scan, axis=mapping.get(stage.scan.axis, stage.scan.axis))
    return replace(renamed, scan=scan, axes=tuple(mapping.get(v, v) for v in stage.axes),
                   reduce_axes=tuple(mapping.get(v, v) for v in stage.reduce_axes),
                   accumulators=tuple(mapping.get(v, v) for v in stage.accumulators))


def replace_loads(stage: Stage, source: Buffer, value: Callable[[Load], Expr]) -> Stage:
    """The stage with every load of `source` replaced by an expression."""
    memo: dict[Expr, Expr] = {}

    def rule(node: Expr) -> Expr | None:
        return value(node) if isinstance(node, Load) and node.source == source else None

    return map_expressions(stage, lambda e: transform(e, rule, memo))


def replace_buffers(step: Step, mapping: Mapping[Buffer, Buffer],
                    memo: dict[Expr, Expr] | None = None) -> Step:
    """The step reading and writing other buffers of the same shapes."""
    memo = {} if memo is None else memo

    def rule(node: Expr) -> Expr | None:
        if isinstance(node, Load) and node.source in mapping:
            return load(mapping[node.source], node.indices, node.guard, node.default)
        return None

    def rewrite(e: Expr) -> Expr:
        return transform(e, rule, memo)

    def stage(s: Stage) -> Stage:
        new = map_expressions(s, rewrite)

        def assigns(group: tuple[Assign, ...]) -> tuple[Assign, ...]:
            return tuple(replace(a, buffer=mapping.get(a.buffer, a.buffer)) for a in group)

        return replace(new, assigns=assigns(new.assigns), along=assigns(new.along))

    if isinstance(step, Nest):
        return Nest(tuple(stage(s) for s in step.stages), step.shared,
                    tuple(mapping.get(b, b) for b in step.private))
    return replace(step, body=tuple(replace_buffers(s, mapping, memo) for s in step.body),
                   test=tuple(replace_buffers(s, mapping, memo) for s in step.test),
                   condition=None if step.condition is None else rewrite(step.condition))


def rename_variables(step: Step, fresh: Callable[[str], str]) -> Step:
    """The step with all its variables renamed, in order of appearance, to fresh("i"), …

    Afterwards the stages of a nest have no variables in common but the shared axes.
    """
    if isinstance(step, Loop):
        counter = _renamed(step.counter, fresh("n"))
        memo: dict[Expr, Expr] = {}
        body = tuple(replace_variable(rename_variables(s, fresh), step.counter, counter, memo)
                     for s in step.body)
        test = tuple(rename_variables(s, fresh) for s in step.test)
        return replace(step, body=body, test=test, counter=counter)
    common: dict[Var, Var] = {}
    stages = []
    for stage in step.stages:
        names = {v: common.get(v) or _renamed(v, fresh("i"))
                 for v in (*stage.axes, *stage.reduce_axes, *stage.accumulators)}
        common = common or {v: names[v] for v in stage.axes[:step.shared]}
        stages.append(replace(rename_axes(stage, names), name=fresh("s")))
    return Nest(tuple(stages), step.shared, step.private)


def _renamed(var: Var, name: str) -> Var:
    return Var(name, var.dtype, var.extent)


def replace_variable(step: Step, old: Var, new: Expr, memo: dict[Expr, Expr] | None = None) -> Step:
    """The step with a variable of the loops around it replaced."""
    memo = {} if memo is None else memo

    def rewrite(e: Expr) -> Expr:
        return substitute(e, {old: new}, memo)

    if isinstance(step, Nest):
        return replace(step, stages=tuple(map_expressions(s, rewrite) for s in step.stages))
    return replace(step, body=tuple(replace_variable(s, old, new, memo) for s in step.body),
                   test=tuple(replace_variable(s, old, new, memo) for s in step.test),
                   condition=None if step.condition is None else rewrite(step.condition))
