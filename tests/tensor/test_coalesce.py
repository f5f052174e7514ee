"""Merged axes: fewer loops over the same elements."""

from __future__ import annotations

import numpy as np
import pytest

from hlo_mlc.expr import index
from hlo_mlc.expr.build import apply, load, variable
from hlo_mlc.expr.core import Buffer, Expr, Var
from hlo_mlc.expr.dtypes import F32, I32
from hlo_mlc.expr.evaluate import evaluate
from hlo_mlc.tensor.coalesce import coalesce
from hlo_mlc.tensor.core import Assign, Stage

SHAPE = (2, 3, 4, 5)
OUT, IN = Buffer("out", F32, SHAPE), Buffer("in", F32, SHAPE)
ROW = Buffer("row", F32, SHAPE[2:])
AXES = tuple(variable(f"i{d}", n) for d, n in enumerate(SHAPE))


def stage(value: Expr, axes: tuple[Var, ...] = AXES, out: Buffer = OUT) -> Stage:
    return Stage("s", axes, (Assign(out, axes, value),))


def result(subject: Stage) -> np.ndarray:
    """What a map writes, point by point."""
    memory = {
        b.name: np.random.default_rng(len(b.shape)).standard_normal(b.shape, np.float32)
        for b in (IN, ROW)
    }
    env = dict(
        zip(subject.axes, np.indices([v.extent for v in subject.axes], sparse=True), strict=True)
    )

    def read(buffer: Buffer, indices: tuple[np.ndarray, ...]) -> np.ndarray:
        return memory[buffer.name][indices]

    written = np.full(SHAPE, np.nan, np.float32)
    (assign,) = subject.assigns
    places = np.broadcast_arrays(*(evaluate(i, env, read) for i in assign.indices))
    written[tuple(places)] = np.broadcast_to(evaluate(assign.value, env, read), places[0].shape)
    return written


I, J, K, L = AXES  # noqa: E741
SHIFTED = index.subtract(index.constant(SHAPE[3] - 1), L)


@pytest.mark.parametrize(
    ("value", "extents"),
    [
        (load(IN, AXES), (120,)),
        (apply("add", load(IN, AXES), load(ROW, (K, L))), (6, 20)),
        (load(IN, (I, J, K, index.constant(0))), (24, 5)),
        (load(IN, (I, J, K, SHIFTED)), (24, 5)),
        (load(ROW, (K, L)), (6, 20)),
        (load(IN, (I, index.constant(1), K, L)), (2, 3, 20)),
        (apply("add", load(IN, AXES), apply("convert", L, dtype=F32)), (24, 5)),
        (load(IN, AXES, apply("lt", J, index.constant(2)), load(ROW, (K, L))), (2, 3, 20)),
    ],
)
def test_axes_that_memory_does_not_tell_apart_merge(value, extents):
    merged = coalesce(stage(value))
    assert tuple(v.extent for v in merged.axes) == extents
    np.testing.assert_array_equal(result(merged), result(stage(value)))


def test_indices_in_data_keep_their_axis():
    places = Buffer("places", I32, (SHAPE[2],))
    at = apply("convert", load(places, (K,)), dtype=index.constant(0).dtype)
    assert [v.extent for v in coalesce(stage(load(IN, (I, J, at, L)))).axes] == [6, 4, 5]


def test_axes_without_elements_stay():
    empty = tuple(variable(f"e{d}", n) for d, n in enumerate((3, 0)))
    merged = coalesce(stage(load(Buffer("x", F32, (3, 0)), empty), empty, Buffer("y", F32, (3, 0))))
    assert merged.axes == empty
