"""Proofs: what is guarded, what is refused, and what guarded programs do."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from hlo_mlc.expr import index
from hlo_mlc.expr.build import apply, const, load, variable
from hlo_mlc.expr.core import Buffer, Expr
from hlo_mlc.expr.dtypes import F32, I32, INDEX
from hlo_mlc.loops import aliases, coverage
from hlo_mlc.loops.core import Allocate, For, If, LoopKind, LoopProgram, Stmt, Store
from hlo_mlc.loops.coverage import gaps
from hlo_mlc.loops.interpret import interpret
from hlo_mlc.loops.prove import prove
from hlo_mlc.loops.verify import verify
from hlo_mlc.support.errors import VerifyError
from hlo_mlc.target.cpu import named
from hlo_mlc.templates.program import schedule_program
from making.verified import unproven

X, Y = Buffer("x", F32, (8,), "operand"), Buffer("y", F32, (8,), "result")
WHERE = Buffer("where", I32, (8,), "operand")
ROW, COLUMN = variable("i", 8), variable("j", 8)
ONE, ZERO = const(1.0, F32), const(0.0, F32)
PLACE = apply("convert", load(WHERE, (ROW,)), dtype=INDEX)


def at(value: int) -> Expr:
    return index.constant(value)


def loop(*body: Stmt, var=ROW, extent: int = 8, kind: LoopKind = LoopKind.SERIAL) -> For:
    return For(var, at(extent), kind, body)


def copied(source: Expr) -> LoopProgram:
    return LoopProgram("copied", (X, WHERE), (Y,), (loop(Store(Y, (ROW,), source)),))


def test_loads_from_anywhere_are_guarded() -> None:
    program, proof = prove(copied(load(X, (PLACE,))))
    (guarded,) = proof.guarded
    assert "is within x" in guarded and "checked at run time" in str(proof)
    places = np.array([0, -1, 7, 8, 1 << 20, 3, -5, 2], np.int32)
    values = np.arange(8, dtype=np.float32) + 1
    (result,) = interpret(program, [values, places])
    assert result.tolist() == [1, 0, 8, 0, 0, 4, 0, 3]


@pytest.mark.parametrize(
    "first",
    [
        load(X, (PLACE,)),
        load(X, (PLACE,), apply("lt", apply("convert", PLACE, dtype=I32), const(8, I32)), ZERO),
    ],
)
def test_loads_that_are_repeated_are_guarded_each_time(first: Expr) -> None:
    seen = Buffer("seen", F32, (), "register")
    body = Allocate(
        seen,
        (
            Store(seen, (), first),
            Store(seen, (), apply("add", load(seen, ()), load(X, (PLACE,)))),
            Store(Y, (ROW,), apply("add", load(seen, ()), load(X, (PLACE,)))),
        ),
    )
    program, _ = prove(LoopProgram("repeated", (X, WHERE), (Y,), (loop(body),)))
    places = np.array([0, -1, 7, 8, 1 << 20, 3, -5, 2], np.int32)
    values = np.arange(8, dtype=np.float32) + 1
    (result,) = interpret(program, [values, places])
    assert result.tolist() == [3, 0, 24, 0, 0, 12, 0, 9]


def test_stores_anywhere_are_guarded() -> None:
    first = loop(Store(Y, (COLUMN,), ZERO), var=COLUMN)
    scattered = loop(Store(Y, (PLACE,), load(X, (ROW,))))
    program, proof = prove(LoopProgram("scattered", (X, WHERE), (Y,), (first, scattered)))
    assert len(proof.guarded) == 1
    places = np.array([1, 9, -3, 2, 8, 100, 3, 0], np.int32)
    (result,) = interpret(program, [np.arange(8, dtype=np.float32) + 1, places])
    assert result.tolist() == [8, 1, 4, 7, 0, 0, 0, 0]


def test_lists_of_lists_are_guarded_twice() -> None:
    inner = apply("convert", load(WHERE, (PLACE,)), dtype=INDEX)
    program, proof = prove(copied(load(X, (inner,))))
    assert len(proof.guarded) == 2
    (result,) = interpret(
        program, [np.arange(8, dtype=np.float32) + 1, np.array([1, 5, 9, -1, 0, 3, 4, 2], np.int32)]
    )
    assert result[2:4].tolist() == [1, 1]  # as if the second list said 0


def test_clamped_places_need_no_guard() -> None:
    clamped = index.maximum(index.minimum(PLACE, at(7)), at(0))
    assert prove(copied(load(X, (clamped,))))[1].guarded == ()


@pytest.mark.parametrize(
    "condition",
    [apply("lt", ROW, at(3)), apply("lt", COLUMN, at(3)), apply("lt", load(X, (ROW,)), ONE)],
)
def test_what_is_always_outside_is_refused_under_any_guard(condition) -> None:
    far = load(X, (index.add(ROW, at(256)),), condition, ZERO)
    body = loop(loop(Store(Y, (ROW,), far)), var=COLUMN)
    with pytest.raises(VerifyError, match="takes values from 256 to 263"):
        prove(LoopProgram("far", (X, WHERE), (Y,), (body,)))


def test_a_guard_about_something_else_saves_nothing() -> None:
    beyond = load(X, (index.add(ROW, at(1)),), apply("lt", COLUMN, at(3)), ZERO)
    body = loop(loop(Store(Y, (ROW,), beyond)), var=COLUMN)
    with pytest.raises(VerifyError, match="takes values from 1 to 8"):
        prove(LoopProgram("beyond", (X, WHERE), (Y,), (body,)))


def test_races_are_refused_although_nothing_refutes_them() -> None:
    first = loop(Store(Y, (COLUMN,), ZERO), var=COLUMN)
    scattered = loop(
        Store(Y, (index.maximum(index.minimum(PLACE, at(7)), at(0)),), ONE), kind=LoopKind.PARALLEL
    )
    with pytest.raises(VerifyError, match="could not prove that iterations of"):
        prove(LoopProgram("race", (X, WHERE), (Y,), (first, scattered)))


def test_results_are_written_as_a_whole() -> None:
    with pytest.raises(
        VerifyError, match="every element of y: 8xf32 result is written, but nothing writes it"
    ):
        prove(
            LoopProgram(
                "short",
                (X,),
                (Y,),
                (loop(Store(Y, (variable("i", 7),), ONE), var=variable("i", 7), extent=7),),
            )
        )
    perhaps = Store(Y, (ROW,), ONE, apply("lt", load(X, (ROW,)), ONE))
    with pytest.raises(VerifyError, match="but that is not certain"):
        prove(LoopProgram("perhaps", (X,), (Y,), (loop(perhaps),)))


@pytest.mark.parametrize(("size", "problem"), [(60, ""), (2000, "in too many pieces to tell")])
def test_what_is_written_in_too_many_pieces_is_not_said_to_be_left_out(
    size: int, problem: str
) -> None:
    """Of each row what is left of the diagonal, and the rest."""
    square = Buffer("square", F32, (size, size), "result")
    row, left, right = variable("r", size), variable("j", size), variable("k", size)
    place = index.minimum(index.add(row, right), at(size - 1))
    before = For(left, row, LoopKind.SERIAL, (Store(square, (row, left), ONE),))
    after = loop(Store(square, (row, place), ONE), var=right, extent=size)
    program = LoopProgram("triangles", (), (square,), (loop(before, after, var=row, extent=size),))
    if not problem:
        prove(program)
        return
    with pytest.raises(VerifyError, match=problem):
        prove(program)


def test_results_may_be_written_in_parts() -> None:
    """Rows by a guard, the rest by tiles that overlap, a flat run over two axes."""
    wide = Buffer("wide", F32, (5, 7), "result")
    t, flat = variable("t", 4), variable("flat", 15)
    three = variable("c", 3)
    column = index.add(index.minimum(index.multiply(t, at(2)), at(4)), three)
    tiles = loop(
        loop(Store(wide, (index.add(variable("r", 3), at(2)), column), ONE), var=three, extent=3),
        var=t,
        extent=4,
    )
    rows = loop(tiles, var=variable("r", 3), extent=3)
    run = loop(
        Store(wide, (index.floordiv(flat, 7), index.floormod(flat, 7)), ONE), var=flat, extent=15
    )
    assert not list(gaps(LoopProgram("parts", (), (wide,), (rows, run))))
    assert list(gaps(LoopProgram("parts", (), (wide,), (rows,))))


def test_results_that_are_written_alike_are_looked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """As those of an optimizer; here each is written in two parts, the last one not to its end."""
    asked: list[tuple] = []
    look = coverage.touched
    monkeypatch.setattr(coverage, "touched", lambda *about: asked.append(about) or look(*about))
    first, second, third = (variable(name, 4) for name in "abc")

    def written(count: int, short: int = 0) -> LoopProgram:
        alike = [Buffer(f"r{n}", F32, (8,), "result") for n in range(count)]
        others = [Buffer(f"s{n}", F32, (8,), "result") for n in range(short)]
        low = [Store(r, (first,), ZERO) for r in (*alike, *others)]
        high = [Store(r, (index.add(second, at(4)),), ONE) for r in alike]
        rest = [Store(r, (index.add(third, at(4)),), ONE) for r in others]
        loops = [
            loop(*stores, var=v, extent=extent)
            for stores, v, extent in ((low, first, 4), (high, second, 4), (rest, third, 3))
        ]
        return LoopProgram("written", (), (*alike, *others), tuple(loops))

    counts = []
    for count in (1, 3):
        asked.clear()
        assert not [*gaps(written(count))]
        counts.append(len(asked))
    assert counts[0] == counts[1] > 0
    assert [gap.text for gap in gaps(written(2, 1))] == [
        "every element of s0: 8xf32 result is written"
    ]


@pytest.mark.parametrize("level", ["x86-64-v2", "x86-64-v3", "x86-64-v4"])
@pytest.mark.parametrize("shape", [(511, 1, 257), (1, 511, 1, 1, 257, 1), (129, 1, 3, 1, 341)])
def test_axes_of_one_place_are_no_obstacle(shape, level, take_apart) -> None:
    """A flat run over axes between which there are others of extent 1."""
    whole = tuple(d for d in shape if d > 1)
    (program,) = take_apart(lambda x: x.reshape(shape) * 2, np.ones(whole, np.float32)).programs
    prove(schedule_program(program, named(level))[0])


@pytest.mark.parametrize("level", ["x86-64-v2", "x86-64-v3", "x86-64-v4"])
def test_a_diagonal_of_a_large_matrix_is_no_obstacle(level, take_apart) -> None:
    """Its elements alone would part the matrix into more cells than are looked at."""

    def function(x: jax.Array) -> jax.Array:
        n = jnp.arange(1100)
        return jnp.zeros((1100, 1100), x.dtype).at[n, n].add(x)

    for program in take_apart(function, np.ones((), np.float32)).programs:
        prove(schedule_program(program, named(level))[0])


def test_what_is_read_was_written_before() -> None:
    held = Buffer("held", F32, (8,), "register")
    fill = loop(Store(held, (COLUMN,), ONE), var=COLUMN)
    use = loop(Store(Y, (ROW,), load(held, (ROW,))))

    def held_in(*body: Stmt) -> LoopProgram:
        return LoopProgram("held", (X,), (Y,), (Allocate(held, body),))

    assert not list(gaps(held_in(fill, use)))
    assert [gap.certain for gap in gaps(held_in(use, fill))] == [True]
    again = loop(Allocate(held, (use, fill)), var=variable("n", 3), extent=3)
    assert list(gaps(LoopProgram("again", (X,), (Y,), (again,))))


@pytest.mark.parametrize(
    "read, is_refused",
    [
        (ROW, False),
        (index.subtract(at(7), ROW), True),
        (index.maximum(index.subtract(ROW, at(1)), at(0)), True),
    ],
)
def test_aliased_operands_are_read_before_they_are_overwritten(read, is_refused) -> None:
    program = LoopProgram(
        "in_place", (X,), (Y,), (loop(Store(Y, (ROW,), load(X, (read,)))),), aliases=((Y, X),)
    )
    if is_refused:
        with pytest.raises(VerifyError, match="is read before it is overwritten"):
            prove(program)
    else:
        prove(program)


def test_results_in_place_that_differ_in_their_buffers_alone_are_looked_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[tuple] = []
    look = aliases._comes_after
    monkeypatch.setattr(aliases, "_comes_after", lambda *about: asked.append(about) or look(*about))

    def in_place(*reads: Expr) -> LoopProgram:
        operands = tuple(Buffer(f"x{n}", F32, (8,), "operand") for n in range(len(reads)))
        results = tuple(Buffer(f"y{n}", F32, (8,), "result") for n in range(len(reads)))
        stores = [
            Store(y, (ROW,), load(x, (i,)))
            for x, y, i in zip(operands, results, reads, strict=True)
        ]
        pairs = tuple(zip(results, operands, strict=True))
        return LoopProgram("in_place", operands, results, (loop(*stores),), aliases=pairs)

    counts = []
    for count in (1, 3):
        asked.clear()
        prove(in_place(*[ROW] * count))
        counts.append(len(asked))
    assert counts[0] == counts[1] > 0
    with pytest.raises(VerifyError, match=r"x2.*is read before it is overwritten"):
        prove(in_place(ROW, ROW, index.subtract(at(7), ROW)))


def test_tiles_that_overlap_are_not_computed_in_place() -> None:
    """The last tile is moved back: what it computes again has been overwritten."""
    tile, lane = variable("t", 3), variable("l", 3)
    place = index.add(index.minimum(index.multiply(tile, at(3)), at(5)), lane)
    twice = Store(Y, (place,), apply("add", load(X, (place,)), ONE))
    body = (loop(loop(twice, var=lane, extent=3), var=tile, extent=3),)
    prove(LoopProgram("tiles", (X,), (Y,), body))
    with pytest.raises(VerifyError, match="is read before it is overwritten"):
        prove(LoopProgram("tiles", (X,), (Y,), body, aliases=((Y, X),)))


@pytest.mark.parametrize("begin, is_refused", [(28, False), (29, False), (27, True), (0, True)])
def test_what_one_loop_overwrites_is_not_read_by_the_next(begin, is_refused) -> None:
    """Two loops over all elements of a matrix: the first, in steps of 8, stops after 28."""
    x, y = Buffer("x", F32, (8, 5), "operand"), Buffer("y", F32, (8, 5), "result")
    step, lane, n = variable("s", 4), variable("l", 8), variable("n", 11)
    front = index.add(index.multiply(step, at(8)), lane)
    back = index.add(n, at(begin))

    def moved(place: Expr) -> Stmt:
        indices = (index.floordiv(place, 5), index.floormod(place, 5))
        return Store(y, indices, apply("add", load(x, indices), ONE))

    lanes = For(
        lane,
        index.minimum(at(8), index.subtract(at(28), index.multiply(step, at(8)))),
        LoopKind.SERIAL,
        (moved(front),),
    )
    body = (loop(lanes, var=step, extent=4), loop(moved(back), var=n, extent=11))
    program = LoopProgram("both", (x,), (y,), body, aliases=((y, x),))
    if is_refused:
        assert any("is read before" in text for text in verify(program).open)
    else:
        assert not verify(program).open


def test_an_operand_is_not_read_after_the_loop_that_overwrites_it() -> None:
    z = Buffer("z", F32, (8,), "result")
    first = loop(Store(Y, (ROW,), load(X, (ROW,))))
    after = loop(Store(z, (COLUMN,), load(X, (COLUMN,))), var=COLUMN)
    prove(LoopProgram("after", (X,), (Y, z), (after, first), aliases=((Y, X),)))
    with pytest.raises(VerifyError, match="is read before it is overwritten"):
        prove(LoopProgram("after", (X,), (Y, z), (first, after), aliases=((Y, X),)))


def test_what_a_guard_reads_is_not_under_that_guard() -> None:
    """Both sides of `and` are evaluated: the comparison on the left keeps nothing from memory."""
    further = apply("lt", load(X, (index.add(ROW, at(1)),)), ONE)
    guard = apply("and", apply("lt", ROW, at(7)), further)
    with pytest.raises(VerifyError, match="takes values from 1 to 8"):
        prove(
            LoopProgram(
                "asked",
                (X,),
                (Y,),
                (loop(Store(Y, (COLUMN,), ZERO), var=COLUMN), loop(Store(Y, (ROW,), ONE, guard))),
            )
        )


def test_what_is_read_by_a_longer_loop_was_written_before() -> None:
    """The same place in two loops, one of which goes further than what was written."""
    held, z = Buffer("held", F32, (8,), "register"), Buffer("z", F32, (8,), "result")
    fill = loop(Store(held, (COLUMN,), ONE), var=COLUMN, extent=4)

    def used(count: int) -> LoopProgram:
        uses = [
            loop(Store(out, (COLUMN,), load(held, (COLUMN,))), var=COLUMN, extent=extent)
            for out, extent in ((Y, 4), (z, count))
        ]
        whole = [loop(Store(out, (ROW,), ZERO)) for out in (Y, z)]
        return LoopProgram("used", (X,), (Y, z), (*whole, Allocate(held, (fill, *uses))))

    assert not list(gaps(used(4)))
    assert [gap.certain for gap in gaps(used(8))] == [True]


def test_a_branch_around_what_exists_in_it_leaves_nothing_open() -> None:
    """What is asked where a buffer begins to exist holds for all that is done with it."""
    held = Buffer("held", F32, (8,), "register")
    fill = loop(Store(held, (COLUMN,), ONE), var=COLUMN)
    use = loop(Store(Y, (COLUMN,), load(held, (COLUMN,))), var=COLUMN)
    asked = apply("lt", load(X, (at(0),)), ONE)
    first = loop(Store(Y, (COLUMN,), ZERO), var=COLUMN)

    def branching(*body: Stmt) -> LoopProgram:
        return LoopProgram("branching", (X,), (Y,), (first, If(asked, (Allocate(held, body),))))

    assert not list(gaps(branching(fill, use)))
    assert [gap.certain for gap in gaps(branching(use, fill))] == [True]


@pytest.mark.parametrize(
    ("then", "otherwise", "trips", "is_whole"),
    [
        ((8,), (8,), 1, True),
        ((8,), (8,), 3, True),
        ((8,), (7,), 1, False),
        ((8,), (), 1, False),
        ((8,), (8,), 0, False),
        ((8,), ((8,), (4, 8)), 2, True),
        ((8,), ((8,), (4,)), 1, False),
    ],
)
def test_a_branch_writes_what_both_sides_of_it_write(then, otherwise, trips, is_whole) -> None:
    asked = apply("lt", load(X, (at(0),)), ONE)

    def side(extents) -> tuple[Stmt, ...]:
        if any(isinstance(e, tuple) for e in extents):
            return (If(asked, *map(side, extents)),)
        return tuple(
            loop(Store(Y, (variable("k", e),), ONE), var=variable("k", e), extent=e)
            for e in extents
        )

    body = loop(If(asked, side(then), side(otherwise)), var=variable("t", trips), extent=trips)
    assert (not list(gaps(LoopProgram("sides", (X,), (Y,), (body,))))) == is_whole


def test_what_a_private_buffer_holds_differs_between_tasks() -> None:
    """A place that is looked up in memory of the task's own tells nothing of other tasks."""
    held = Buffer("held", I32, (), "register")
    place = index.add(apply("convert", load(held, ()), dtype=INDEX), ROW)
    task = Allocate(held, (Store(held, (), load(WHERE, (ROW,))), Store(Y, (place,), ONE)))
    body = (loop(Store(Y, (COLUMN,), ZERO), var=COLUMN), loop(task, kind=LoopKind.PARALLEL))
    with pytest.raises(VerifyError, match="iterations may touch the same element of y"):
        prove(LoopProgram("private", (X, WHERE), (Y,), body))


@pytest.mark.parametrize("is_repeated", [False, True])
def test_a_place_that_was_looked_up_may_be_another_one_later(is_repeated) -> None:
    """In what follows, and in the next iteration of a loop."""
    number, z = Buffer("number", I32, (1,), "scratch"), Buffer("z", F32, (), "result")
    place = index.maximum(
        index.minimum(apply("convert", load(number, (at(0),)), dtype=INDEX), at(6)), at(0)
    )
    further = index.add(place, at(1))
    write, read = Store(Y, (place,), ONE), Store(z, (), load(X, (further,)))
    first, second = (Store(number, (at(0),), const(n, I32)) for n in (3, 2))
    moved = Store(number, (at(0),), load(WHERE, (ROW,)))
    body = (first, loop(read, write, moved)) if is_repeated else (first, write, second, read)
    program = LoopProgram(
        "later",
        (X, WHERE),
        (Y, z),
        (*body, loop(Store(Y, (ROW,), ONE))),
        scratch=((number, 0),),
        aliases=((Y, X),),
    )
    assert any("is read before it is overwritten" in text for text in verify(program).open)


@pytest.mark.parametrize(
    "extent",
    [
        index.maximum(
            index.minimum(apply("convert", load(WHERE, (at(0),)), dtype=INDEX), at(8)), at(1)
        ),
        apply("select", apply("lt", load(X, (at(0),)), ONE), at(3), at(8)),
    ],
)
def test_how_far_a_loop_goes_that_data_ends_is_not_known(extent) -> None:
    """It goes no further than it may, and may end before."""
    body = (For(ROW, extent, LoopKind.SERIAL, (Store(Y, (ROW,), ONE),)),)
    assert [gap.certain for gap in gaps(LoopProgram("ended", (X, WHERE), (Y,), body))] == [False]
    further = For(ROW, extent, LoopKind.SERIAL, (Store(Y, (index.add(ROW, at(3)),), ONE),))
    program = LoopProgram("further", (X, WHERE), (Y,), (*body, further))
    assert [text for text in unproven(program) if "i + 3 is within y" in text]


@pytest.mark.parametrize("step, others, is_whole", [(8, 30, True), (16, 54, False), (0, 30, False)])
def test_groups_are_one_loop_where_they_walk_on_together(step, others, is_whole) -> None:
    """Tasks in groups of 8: the elements of all are neighbours, or leave holes, or are the same."""
    group, task = variable("g", 4), variable("t", 8)
    first = index.multiply(group, at(8))
    y = Buffer("y", F32, (others,), "result")
    place = index.add(index.multiply(group, at(step)), task)
    tasks = For(
        task,
        index.minimum(at(8), index.subtract(at(30), first)),
        LoopKind.SERIAL,
        (Store(y, (place,), ONE),),
    )
    program = LoopProgram("groups", (X,), (y,), (loop(tasks, var=group, extent=4),))
    assert list(gaps(program)) == [] if is_whole else [g.certain for g in gaps(program)] == [True]


def test_what_is_under_a_guard_of_data_is_elsewhere_by_the_rest_of_it() -> None:
    """Of a condition that is not about indices alone, the part that is counts."""
    z = Buffer("z", F32, (8,), "result")
    asked = apply("and", apply("lt", ROW, at(4)), apply("lt", load(WHERE, (ROW,)), const(1, I32)))

    def program(begin: int) -> LoopProgram:
        read = Store(z, (COLUMN,), load(X, (COLUMN,)), apply("ge", COLUMN, at(begin)))
        return LoopProgram(
            "elsewhere",
            (X, WHERE),
            (Y, z),
            (loop(Store(Y, (ROW,), ONE, asked)), loop(read, var=COLUMN)),
            aliases=((Y, X),),
        )

    assert not verify(program(4)).open
    assert any("is read before it is overwritten" in text for text in verify(program(3)).open)


def test_what_is_looked_up_under_a_guard_is_seen_under_it() -> None:
    """The index is compared as it is, and read again under the comparison."""

    def place(guard: Expr | None) -> Expr:
        found = load(WHERE, (ROW,), guard, None if guard is None else const(0, I32))
        return index.subtract(index.maximum(apply("convert", found, dtype=INDEX), at(0)), at(3))

    low = apply("ge", place(None), at(0))
    inside = apply("and", low, apply("lt", place(None), at(8)))
    assert not verify(copied(load(X, (place(inside),), inside, ZERO))).unbounded
    assert not verify(copied(load(X, (place(low),), inside, ZERO))).unbounded
    assert verify(copied(load(X, (place(inside),), low, ZERO))).unbounded
