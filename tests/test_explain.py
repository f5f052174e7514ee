"""What `explain` says: where each op went, how fast kernels are, and why the rest stays."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Callable
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

from hlo_mlc import compile_stablehlo, explain, mlc_jit
from hlo_mlc.explain import advice_on, measure_kernels
from hlo_mlc.limits import Level, MachineLimits
from hlo_mlc.report import Comparison, KernelTime, LeftReport, Report, op_counts
from hlo_mlc.support.options import Options
from hlo_mlc.support.wording import byte_size
from making.left import by_xla

X = jnp.ones((64, 256))
LIMITS = MachineLimits(gflops=1e-3, caches=(Level(1 << 20, 1e3),), memory_gb_s=1e3)


@pytest.fixture(autouse=True)
def limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(explain, "machine_limits", lambda options: LIMITS)


def test_a_function_in_words() -> None:
    def function(x: jax.Array) -> jax.Array:
        return by_xla(jax.nn.softmax(x @ x.T))

    g = mlc_jit(function, choose="ours")
    text = str(g.explain(X, verbose=True))
    assert "of the operations in 2 kernels; compiled in" in text
    assert "partition " in text
    assert "subtract, exponential, divide" in text
    assert "(64x256xf32) -> (64x64xf32)" in text
    assert "test_explain.py:" in text
    assert "XLA " in text and '(choose="ours")' in text
    assert "reduction(" in text and "contraction(" in text
    assert "not contraction: " in text
    assert "left to XLA:\n  type tensor<64x64xf4E2M1FN> is not modelled\n    2 convert at" in text
    assert "% of what this machine can do" in text


def layers(x: jax.Array) -> jax.Array:
    """A program of more kernels than are shown, of which some stay with XLA."""
    for n in range(1, 16):
        x = jnp.sort(jnp.cumsum(x * n, n % 2), (n + 1) % 2)
        x = by_xla(x) if n % 4 == 0 else x[:, ::-1] / n
    return x


@pytest.mark.parametrize("choose", ["ours", "auto", "xla"])
@pytest.mark.parametrize(
    "function",
    [
        layers,
        jax.nn.softmax,
        by_xla,
        lambda x: x,
        jnp.linalg.qr,
        lambda x: jax.lax.scan(lambda c, y: (c * y, c), x[0], x),
    ],
)
def test_it_is_seen_at_a_glance(function: Callable, choose: str) -> None:
    shown = mlc_jit(function, choose=choose).explain(X)
    lines = str(shown).splitlines()
    assert len(lines) <= 30 and max(map(len, lines)) <= 80
    assert lines == [line.rstrip() for line in lines]
    assert repr(shown) == str(shown)
    assert set(json.loads(json.dumps(shown.as_dict()))) >= {
        "function",
        "coverage",
        "time",
        "kernels",
        "left",
        "reasons",
        "advice",
    }


def test_thirty_lines_are_enough_for_any_report() -> None:
    """However much there is to say."""
    report = mlc_jit(layers, choose="ours").report(X)
    reason = "it is long " * 40
    left = tuple(
        LeftReport("stablehlo.fft", f"/m.py:{n} fft", reason, f"fft@m.py:{n}", 9.0)
        for n in range(9)
    )
    full = dataclasses.replace(
        report,
        reasons=(reason,),
        advice=reason,
        left=left,
        comparisons=(Comparison("ours", 10.0, 20.0, 2.0), Comparison("auto", 10.0, 20.0, 2.0)),
    )
    options = Options.from_environment(choose="ours", deterministic=True)
    shown = str(explain.Explanation("f" * 90, full, {}, options)).splitlines()
    assert len(shown) <= 30 and max(map(len, shown)) <= 80
    assert sum("%" in line and "@test_explain.py" in line for line in shown) >= 3
    assert {explain.LEFT, "next: it is long"} <= {
        line if line.startswith("left") else line[:16] for line in shown
    }


def test_the_costliest_come_first() -> None:
    shown = mlc_jit(layers, choose="ours").explain(X)
    times = [shown.us(kernel) for kernel in shown.kernels]
    assert times == sorted(times, reverse=True) and len(times) > 10
    rows = [line for line in str(shown).splitlines() if "@test_explain.py:" in line and "%" in line]
    assert [re.sub(r" x\d+$", "", row.split("  ")[-1]) for row in rows] == [
        kernel.name for kernel in shown.kernels[:10]
    ]
    assert f"and {len(times) - 10} kernels more (verbose=True)" in str(shown)
    content = shown.as_dict()
    assert [k["name"] for k in content["kernels"]] == [k.name for k in shown.kernels]
    assert content["time"]["ours_us"] == pytest.approx(sum(times))
    assert explain.LEFT in str(shown)
    assert "convert@left.py:" in str(shown)


def test_parts_that_stay_for_the_same_reason_are_one() -> None:
    report = mlc_jit(layers, choose="ours").report(X)
    reason = "it would have more lines than " * 4 + "fit"
    alike = [
        LeftReport("stablehlo.sort", "/m.py:3 sort", reason, f"sort{number}@m.py:3", 50.0)
        for number in ("", "#2", "#3")
    ]
    other = LeftReport("stablehlo.fft", "/m.py:4 fft", reason, "fft@m.py:4", 90.0)
    full = dataclasses.replace(report, left=(other, *alike))
    shown = explain.Explanation("f", full, {}, Options.from_environment())
    lines = str(shown).splitlines()
    at = lines.index(explain.LEFT)
    assert [line.split("  ")[-1] for line in (lines[at + 1], lines[at + 4])] == [
        "sort@m.py:3 x3:",
        "fft@m.py:4:",
    ]
    assert "".join(lines[at + 2 : at + 4]).replace(" ", "") == reason.replace(" ", "")
    assert lines[at + 5].endswith("…") and "150 us" in lines[at + 1]


def test_reasons_are_whole_where_there_is_room() -> None:
    report = mlc_jit(jnp.tanh, choose="ours").report(X)
    reasons = [
        f"{what} for which there is a long reason that no line has room for" for what in "ab"
    ]
    left = tuple(
        LeftReport("stablehlo.fft", f"/m.py:{n} fft", reason, f"fft@m.py:{n}", 90.0 - n)
        for n, reason in enumerate(reasons)
    )
    full = dataclasses.replace(report, left=left)
    shown = str(explain.Explanation("f", full, {}, Options.from_environment()))
    assert "…" not in shown.partition(explain.LEFT)[2]
    words = " ".join(shown.split())
    assert all(reason in words for reason in reasons)


def test_no_share_that_there_is_is_none() -> None:
    report = mlc_jit(layers, choose="ours").report(X)
    first, *others = report.kernels
    small = dataclasses.replace(first, ours_us=0.001, calls=1)
    large = [dataclasses.replace(kernel, ours_us=900.0, calls=1) for kernel in others[:3]]
    full = dataclasses.replace(report, kernels=(small, *large))
    rows = str(explain.Explanation("f", full, {}, Options.from_environment())).splitlines()
    assert [row.split()[0] for row in rows if "@test_explain.py" in row and "%" in row] == [
        *["33%"] * 3,
        "<1%",
    ]


def test_names_of_functions_leave_room_for_what_is_said_of_them() -> None:
    shown = explain.Explanation(
        "f" * 90, mlc_jit(layers, choose="ours").report(X), {}, Options.from_environment()
    )
    assert re.match(r"f{31}…: .* as by XLA alone \(predicted\)$", str(shown).splitlines()[0])


def test_coverage_is_a_share_of_the_time() -> None:
    def mostly_xla(x: jax.Array) -> jax.Array:
        return jnp.linalg.qr(x.T + 1)[0] + jnp.tanh(x.T * 2)

    report = mlc_jit(mostly_xla, choose="ours").report(X)
    assert report.coverage > 0.5 > report.time_coverage > 0
    assert report.time_coverage == report.ours_us / (report.ours_us + report.left_us)
    assert f"coverage: {report.time_coverage:.0%} of the time and " in report.headline
    assert mlc_jit(jnp.tanh, choose="ours").report(X).time_coverage == 1
    assert mlc_jit(jnp.tanh, choose="xla").report(X).time_coverage == 0


def test_kernels_in_loops_of_xlas_count_as_often_as_they_run() -> None:
    def loop(x: jax.Array) -> jax.Array:
        return jax.lax.fori_loop(0, 7, lambda _, y: jnp.tanh(by_xla(y)), x)

    report = mlc_jit(loop, choose="ours").report(X)
    assert {kernel.calls for kernel in report.kernels} == {7}
    once = mlc_jit(by_xla, choose="ours").report(X).left
    inside = [left for left in report.left if "convert" in left.op]
    assert [left.us for left in inside] == pytest.approx([7 * left.us for left in once])


def test_what_to_do_where_nothing_is_ours() -> None:
    def advice(function: Callable, **options: object) -> str:
        return " ".join(str(mlc_jit(function, **options).explain(X)).split())

    assert 'XLA runs all of it choose="xla" asks for it next: leave out' in advice(
        jnp.tanh, choose="xla"
    )
    printing = advice(lambda x: (jax.debug.callback(lambda _: None, x), x)[1])
    assert "debug_callback@test_explain.py" in printing and "it has side effects" in printing
    assert "next: nothing: there are no kernels of ours for this so far" in advice(by_xla)


def test_what_is_refused_for_the_same_reason_stands_together() -> None:
    ops = [
        ("stablehlo.sine", "a.py:1 jit(f)/sin"),
        ("stablehlo.add", "a.py:2 jit(f)/add"),
        ("stablehlo.add", "a.py:1 jit(f)/add"),
        ("stablehlo.cosine", ""),
    ]
    text = Report(0.0, left=tuple(LeftReport(*op, "too small") for op in ops)).explain()
    assert text.endswith("left to XLA:\n  too small\n    sine, 2 add, cosine at a.py:1, a.py:2")


def test_files_below_the_current_folder_are_shown_from_there(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    left = [
        LeftReport("stablehlo.sine", f"{tmp_path / 'my model.py'}:{line}", "") for line in range(8)
    ]
    shown = Report(0.0, left=tuple(left)).left_lines()[0]
    assert shown.endswith(
        "8 sine at my model.py:0, my model.py:1, my model.py:2, my model.py:3, "
        "my model.py:4, my model.py:5 and 2 more"
    )


def test_lists_fit_into_a_terminal() -> None:
    def function(*xs: jax.Array) -> jax.Array:
        return jax.nn.softmax(sum(jnp.tanh(x) * i for i, x in enumerate(xs)))

    text = mlc_jit(function, choose="ours").report(*[X] * 12).explain()
    assert max(map(len, text.splitlines())) <= 80
    assert "(64x256xf32, 64x256xf32" in text


def test_a_name_that_is_cut_keeps_its_line() -> None:
    report = mlc_jit(lambda x: jnp.tanh(x), choose="ours").report(X)
    name = f"{'matmul+' * 9}add@model.py:7"
    long = dataclasses.replace(report, kernels=(dataclasses.replace(report.kernels[0], name=name),))
    lines = str(explain.Explanation("f", long, {}, Options.from_environment())).splitlines()
    (shown,) = [line.split()[-1] for line in lines if line.endswith("…@model.py:7")]
    assert max(map(len, lines)) <= 80 and explain.is_shown_as(name, shown)
    assert not explain.is_shown_as("matmul+add@model.py:7", shown)


def test_advice_follows_from_what_is_seen() -> None:
    options = Options.from_environment(choose="ours")
    report = mlc_jit(lambda x: jnp.tanh(x), choose="ours").report(X)
    (kernel,) = report.kernels

    def advice(us: float, share: float) -> str:
        return "\n".join(advice_on(report, {kernel.id: KernelTime(us, share)}, options))

    assert advice(100.0, 0.2) == f"tune(...) may find faster schedules, above all for {kernel.name}"
    assert "doctor --refresh" in advice(100.0, 2.0)
    assert not advice(100.0, 0.95)
    assert not advice(2.0, 0.1)
    small = mlc_jit(lambda x: x + 1).report(X[0])
    assert small.left and not advice_on(small, {}, Options.from_environment())
    left = dataclasses.replace(small, left=(dataclasses.replace(small.left[0], us=20.0),))
    assert 'choose="measure"' in "\n".join(advice_on(left, {}, Options.from_environment()))
    assert not advice_on(left, {}, Options.from_environment(choose="measure"))


def test_kernels_are_run_alone() -> None:
    g = mlc_jit(lambda x: x @ x.T, choose="ours")
    report = g.report(X)
    times, limits = measure_kernels(report, Options.from_environment())
    (measured,) = times.values()
    assert measured.us > 0 and limits is LIMITS
    flops = report.kernels[0].contraction_flops
    assert measured.share == pytest.approx(flops / LIMITS.gflops / 1e3 / measured.us)


def test_what_depends_on_its_arguments_is_not_run() -> None:
    g = mlc_jit(lambda x: jax.lax.while_loop(lambda v: v[0] > 1, lambda v: v * 2, x), choose="ours")
    assert measure_kernels(g.report(X[0]), Options.from_environment()) == ({}, None)
    assert "not measured: its time depends on the values" in str(g.explain(X[0], verbose=True))


def test_reports_are_cheap(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(explain, "bind_kernel", lambda *_, **__: pytest.fail("it measures"))
    g = mlc_jit(lambda x: jnp.tanh(x), choose="ours")
    g(X)
    assert "measured" not in g.report().explain()
    assert g.report(X).kernels


def test_nothing_to_measure_measures_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(explain, "machine_limits", lambda options: pytest.fail("it measures"))
    shown = mlc_jit(lambda x: x + 1, choose="xla").explain(X, verbose=True)
    assert 'choose="xla" asks for it' in str(shown)


def test_modules_too(tmp_path: Path) -> None:
    text = jax.jit(jnp.tanh).lower(X).as_text()
    shown = compile_stablehlo(text, choose="ours").explain(verbose=True)
    assert "% of what this machine can do" in str(shown)


def test_times_are_shown_with_their_kernel() -> None:
    report = mlc_jit(lambda x: jnp.tanh(x), choose="ours").report(X)
    shown = report.explain({report.kernels[0].id: KernelTime(us=12.3, share=0.45)})
    assert "measured 12.3 us, 45% of what this machine can do" in shown


def test_sizes_and_counts() -> None:
    assert [byte_size(n) for n in (0, 1023, 1024, 5 << 20, 3 << 30)] == [
        "0 B",
        "1023 B",
        "1 KiB",
        "5 MiB",
        "3.0 GiB",
    ]
    assert op_counts(("stablehlo.add", "chlo.erf", "stablehlo.add")) == "2 add, erf"
