"""What is touched in all, by loops over numbers whose digits are indices, and under conditions."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from hlo_mlc.expr import index
from hlo_mlc.expr.build import all_of, apply, const, load, variable
from hlo_mlc.expr.core import Buffer, Expr, Var
from hlo_mlc.expr.dtypes import F32, INDEX
from hlo_mlc.expr.evaluate import evaluate
from hlo_mlc.loops import regions
from hlo_mlc.loops.accesses import accesses
from hlo_mlc.loops.core import For, If, LoopKind, LoopProgram, Store
from hlo_mlc.loops.coverage import gaps
from hlo_mlc.loops.touching import interleaved, reached, solid, touched

ONE = const(1.0, F32)
SIZES = (100, 16, 640)  # more points than are put in one by one


def loop(var: Var, *body: For | If | Store) -> For:
    return For(var, index.constant(var.extent), LoopKind.SERIAL, body)


def program(loops: For, result: Buffer) -> LoopProgram:
    return LoopProgram("p", (), (result,), (loops,))


def digits_in(order: tuple[int, ...], count: int) -> LoopProgram:
    """A loop of so many trips that stores at the digits of its number, in this order."""
    number = variable("n", count)
    digits = [
        index.floormod(index.floordiv(number, math.prod(SIZES[:n])), size)
        for n, size in enumerate(SIZES)
    ]
    result = Buffer("r", F32, tuple(SIZES[n] for n in order), "result")
    return program(loop(number, Store(result, tuple(digits[n] for n in order), ONE)), result)


@pytest.mark.parametrize("order", [*itertools.permutations(range(3))])
def test_digits_in_any_order_fill_a_buffer(order: tuple[int, ...]) -> None:
    whole = math.prod(SIZES)
    assert not list(gaps(digits_in(order, whole)))
    assert list(gaps(digits_in(order, whole - 1)))
    assert list(gaps(digits_in(order, whole // 2)))


@pytest.mark.parametrize("shape", [(2403200,), (40055, 60), (200275, 3, 4), (8015, 100, 3)])
@pytest.mark.parametrize("left_out", [0, 1])
def test_vectors_of_threads_of_blocks_fill_what_has_more_elements_than_are_looked_at(
    shape: tuple[int, ...], left_out: int
) -> None:
    """The last block has fewer; with one vector less, its elements are another thread's to do."""
    size = math.prod(shape)
    vectors, threads, result = size // 4 - left_out, 256, Buffer("r", F32, shape, "result")
    block, thread = variable("b", -(-vectors // (2 * threads))), variable("t", threads)
    each, lane = variable("u", 2), variable("v", 4)
    vector = index.add(index.multiply(index.add(index.multiply(block, 2), each), threads), thread)
    number = index.add(index.multiply(vector, 4), lane)
    steps = [math.prod(shape[n + 1 :]) for n in range(len(shape))]
    place = [
        index.floormod(index.floordiv(number, step), extent) if n else index.floordiv(number, step)
        for n, (step, extent) in enumerate(zip(steps, shape, strict=True))
    ]
    inside = index.compare("lt", vector, index.constant(vectors))
    stores = If(inside, (loop(lane, Store(result, tuple(place), ONE)),), ())
    rest = variable("w", 4)
    last = [index.constant(d - 1) for d in shape]
    last[-1] = index.add(index.constant(shape[-1] - 4), rest)
    of_last = all_of(
        apply("eq", block, index.constant(block.extent - 1)),
        apply("eq", thread, index.constant(threads - 1)),
    )
    behind = If(of_last, (loop(rest, Store(result, tuple(last), ONE)),), ())

    def blocks(*body: If | For) -> LoopProgram:
        return program(loop(block, loop(thread, *body)), result)

    assert (not list(gaps(blocks(loop(each, stores))))) is (not left_out)
    if shape[-1] % 4 == 0:
        assert not list(gaps(blocks(loop(each, stores), behind)))


@pytest.mark.parametrize("columns", [1003, 1024])
@pytest.mark.parametrize("left_out", [0, 1])
def test_parts_of_rows_that_blocks_are_numbered_by_fill_a_buffer(
    columns: int, left_out: int
) -> None:
    """A block is 32 columns of a row, the last one of each row those that are left."""
    rows, parts = 30001, -(-columns // 32)
    result = Buffer("r", F32, (rows, columns), "result")
    block, thread = variable("b", rows * parts), variable("t", 32)
    first = index.multiply(index.floormod(block, parts), 32)
    left = index.minimum(
        index.constant(32), index.subtract(index.constant(columns - left_out), first)
    )
    store = Store(result, (index.floordiv(block, parts), index.add(first, thread)), ONE)
    threads = For(thread, left, LoopKind.THREAD, (store,))
    assert (not list(gaps(program(loop(block, threads), result)))) is (not left_out)


@pytest.mark.parametrize("rows", [1, 7])
@pytest.mark.parametrize("left_out", [0, 1])
def test_last_tiles_that_are_moved_back_fill_what_has_more_elements_than_are_looked_at(
    rows: int, left_out: int
) -> None:
    """As those of transposes do, in vectors of four; a tile that is moved further leaves a gap."""
    size = (1 << 22) - 3
    result = Buffer("r", F32, (rows, size), "result")
    outer, inner, row, lane = map(variable, "oijl", (1 << 12, 256, rows, 4))
    first = apply("min", inner * 4 + outer * 1024, index.constant(size - 4 - left_out))
    store = Store(result, (row, first + lane), ONE)
    nest = program(loop(outer, loop(inner, loop(row, loop(lane, store)))), result)
    assert bool(list(gaps(nest))) == bool(left_out)


@pytest.mark.parametrize("left_out", [0, 1])
def test_a_last_group_that_is_cut_short_fills_what_has_more_elements_than_are_looked_at(
    left_out: int,
) -> None:
    """As the last run of a sort is."""
    size, run = (1 << 24) + 5, (1 << 23) + 16
    result = Buffer("r", F32, (size,), "result")
    group, place = map(variable, "gp", (2, run))
    trips = index.minimum(index.constant(run), size - left_out - group * run)
    tasks = For(place, trips, LoopKind.SERIAL, (Store(result, (place + group * run,), ONE),))
    assert bool(list(gaps(program(loop(group, tasks), result)))) == bool(left_out)


@pytest.mark.parametrize("left_out", [0, 1])
def test_digits_of_tasks_within_a_clamp_fill_what_has_more_elements_than_are_looked_at(
    left_out: int,
) -> None:
    """As those of transposes do: 40 tasks for each of 231 planes, the last of which ends sooner."""
    size, planes = 10007, 231
    result = Buffer("r", F32, (planes, size), "result")
    group, task, tile, lane = map(variable, "gtil", (299, 31, 64, 4))
    number = group * 31 + task
    part = index.floormod(number, 40)
    trips = index.minimum(index.constant(64), 2502 - part * 64)
    place = index.minimum(tile * 4 + part * 256, index.constant(size - 4 - left_out)) + lane
    store = Store(result, (index.floordiv(number, 40), place), ONE)
    tiles = For(tile, trips, LoopKind.SERIAL, (loop(lane, store),))
    tasks = index.minimum(index.constant(31), planes * 40 - group * 31)
    nest = loop(group, For(task, tasks, LoopKind.SERIAL, (tiles,)))
    assert bool(list(gaps(program(nest, result)))) == bool(left_out)


@pytest.mark.parametrize("left_out", [0, 1])
def test_a_clamp_of_what_is_taken_for_several_axes_is_few_boxes(left_out: int) -> None:
    shape = (129, 65, 33, 17)
    result, size = Buffer("r", F32, shape, "result"), 65 * 33 * 17
    plane, tile, lane = map(variable, "pil", (129, 2280, 16))
    number = index.minimum(tile * 16, index.constant(size - 16 - left_out)) + lane
    there = (
        plane,
        index.floordiv(number, 33 * 17),
        index.floormod(index.floordiv(number, 17), 33),
        index.floormod(number, 17),
    )
    nest = loop(plane, loop(tile, loop(lane, Store(result, there, ONE))))
    assert bool(list(gaps(program(nest, result)))) == bool(left_out)


@pytest.mark.parametrize(("clamps", "seen"), [(1, True), (8, True), (30, False)])
def test_of_many_clamps_not_all_cases_are_looked_at(clamps: int, seen: bool) -> None:
    """Each has two: of 30 there is a billion."""
    counted = [variable(f"v{n}", 1 << 12) for n in range(clamps)]
    place = index.constant(0)
    for v in counted:
        place = place + index.minimum(v, index.constant(7))
    result = Buffer("r", F32, (7 * clamps + 1,), "result")
    nest: For | Store = Store(result, (place,), ONE)
    for v in counted:
        nest = loop(v, nest)
    assert [gap.certain for gap in gaps(program(nest, result))] == [False] * (not seen)


@pytest.mark.parametrize("begin", [1, 2])
@pytest.mark.parametrize("turns", [False, True])
def test_loops_whose_first_trip_goes_elsewhere_fill_what_has_more_elements_than_are_looked_at(
    begin: int, turns: bool
) -> None:
    """Four neighbours at once, or in turns by loops of one trip."""
    trips = 1 << 21
    result = Buffer("r", F32, (trips * 4,), "result")
    i, lane, once = map(variable, "ilo", (trips, 4, 1))

    def body() -> tuple[For, ...]:
        if not turns:
            return (loop(lane, Store(result, (i * 4 + lane,), ONE)),)
        return tuple(loop(once, Store(result, (i * 4 + once + n,), ONE)) for n in range(4))

    def from_(op: str, first: int) -> If:
        return If(index.compare(op, i, index.constant(first)), body(), ())

    nest = loop(i, from_("ge", begin), from_("lt", 1))
    assert bool(list(gaps(program(nest, result)))) == (begin > 1)


def test_groups_that_another_loop_cuts_short_fill_no_box() -> None:
    """Tasks in groups of 8, in all one less for each of the rows before."""
    row, group, task = variable("r", 5), variable("g", 4), variable("t", 8)
    result = Buffer("r", F32, (5, 32), "result")
    first = index.multiply(group, 8)
    left = index.subtract(index.constant(32), index.add(first, row))
    store = Store(result, (row, index.add(first, task)), ONE)
    tasks = For(task, index.minimum(index.constant(8), left), LoopKind.SERIAL, (store,))
    loops = loop(row, loop(group, tasks))
    (access,) = accesses((loops,))
    boxes = touched(access)
    assert solid(access) is None and list(gaps(program(loops, result)))
    truth = np.add.outer(np.arange(5), np.arange(32)) < 32
    assert np.array_equal(painted(sides(boxes), result.shape), truth)


def test_groups_that_data_cuts_short_fill_nothing_for_certain() -> None:
    """Tasks in groups of 8, under a condition that has all of them as one number."""
    where = Buffer("n", INDEX, (1,), "operand")
    group, task, result = variable("g", 4), variable("t", 8), Buffer("r", F32, (30,), "result")
    number = index.add(index.multiply(group, 8), task)
    store = Store(result, (number,), ONE, index.compare("lt", number, index.constant(30)))

    def tasks(trips: Expr) -> LoopProgram:
        loops = loop(group, For(task, trips, LoopKind.SERIAL, (store,)))
        return LoopProgram("p", (where,), (result,), (loops,))

    given = load(where, (index.constant(0),))
    assert [g.certain for g in gaps(tasks(index.minimum(given, 8)))] == [False]
    assert not list(gaps(tasks(index.constant(8))))


def test_a_digit_that_is_used_twice_fills_nothing() -> None:
    number, size = variable("n", 1 << 20), 1 << 10
    digit = index.floormod(number, size)
    result = Buffer("r", F32, (size, size), "result")
    for other, full in ((digit, False), (index.floordiv(number, size), True)):
        stores = loop(number, Store(result, (digit, other), ONE))
        assert (not list(gaps(program(stores, result)))) is full


@pytest.mark.parametrize("op", ["eq", "ne", "lt"])
@pytest.mark.parametrize("sides", [1, 2])
def test_both_sides_of_a_branch_fill_a_buffer(op: str, sides: int) -> None:
    """Each stores what the other leaves out, in a loop that both are in."""
    i, result = variable("i", 9), Buffer("r", F32, (9,), "result")
    then, otherwise = ((Store(result, (i,), const(x, F32)),) for x in (1.0, 2.0))
    branch = If(apply(op, i, index.constant(4)), then, otherwise if sides == 2 else ())
    assert (not list(gaps(program(loop(i, branch), result)))) is (sides == 2)


@pytest.mark.parametrize(("below", "full"), [(1, False), (2, True)])
def test_a_loop_that_a_condition_holds_back_fills_no_gaps(below: int, full: bool) -> None:
    """Steps of 2 leave nothing out as long as there are two neighbours to begin from."""
    near, far = variable("b", 6), variable("c", 3)
    result = Buffer("r", F32, (4 + below,), "result")
    place = index.add(near, index.multiply(far, index.constant(2)))
    store = Store(result, (place,), ONE, apply("lt", near, index.constant(below)))
    assert (not list(gaps(program(loop(near, loop(far, store)), result)))) is full


def test_of_a_long_loop_that_a_condition_ends_early_few_values_are_put_in() -> None:
    place, result = variable("i", 1 << 21), Buffer("r", F32, (8, 8), "result")
    early = index.compare("lt", place, index.constant(8))
    (access,) = accesses((loop(place, Store(result, (place, place), ONE, early)),))
    assert np.array_equal(painted(sides(touched(access)), (8, 8)), np.eye(8, dtype=bool))


def test_a_loop_of_less_than_no_trips_touches_nothing() -> None:
    outer, inner, result = variable("i", 3), variable("j", 3), Buffer("r", F32, (3,), "result")
    store = Store(result, (outer,), ONE, index.compare("lt", inner, outer))
    never = For(inner, index.constant(-1), LoopKind.SERIAL, (store,))
    (access,) = accesses((loop(outer, never),))
    assert not len(touched(access).owners)


@pytest.mark.parametrize("first", [1, 2])
def test_branches_fill_a_buffer_together(first: int) -> None:
    """The one where a conjunction holds, and the one where it does not; here an iteration is left
    out of them, where the first is not 1."""
    i, j = variable("i", 1 << 20), variable("j", 8)
    result = Buffer("r", F32, (i.extent, j.extent), "result")
    inside = all_of(
        index.compare("ge", i, index.constant(1)),
        index.compare("lt", i, index.constant(i.extent - 1)),
    )
    store = Store(result, (i, j), ONE)
    late = Store(result, (i, j), ONE, index.compare("ge", i, index.constant(first)))
    branches = If(inside, (loop(j, late),), (loop(j, store),))
    assert (not list(gaps(program(loop(i, branches), result)))) is (first == 1)


@pytest.mark.parametrize("columns", [1002, 1001, 1000])
@pytest.mark.parametrize("left_out", [None, 0, 2])
def test_stores_in_turns_fill_what_has_more_elements_than_are_looked_at(
    columns: int, left_out: int | None
) -> None:
    """Every third row as a whole, of the others every third element by each of three stores."""
    result = Buffer("r", F32, (64, 23, columns), "result")
    image, row, column, whole = (
        variable(*named) for named in (("i", 64), ("y", 8), ("x", 334), ("z", columns))
    )
    stores = []
    for of_row, of_column in itertools.product(range(2), range(3)):
        place = index.add(index.multiply(column, 3), index.constant(of_column))
        guard = index.compare("lt", place, index.constant(columns))
        there = image, index.add(index.multiply(row, 3), index.constant(of_row)), place
        if of_column != left_out:
            stores.append(loop(image, loop(row, loop(column, Store(result, there, ONE, guard)))))
    seventh = variable("w", 7)
    there = image, index.add(index.multiply(seventh, 3), index.constant(2)), whole
    stores.append(loop(image, loop(seventh, loop(whole, Store(result, there, ONE)))))
    found = list(gaps(LoopProgram("p", (), (result,), tuple(stores))))
    assert (not found) is (left_out is None)


def test_a_buffer_that_one_loop_fills_is_few_boxes_where_others_take_turns() -> None:
    """Not one for each element, though rows are divisions: a grid that is refined is copied so."""
    size = 513
    number, result = variable("n", size * size), Buffer("r", F32, (size, size), "result")
    there = index.floordiv(number, size), index.floormod(number, size)
    (access,) = accesses((loop(number, Store(result, there, ONE)),))
    axes = interleaved(result.shape, (2, 2))
    parts = touched(access, (2, 2))
    assert parts is not None and len(parts.owners) < 30
    whole = painted(sides(parts), tuple(itertools.chain(*axes)))
    assert whole.reshape([math.prod(extents) for extents in axes])[:size, :size].all()
    assert np.count_nonzero(whole) == size * size


def random_numbers(rng: np.random.Generator, variables: list[Var]) -> list[Expr]:
    """The variables, often two of them as one number, and that as one with the third."""
    numbers: list[Expr] = [variables[n] for n in rng.permutation(len(variables))]
    while len(numbers) > 1 and rng.random() < 0.5:
        high, low, *numbers = numbers
        size = int(index.bounds(low)[1]) + 1
        numbers = [index.add(index.multiply(high, index.constant(size)), low), *numbers]
    return numbers


def random_parts(rng: np.random.Generator, v: Expr) -> list[Expr]:
    """The digits of a number; or nearly, or itself."""
    divisors = [d for d in (2, 3, 4, 6) if (int(index.bounds(v)[1]) + 1) % d == 0]
    if not divisors or rng.random() < 0.2:
        return [v]
    step = int(rng.choice(divisors))
    low, high, kind = index.floormod(v, step), index.floordiv(v, step), rng.random()
    if kind < 0.6:
        return [low, high]
    return [
        [low, high, low],
        [low],
        [low, index.floormod(high, 2)],
        [low, high, v],
        [index.floormod(v, step + 1), high],
    ][int(rng.integers(5))]


def random_condition(rng: np.random.Generator, limited: list[Expr]) -> Expr:
    return apply(
        str(rng.choice(["lt", "lt", "eq", "ne"])),
        limited[int(rng.integers(len(limited)))],
        index.constant(int(rng.integers(1, 9)) * int(rng.choice([1, 1, 7]))),
    )


def random_store(rng: np.random.Generator, variables: list[Var]) -> Store:
    """A store at sums of parts, mostly by steps of what those before reach, often under a guard."""
    numbers = random_numbers(rng, variables)
    parts = [p for number in numbers for p in random_parts(rng, number)]
    parts = [parts[n] for n in rng.permutation(len(parts))]
    first, last = sorted(rng.integers(0, len(parts) + 1, 2))
    place = []
    for group in parts[:first], parts[first:last], parts[last:]:
        sum_, step = index.constant(0), 1
        for part in group:
            factor = step * int(rng.choice([1, 1, 1, 1, 2, -1]))
            sum_ = index.add(sum_, index.multiply(part, index.constant(factor)))
            step *= 1 + int(index.bounds(part)[1])
        place.append(index.subtract(sum_, index.constant(int(index.bounds(sum_)[0]))))
        if rng.random() < 0.2:
            most = int(rng.integers(0, index.bounds(place[-1])[1] + 1))
            place[-1] = index.minimum(place[-1], index.constant(most))
    shape = tuple(int(index.bounds(i)[1]) + 1 for i in place)
    guard = random_condition(rng, [*place, *variables, *numbers])
    if rng.random() < 0.3:
        guard = apply(
            "or", guard, apply("not", random_condition(rng, [*place, *variables, *numbers]))
        )
    return Store(
        Buffer("r", F32, shape, "result"), tuple(place), ONE, guard if rng.random() < 0.4 else None
    )


@pytest.mark.parametrize(("most_points", "least"), [(regions.MOST_POINTS, 400), (8, 200)])
def test_boxes_are_what_is_touched(
    monkeypatch: pytest.MonkeyPatch, most_points: int, least: int
) -> None:
    """Against brute force over all points, also where an axis is taken for two."""
    monkeypatch.setattr(regions, "MOST_POINTS", most_points)
    rng, exact, in_turns = np.random.default_rng(0), 0, 0
    for _ in range(500):
        variables = [variable(n, int(rng.choice([1, 2, 3, 4, 6, 8, 12]))) for n in "abc"]
        store = random_store(rng, variables)
        group, task = variables[1:]
        trips = index.constant(task.extent)
        if rng.random() < 0.3:  # the last groups have fewer tasks
            count = index.constant(int(rng.integers(1, group.extent * task.extent + 1)))
            first = index.multiply(group, trips)
            trips = index.minimum(trips, index.subtract(count, first))
        tasks = For(task, trips, LoopKind.SERIAL, (store,))
        loops = loop(variables[0], loop(group, tasks))
        guards = [store.guard] if store.guard else []
        points = np.array([*itertools.product(*(range(v.extent) for v in variables))]).T
        env = dict(zip(variables, points, strict=True))
        place, conditions = (
            [np.broadcast_to(evaluate(e, env), points.shape[1]) for e in asked]
            for asked in (store.indices, [index.compare("lt", task, trips), *guards])
        )
        truth = np.zeros(store.buffer.shape, bool)
        happens = np.logical_and.reduce(conditions)
        truth[tuple(i[happens] for i in place)] = True
        (access,) = (a for a in accesses((loops,)) if a.writes)
        whole, boxes, most = solid(access), touched(access), reached(access)
        if whole is not None:
            assert np.array_equal(painted([whole], truth.shape), truth), loops
        if boxes is not None:
            exact += 1
            assert np.array_equal(painted(sides(boxes), truth.shape), truth), loops
        if most is not None:
            assert not (truth & ~painted(sides(most), truth.shape)).any(), loops
        steps = [int(rng.choice([1, 2, 3])) for _ in truth.shape]
        parts = touched(access, steps)
        if parts is not None:
            in_turns += max(steps) > 1
            axes = interleaved(truth.shape, steps)
            found = painted(sides(parts), tuple(itertools.chain(*axes)))
            found = found.reshape([math.prod(extents) for extents in axes])
            assert np.array_equal(found[tuple(slice(d) for d in truth.shape)], truth), loops
            assert np.count_nonzero(found) == np.count_nonzero(truth), loops
    assert exact > least
    assert in_turns > least - 100


def sides(boxes):
    return [
        tuple(zip(low, high, strict=True))
        for low, high in zip(
            zip(*boxes.low, strict=True), zip(*boxes.high, strict=True), strict=True
        )
    ]


def painted(boxes, shape: tuple[int, ...]) -> np.ndarray:
    found = np.zeros(shape, bool)
    for box in boxes:
        found[tuple(slice(max(0, first), last + 1) for first, last in box)] = True
    return found
