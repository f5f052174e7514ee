"""Programs for any number of rows: what the first call does not generate, no other one does."""

from __future__ import annotations

from collections.abc import Sequence

import jax
import numpy as np
import pytest
from jax import export
from rows import PROGRAMS, ROWS

from hlo_mlc import compile_stablehlo
from hlo_mlc.building import keeping
from hlo_mlc.interop.module import StablehloFunction
from making.prepared import wait_for_kernels

SIZES = (*range(1, 47), 64, 100, 1000, 5000)
CALLED = (1, 2, 5, 17, 64, 100)
SHAPES: dict[str, Sequence[tuple[int, ...]]] = {
    "batch_norm": [(ROWS, 20), (20,)],
    "classifier": [(ROWS, 12), (ROWS, 5), (12, 24), (24, 5)],
    "adam": [(ROWS, 12), (ROWS, 4), *[(12, 24), (24, 4)] * 3],
    "block": [(ROWS, 6, 16), (16, 48), (16, 16), (16, 32), (32, 16), (16,), (16,)],
    "pooled": [(ROWS, 8, 8, 3), (3, 3, 3, 4), (3, 3, 4, 8), (32, 6)],
    "recurrent": [(ROWS, 7, 6), (6, 9), (9, 9)],
    "k_means": [(ROWS, 8), (5, 8)],
    "residual": [(ROWS, 24), (24, 24), (24,), (24,)],
}


def compiled(name: str, choose: str | None = "ours") -> StablehloFunction:
    (rows,) = export.symbolic_shape("rows")
    types = (
        jax.ShapeDtypeStruct([rows if d == ROWS else d for d in shape], np.float32)
        for shape in SHAPES[name]
    )
    return compile_stablehlo(export.export(jax.jit(PROGRAMS[name][0]))(*types), choose=choose)


def arguments(name: str, rows: int) -> list[np.ndarray]:
    rng = np.random.default_rng(rows)
    shapes = ([rows if d == ROWS else d for d in shape] for shape in SHAPES[name])
    return [rng.standard_normal(shape).astype(np.float32) / 2 for shape in shapes]


def check_results(name: str, function: StablehloFunction, rows: int) -> None:
    args = arguments(name, rows)
    expected = jax.tree.leaves(jax.jit(PROGRAMS[name][0])(*args))
    for one, other in zip(function(*args), expected, strict=True):
        largest = float(np.max(np.abs(other)))
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5 * max(1.0, largest))


@pytest.mark.parametrize(
    ("name", "first"),
    [*((name, 7) for name in SHAPES), ("batch_norm", 1), ("recurrent", 1), ("residual", 2)],
)
def test_what_the_first_call_has_not_generated_none_does(name: str, first: int) -> None:
    function = compiled(name)
    with keeping() as kept:
        check_results(name, function, first)
        generated = {built.kernel.fingerprint for built in kept}
        for rows in CALLED:
            check_results(name, function, rows)
        for rows in SIZES:
            report = function.report(
                *(jax.ShapeDtypeStruct(a.shape, a.dtype) for a in arguments(name, rows))
            )
            assert report.coverage == 1
        later = {b.kernel.fingerprint: b.kernel.name for b in kept}
    assert not [text for one, text in later.items() if one not in generated]


def test_calls_go_on_while_kernels_for_others_are_made() -> None:
    """Where nobody asks for ours alone; what is made then, no call generates."""
    function = compiled("residual", choose=None)
    with keeping() as kept:
        check_results("residual", function, 7)
        wait_for_kernels()
        generated = {built.kernel.fingerprint for built in kept}
        for rows in (1, 2, 30, 70):
            check_results("residual", function, rows)
        assert {built.kernel.fingerprint for built in kept} == generated
