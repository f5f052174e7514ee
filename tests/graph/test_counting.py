"""How often loops run, and what counts in them."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from hlo_mlc.frontend.importer import import_function
from hlo_mlc.frontend.parse import parse_module
from hlo_mlc.graph.core import Node, Value
from hlo_mlc.graph.counting import Counting, Progression, counting, overshoots


def _loop(
    dtype: str,
    start: object,
    step: object,
    limit: object,
    body: str = "",
    extra: str = "%i",
    direction: str = "LT",
) -> tuple[Node, Callable[[Value], int | None]]:
    """A loop that carries a counter and `extra`, and the literals outside of it."""
    signedness = "UNSIGNED" if dtype.startswith("u") else "SIGNED"
    text = f"""
      func.func @main(%n: tensor<{dtype}>) -> tensor<{dtype}> {{
        %start = stablehlo.constant dense<{start}> : tensor<{dtype}>
        %0:2 = stablehlo.while(%i = %start, %x = %start) : tensor<{dtype}>, tensor<{dtype}>
        cond {{
          %limit = stablehlo.constant dense<{limit}> : tensor<{dtype}>
          %c = stablehlo.compare {direction}, %i, %limit, {signedness}
            : (tensor<{dtype}>, tensor<{dtype}>) -> tensor<i1>
          stablehlo.return %c : tensor<i1>
        }} do {{
          %step = stablehlo.constant dense<{step}> : tensor<{dtype}>
          {body}
          %next = stablehlo.add %step, %i : tensor<{dtype}>
          stablehlo.return %next, {extra} : tensor<{dtype}>, tensor<{dtype}>
        }}
        return %0#1 : tensor<{dtype}>
      }}"""
    graph = import_function(parse_module(text))
    literals = {n.results[0]: int(n.literal) for n in graph.nodes if n.literal is not None}
    return graph.nodes[-1], literals.get


def _found(*arguments: object, **keywords: str) -> Counting | None:
    return counting(*_loop(*arguments, **keywords))


@pytest.mark.parametrize(
    ("start", "step", "limit", "trips"),
    [(0, 1, 10, 10), (3, 1, 10, 7), (0, 3, 10, 4), (-5, 2, 0, 3), (10, 1, 10, 0), (11, 1, 10, 0)],
)
def test_trips(start: int, step: int, limit: int, trips: int) -> None:
    found = _found("i32", start, step, limit)
    assert found is not None
    assert found.trips == trips


@pytest.mark.parametrize(
    ("dtype", "start", "step", "limit"),
    [
        ("i32", 0, 0, 10),
        ("i32", 0, -1, 10),
        ("ui8", 250, 10, 251),
        ("i8", 120, 5, 126),
        ("ui32", 5, 2**32 - 1, 10),
    ],
)
def test_counters_that_stand_still_or_wrap_around_do_not_count(
    dtype: str, start: int, step: int, limit: int
) -> None:
    assert _found(dtype, start, step, limit) is None


@pytest.mark.parametrize(
    ("start", "step", "limit", "trips"),
    [(0, 1, 9, 10), (0, 3, 9, 4), (0, 3, 10, 4), (-5, 2, -1, 3), (10, 1, 10, 1), (11, 1, 10, 0)],
)
def test_limits_that_are_reached(start: int, step: int, limit: int, trips: int) -> None:
    found = _found("i32", start, step, limit, direction="LE")
    assert found is not None
    assert found.trips == trips
    assert _found("i8", 0, 1, 127, direction="LE") is None  # it never ends


@pytest.mark.parametrize(
    ("direction", "start", "step", "limit", "past"),
    [
        ("LT", 0, 2, 10, False),
        ("LT", 0, 3, 10, True),
        ("LT", 0, 2, 1, True),
        ("LE", 0, 2, 10, True),
        ("LE", 0, 2, 9, False),
        ("LT", 0, -1, 10, False),  # no counting
    ],
)
def test_loops_that_end_past_their_limit(
    direction: str, start: int, step: int, limit: int, past: bool
) -> None:
    assert overshoots(*_loop("i32", start, step, limit, direction=direction)) == past


def test_other_conditions_do_not_count() -> None:
    assert _found("i32", 0, 1, 10, direction="NE") is None


def test_sums_and_differences_count_too() -> None:
    loop, known = _loop(
        "i32",
        0,
        1,
        10,
        """
      %last = stablehlo.constant dense<9> : tensor<i32>
      %back = stablehlo.subtract %last, %i : tensor<i32>
      %twice = stablehlo.add %i, %i : tensor<i32>
      %square = stablehlo.multiply %i, %i : tensor<i32>""",
        "%back",
    )
    found = counting(loop, known)
    body = loop.regions[1]
    by_op = {node.op: node.results[0] for node in body.nodes}
    assert found.progressions[by_op["stablehlo.subtract"]] == Progression(9, -1)
    assert by_op["stablehlo.multiply"] not in found.progressions
    twice = next(n for n in body.nodes if n.operands == (body.parameters[0],) * 2)
    assert found.progressions[twice.results[0]] == Progression(0, 2)


def test_derived_numbers_that_wrap_do_not_count() -> None:
    loop, known = _loop("i8", 0, 1, 100, "%x2 = stablehlo.add %i, %i : tensor<i8>", "%x2")
    found = counting(loop, known)
    assert found.trips == 100
    assert loop.regions[1].results[1] not in found.progressions


def test_which_rows_are_covered() -> None:
    assert Progression(0, 1).covers(5, 5)
    assert Progression(4, -1).covers(5, 5)
    assert Progression(0, 7).covers(1, 1)
    assert not Progression(0, 1).covers(6, 5)
    assert not Progression(1, 1).covers(5, 5)
    assert not Progression(0, 2).covers(5, 5)
    assert not Progression(0, 1).covers(0, 0)
