"""docs/accuracy.md names every function, and what it says holds."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

from hlo_mlc.expr.dtypes import F64
from hlo_mlc.expr.ops import OPS

_ROOT = Path(__file__).parents[1]
_SCRIPT = runpy.run_path(str(_ROOT / "scripts" / "accuracy.py"))
_FUNCTIONS, _FORMATS = _SCRIPT["FUNCTIONS"], _SCRIPT["FORMATS"]
# The bounds that the project promises, in units in the last place.
_PROMISED = {"exp": 2, "log": 2, "sin": 2, "cos": 2}
_PROMISED_ELSEWHERE = 4


def _table(heading: str) -> dict[str, list[str]]:
    """The cells of a table of the page, by the first of each row."""
    page = (_ROOT / "docs" / "accuracy.md").read_text()
    _, _, below = page.partition(heading)
    rows = [
        line.strip("|").split("|")
        for line in below.partition("\n## ")[0].splitlines()
        if line.startswith("| ")
    ]
    return {row[0].strip(): [cell.strip() for cell in row[1:]] for row in rows[1:]}


_ERRORS = _table("# Accuracy")


def test_every_float_op_is_in_the_table_or_exact() -> None:
    listed = {function.op for function in _FUNCTIONS}
    assert listed | _SCRIPT["EXACT"] | _SCRIPT["NO_FLOATS"] == OPS.keys()
    assert not listed & _SCRIPT["EXACT"]
    assert _ERRORS.keys() - {"---"} == {_SCRIPT["label"](function) for function in _FUNCTIONS}


@pytest.mark.parametrize("dtype", _FORMATS, ids=str)
def test_stated_errors_are_found_nowhere_else(dtype) -> None:
    """A sample of the arguments that the page is made from."""
    if dtype is F64:
        pytest.importorskip("mpmath")
    every = 1000 if dtype.bits == 32 else 40
    for function in _FUNCTIONS:
        cell = _ERRORS[_SCRIPT["label"](function)][_FORMATS.index(dtype)]
        stated = float(cell.partition(" at ")[0])
        found = _SCRIPT["measure"](function, dtype, every)
        assert found.ulps <= stated + 1e-9, (function.op, found, stated)
        promised = _PROMISED.get(function.op, _PROMISED_ELSEWHERE) if dtype.bits >= 32 else 0.51
        assert stated <= promised * (1.5 if function.against_one else 1), function.op


def test_special_values_are_those_of_the_op() -> None:
    table = _table("## Special values")
    for op in dict.fromkeys(f.op for f in _FUNCTIONS if OPS[f.op].arity == 1):
        assert table[op] == _SCRIPT["specials"](op)
