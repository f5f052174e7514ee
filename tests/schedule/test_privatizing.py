"""The primitives of `schedule/privatizing.py`: examples, before and after, and refusals."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from hlo_mlc.expr import index
from hlo_mlc.expr.build import all_of, apply, const, load, variable
from hlo_mlc.expr.core import Buffer, Var
from hlo_mlc.expr.dtypes import F32, I32
from hlo_mlc.loops.core import Allocate, For, LoopProgram, Store, walk
from hlo_mlc.loops.lower import lower_stage
from hlo_mlc.schedule.core import Schedule
from hlo_mlc.tensor.combine import merging, named_combiner
from hlo_mlc.tensor.core import Assign, Stage
from making.rewritten import ONE, argmax, argmax_stage, minus, refuses, shows


def test_privatize(total, assert_same) -> None:
    parts = Schedule(total).split("k", 4, "guard").privatize("k.i")
    shows(
        parts.program,
        """
        alloc add.acc.k.i: 4xf32 stack:
          for k.i in 0..4:
            alloc add.acc: f32 register:
              add.acc[] = select(k.i == 0, 0.0:f32, -0.0:f32)
              for k.o in 0..11:
                if (k.i + k.o * 4) < 43:
                  add.acc[] <- add x[k.i + k.o * 4]
              add.acc.k.i[k.i] = add.acc[]
          for k.i.2 in 0..2:
            add.acc.k.i[k.i.2] <- add add.acc.k.i[k.i.2 + 2]
          for k.i.1 in 0..1:
            add.acc.k.i[k.i.1] <- add add.acc.k.i[k.i.1 + 1]
          y[] = add.acc.k.i[0]
        """,
    )
    assert_same(total, parts.program, [np.arange(43, dtype=np.float32)])


@pytest.mark.parametrize("parts", [1, 2, 3, 5, 6, 7, 8, 100])
def test_privatize_combines_every_part_once(grand_total, assert_same, parts) -> None:
    schedule = Schedule(grand_total).fuse("i", "j").split("i.j", parts, "guard").privatize("i.j.i")
    x = np.random.default_rng(0).integers(-99, 99, (4, 20)).astype(np.float32)
    assert_same(grand_total, schedule.program, [x])


def test_privatize_goes_by_positions(assert_same) -> None:
    x = Buffer("x", F32, (43,), "operand")
    results = Buffer("best", F32, (), "result"), Buffer("where", I32, (), "result")
    stage = argmax_stage(x, results)
    known = replace(stage.combiner, identity=stage.initial)
    program = LoopProgram("argmax", (x,), results, lower_stage(replace(stage, combiner=known)))
    schedule = Schedule(program).split("k", 8, "guard").privatize("k.i")
    assert_same(program, schedule.program, [np.arange(43, dtype=np.float32) % 7])
    refuses(lambda: Schedule(argmax(43)).privatize("k"), "has no identity to begin with")
    again = schedule.loops("k.i.4")[0].body[0].combiner
    assert merging(again, again.lhs, ()) is again


def test_privatize_refuses(total, grand_total, copy, tiny, column_sums) -> None:
    refuses(lambda: Schedule(total).privatize("z"), "no loop is called 'z'")
    refuses(lambda: Schedule(copy).privatize("i"), "is in no nest that does nothing but update")
    refuses(lambda: Schedule(grand_total).vectorize("j").privatize("i"), "must be serial or unroll")
    refuses(lambda: Schedule(total).split("k", 4).privatize("k.t"), "not all that add.acc is for")
    apart = column_sums.expand("i", "stack").distribute("i", "k")
    refuses(lambda: apart.privatize("k"), "right behind the stores")
    shortened = Schedule(total).split("k", 4, "shorten")
    refuses(lambda: shortened.privatize("k.i"), "needs a constant extent")
    y, x = tiny.result("y", 2), tiny.operand("x", 9)
    (first,) = tiny.program(tiny.fold(y, "i", "k", 9, lambda i, k: load(x, (k,)))).body
    twice = LoopProgram(
        "twice",
        (x,),
        (y,),
        (Allocate(first.body[0].buffer, (*first.body[0].body[:1], *first.body[0].body)),),
    )
    refuses(lambda: Schedule(twice).privatize("k"), "is not all that add.acc is for")


def test_fold_apart(grand_total, assert_same) -> None:
    parts = Schedule(grand_total).split("j", 4).fold_apart("j.o", "j.i")
    shows(
        parts.program,
        """
        alloc add.acc: f32 register:
          add.acc[] = 0.0:f32
          alloc add.acc.j.o: 5x4xf32 stack:
            for j.o in 0..5:
              for j.i in 0..4:
                add.acc.j.o[j.o, j.i] = -0.0:f32
              for i in 0..4:
                for j.i in 0..4:
                  add.acc.j.o[j.o, j.i] <- add x[i, j.i + j.o * 4]
              for j.i.2 in 0..2:
                add.acc.j.o[j.o, j.i.2] <- add add.acc.j.o[j.o, j.i.2 + 2]
              for j.i.1 in 0..1:
                add.acc.j.o[j.o, j.i.1] <- add add.acc.j.o[j.o, j.i.1 + 1]
            for j.o in 0..5:
              add.acc[] <- add add.acc.j.o[j.o, 0]
          y[] = add.acc[]
        """,
    )
    x = np.random.default_rng(0).integers(-99, 99, (4, 20)).astype(np.float32)
    assert_same(grand_total, parts.program, [x])
    whole = Schedule(grand_total).add_unit_loop("b").fold_apart("j").fold_apart("i")
    assert_same(grand_total, whole.program, [x])


def test_fold_apart_goes_by_positions(assert_same) -> None:
    x = Buffer("x", F32, (43,), "operand")
    results = Buffer("best", F32, (), "result"), Buffer("where", I32, (), "result")
    stage = argmax_stage(x, results)
    known = replace(stage.combiner, identity=stage.initial)
    program = LoopProgram("argmax", (x,), results, lower_stage(replace(stage, combiner=known)))
    split = Schedule(program).split("k", 8, "guard")
    schedule = split.fold_apart("k.i")
    assert_same(program, schedule.program, [np.arange(43, dtype=np.float32) % 7])
    again = schedule.loops("k.i")[1].body[0].combiner
    assert merging(again, again.lhs, ()) is again
    refuses(lambda: Schedule(argmax(43)).fold_apart("k"), "has no identity to begin with")
    refuses(lambda: split.reorder("k.i", "k.o"), "would change the order")


def test_nests_that_fold_into_one_element_are_apart_each(total, assert_same) -> None:
    """Where another one is already, too: rows that are joined of two are folded so on GPUs."""
    (outer,) = total.body
    *begin, nest, end = outer.body
    others = Schedule(replace(total, body=(nest,))).rename("k", "", "other").program.body
    program = replace(total, body=(Allocate(outer.buffer, (*begin, nest, *others, end)),))
    first = Schedule(program).fold_apart("k")
    both = first.rename("other", "", "k").fold_apart("k")
    parts = [s.buffer.name for s in walk(both.program.body) if isinstance(s, Allocate)]
    assert parts == ["add.acc", "add.acc.k", "add.acc.k.1"]
    x = np.random.default_rng(0).integers(-99, 99, 43).astype(np.float32)
    for schedule in (first, both, Schedule(program).rename("other", "", "k").fold_apart("k")):
        assert_same(program, schedule.program, [x])
    refuses(lambda: both.fold_apart("k"), "is apart already")


def test_fold_apart_refuses(total, grand_total, copy, tiny) -> None:
    refuses(lambda: Schedule(copy).fold_apart("i"), "folds its terms into one element")
    several = Schedule(total).rfactor("k", 2, 2)  # one sum for each iteration of the loops inside
    refuses(lambda: several.fold_apart("k.o"), "folds its terms into one element")
    refuses(lambda: Schedule(total).fold_apart("k", "z"), "no loop is called 'z'")
    refuses(lambda: Schedule(total).fold_apart("k", "k"), "is in no loop called k")
    refuses(lambda: Schedule(grand_total).vectorize("j").fold_apart("j"), "must be serial or unrol")
    shortened = Schedule(total).split("k", 4, "shorten")
    refuses(lambda: shortened.fold_apart("k.i"), "needs a constant extent")
    y, x = tiny.result("y"), tiny.operand("x", 9)
    (scope,) = tiny.program(tiny.fold(y, "", "k", 9, lambda k: load(x, (k,)))).body
    start, fold, _ = scope.body
    loop = For(fold.var, fold.extent, fold.kind, (*fold.body, Store(y, (), load(scope.buffer, ()))))
    seen = LoopProgram("seen", (x,), (y,), (Allocate(scope.buffer, (start, loop)),))
    refuses(lambda: Schedule(seen).fold_apart("k"), "is not all that add.acc is for", "y[] =")
    loop = For(fold.var, fold.extent, fold.kind, (*fold.body, *fold.body))
    twice = LoopProgram("twice", (x,), (y,), (Allocate(scope.buffer, (start, loop)),))
    refuses(lambda: Schedule(twice).fold_apart("k"), "updates one buffer in several statements")


def test_fold_apart_keeps_the_order_of_stores(tiny, assert_same) -> None:
    """What else is done in a nest may not go where loops cannot."""
    x, y, z = tiny.operand("x", 6, 6), tiny.result("y"), tiny.result("z", 6, 6)
    i, j, acc = variable("i", 6), variable("j", 6), Var("acc", F32)
    before = load(
        z,
        (minus(i, 1), apply("add", j, index.constant(1))),
        all_of(apply("ge", minus(i, 1), index.constant(0)), apply("lt", j, index.constant(5))),
        ONE,
    )
    for value, legal in ((load(x, (i, j)), True), (before, False)):
        stage = Stage(
            "s",
            (),
            (Assign(y, (), acc),),
            (i, j),
            named_combiner("add", F32),
            (load(x, (i, j)),),
            (const(0.0, F32),),
            (acc,),
            (Assign(z, (i, j), apply("add", value, ONE)),),
        )
        program = LoopProgram("along", (x,), (y, z), lower_stage(stage))
        schedule = Schedule(program)
        if legal:
            apart = schedule.fold_apart("j").program
            assert_same(program, apart, [np.arange(36, dtype=np.float32).reshape(6, 6)])
        else:
            refuses(lambda s=schedule: s.fold_apart("j"), "fold_apart: ", "touch z")
