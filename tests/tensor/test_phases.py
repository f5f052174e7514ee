"""Folds over inputs that lie apart: their phases together do what the whole does."""

from __future__ import annotations

import numpy as np
import pytest

from hlo_mlc.expr import index
from hlo_mlc.expr.build import apply, const, load, variable
from hlo_mlc.expr.core import Buffer, Var
from hlo_mlc.expr.dtypes import F32
from hlo_mlc.loops.core import LoopProgram
from hlo_mlc.loops.interpret import interpret
from hlo_mlc.loops.lower import lower_stage
from hlo_mlc.tensor.access import masked, undilated
from hlo_mlc.tensor.combine import named_combiner
from hlo_mlc.tensor.core import Assign, Nest, Stage
from hlo_mlc.tensor.guards import guards
from hlo_mlc.tensor.phases import in_phases

X, K = Buffer("x", F32, (6,), "operand"), Buffer("k", F32, (5,), "operand")


def nest(
    extent: int, size: int, stride: int, spread: int, before: int, step: int, default: float = 0.0
) -> Nest:
    """y[h] = sum over r of x[(h * stride + r * spread - before) / step] * k[r] where it exists."""
    h, r = variable("h", extent), variable("r", size)
    place = index.subtract(
        index.add(
            index.multiply(h, index.constant(stride)), index.multiply(r, index.constant(spread))
        ),
        index.constant(before),
    )
    at, exists = undilated(place, X.shape[0], step)
    term = apply("mul", masked(load(X, (at,)), exists, const(default, F32)), load(K, (r,)))
    sums = Var("acc", F32)
    y = Buffer("y", F32, (extent,), "result")
    stage = Stage(
        "s",
        (h,),
        (Assign(y, (h,), sums),),
        (r,),
        named_combiner("add", F32),
        (term,),
        (const(1, F32),),
        (sums,),
    )
    return Nest((stage,), 1)


def run(nests: tuple[Nest, ...]) -> np.ndarray:
    body = tuple(stmt for n in nests for stmt in lower_stage(n.stages[0]))
    (y,) = nests[0].stages[0].outputs
    x, k = np.arange(1, 7, dtype=np.float32), np.arange(3, 8, dtype=np.float32)
    (result,) = interpret(LoopProgram("p", (X, K), (y,), body), [x, k])
    return result


@pytest.mark.parametrize(
    "extent, size, stride, spread, before, step, parts",
    [
        (11, 3, 1, 1, 1, 2, 2),
        (11, 5, 1, 1, 2, 3, 3),
        (12, 1, 1, 1, 0, 2, 2),
        (9, 4, 1, 3, 2, 2, 2),
        (7, 4, 3, 1, 1, 2, 2),
        (1, 3, 1, 1, 1, 2, 1),
        (11, 3, -1, 1, -12, 2, 2),
    ],
)
def test_phases_do_what_the_whole_does(extent, size, stride, spread, before, step, parts):
    whole = nest(extent, size, stride, spread, before, step)
    phases = in_phases(whole)
    assert len(phases) == parts
    np.testing.assert_array_equal(run(phases), run((whole,)))
    if parts > 1:
        stages = [p.stages[0] for p in phases]
        assert sum(s.axes[0].extent for s in stages) == extent
        assert not any("floormod" in repr(g) for s in stages for t in s.terms for g in guards(t))


@pytest.mark.parametrize(
    "whole",
    [
        nest(11, 3, 1, 1, 1, 1),
        nest(11, 3, 2, 1, 1, 2),
        nest(11, 3, 1, 2, 1, 2),
        nest(11, 3, 1, 1, 1, 2, default=0.5),
    ],
)
def test_what_has_no_phases_stays(whole):
    assert in_phases(whole) == (whole,)
