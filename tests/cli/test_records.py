"""`hlo-mlc records list`: what is recorded, in columns."""

from __future__ import annotations

from collections.abc import Callable

from hlo_mlc.runtime.records import OURS, Measured, Record, open_records
from hlo_mlc.support.options import Options


def test_a_line_for_each(hlo_mlc: Callable) -> None:
    records = open_records(Options.from_environment())
    tuned = Record(
        "a1" * 12,
        "znver4-2-f00",
        {0: ("contraction", {"rows": 6})},
        Measured(20.0, 10.0, 2.0, xla_ratio=1.5),
        OURS,
        name="matmul+gelu@model.py:11",
    )
    default = Record("b2" * 12, "znver4-2-f00", {}, Measured(3.0, 3.0, 1.0), name="sum@model.py:2")
    for record in (tuned, default):
        assert records.put(record) == record
    head, *lines, total = hlo_mlc("records", "list").stdout.splitlines()
    assert total == f"2 records in {records.folder}"
    columns = [head.index(title) for title in ("taken", "target", "id", "schedule")]
    found = {
        line.split()[0]: [line[at:].split("  ")[0].strip() for at in columns] for line in lines
    }
    assert found["matmul+gelu@model.py:11"] == [
        "ours",
        "znver4-2-f00",
        "a1" * 12,
        "nest 0: contraction(rows=6)",
    ]
    assert found["sum@model.py:2"] == ["-", "znver4-2-f00", "b2" * 12, "default"]
    assert {line.split()[1] for line in lines} == {"10.0", "3.0"}
