"""Questions that decide how a program is computed, and that one case of the bench alone answers
with yes: without the case, nobody would see what becomes of them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax
import pytest

from hlo_mlc.backends.cpu import CpuBackend
from hlo_mlc.compiler import clusters_of
from hlo_mlc.partition.fuse import recurrences
from hlo_mlc.partition.lower import storing
from hlo_mlc.support.options import Options
from hlo_mlc.target.cpu import named
from hlo_mlc.templates import columns, contraction, program, reduction, window
from hlo_mlc.templates.program import schedule_program
from hlo_mlc_bench.cases import BY_NAME


@pytest.mark.parametrize(
    ("owner", "question", "case", "level"),
    [
        (storing.Storing, "_is_shifted", "limited_flux", "x86-64-v4"),
        (storing.Storing, "_is_spread", "found_pairs", "x86-64-v4"),
        (storing, "_is_scattered_across", "scattered_elements", "x86-64-v4"),
        (reduction, "_finishes_late", "squashed_lengths", "x86-64-v4"),
        (window, "_are_rows", "packed_flags", "x86-64-v4"),
        (program, "_falls_asleep", "deposits", "x86-64-v4"),
        (recurrences, "_is_fold", "gated", "x86-64-v4"),
        (columns, "_has_long_rows_in_l2", "vector_matrix", "x86-64-v3"),
        (contraction, "_comes_by_lines", "few_rows", "x86-64-v3"),
    ],
)
def test_a_case_shows_it(
    owner: Any, question: str, case: str, level: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask, answers = getattr(owner, question), []

    def noted(*given: Any) -> bool:
        answers.append(ask(*given))
        return answers[-1]

    monkeypatch.setattr(owner, question, noted)
    function, args = BY_NAME[case].make()
    module = jax.jit(function).lower(*args).compiler_ir("stablehlo")
    backend = CpuBackend(replace(named(level), cores=2))
    _, plan = clusters_of(module, Options(choose="ours"), backend=backend)
    for cluster, _ in plan.taken:
        schedule_program(cluster.kernel.program, backend.target)
    assert True in answers
