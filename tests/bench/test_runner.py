"""The runner: what is right is timed, what is wrong is not, what raises does not end the run."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import pytest

from hlo_mlc_bench import runner
from hlo_mlc_bench.case import Case
from hlo_mlc_bench.results import Row


def _after(change: Callable[[Any], Any], compile_function: Callable) -> Callable:
    """A compiler that applies `change` to every result."""
    return lambda function: compile_function(lambda *args: change(function(*args)))


def test_a_right_row_is_complete(case: Case, compile_right: type) -> None:
    row = runner.run_case(case, compile_right, rounds=2)
    assert (row.name, row.group, row.status, row.message) == ("double", "test", "right", "")
    missing = [field.name for field in fields(Row) if getattr(row, field.name) is None]
    assert missing == ["figure"]
    assert row.coverage == 0.25
    assert row.clusters == 0
    assert row.ratio > 0
    assert row.ours_error <= row.allowed_error


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (lambda y: y.at[3].add(1e-3), "is above"),
        (lambda y: y.at[3].set(jnp.nan), "error inf"),
        (lambda y: y.astype(jnp.float16), "float16[16], those of jax.jit float32[16]"),
        (lambda y: y[:-1], "float32[15], those of jax.jit float32[16]"),
    ],
)
def test_a_wrong_result_makes_the_row_fail_untimed(
    case: Case, compile_right: type, change: Callable, complaint: str
) -> None:
    row = runner.run_case(case, _after(change, compile_right), rounds=1)
    assert row.status == "wrong"
    assert complaint in row.message
    assert row.ratio is None and row.ours_ms is None


def test_a_compiler_that_raises_makes_the_row_fail(case: Case) -> None:
    def compile_badly(function: Callable) -> Callable:
        raise RuntimeError("no such thing\nsecond line")

    row = runner.run_case(case, compile_badly, rounds=1)
    assert (row.status, row.message) == ("failed", "RuntimeError: no such thing")


def test_an_interrupt_is_not_a_failed_row(case: Case) -> None:
    def compile_slowly(function: Callable) -> Callable:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        runner.run_case(case, compile_slowly, rounds=1)


def test_measuring_starts_with_an_empty_cache_and_restores_the_environment(
    compile_right: type, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HLO_MLC_CACHE", "before")
    monkeypatch.delenv("OPENBLAS_NUM_THREADS", raising=False)
    with runner.measuring(compile_right):
        folder = Path(os.environ["HLO_MLC_CACHE"])
        assert list(folder.iterdir()) == []
        assert os.environ["OPENBLAS_NUM_THREADS"] == "1"
    assert not folder.exists()
    assert os.environ["HLO_MLC_CACHE"] == "before"
    assert "OPENBLAS_NUM_THREADS" not in os.environ


def test_each_side_compiles_a_function_of_its_own(case: Case, compile_right: type) -> None:
    traced = []

    def compile_and_note(function: Callable) -> Any:
        traced.append(function)
        return compile_right(function)

    with runner.measuring(compile_and_note):
        runner.run_case(case, compile_and_note, rounds=1)
    warm_up, measured = traced
    assert warm_up is not measured
