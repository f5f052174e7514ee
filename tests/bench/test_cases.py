"""The registry: every case can be made, runs under plain JAX and is what its figure speaks of."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from hlo_mlc_bench import check
from hlo_mlc_bench.case import NEIGHBOUR_FIGURE, Case
from hlo_mlc_bench.cases import BY_NAME, CASES, DEMO, GROUPS

_LARGEST_TINY = 2000  # elements of one argument


@pytest.mark.parametrize("name", [name for name, case in BY_NAME.items() if case.view == "plain"])
def test_runs_under_plain_jax_within_its_tolerance(name: str) -> None:
    """Cases in another view have the results of the plain ones, as shown below."""
    case = BY_NAME[name]
    function, args = case_at_tiny_size(case)
    with case.in_its_mode():
        results = compiled(case, function)(*args)
    for leaf in map(np.asarray, jax.tree.leaves(results)):
        assert np.isfinite(leaf.astype(np.result_type(leaf, np.float64))).all()
    expected = check.reference(function, args, xla_errs=case.xla_errs)
    assert check.error(results, expected) <= check.bound(case, xla_error=0.0)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_makes_fresh_functions_of_the_same_values(case: Case) -> None:
    (one, args), (other, same_args) = case_at_tiny_size(case), case_at_tiny_size(case)
    assert one is not other
    for a, b in zip(jax.tree.leaves(args), jax.tree.leaves(same_args), strict=True):
        np.testing.assert_array_equal(a, b)
        assert a.size <= _LARGEST_TINY
    with case.in_its_mode():
        other_args = case.make(seed=1, tiny=True)[1]
    leaves = zip(jax.tree.leaves(args), jax.tree.leaves(other_args), strict=True)
    assert any(not np.array_equal(a, b) for a, b in leaves)


@pytest.mark.parametrize(
    "case", [case for case in CASES if case.neighbours], ids=lambda case: case.name
)
def test_each_neighbour_changes_one_thing(case: Case) -> None:
    odd, dtype, view = case.neighbours
    assert odd.sizes != case.sizes and (odd.dtype, odd.view) == (case.dtype, case.view)
    assert any(size % 2 for name, size in odd.sizes.items() if size != case.sizes[name])
    assert dtype.dtype != case.dtype and (dtype.sizes, dtype.view) == (case.sizes, case.view)
    assert view.view != case.view and (view.sizes, view.dtype) == (case.sizes, case.dtype)
    assert {neighbour.figure for neighbour in case.neighbours} == {NEIGHBOUR_FIGURE}


def test_every_figure_but_that_of_dispatch_has_neighbours() -> None:
    without = [case.name for case in CASES if case.figure and not case.neighbours]
    assert without == ["tiny_call"]


@pytest.mark.parametrize("name", [case.name for case in BY_NAME.values() if case.view != "plain"])
def test_a_view_changes_the_layout_but_not_the_result(name: str) -> None:
    case, plain = BY_NAME[name], BY_NAME[name.partition("/")[0]]
    (viewed, viewed_args), (function, args) = case_at_tiny_size(case), case_at_tiny_size(plain)
    assert viewed_args[case.viewed].shape != args[case.viewed].shape
    with case.in_its_mode():
        both = [
            jax.tree.leaves(compiled(case, f)(*a))
            for f, a in ((viewed, viewed_args), (function, args))
        ]
    for one, other in zip(*both, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)


def test_names_are_unique_and_the_demo_is_in_the_registry() -> None:
    assert len(BY_NAME) == sum(1 + len(case.neighbours) for case in CASES)
    assert set(DEMO) <= set(BY_NAME)
    assert GROUPS == (
        "models",
        "attention",
        "elementwise",
        "rows",
        "contractions",
        "convolutions",
        "loops",
        "linear algebra",
        "math",
        "random",
        "movement",
        "sorting",
        "overhead",
        "issues",
        "fusion",
    )


def test_arguments_have_the_dtype_of_the_case() -> None:
    for case in BY_NAME.values():
        _, args = case_at_tiny_size(case)
        found = {leaf.dtype for leaf in jax.tree.leaves(args)}
        other = {
            "random": {jnp.dtype(jnp.uint32)},
            "movement": {jnp.dtype(jnp.int32), jnp.dtype(jnp.uint8)},
            "sorting": {jnp.dtype(jnp.int32)},
            "issues": {jnp.dtype(jnp.int32)},
            "models": {jnp.dtype(jnp.int32)},
            "loops": {jnp.dtype(jnp.int32), jnp.dtype(jnp.uint32), jnp.dtype(jnp.bool_)},
            "fusion": {jnp.dtype(jnp.int8), jnp.dtype(jnp.int32)},
            "contractions": {jnp.dtype(f"int{case.sizes.get('bits', 8)}")},
        }
        if "transforms" in case.name and case.group == "linear algebra":
            other["linear algebra"] = {np.result_type(case.dtype, np.complex64)}
        assert found - other.get(case.group, set()) <= {jnp.dtype(case.dtype)}, case.name
        assert found, case.name


def compiled(case: Case, function: Callable) -> Callable:
    """By XLA as a whole, unless that gets it wrong: op by op."""
    return function if case.xla_errs else jax.jit(function)


def case_at_tiny_size(case: Case) -> tuple:
    with case.in_its_mode():
        return case.make(tiny=True)
