"""Small programs to be rewritten, and what is asked of what comes out."""

from __future__ import annotations

import textwrap
from collections.abc import Callable

import numpy as np
import pytest

from hlo_mlc.expr import index
from hlo_mlc.expr.build import all_of, apply, const, load, variable
from hlo_mlc.expr.combiner import Combiner
from hlo_mlc.expr.core import Buffer, Expr, Var
from hlo_mlc.expr.dtypes import F32, I32
from hlo_mlc.loops.core import LoopProgram
from hlo_mlc.loops.lower import lower_stage
from hlo_mlc.loops.text import body_text
from hlo_mlc.schedule.core import Schedule
from hlo_mlc.support.errors import ScheduleError
from hlo_mlc.tensor.core import Assign, Stage

ONE, TWO = const(1.0, F32), const(2.0, F32)


def minus(x: Expr, y: int) -> Expr:
    """An index before another one."""
    return index.subtract(x, index.constant(y))


def shows(program: LoopProgram, expected: str) -> None:
    """The loops of a program are these."""
    text = body_text(program.body)
    assert text == textwrap.dedent(expected).lstrip("\n"), text


def refuses(act: Callable[[], object], *parts: str) -> None:
    """It is refused, in words that have these parts."""
    with pytest.raises(ScheduleError) as caught:
        act()
    for part in parts:
        assert part in str(caught.value)


def in_tiles_of_four(tiny, length: int) -> Schedule:
    """y[i] = sum over k, w of x[k, i + w - 1] * f[k, w], with zeros around x: two tiles."""
    x, f, y = tiny.operand("x", 2, length), tiny.operand("f", 2, 3), tiny.result("y", length)

    def term(i: Expr, k: Expr, w: Expr) -> Expr:
        at = minus(index.add(i, w), 1)
        inside = all_of(
            index.compare("ge", at, index.constant(0)),
            index.compare("lt", at, index.constant(length)),
        )
        return apply("mul", load(x, (k, at), inside, const(0.0, F32)), load(f, (k, w)))

    schedule = Schedule(tiny.program(tiny.fold(y, "i", "kw", (2, 3), term)))
    return (
        schedule.split("i", 4, "mask")
        .expand("i.i", "register")
        .distribute("i.i", "k", "s")
        .distribute("i.i", "k")
        .reorder("k", "i.i")
        .reorder("i.i", "w", "k")
    )


SQUARES = [np.arange(32, dtype=np.float32).reshape(4, 8) ** 2]


def first_of_pair() -> Combiner:
    """(value, index) of the larger value, of the lower index where equal; no neutral element."""
    a, i, b, j = Var("a", F32), Var("i", I32), Var("b", F32), Var("j", I32)
    wins = apply("or", apply("gt", a, b), apply("and", apply("eq", a, b), apply("lt", i, j)))
    return Combiner(
        (a, i), (b, j), (apply("select", wins, a, b), apply("select", wins, i, j)), None
    )


def argmax(extent: int, *columns: int) -> LoopProgram:
    """Where the largest along the first axis is, and what it is."""
    x = Buffer("x", F32, (extent, *columns), "operand")
    results = Buffer("best", F32, columns, "result"), Buffer("where", I32, columns, "result")
    stage = argmax_stage(x, results, *(variable("i", n) for n in columns))
    return LoopProgram("argmax", (x,), results, lower_stage(stage))


def argmax_stage(x: Buffer, results: tuple[Buffer, ...], *axes: Var) -> Stage:
    """The stage of it."""
    k, (best, where) = variable("k", x.shape[0]), results
    value, position = Var("value", F32), Var("position", I32)
    return Stage(
        "argmax",
        axes,
        (Assign(best, axes, value), Assign(where, axes, position)),
        (k,),
        first_of_pair(),
        (load(x, (k, *axes)), apply("convert", k, dtype=I32)),
        (const(-1e30, F32), const(99, I32)),
        (value, position),
    )


def after() -> Combiner:
    """One affine map after another: does not commute, and has no neutral element here."""
    a, b, c, d = (Var(name, F32) for name in "abcd")
    return Combiner((a, b), (c, d), (apply("mul", a, c), apply("add", apply("mul", b, c), d)), None)
