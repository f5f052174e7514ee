"""What regions are made of, against all their points."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from hlo_mlc.expr import index
from hlo_mlc.expr.build import variable
from hlo_mlc.expr.core import Expr
from hlo_mlc.expr.evaluate import evaluate
from hlo_mlc.loops.regions import Boxes, covered, parted_axes

VARIABLES = [variable("a", 5), variable("b", 4), variable("c", 3)]
POINTS = np.array([*itertools.product(*(range(v.extent) for v in VARIABLES))]).T
SHAPE = (4, 5)
FACTORS = (1, 1, 2, 3, 4, 6, 8, 12, 24, 48, -1, -4, -12, -24)


def random_place(rng: np.random.Generator) -> Expr:
    """A sum of multiples of variables, of their quotients, remainders and limits."""
    terms = [index.constant(int(rng.integers(-6, 50)))]
    for v in rng.permutation(np.array(VARIABLES, object)):
        limit = index.constant(int(rng.integers(1, 4)))
        part = [v, v, index.floordiv(v, 2), index.floormod(v, 3), index.minimum(v, limit)]
        factor = index.constant(int(rng.choice(FACTORS)))
        terms.append(index.multiply(part[int(rng.integers(len(part)))], factor))
    result = index.constant(0)
    for term in terms:
        result = index.add(result, term)
    return result


def values(place: tuple[Expr, ...]) -> np.ndarray:
    env = dict(zip(VARIABLES, POINTS, strict=True))
    return np.array([np.broadcast_to(evaluate(i, env), POINTS.shape[1]) for i in place])


def meetings(first: tuple[Expr, ...], second: tuple[Expr, ...]) -> np.ndarray:
    """Of all pairs of points, where the first is in the same place as the second."""
    return (values(first)[:, :, None] == values(second)[:, None, :]).all(0)


def test_parts_meet_where_the_whole_does() -> None:
    rng = np.random.default_rng(0)
    parted = 0
    for _ in range(600):
        places = [(random_place(rng),), (random_place(rng),)]
        first, second = parted_axes(places, [(), ()])
        parted += len(first) > 1
        assert np.array_equal(meetings(*places), meetings(first, second)), places
    assert parted > 100


@pytest.mark.parametrize(
    ("scale", "shift", "axes"),
    [(8, 0, 2), (5, 0, 2), (4, 0, 1), (8, 3, 2), (8, 4, 1), (8, -1, 1), (-8, 0, 1)],
)
def test_a_part_reaches_no_further_than_the_next_step(scale: int, shift: int, axes: int) -> None:
    row, column = variable("r", 7), variable("c", 5)
    place = index.add(
        index.multiply(row, index.constant(scale)), index.add(column, index.constant(shift))
    )
    assert len(parted_axes([(place,)], [()])[0]) == axes


def test_a_part_reaches_no_further_than_is_known_of_it() -> None:
    """The last of the panels of a row is not as wide as the others."""
    row, panel, column = variable("r", 7), variable("p", 2), variable("c", 6)
    place = index.add(
        index.multiply(row, index.constant(10)),
        index.add(index.multiply(panel, index.constant(6)), column),
    )
    beyond = index.subtract(
        index.add(index.multiply(panel, index.constant(6)), column), index.constant(9)
    )
    assert len(parted_axes([(place,)], [()])[0]) == 1
    assert len(parted_axes([(place,)], [(panel,)])[0]) == 3  # panel <= 0
    assert len(parted_axes([(place,)], [(beyond,)])[0]) == 3
    assert len(parted_axes([(place,), (place,)], [(beyond,), ()])[0]) == 1


def random_boxes(rng: np.random.Generator, count: int) -> Boxes:
    """Within 4 x 5 elements."""
    sides = [np.sort(rng.integers(0, extent, (2, count)), 0) for extent in SHAPE]
    return Boxes(*map(tuple, zip(*sides, strict=True)), np.arange(count))


def elements(groups: list[Boxes]) -> set[tuple[int, ...]]:
    return {
        place
        for boxes in groups
        for n in range(len(boxes.owners))
        for place in itertools.product(
            *(range(low[n], high[n] + 1) for low, high in zip(boxes.low, boxes.high, strict=True))
        )
    }


def test_boxes_cover_what_has_no_other_elements() -> None:
    rng = np.random.default_rng(0)
    found = []
    for n in range(800):
        wanted = [random_boxes(rng, 1 + n % 2)]
        if n % 4 == 0:
            wanted = [
                Boxes(*([np.array([k * (d - 1)]) for d in SHAPE] for k in (0, 1)), np.zeros(1, int))
            ]
        boxes = [random_boxes(rng, int(rng.integers(1, 9))) for _ in range(1 + n % 3)]
        found.append(covered(wanted, boxes, SHAPE))
        assert found[-1] == (elements(wanted) <= elements(boxes)), (wanted, boxes)
    assert 100 < sum(found) < 700
