"""The primitives of `schedule/ranges.py`: examples, before and after, and refusals."""

from __future__ import annotations

import numpy as np

from hlo_mlc.schedule.core import Schedule
from making.rewritten import refuses, shows


def test_cut(padded, assert_same) -> None:
    schedule = Schedule(padded).cut("i", 1).cut("i.b", 8)
    shows(
        schedule.program,
        """
        for i.a in 0..1:
          y[i.a] = 0.0:f32
        for i.b.a in 0..8:
          y[i.b.a + 1] = x[i.b.a]
        for i.b.b in 0..1:
          y[i.b.b + 9] = 0.0:f32
        """,
    )
    assert_same(padded, schedule.program, [np.arange(8, dtype=np.float32)])
    for at in (0, 10, 11):
        refuses(lambda at=at: Schedule(padded).cut("i", at), "out of 10")
    refuses(lambda: Schedule(padded).vectorize("i").cut("i", 1), "must be serial or parallel")


def test_set_apart(padded, transposed, assert_same) -> None:
    shows(
        Schedule(padded).set_apart("i", 1, 9).program,
        """
        for i in 0..10:
          if (i >= 1) & (i < 9):
            y[i] = x[i + -1]
          else:
            y[i] = x[i + -1] if (i >= 1) & (i < 9) else 0.0:f32
        """,
    )
    nested = Schedule(padded).set_apart("i", 0, 9).set_apart("i", 1, 10)
    assert "x[i + -1]\n" in str(nested)
    for schedule in (
        Schedule(padded).set_apart("i", 1, 9),
        nested,
        Schedule(padded).set_apart("i", 2, 7).parallel("i"),
    ):
        assert_same(padded, schedule.program, [np.arange(8, dtype=np.float32)])
    assert str(Schedule(padded).set_apart("i", 0, 10)) == str(Schedule(padded))
    assert Schedule(transposed).set_apart("i", 1, 3).loop_names == ("i", "j", "j.e")
    for low, high in ((3, 3), (5, 2), (0, 11), (-1, 4)):
        refuses(lambda low=low, high=high: Schedule(padded).set_apart("i", low, high), "out of 10")
