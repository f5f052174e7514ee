"""docs/coverage.md is what the registry says today."""

from __future__ import annotations

import runpy
from pathlib import Path

import jax
import numpy as np
import pytest

from hlo_mlc import compile_stablehlo
from hlo_mlc.expr.dtypes import ALL, F8E8M0FNU, DType, Kind
from hlo_mlc.ops.registry import DEFINITIONS

_ROOT = Path(__file__).parents[1]
_SCRIPT = runpy.run_path(str(_ROOT / "scripts" / "coverage.py"))


def test_the_page_is_up_to_date() -> None:
    page = (_ROOT / "docs" / "coverage.md").read_text()
    assert _SCRIPT["page"]() == page, "run python scripts/coverage.py"


@pytest.mark.parametrize("dtype", [d for d in ALL if d is not F8E8M0FNU], ids=str)
def test_what_it_says_of_a_type_is_compiled(dtype: DType) -> None:
    """One op of each kind of function: movement, arithmetic, a fold."""
    names = {
        "stablehlo.reverse",
        "stablehlo.multiply",
        "stablehlo.reduce",
        "stablehlo.exponential",
        "stablehlo.and",
    }
    arithmetic = dtype.is_float or dtype.kind is Kind.COMPLEX
    for op in sorted(names):
        if dtype not in _SCRIPT["types_of"](op):
            assert (op == "stablehlo.exponential" and not arithmetic) or (
                op == "stablehlo.and" and arithmetic
            ), op
            continue
        text = next(
            t
            for t in (
                _SCRIPT["retyped"](text, next(_SCRIPT["_element_types"](text)), dtype.name)
                for text in DEFINITIONS[op].examples
            )
            if _SCRIPT["is_compiled"](t, op)
        )
        with jax.enable_x64(True):
            function = compile_stablehlo(text, choose="ours")
            results = function(
                *[
                    np.ones(p.type.shape, p.type.dtype.numpy)
                    for p in _SCRIPT["_read"](text).parameters
                ]
            )
        assert function.report().coverage == 1, op
        assert results
