"""What `explain` says: where each op went, how fast kernels are, and why the rest stays."""

from __future__ import annotations

from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

from hlo_mlc import compile_stablehlo, explain, mlc_jit
from hlo_mlc.explain import advice_on, measure_kernels
from hlo_mlc.limits import Level, Limits
from hlo_mlc.report import KernelTime, LeftReport, Report, byte_size, op_counts
from hlo_mlc.support.options import Options


def by_xla(x: jax.Array) -> jax.Array:
    """A function that stays with XLA."""
    return jax.lax.bessel_i1e(x)


X = jnp.ones((64, 256))
LIMITS = Limits(gflops=1e-3, caches=(Level(1 << 20, 1e3),), memory_gb_s=1e3)


@pytest.fixture(autouse=True)
def limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(explain, "machine_limits", lambda options: LIMITS)


def test_a_function_in_words() -> None:
    def function(x: jax.Array) -> jax.Array:
        return by_xla(jax.nn.softmax(x @ x.T))

    g = mlc_jit(function, choose="ours")
    text = g.explain(X)
    assert "of the operations in 2 kernels; compiled in" in text
    assert "partition " in text
    assert "subtract, exponential, divide" in text
    assert "(64x256xf32) -> (64x64xf32)" in text
    assert "test_explain.py:" in text
    assert "XLA " in text and '(choose="ours")' in text
    assert "reduction(" in text and "contraction(" in text
    assert "not contraction: " in text
    assert "left to XLA:\n  zeta, polygamma and Bessel functions are" in text
    assert "bessel_i1e at" in text
    assert "% of what this machine can do" in text


def test_what_is_refused_for_the_same_reason_stands_together() -> None:
    ops = [("stablehlo.sine", "a.py:1 jit(f)/sin"), ("stablehlo.add", "a.py:2 jit(f)/add"),
           ("stablehlo.add", "a.py:1 jit(f)/add"), ("stablehlo.cosine", "")]
    text = Report(0.0, left=tuple(LeftReport(*op, "too small") for op in ops)).explain()
    assert text.endswith("left to XLA:\n  too small\n    sine, 2 add, cosine at a.py:1, a.py:2")


def test_files_below_the_current_folder_are_shown_from_there(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    left = [LeftReport("stablehlo.sine", f"{tmp_path / 'my model.py'}:{line}", "") for line in
            range(8)]
    shown = Report(0.0, left=tuple(left)).left_lines()[0]
    assert shown.endswith("8 sine at my model.py:0, my model.py:1, my model.py:2, my model.py:3, "
                          "my model.py:4, my model.py:5 and 2 more")


def test_lists_fit_into_a_terminal() -> None:
    def function(*xs: jax.Array) -> jax.Array:
        return jax.nn.softmax(sum(jnp.tanh(x) * i for i, x in enumerate(xs)))

    text = mlc_jit(function, choose="ours").report(*[X] * 12).explain()
    assert max(map(len, text.splitlines())) <= 80
    assert "(64x256xf32, 64x256xf32" in text


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
    left = mlc_jit(lambda x: x + 1).report(X[0])
    assert 'choose="measure"' in "\n".join(advice_on(left, {}, Options.from_environment()))
    assert not advice_on(left, {}, Options.from_environment(choose="measure"))


def test_kernels_are_run_alone() -> None:
    g = mlc_jit(lambda x: x @ x.T, choose="ours")
    report = g.report(X)
    (measured,) = measure_kernels(report, Options.from_environment()).values()
    assert measured.us > 0
    flops = report.kernels[0].contraction_flops
    assert measured.share == pytest.approx(flops / LIMITS.gflops / 1e3 / measured.us)


def test_what_depends_on_its_arguments_is_not_run() -> None:
    g = mlc_jit(lambda x: jax.lax.while_loop(lambda v: v[0] > 1, lambda v: v * 2, x), choose="ours")
    assert not measure_kernels(g.report(X[0]), Options.from_environment())
    assert "not measured: its time depends on the values" in g.explain(X[0])


def test_reports_are_cheap(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(explain, "bind_kernel", lambda *_, **__: pytest.fail("it measures"))
    g = mlc_jit(lambda x: jnp.tanh(x), choose="ours")
    g(X)
    assert "measured" not in g.report().explain()
    assert g.report(X).kernels


def test_nothing_to_measure_measures_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(explain, "machine_limits", lambda options: pytest.fail("it measures"))
    assert 'choose="xla" asks for it' in mlc_jit(lambda x: x + 1, choose="xla").explain(X)


def test_modules_too(tmp_path: Path) -> None:
    text = jax.jit(jnp.tanh).lower(X).as_text()
    assert "% of what this machine can do" in compile_stablehlo(text, choose="ours").explain()


def test_times_are_shown_with_their_kernel() -> None:
    report = mlc_jit(lambda x: jnp.tanh(x), choose="ours").report(X)
    shown = report.explain({report.kernels[0].id: KernelTime(us=12.3, share=0.45)})
    assert "measured 12.3 us, 45% of what this machine can do" in shown


def test_sizes_and_counts() -> None:
    assert [byte_size(n) for n in (0, 1023, 1024, 5 << 20, 3 << 30)] == [
        "0 B", "1023 B", "1 KiB", "5 MiB", "3.0 GiB"]
    assert op_counts(("stablehlo.add", "chlo.erf", "stablehlo.add")) == "2 add, erf"
