"""Schedule primitives that take loops over several statements apart: distribute, sink."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

from hlo_mlc.expr import build
from hlo_mlc.expr.core import Var
from hlo_mlc.loops.core import For, LoopProgram
from hlo_mlc.loops.dependence import Memory, accesses, meetings, variables
from hlo_mlc.loops.rewrite import Body, substitute, transform_loops
from hlo_mlc.schedule.loops import (
    changed,
    check_permutable,
    only_loop,
    refuse,
    require_loops,
    rewrite_loops,
)


def distribute(
    program: LoopProgram, name: str, inner: str = "", behind: str = "", *, checked: bool = True
) -> LoopProgram:
    """Give what stands before and behind a loop in another one's body a loop of its own.

        for i in 0..4:               for i in 0..4:
          a[i] = 0                     a[i] = 0
          for k in 0..8:             for i in 0..4:
            a[i] <- add x[k, i]  ->    for k in 0..8:
          y[i] = a[i]                    a[i] <- add x[k, i]
                                     for i in 0..4:
                                       y[i] = a[i]

    The same is done to loops perfectly nested in the first one.  Refused where one of the three
    needs what a later one left in an earlier iteration; updates by one declared reduction that
    commutes may be in any order.  With a suffix for the names of the loops
    `behind` (i.e), what stands before the inner loop stays with it.  Without an `inner` loop, each
    statement gets a loop of its own.

        for i in 0..4:               for i in 0..4:
          a[i] = x[i]          ->      a[i] = x[i]
          b[i] = y[i]                for i in 0..4:
                                       b[i] = y[i]

    Exo: fission; elsewhere loop distribution.
    """
    require_loops(program, "distribute", inner or name)
    memory = Memory.of(program)

    def cut(stmt: For) -> Body | None:
        band = [stmt]
        while (only := only_loop(band[-1])) is not None and only.var.name != inner:
            band.append(only)
        parts = _parts(band[-1].body, inner)
        if not parts:
            return None
        if behind:
            parts = [(), parts[0] + parts[1], *parts[2:]]
        for n, part in enumerate(parts if checked else ()):
            later = tuple(s for other in parts[n + 1 :] for s in other)
            check_same_iteration("distribute", band, part, later, memory)

        def nest(part: Body, names: Mapping[Var, Var]) -> Body:
            part = substitute(part, names) if names else part
            for s in reversed(band) if part else ():
                extent = build.substitute(s.extent, names)
                part = (For(names.get(s.var, s.var), extent, s.kind, part),)
            return part

        late = {v: Var(f"{v.name}.{behind}", v.dtype, v.extent) for v in (s.var for s in band)}
        return tuple(
            s for n, part in enumerate(parts) for s in nest(part, late if behind and n == 2 else {})
        )

    return changed(
        program,
        transform_loops(program.body, name, cut),
        "distribute",
        name,
        f"must hold the loop {inner} as one of its statements"
        if inner
        else "must hold several statements",
    )


def _parts(body: Body, inner: str) -> list[Body]:
    """What stands before the loop `inner`, that loop, and what stands behind it; without a name
    every statement; nothing where there are none."""
    if not inner:
        return [(s,) for s in body] if len(body) > 1 else []
    place = next(
        (n for n, s in enumerate(body) if isinstance(s, For) and s.var.name == inner), None
    )
    return [] if place is None else [body[:place], body[place : place + 1], body[place + 1 :]]


def sink(program: LoopProgram, name: str, *, checked: bool = True) -> LoopProgram:
    """Run a loop inside of all loops that it holds.

        for i in 0..8:                    for k in 0..4:
          for k in 0..4:                    for i in 0..8:
            p[i] = a[i, k, k]                 p[i] = a[i, k, k]
            for j in 0..k:          ->      for j in 0..k:
              a[i, k, j] = p[i] * 2           for i in 0..8:
          y[i] = p[i]                           a[i, k, j] = p[i] * 2
                                          for i in 0..8:
                                            y[i] = p[i]

    What is done between these loops has a loop of its own.  Refused where `distribute` and
    `reorder` are, which do the same step by step.  Elsewhere loop interchange, so that vectors go
    along an outer loop.
    """
    memory = Memory.of(program) if checked else None
    return rewrite_loops(program, "sink", name, lambda stmt: _sunk(stmt, memory))


def _sunk(outer: For, memory: Memory | None) -> Body:
    parts = [
        tuple(part)
        for is_loop, group in itertools.groupby(outer.body, lambda s: isinstance(s, For))
        for part in (((s,) for s in group) if is_loop else (group,))
    ]
    result: Body = ()
    for n, part in enumerate(parts):
        if memory is not None:
            check_same_iteration(
                "sink", [outer], part, tuple(itertools.chain(*parts[n + 1 :])), memory
            )
        held = outer.around(part)
        inner = only_loop(held)
        if inner is None:
            result += (held,)
            continue
        if outer.var in inner.extent.free:
            raise refuse("sink", inner, f"has an extent that depends on {outer.var.name}")
        if memory is not None:
            check_permutable([held, inner], [inner, held], memory, "sink")
        result += (inner.around(_sunk(outer.around(inner.body), memory)),)
    return result


def check_same_iteration(
    primitive: str, band: Sequence[For], first: Body, second: Body, memory: Memory
) -> None:
    """Refuse unless what `first` and `second` both touch, they touch in the same iteration of all
    the loops, or both update it by one declared reduction that commutes."""
    before, after = accesses(first), accesses(second)
    for a, b, agree in meetings(memory, before, after, variables((band[0], *first, *second))):
        free = next((s for s in band if s.var not in agree), None)
        if free is not None:
            raise refuse(
                primitive,
                free,
                f"carries a dependence: {a} and {b} may touch the same "
                f"element of {a.buffer.name} in different iterations",
            )
