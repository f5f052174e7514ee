"""The primitives of `schedule/layouts.py`: examples, before and after, and refusals."""

from __future__ import annotations

import numpy as np

from hlo_mlc.expr.build import load
from hlo_mlc.schedule.core import Schedule, Step, replay
from making.rewritten import refuses, shows


def test_pad(transposed, assert_same) -> None:
    tiles = Schedule(transposed).cache_read("x", "i", "loops")
    shows(
        tiles.pad("x.i", 3).program,
        """
        for i in 0..4:
          alloc x.i: 11xf32 stack:
            for x.i.j in 0..8:
              x.i[x.i.j] = x[x.i.j, i]
            for j in 0..8:
              y[i, j] = x.i[j]
        """,
    )
    assert_same(
        transposed, tiles.pad("x.i", 3).program, [np.arange(32, dtype=np.float32).reshape(8, 4)]
    )


def test_pad_refuses(tiny, transposed, total) -> None:
    tiles = Schedule(transposed).cache_read("x", "i", "loops")
    refuses(lambda: tiles.pad("x.i", 0), "at least one element")
    refuses(lambda: tiles.pad("x", 1), "no private array is called 'x'", "there are: x.i")
    refuses(lambda: Schedule(total).pad("add.acc", 1), "no private array", "there are: none")
    refuses(lambda: tiles.pad("x.i", 1 << 20), "bytes of x.i at once")
    refuses(lambda: tiles.pad("x.i", 1, 1), "no dimension 1")
    assert "alloc x.i: 9xf32" in str(tiles.pad("x.i", 1, 0))


def test_transform_layout(tiny, assert_same) -> None:
    x, y = tiny.operand("x", 8, 6), tiny.result("y", 3, 8, 6)
    program = tiny.program(tiny.map(y, "rij", lambda r, i, j: load(x, (i, j))))
    tiles = Schedule(program).cache_read("x", "r", "loops")
    moved = tiles.transform_layout("x.r", (4, 2, 2, 3), ("0", "1 2", "3"))
    shows(
        moved.program,
        """
        for r in 0..3:
          alloc x.r: 4x4x3xf32 stack:
            for x.r.i in 0..8:
              for x.r.j in 0..6:
                x.r[floordiv(x.r.i, 2), floordiv(x.r.j, 3) + floormod(x.r.i, 2) * 2, floormod(x.r.j, 3)] = x[x.r.i, x.r.j]
            for i in 0..8:
              for j in 0..6:
                y[r, i, j] = x.r[floordiv(i, 2), floordiv(j, 3) + floormod(i, 2) * 2, floormod(j, 3)]
        """,  # noqa: E501 (as it is written)
    )
    for parts, order in (
        ((4, 2, 2, 3), ("3", "0 2", "1")),
        ((8, 1, 6), ("2", "1", "0")),
        ((1, 8, 6, 1), ("1 2", "0 3")),
    ):
        assert_same(
            program,
            tiles.transform_layout("x.r", parts, order).program,
            [np.arange(48, dtype=np.float32).reshape(8, 6)],
        )
    split = (
        tiles.split("i", 2).split("x.r.i", 2).transform_layout("x.r", (4, 2, 6), ("1", "0", "2"))
    )
    assert "x.r[i.i, i.o, j]" in str(split)
    assert replay(program, [Step.from_json(s.to_json()) for s in split.trace]).trace == split.trace
    known, rest = (tiles.transform_layout("x.r", (4, 2, n), ("0", "2", "1")) for n in (6, 0))
    assert str(rest) == str(known)
    refuses(lambda: tiles.transform_layout("x.r", (4, 2, 6), ("0", "1")), "3 parts of 'x.r'")
    refuses(lambda: tiles.transform_layout("x.r", (3, 2, 6), ("0", "1", "2")), "parts of 3x2x6")
    refuses(lambda: tiles.transform_layout("x", (8, 6), ("1", "0")), "no private array is called")
