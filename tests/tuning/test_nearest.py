"""Kernels that compute the same of other sizes are found by their text."""

from __future__ import annotations

import pytest

from hlo_mlc.tuning.nearest import Neighbours
from hlo_mlc.tuning.space import Parameter, Space, TemplateChoice

SPACE = Space(
    (
        Parameter(0, "a", "x", (1, 4, 16), 4),
        Parameter(0, "b", "x", (1, 2), 1),
        Parameter(3, "b", "y", (0, 1), 0),
    ),
    (TemplateChoice(0, ("a", "b")),),
)


def text(rows: int, columns: int, what: str = "exp") -> str:
    return f"operand a0: {rows}x{columns}xf32\nfor i0<{rows}, i1<{columns}: {what}(a0[i0, i1])\n"


def study(fingerprint: str) -> str:
    return f"elementwise 64x64xf32 {fingerprint}-cpu-8-deadbeef"


def test_the_nearest_sizes_come_first() -> None:
    sizes = {"aa": (64, 64), "bb": (100, 64), "cc": (1000, 64), "dd": (90, 64)}
    found = Neighbours.of(
        {
            study(name): {"kernel": text(*size), "target": "cpu, 8 cores"}
            for name, size in sizes.items()
        },
        "cpu, 8 cores",
    )
    assert found.nearest("ee", text(80, 64)) == ["dd", "aa"]
    assert found.nearest("bb", text(100, 64)) == ["dd", "aa"], "not the kernel itself"
    assert found.nearest("ee", text(80, 64, "sin")) == []
    found.add("ff", text(81, 64))
    assert found.nearest("ee", text(80, 64)) == ["ff", "dd"]


@pytest.mark.parametrize(
    ("name", "said"),
    [
        (study("aa"), {"kernel": text(9, 9), "target": "another, 8 cores"}),
        (study("aa"), {"target": "cpu, 8 cores"}),
        ("no study of ours", {"kernel": text(9, 9), "target": "cpu, 8 cores"}),
    ],
)
def test_studies_that_say_nothing(name: str, said: dict[str, str]) -> None:
    assert Neighbours.of({name: said}, "cpu, 8 cores").nearest("ee", text(9, 9)) == []


def test_schedules_of_other_sizes_are_fitted() -> None:
    assert SPACE.most_like({}) == SPACE.default
    assert SPACE.most_like({0: ("a", {"x": 12, "z": 9})}) == {
        "0.template": "a",
        "0.a.x": 16,
        "3.b.y": 0,
    }
    assert SPACE.most_like({0: ("b", {"x": 7}), 3: ("b", {"y": 5})}) == {
        "0.template": "b",
        "0.b.x": 2,
        "3.b.y": 1,
    }
    assert SPACE.most_like({0: ("c", {})}) is None
    assert SPACE.most_like({1: ("a", {"x": 4})}) is None
    assert SPACE.most_like({0: ("plain", ())}) is None, "steps of a person's"
