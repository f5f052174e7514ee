"""Building blocks of tensor expressions, evaluated over whole index spaces."""

from __future__ import annotations

import math

import numpy as np
import pytest

from hlo_mlc.expr.build import TRUE, apply, const, load, variable
from hlo_mlc.expr.core import Buffer, Const, Load, Var, walk
from hlo_mlc.expr.dtypes import F32, I8, INDEX, U64
from hlo_mlc.expr.evaluate import evaluate
from hlo_mlc.expr.index import constant
from hlo_mlc.tensor.access import (
    at_axes,
    clamped_index,
    conjunction,
    delinearize,
    inside,
    linearize,
    masked,
    reshaped,
)

AXIS = variable("i", 10)
BUFFER = Buffer("b", F32, (4,))
ZERO, SEVEN = const(0.0, F32), const(7.0, F32)


def space(shape: tuple[int, ...]) -> tuple[tuple[Var, ...], dict[Var, np.ndarray]]:
    axes = tuple(variable(f"i{d}", n) for d, n in enumerate(shape))
    return axes, dict(zip(axes, np.indices(shape, sparse=True), strict=True))


@pytest.mark.parametrize(
    ("shape", "source"),
    [
        ((6,), (2, 3)),
        ((2, 3), (6,)),
        ((4, 6), (4, 2, 3)),
        ((3, 4, 5), (5, 12)),
        ((1, 3, 1), (3,)),
        ((3,), (1, 3, 1)),
        ((), (1, 1)),
        ((1,), ()),
        ((2, 6, 5), (4, 3, 5)),
        ((2, 3, 4), (4, 3, 2)),
        ((0, 4), (2, 0)),
        ((2, 3, 5, 7), (6, 35)),
    ],
)
def test_reshaped_is_numpy_reshape(shape: tuple[int, ...], source: tuple[int, ...]) -> None:
    axes, env = space(shape)
    places = reshaped(axes, shape, source)
    assert len(places) == len(source)
    if 0 in shape:
        return
    values = np.arange(math.prod(source)).reshape(source)
    found = values[tuple(np.broadcast_to(evaluate(p, env), shape) for p in places)]
    np.testing.assert_array_equal(found, values.reshape(shape))


def test_reshape_leaves_untouched_axes_as_they_are() -> None:
    data_dependent = apply("convert", Load(Buffer("s", I8, ()), ()), dtype=INDEX)
    (j, k), _ = space((2, 3))
    assert reshaped((data_dependent, j, k), (9, 2, 3), (9, 6))[0] is data_dependent


def test_linearize_and_delinearize_undo_each_other() -> None:
    axes, _ = space((3, 4, 5))
    assert delinearize(linearize(axes, (3, 4, 5)), (3, 4, 5)) == axes


def test_at_axes_puts_values_between_others() -> None:
    (a, b, c, d), _ = space((2, 3, 4, 5))
    assert at_axes((0, 2), (a, b), (c, d)) == (a, c, b, d)


@pytest.mark.parametrize(
    ("value", "dtype", "expected"), [(-3, I8, 0), (2, I8, 2), (100, I8, 5), (2**64 - 1, U64, 5)]
)
def test_clamped_index(value: int, dtype, expected: int) -> None:
    assert clamped_index(const(value, dtype), 5) == constant(expected)


def test_conjunction_keeps_each_conjunct_once() -> None:
    low, high = apply("ge", AXIS, constant(2)), apply("lt", AXIS, constant(5))
    once = conjunction(low, high)
    assert conjunction(once, None, low, once) is once
    assert conjunction() is TRUE


class TestMasked:
    """`masked` reads only where the guard holds."""

    def check(self, value, expected: list[float]) -> None:
        """`value` over i: [10], with every read checked."""
        contents = np.array([10, 11, 12, 13], np.float32)

        def read(buffer: Buffer, indices: tuple[np.ndarray, ...]) -> np.ndarray:
            assert np.all((indices[0] >= 0) & (indices[0] < 4))
            return contents[indices[0]]

        found = np.broadcast_to(evaluate(value, {AXIS: np.arange(10)}, read), (10,))
        np.testing.assert_array_equal(found, np.array(expected, np.float32))

    def shifted(self, offset: int):
        return load(BUFFER, (apply("sub", AXIS, constant(offset)),))

    def guard(self, offset: int):
        return inside(apply("sub", AXIS, constant(offset)), 4)

    def test_load(self) -> None:
        value = masked(self.shifted(3), self.guard(3), SEVEN)
        assert isinstance(value, Load)
        self.check(value, [7, 7, 7, 10, 11, 12, 13, 7, 7, 7])

    def test_expression_of_loads(self) -> None:
        total = apply("add", self.shifted(3), self.shifted(3))
        self.check(masked(total, self.guard(3), SEVEN), [7, 7, 7, 20, 22, 24, 26, 7, 7, 7])

    def test_guarded_load_with_the_same_default_stays_one_load(self) -> None:
        inner = masked(self.shifted(3), self.guard(3), ZERO)
        value = masked(inner, apply("lt", AXIS, constant(5)), ZERO)
        assert isinstance(value, Load)
        self.check(value, [0, 0, 0, 10, 11, 0, 0, 0, 0, 0])

    def test_guarded_load_with_another_default(self) -> None:
        inner = masked(self.shifted(3), self.guard(3), SEVEN)
        value = masked(inner, apply("lt", AXIS, constant(5)), ZERO)
        self.check(value, [7, 7, 7, 10, 11, 0, 0, 0, 0, 0])

    def test_load_inside_an_index(self) -> None:
        inner = apply("convert", self.shifted(3), dtype=INDEX)
        value = masked(load(BUFFER, (apply("sub", inner, constant(10)),)), self.guard(3), SEVEN)
        self.check(value, [7, 7, 7, 10, 11, 12, 13, 7, 7, 7])

    def test_what_the_guard_has_no_part_in_is_read_all_the_same(self) -> None:
        """Where it is there: lanes that do not need it then agree on where a slice begins."""
        begin = apply("convert", load(Buffer("s", I8, ()), ()), dtype=INDEX)
        value = masked(load(BUFFER, (begin,)), self.guard(3), SEVEN)
        assert value.indices == (begin,)
        empty = load(Buffer("e", F32, (0,)), (constant(0),))
        value = masked(apply("sin", empty), self.guard(3), SEVEN)
        assert all(n.guard is not None for n in walk(value) if isinstance(n, Load))

    def test_constant_guards_decide(self) -> None:
        load_3 = self.shifted(3)
        assert masked(load_3, TRUE, ZERO) is load_3
        assert masked(load_3, Const(False, TRUE.dtype), ZERO) is ZERO

    def test_every_load_is_guarded(self) -> None:
        value = masked(apply("sin", self.shifted(3)), self.guard(3), SEVEN)
        assert all(n.guard is not None for n in walk(value) if isinstance(n, Load))
