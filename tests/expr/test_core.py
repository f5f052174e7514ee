"""Interned expressions: equal is identical, shared is not copied."""

from __future__ import annotations

import dataclasses
import gc
import math
import pickle
import threading
import weakref

import pytest

from hlo_mlc.expr import index
from hlo_mlc.expr.build import FALSE, TRUE, apply, const, load, substitute, transform, variable
from hlo_mlc.expr.core import Apply, Buffer, Const, Expr, Load, Var, loads, text, walk
from hlo_mlc.expr.dtypes import F32, F64, I32, INDEX, U32

X, Y = Var("x", F32), Var("y", F32)
ROW = Buffer("row", F32, (8,))


def test_equal_expressions_are_one_object():
    assert apply("mul", apply("add", X, Y), X) is apply("mul", apply("add", X, Y), X)
    assert load(ROW, (variable("i", 8),)) is load(Buffer("row", F32, (8,)), (variable("i", 8),))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (Const(0.0, F32), Const(-0.0, F32)),
        (Const(1.0, F32), Const(1.0, F64)),
        (Const(1, I32), Const(1, INDEX)),
        (X, Var("x", F64)),
        (variable("i", 4), variable("i", 5)),
        (Apply("sub", (X, Y), F32), Apply("sub", (Y, X), F32)),
        (Load(ROW, (index.constant(0),)), Load(Buffer("row", F32, (9,)), (index.constant(0),))),
    ],
)
def test_what_differs_is_two_objects(one, other):
    assert one is not other


def test_nan_is_one_constant():
    assert const(math.nan, F32) is const(-math.nan, F32) is const(float("nan"), F32)


def test_commuted_operands_of_constants_are_one_expression():
    assert apply("add", const(2.0, F32), X) is apply("add", X, const(2.0, F32))


def test_threads_build_the_same_objects():
    built: list[list[Apply]] = []

    def build() -> None:
        e, found = X, []
        for n in range(300):
            e = apply("add", apply("mul", e, Y), const(float(n), F32))
            found.append(e)
        built.append(found)

    threads = [threading.Thread(target=build) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(a is b for found in built for a, b in zip(found, built[0], strict=True))


def test_unused_expressions_go_away():
    name = weakref.ref(apply("exp", Var("only here", F32)))
    gc.collect()
    assert name() is None


def test_expressions_come_back_after_they_went_away():
    shape = [text(apply("exp", Var(f"gone {n}", F32))) for n in range(5000)]
    again = [apply("exp", Var(f"gone {n}", F32)) for n in range(5000)]
    gc.collect()
    assert [*map(text, again)] == shape
    assert all(e is apply("exp", Var(f"gone {n}", F32)) for n, e in enumerate(again))


def test_what_unused_expressions_consist_of_goes_away_with_them():
    part = weakref.ref(apply("exp", Var("only in there", F32)))
    apply("neg", apply("neg", apply("exp", Var("only in there", F32))))
    gc.collect()
    assert part() is None


def test_equal_buffers_are_one_object():
    assert ROW is Buffer("row", F32, (8,)) is pickle.loads(pickle.dumps(ROW))
    assert ROW is dataclasses.replace(Buffer("row", F32, (8,), "stack"), scope="scratch")
    assert ROW is not Buffer("row", F32, (8,), "stack")


def test_unused_buffers_go_away():
    buffer = weakref.ref(Buffer("only here", F32, (8,)))
    gc.collect()
    assert buffer() is None


def test_shared_nodes_are_visited_once():
    e = X
    for _ in range(200):
        e = apply("add", e, e)
    nodes = list(walk(e))
    assert len(nodes) == 201
    assert nodes[0] is X
    assert nodes[-1] is e


def test_substitution_shares_and_leaves_the_rest_alone():
    kept = apply("exp", Y)
    e = apply("add", apply("mul", X, X), kept)
    new = substitute(e, {X: Y})
    assert new is apply("add", apply("mul", Y, Y), kept)
    assert substitute(kept, {X: Y}) is kept


def test_substitution_is_simultaneous():
    assert substitute(apply("sub", X, Y), {X: Y, Y: X}) is apply("sub", Y, X)


def test_substituted_indices_are_simplified():
    i, j = variable("i", 6), variable("j", 4)
    e = load(ROW, (index.floordiv(i, 4),), apply("lt", i, index.constant(4)), const(0.0, F32))
    assert substitute(e, {i: j}) is load(ROW, (index.constant(0),))


def test_transform_goes_bottom_up():
    def halve(node):
        return (
            apply("mul", node.args[0], const(0.5, F32))
            if isinstance(node, Apply) and node.op == "exp"
            else None
        )

    e = apply("exp", apply("exp", X))
    assert transform(e, halve) is apply("mul", apply("mul", X, const(0.5, F32)), const(0.5, F32))


def test_a_guard_that_is_known_disappears():
    at, zero = (index.constant(3),), const(0.0, F32)
    assert load(ROW, at, TRUE, zero) is load(ROW, at)
    assert load(ROW, at, FALSE, zero) is zero


def test_loads_inside_of_indices_are_found():
    places = Buffer("places", I32, (8,))
    inner = load(places, (variable("i", 8),))
    outer = load(ROW, (apply("convert", inner, dtype=INDEX),))
    assert set(loads(outer)) == {inner, outer}


def test_text_is_equal_for_equal_and_differs_for_different():
    expressions = [
        X,
        Y,
        const(0.0, F32),
        const(-0.0, F32),
        apply("sub", X, Y),
        apply("sub", Y, X),
        apply("sub", X, apply("sub", Y, X)),
        apply("sub", apply("sub", X, Y), X),
        apply("convert", X, dtype=F64),
        apply("convert", X, dtype=I32),
        load(ROW, (variable("i", 8),)),
    ]
    assert len({text(e) for e in expressions}) == len(expressions)


def test_expressions_are_not_pickled():
    with pytest.raises(TypeError, match="text"):
        pickle.dumps(X)


N, K, U = Var("n", I32), Var("i", INDEX, 64), Var("u", U32)


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        (X + Y, ("add", X, Y)),
        (1.5 + X, ("add", const(1.5, F32), X)),
        (1.5 - X, ("sub", const(1.5, F32), X)),
        (X * 2.5, ("mul", X, const(2.5, F32))),
        (1.0 / X, ("div", const(1.0, F32), X)),
        (-X, ("neg", X)),
        ((N & 6) | 1, ("or", apply("and", N, const(6, I32)), const(1, I32))),
        (~N ^ N, ("xor", apply("not", N), N)),
        (N << 3, ("shl", N, const(3, I32))),
        (N >> 3, ("shr_arithmetic", N, const(3, I32))),
        (U >> 3, ("shr_logical", U, const(3, U32))),
        (K // 8, ("floordiv", K, const(8, INDEX))),
        (K % 8, ("floormod", K, const(8, INDEX))),
        (5 - K * 4, ("sub", const(5, INDEX), apply("mul", K, const(4, INDEX)))),
        (-K, ("neg", K)),
    ],
    ids=str,
)
def test_operators_are_ops(written: Expr, meant: tuple[str | Expr, ...]) -> None:
    assert written is apply(*meant)
