"""Nests that differ in names alone: what is derived of one is known of all, and of no other."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import fields, replace

import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from hlo_mlc.expr.build import TRUE, load
from hlo_mlc.expr.core import Buffer, Const, Var
from hlo_mlc.expr.dtypes import F32, INDEX
from hlo_mlc.expr.procedure import Procedure
from hlo_mlc.partition.work import Work
from hlo_mlc.tensor.alike import outline_of
from hlo_mlc.tensor.canonical import canonical
from hlo_mlc.tensor.combine import named_combiner
from hlo_mlc.tensor.core import (
    Assign,
    Nest,
    ScanAxis,
    Sort,
    Stage,
    Step,
    TensorProgram,
    derived_of_any_names,
)

X = np.ones((3, 4), np.float32)
LONG = np.ones((3, 5), np.float32)
HALF = np.ones((3, 4), np.float16)
I32, I16 = np.ones((3, 4), np.int32), np.ones((3, 4), np.int16)


@pytest.fixture
def nests_of(take_apart) -> Callable[..., list[Nest]]:
    """`nests_of(function, *arrays)`: those that the function becomes, in loops, too."""

    def nests(function: Callable, *args: np.ndarray) -> list[Nest]:
        return [
            nest
            for program in take_apart(function, *args).programs
            for nest in _nests(program.steps)
        ]

    return nests


def _nests(steps: tuple[Step, ...]) -> Iterator[Nest]:
    for step in steps:
        if isinstance(step, Nest):
            yield step
        else:
            yield from _nests(step.inner)


def _written_out(x):
    for n in range(6):
        x = jnp.cumsum(jnp.sort(x, 1), 1) * (1.5 if n < 5 else 2.5)
    return x


def test_nests_of_a_loop_that_is_written_out_share_what_is_derived(nests_of):
    asked = []

    @derived_of_any_names
    def fact(nest: Nest) -> int:
        asked.append(nest)
        return len(nest.stages)

    nests = nests_of(_written_out, X)
    assert len(nests) > 6
    assert [fact(nest) for nest in nests] == [len(nest.stages) for nest in nests]
    assert len(asked) == len({outline_of(nest) for nest in nests}) < len(nests) / 2


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ((lambda x, y: x + y, X, X), (lambda x, y: x + y, LONG, LONG)),
        ((lambda x, y: x + y, X, X), (lambda x, y: x + y, HALF, HALF)),
        ((lambda x, y: x + y, X, X), (lambda x, y: x - y, X, X)),
        ((lambda x, y: x + y, X, X), (lambda x, y: x + y[::-1], X, X)),
        ((lambda x, y: x * y + x, X, X), (lambda x, y: x * y + y, X, X)),
        ((lambda x, y: x[::-1] + x, X, X), (lambda x, y: x[::-1] + y, X, X)),
        ((lambda x, y: x + 1.5, X, X), (lambda x, y: x + 2.5, X, X)),
        ((lambda x, y: x.sum(0), X, X), (lambda x, y: x.max(0), X, X)),
        ((lambda x, y: x.sum(0), X, X), (lambda x, y: x.sum(1), X, X)),
        ((lambda x, y: jnp.cumsum(x, 1), X, X), (lambda x, y: lax.cumsum(x, 1, True), X, X)),
        ((lambda x, y: jnp.sort(x, 1), X, X), (lambda x, y: -jnp.sort(-x, 1), X, X)),
        ((lambda x: x.astype(np.int8).astype(np.int32) + 1, I32),
         (lambda x: x.astype(np.int16).astype(np.int32) + 1, I32)),
        ((lambda x: x + 1, I32), (lambda x: x + 1, I16)),
        ((lambda x: jnp.pad(x, ((0, 0), (1, 0)))[:, :4], X),
         (lambda x: jnp.pad(x, ((0, 0), (0, 1)), constant_values=2)[:, 1:], X)),
    ],
)  # fmt: skip
def test_what_differs_in_more_is_not_alike(nests_of, one, other):
    (first, second) = ([outline_of(nest) for nest in nests_of(*how)] for how in (one, other))
    assert first != second
    assert first == [outline_of(nest) for nest in nests_of(*one)]


def _fold(suffix: str = "") -> Stage:
    """The sums of rows."""
    i, k = (Var(f"{name}{suffix}", INDEX, n) for name, n in (("i", 3), ("k", 4)))
    x, y = Buffer(f"x{suffix}", F32, (3, 4)), Buffer(f"y{suffix}", F32, (3,))
    total = Var(f"t{suffix}", F32)
    return Stage(
        f"s{suffix}",
        (i,),
        (Assign(y, (i,), total),),
        (k,),
        named_combiner("add", F32),
        (load(x, (i, k)),),
        (Const(0.0, F32),),
        (total,),
    )


_STAGE = _fold()
(_I,), (_K,), (_SUM,) = _STAGE.axes, _STAGE.reduce_axes, _STAGE.assigns
_OTHERS = {
    "axes": (_I, _K),
    "assigns": (replace(_SUM, guard=TRUE),),
    "reduce_axes": (),
    "combiner": named_combiner("max", F32),
    "terms": (load(_STAGE.inputs[0], (_I, 3 - _K)),),
    "initial": (Const(-0.0, F32),),
    "accumulators": (Var("t", INDEX, 3),),
    "along": (_SUM,),
    "scan": ScanAxis(_I),
    "sort": Sort(_I, (), _I),
    "procedure": Procedure((), ()),
    "overwrites": _STAGE.inputs,
    "trips": 4,
}


@pytest.mark.parametrize("field", [f.name for f in fields(Stage) if f.init and f.name != "name"])
def test_stages_that_differ_in_one_field_are_not_alike(field):
    other = replace(_STAGE, **{field: _OTHERS[field]})
    assert outline_of(Nest((other,), 1)) != outline_of(Nest((_STAGE,), 1))


def test_which_of_two_stores_has_a_guard():
    guarded = replace(_SUM, guard=TRUE)
    one, other = (replace(_STAGE, assigns=both) for both in ((guarded, _SUM), (_SUM, guarded)))
    assert outline_of(Nest((one,), 1)) != outline_of(Nest((other,), 1))


def test_nests_that_differ_in_names_alone_are_alike():
    nest = Nest((_STAGE,), 1, _STAGE.outputs)
    again = Nest((_fold("2"),), 1, _fold("2").outputs)
    assert outline_of(again) == outline_of(nest)
    for other in (replace(nest, shared=0), replace(nest, private=nest.stages[0].inputs)):
        assert outline_of(other) != outline_of(nest)


def test_what_is_known_before_buffers_are_renamed_is_known_afterwards(take_apart):
    (program,) = take_apart(lambda x: jnp.tanh(x) * 2, X).programs
    asked = []

    @derived_of_any_names
    def fact(nest: Nest) -> int:
        asked.append(nest)
        return 7

    (stage,) = program.steps[0].stages
    fact(stage)
    renamed = _again(program)
    assert renamed.steps[0].stages[0] is not stage
    fact(renamed.steps[0].stages[0])
    assert len(asked) == 1


def test_work_names_the_buffers_of_its_own_stage(nests_of):
    for nest in nests_of(_written_out, X):
        for stage in nest.stages:
            moved = Work.of(stage).moved
            assert list(moved) == list(dict.fromkeys((*stage.outputs, *stage.inputs)))
            assert all(0 < moved[buffer] <= buffer.bytes for buffer in stage.outputs)


def _again(program: TensorProgram) -> TensorProgram:
    """The same on buffers of other names."""
    return canonical(
        "again", program.steps, program.operands, program.results, prefixes=("x", "y", "z")
    )
