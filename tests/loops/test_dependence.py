"""Which iterations may touch the same memory."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from hlo_mlc.expr import index
from hlo_mlc.expr.build import apply, const, load, variable
from hlo_mlc.expr.core import Buffer, Expr, Var
from hlo_mlc.expr.dtypes import F32, I32, INDEX, U32
from hlo_mlc.expr.evaluate import evaluate
from hlo_mlc.loops import dependence
from hlo_mlc.loops.core import Accumulate, Allocate, For, If, LoopKind, LoopProgram, Stmt, Store
from hlo_mlc.loops.dependence import Access, Memory, accesses, carried
from hlo_mlc.loops.equations import solve
from hlo_mlc.tensor.combine import named_combiner

ROW, COLUMN = variable("i", 6), variable("j", 4)
X, Y = Buffer("x", F32, (6, 4), "operand"), Buffer("y", F32, (6, 4), "result")
ONE = const(1.0, F32)
NONE = Memory({}, {})


def loop(var: Var, *body: Stmt) -> For:
    return For(var, index.constant(var.extent), LoopKind.SERIAL, body)


def times(x: Expr, factor: int) -> Expr:
    return index.multiply(x, index.constant(factor))


def plus(x: Expr, shift: int) -> Expr:
    return index.add(x, index.constant(shift))


def test_own_elements_are_independent() -> None:
    nest = loop(ROW, loop(COLUMN, Store(Y, (ROW, COLUMN), load(X, (ROW, COLUMN)))))
    assert carried(nest, NONE) is None
    assert carried(nest.body[0], NONE) is None


def test_the_same_element_again_and_again_is_a_certain_conflict() -> None:
    conflict = carried(loop(ROW, Store(Y, (index.constant(0), index.constant(2)), ONE)), NONE)
    assert conflict is not None and conflict.certain
    assert "touch the same element of y" in str(conflict)


def test_a_neighbour_is_a_conflict() -> None:
    inside = apply("ge", ROW, index.constant(1))
    shifted = load(Y, (plus(ROW, -1), COLUMN), inside, ONE)
    nest = loop(ROW, loop(COLUMN, Store(Y, (ROW, COLUMN), shifted)))
    conflict = carried(nest, NONE)
    assert conflict is not None and not conflict.certain
    assert carried(nest.body[0], NONE) is None  # along j every iteration keeps to itself


@pytest.mark.parametrize("each", [7, 31, 46, 50, 92, 95])
@pytest.mark.parametrize("tasks, stride, apart", [(96, 4, True), (97, 4, False), (97, 5, True)])
def test_digits_of_numbers_that_are_cut_into_uneven_groups(
    each: int, tasks: int, stride: int, apart: bool
) -> None:
    """The last group is shorter: what its tasks write follows from how many there are, not from
    how many a group may have."""
    group, task = variable("g", -(-tasks // each)), variable("t", each)
    step, lane = variable("s", 3), variable("l", 2)
    number = index.minimum(index.add(times(group, each), task), index.constant(tasks - 1))
    place = (
        index.floormod(index.floordiv(number, 4), 6),
        index.add(lane, times(index.floormod(number, 4), 2)),
        index.add(times(step, stride), index.floordiv(number, 24)),
    )
    guard = apply("lt", place[1], index.constant(7))
    result = Buffer("r", F32, (6, 7, 32), "result")
    inner = loop(step, loop(lane, Store(result, place, ONE, guard)))
    count = index.minimum(
        index.constant(each), index.subtract(index.constant(tasks), times(group, each))
    )
    nest = loop(group, For(task, count, LoopKind.SERIAL, (inner,)))
    assert (carried(nest, NONE) is None) == apart


def test_what_differs_in_its_buffer_alone_is_looked_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As arrays that are sorted together; here in rows that are not as long as they might be."""
    asked: list[tuple] = []
    look = dependence._Question._apart
    monkeypatch.setattr(
        dependence._Question, "_apart", lambda *about: asked.append(about) or look(*about)
    )
    some = variable("k", 6)
    for arrays in (1, 4):
        results = [Buffer(f"r{n}", F32, (40,), "result") for n in range(arrays)]
        stores = tuple(Store(r, (times(ROW, 4) + some,), ONE) for r in results)
        for count, apart in ((4, True), (5, False)):
            row = For(some, index.constant(count), LoopKind.SERIAL, stores)
            asked.clear()
            assert (carried(loop(ROW, row), NONE) is None) == apart
            assert len(asked) == 1


def test_split_and_fused_indices_are_understood() -> None:
    outer, inner = variable("o", 3), variable("n", 8)
    flat = index.add(times(outer, 8), inner)
    split = loop(
        outer, loop(inner, Store(Y, (index.floordiv(flat, 4), index.floormod(flat, 4)), ONE))
    )
    assert carried(split, NONE) is None
    assert carried(split.body[0], NONE) is None
    fused = variable("f", 24)
    transposed = Buffer("t", F32, (4, 6), "result")
    crossed = loop(
        fused, Store(transposed, (index.floormod(fused, 4), index.floordiv(fused, 4)), ONE)
    )
    assert carried(crossed, NONE) is None


def test_three_fused_loops_stored_in_another_order() -> None:
    fused, cube = variable("f", 60), Buffer("c", F32, (5, 3, 4), "result")
    a, b, c = (
        index.floordiv(fused, 20),
        index.floormod(index.floordiv(fused, 5), 4),
        index.floormod(fused, 5),
    )
    assert carried(loop(fused, Store(cube, (c, a, b), ONE)), NONE) is None
    assert carried(loop(fused, Store(cube, (c, a, index.constant(0)), ONE)), NONE) is not None


@pytest.mark.parametrize(("first", "apart"), [(248, True), (247, False)])
def test_parts_of_a_fused_index_with_a_dimension_between_them(first: int, apart: bool) -> None:
    """Lanes over 254 columns, of which the last few are stored apart: their place is written in
    two of three dimensions, and says nothing until these two are taken together."""
    group, task = variable("g", 2), variable("t", 16)
    place, lane, few = variable("p", 5), variable("l", 8), variable("f", 6)
    number = index.minimum(index.add(times(group, 16), task), index.constant(30))
    column = index.add(times(number, 8), lane)
    result = Buffer("r", F32, (2, 5, 127), "result")
    last = (index.constant(1), place, index.add(few, index.constant(first - 127)))
    full = (index.floordiv(column, 127), place, index.floormod(column, 127))
    nest = loop(
        group,
        loop(
            task,
            If(
                apply("lt", index.add(times(group, 16), task), index.constant(31)),
                (loop(place, loop(lane, Store(result, full, ONE))),),
                (loop(place, loop(few, Store(result, last, ONE))),),
            ),
        ),
    )
    assert (carried(nest, NONE) is None) == apart


def test_indirect_stores_are_never_taken_for_independent() -> None:
    where = Buffer("where", I32, (6,), "operand")
    place = apply("convert", load(where, (ROW,)), dtype=INDEX)
    scatter = loop(ROW, Store(Y, (place, index.constant(0)), ONE))
    assert carried(scatter, NONE) is not None
    # …but another index that tells the iterations apart is enough.
    assert carried(loop(COLUMN, Store(Y, (place, COLUMN), ONE)), NONE) is None


def test_a_load_from_memory_that_changes_is_not_the_same_value_twice() -> None:
    where = Buffer("where", I32, (6,), "scratch")
    place = apply("convert", load(where, (index.constant(0),)), dtype=INDEX)
    row = Store(Y, (index.add(place, ROW), index.constant(0)), ONE)
    assert carried(loop(ROW, row), NONE) is None
    moving = Store(where, (index.constant(0),), const(1, I32))
    assert carried(loop(ROW, moving, row), NONE) is not None


def test_reductions_are_free_where_asked() -> None:
    acc = Buffer("acc", F32, (), "register")
    total = loop(ROW, Accumulate((acc,), (), named_combiner("add", F32), (load(X, (ROW, COLUMN)),)))
    assert carried(total, NONE) is not None
    assert carried(total, NONE, reductions_are_free=True) is None
    other = Accumulate((acc,), (), named_combiner("max", F32), (ONE,))
    assert carried(loop(ROW, *total.body, other), NONE, reductions_are_free=True) is not None
    spread = Accumulate((Y,), (index.floordiv(ROW, 2), COLUMN), named_combiner("add", F32), (ONE,))
    assert carried(loop(ROW, spread), NONE, reductions_are_free=True) is not None


def test_private_buffers_do_not_count() -> None:
    held = Buffer("held", F32, (), "register")
    own = Allocate(held, (Store(held, (), ONE), Store(Y, (ROW, COLUMN), load(held, ()))))
    assert carried(loop(ROW, own), NONE) is None
    assert {a.buffer.name for a in accesses((own,))} == {"y"}


def test_aliases_and_shared_bytes_are_one_memory() -> None:
    opposite = index.subtract(index.constant(5), ROW)
    mirrored = loop(ROW, Store(Y, (ROW, COLUMN), load(X, (opposite, COLUMN))))
    plain = LoopProgram("p", (X,), (Y,), (mirrored,))
    aliased = LoopProgram("p", (X,), (Y,), (mirrored,), aliases=((Y, X),))
    assert carried(mirrored, Memory.of(plain)) is None
    assert carried(mirrored, Memory.of(aliased)) is not None
    straight = loop(ROW, Store(Y, (ROW, COLUMN), load(X, (ROW, COLUMN))))
    assert carried(straight, Memory.of(aliased)) is None
    a, b = Buffer("a", F32, (6,), "scratch"), Buffer("b", F32, (6,), "scratch")
    copy = loop(ROW, Store(a, (ROW,), load(b, (ROW,))))
    apart = Memory.of(LoopProgram("p", (), (), (copy,), ((a, 0), (b, 64))))
    over = Memory.of(LoopProgram("p", (), (), (copy,), ((a, 0), (b, 0))))
    assert carried(copy, apart) is None
    assert carried(copy, over) is not None


@pytest.mark.parametrize(("below", "independent"), [(16, True), (17, False)])
def test_what_lies_below_a_common_multiple_is_told_apart(below: int, independent: bool) -> None:
    """Two terms of 16 each, whose sum says nothing of either; what is added to them stays below."""
    rows, tile, part, lane = (variable(n, e) for n, e in (("r", 6), ("t", 5), ("p", 2), ("l", 8)))
    begins = index.minimum(times(tile, 6), index.constant(23))
    row = times(index.add(rows, begins), 16)
    column = index.add(times(part, below - 8), lane)
    wide = Buffer("w", F32, (640,), "result")
    nest = loop(
        part, loop(tile, loop(rows, loop(lane, Store(wide, (index.add(row, column),), ONE))))
    )
    assert (carried(nest, NONE) is None) is independent
    assert carried(nest.body[0], NONE) is not None  # tiles overlap


@pytest.mark.parametrize(("step", "independent"), [(48, True), (47, False)])
def test_rows_and_columns_along_one_axis(step: int, independent: bool) -> None:
    """Tasks are blocks of 65 rows in tiles that overlap, by panels of 16 columns: boxes only where
    rows and columns are told apart."""
    task, tile, row, lane = (variable(n, e) for n, e in (("t", 24), ("u", 3), ("r", 6), ("l", 16)))
    block, panel = times(index.floormod(task, 4), 65), index.floormod(index.floordiv(task, 4), 3)
    first = index.minimum(
        index.add(index.floordiv(block, 4), times(tile, 6)),
        plus(index.floordiv(plus(block, 1), 4), 10),
    )
    flat = Buffer("f", F32, (2, 65 * 48), "result")

    def panels(column: Expr) -> Stmt:
        place = index.add(times(index.add(first, row), step), index.add(column, lane))
        return loop(
            tile, loop(row, loop(lane, Store(flat, (index.floordiv(task, 12), place), ONE)))
        )

    whole = apply("lt", panel, index.constant(2))
    nest = loop(
        task,
        If(
            whole,
            (panels(times(index.minimum(panel, index.constant(1)), 16)),),
            (panels(index.constant(32)),),
        ),
    )
    assert (carried(nest, NONE) is None) is independent


@pytest.mark.parametrize(("last", "independent"), [(511, True), (342, True), (341, False)])
def test_groups_of_tasks_are_told_apart(last: int, independent: bool) -> None:
    """The last tasks may be one, as long as one group alone has such."""
    group, task = variable("g", 3), variable("t", 171)
    row, lane = variable("r", 9), variable("l", 32)
    number = index.minimum(index.add(times(group, 171), task), index.constant(last))
    place = index.add(index.add(times(row, 16384), lane), times(number, 32))
    wide = Buffer("w", F32, (9 * 16384, 2), "result")
    nest = loop(
        group, loop(task, loop(row, loop(lane, Store(wide, (place, index.constant(0)), ONE))))
    )
    assert (carried(nest, NONE) is None) is independent


@pytest.mark.parametrize(("more", "independent"), [(0, True), (1, False)])
@pytest.mark.parametrize("rows", [101, 30001])
def test_what_is_behind_the_vectors_of_a_matrix_is_apart(
    rows: int, more: int, independent: bool
) -> None:
    """Rows are no whole vectors: what one thread does behind the last one is told apart from them
    by the number of an element, however many there are."""
    columns, threads = 303, 256
    vectors, rest = divmod(rows * columns, 4)
    block, thread = variable("b", vectors // (2 * threads) + 1), variable("t", threads)
    each, lane, behind = (variable(n, e) for n, e in (("u", 2), ("v", 4), ("w", rest)))
    vector = (block * 2 + each) * threads + thread
    number = vector * 4 + lane
    matrix = Buffer("m", F32, (rows, columns), "result")
    place = number // columns, number % columns
    last = index.constant(rows - 1), plus(behind, columns - rest)
    inside = If(
        apply("lt", vector, index.constant(vectors + more)),
        (loop(lane, Store(matrix, place, ONE)),),
    )
    by_one = If(
        apply("eq", block, index.constant(block.extent - 1)),
        (
            If(
                apply("eq", thread, index.constant(threads - 1)),
                (loop(behind, Store(matrix, last, ONE)),),
            ),
        ),
    )
    assert (carried(loop(thread, loop(each, inside), by_one), NONE) is None) is independent


@pytest.mark.parametrize(("rows", "independent"), [(16, True), (17, False)])
def test_a_loop_of_one_iteration_does_not_hide_what_a_number_is(
    rows: int, independent: bool
) -> None:
    """A quotient that was simplified without its variable, and the remainder that was not."""
    task, row, single, lane = (
        variable(n, e) for n, e in (("t", 96), ("r", rows), ("s", 1), ("l", 32))
    )
    number = single * 16 + task // 2 * 16 + row
    place = task // 6, number // 3 % 16, number % 3, task % 2 * 32 + lane
    wide = Buffer("w", F32, (16, 16, 3, 64), "result")
    nest = loop(task, loop(lane, loop(single, loop(row, Store(wide, place, ONE)))))
    assert (carried(nest, NONE) is None) is independent


@pytest.mark.parametrize(("turn", "independent"), [(1, True), (3, True), (0, False), (2, False)])
def test_rooms_that_are_read_and_written_in_turns(turn: int, independent: bool) -> None:
    """Each task reads from anywhere in one room and writes its own part of another."""
    round_, task, lane = variable("k", 5), variable("t", 4), variable("l", 8)
    rooms = Buffer("rooms", F32, (2, 32), "scratch")
    chosen = Buffer("chosen", U32, (4,), "operand")
    anywhere = index.minimum(
        apply("convert", load(chosen, (task,)), dtype=INDEX), index.constant(31)
    )
    tasks = loop(
        task,
        loop(
            lane,
            Store(
                rooms,
                (index.floormod(plus(round_, turn), 2), index.add(times(task, 8), lane)),
                load(rooms, (index.floormod(round_, 2), anywhere)),
            ),
        ),
    )
    assert (carried(tasks, NONE) is None) is independent
    assert carried(loop(round_, tasks), NONE) is not None


def random_index(rng: np.random.Generator, variables: list[Var]) -> Expr:
    result = index.constant(int(rng.integers(-3, 4)))
    for var in variables:
        factor = int(rng.choice([0, 1, 1, 2, 3, 4, 5, -1]))
        result = index.add(result, times(var, factor))
    if rng.random() < 0.4:
        divisor = int(rng.integers(2, 7))
        split = index.floordiv if rng.random() < 0.5 else index.floormod
        result = index.add(
            times(split(result, divisor), int(rng.integers(1, 4))),
            times(variables[0], int(rng.integers(0, 2))),
        )
    return result


@pytest.mark.parametrize("seed", range(150))
def test_what_is_settled_really_is(seed) -> None:
    """Against brute force over all pairs of instances."""
    rng = np.random.default_rng(seed)
    variables = [variable("a", 4), variable("b", 3), variable("c", 2)]
    buffer = Buffer("m", F32, (7, 8), "scratch")
    first, second = (
        Access(Store(buffer, at, ONE), buffer, at, True)
        for at in (tuple(random_index(rng, variables) for _ in range(2)) for _ in range(2))
    )
    if rng.random() < 0.5:
        second = first
    fixed = variables[: int(rng.integers(0, 2))]
    settled = solve(first, second, set(variables) - set(fixed), {buffer})
    points = list(itertools.product(*(range(v.extent) for v in variables)))
    columns = {v: np.array([p[n] for p in points]) for n, v in enumerate(variables)}

    def places(access: Access) -> list[tuple[int, ...]]:
        values = [np.broadcast_to(evaluate(i, columns), len(points)) for i in access.indices]
        return list(zip(*(v.tolist() for v in values), strict=True))

    meetings = [
        (p, q)
        for p, here in zip(points, places(first), strict=True)
        for q, there in zip(points, places(second), strict=True)
        if here == there and all(p[variables.index(v)] == q[variables.index(v)] for v in fixed)
    ]
    if settled is None:
        assert not meetings
        return
    for var in settled:
        position = variables.index(var)
        assert all(p[position] == q[position] for p, q in meetings), (first.indices, second.indices)
