"""What the loops of a kernel are like, counted by hand."""

from __future__ import annotations

import dataclasses
import random

import jax.numpy as jnp
import numpy as np
import pytest

from hlo_mlc.target.cpu import named
from hlo_mlc.tuning.features import NAMES, Features, description_of
from hlo_mlc.tuning.generator import TemplateGenerator

TARGET = named("x86-64-v3")  # 8 lanes of f32, 16 registers
VECTORS = dataclasses.replace(TARGET, cores=1)
GENERATOR = TemplateGenerator()


def seen(program, target, schedules) -> Features:
    return description_of(GENERATOR.loops(program, target, schedules), target).features


@pytest.fixture(scope="session")
def features_of(take_apart):
    """`features_of(function, *arrays, schedules, target)`"""

    def find(function, *arrays, schedules=None, target=VECTORS) -> Features:
        (program,) = take_apart(function, *arrays).programs
        return seen(program, target, schedules or {})

    return find


ROW = np.zeros(4096, np.float32)
SQUARE = np.zeros((64, 64), np.float32)


def test_a_map(features_of) -> None:
    found = features_of(lambda x: x * x + 1, ROW)
    assert found.simple == 4096 / 8  # multiply-adds
    assert found.contiguous_loads == found.contiguous_stores == 4096 / 8
    assert found.functions == found.divided == found.apart_loads == found.folded_lanes == 0
    assert found.footprint == 2 * 4096 * 4
    assert found.l3_bytes == found.unvectorized == found.idle_lanes == 0


def test_kinds_of_arithmetic(features_of) -> None:
    assert features_of(lambda x: jnp.sqrt(x), ROW).divided == 4096 / 8
    one, two = (features_of(lambda x, n=n: jnp.exp(x * n), ROW) for n in (1.5, 2.5))
    assert one.functions == two.functions > 4096 / 8


def test_elements_that_lie_apart(features_of) -> None:
    found = features_of(lambda x: x[::2] + 1, ROW)
    assert found.apart_loads == 2048
    assert found.contiguous_loads == 0
    gathered = features_of(lambda x, i: x[i], ROW, np.zeros(512, np.int32))
    assert gathered.apart_loads == 512


def product(x, y):
    return x @ y


def tiles(rows: int, vectors: int, **more: int):
    return {0: ("contraction", {"rows": rows, "vectors": vectors, **more})}


def test_a_product(features_of) -> None:
    found = features_of(product, SQUARE, SQUARE, schedules=tiles(4, 2, pack=0, ahead=0))
    assert found.simple == 2 * 64**3 / 8
    assert found.registers == 4 * 2
    assert found.spilled == 0
    # For each step of a tile of 4 x 16: an element of 4 rows, two vectors of a row of the other.
    assert found.uniform_loads == 64**3 / (4 * 16) * 4
    assert found.contiguous_loads == 64**3 / (4 * 16) * 2
    higher = features_of(product, SQUARE, SQUARE, schedules=tiles(8, 2, pack=0, ahead=0))
    assert higher.simple == found.simple
    assert higher.contiguous_loads == found.contiguous_loads / 2
    assert higher.chain == found.chain / 2


def test_more_accumulators_than_registers(features_of) -> None:
    found = features_of(product, SQUARE, SQUARE, schedules=tiles(8, 4))
    assert found.spilled == 8 * 4 - 16


def test_tasks_divide_the_work(features_of) -> None:
    large = np.zeros((512, 512), np.float32)
    alone = features_of(product, large, large)
    shared = features_of(product, large, large, target=dataclasses.replace(TARGET, cores=4))
    assert alone.parallel == pytest.approx(1, abs=0.01)
    assert 3 < shared.parallel <= 4
    assert shared.forks >= 1
    assert shared.simple == pytest.approx(alone.simple / shared.parallel, rel=0.2)
    assert shared.cycles < alone.cycles


def test_tiles_bring_less_into_the_cache(features_of) -> None:
    large = np.zeros((2048, 2048), np.float32)
    tiled = features_of(lambda x: x.T + 1, large)
    naive = features_of(lambda x: x.T + 1, large, schedules={0: ("elementwise", {})})
    assert tiled.l1_bytes < naive.l1_bytes / 4
    assert tiled.footprint == naive.footprint == 2 * 4 * 2048**2


def test_lanes_that_are_folded(features_of) -> None:
    found = features_of(lambda x: x.sum(1), SQUARE)
    assert found.folded_lanes > 0
    assert features_of(lambda x: x.sum(0), SQUARE).folded_lanes == 0


def test_every_candidate_has_features(take_apart) -> None:
    rng = random.Random(0)
    for function in (
        product,
        lambda x, y: (x * y).sum(0),
        lambda x, y: jnp.argmax(x + y, 0),
        lambda x, y: jnp.cumsum(x, 1) + y,
        lambda x, y: jnp.sort(x, 1) + y,
    ):
        for program in take_apart(function, SQUARE, SQUARE).programs:
            space = GENERATOR.space(program, TARGET)
            default = seen(program, TARGET, {})
            for _ in range(10):
                schedules = space.schedules(space.anything(rng))
                found = seen(program, TARGET, schedules)
                assert np.isfinite(found.vector).all() and (found.vector >= 0).all()
                assert default.footprint / 2 <= found.footprint
                # What tiles at an edge read again is counted again: of 300 products 1.34 at most.
                assert found.footprint <= 1.4 * (default.footprint + found.scratch_bytes)
            same = seen(program, TARGET, space.schedules(space.default))
            assert np.array_equal(default.vector, same.vector)


def test_names_are_those_of_the_vector() -> None:
    found = Features(**{name: float(n) for n, name in enumerate(NAMES)})
    assert found.vector.tolist() == pytest.approx(np.log1p(np.arange(len(NAMES))).tolist())
    assert len(set(NAMES)) == len(NAMES)
