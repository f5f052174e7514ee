"""Tuning a function: winners are recorded, compiled from then on, and found again elsewhere."""

from __future__ import annotations

import functools
import math
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from click.testing import CliRunner

from hlo_mlc import compile_stablehlo, mlc_jit
from hlo_mlc.backends.cpu import cpu_backend
from hlo_mlc.backends.recorded import unknown_names
from hlo_mlc.building import built_kernel, rebuild_kernel
from hlo_mlc.cli import main
from hlo_mlc.compiler import clusters_of
from hlo_mlc.interop import tuning, tuning_session, tuning_studies
from hlo_mlc.interop.cluster_programs import kernel_program, original_program
from hlo_mlc.interop.staged import forget
from hlo_mlc.kernel_objects import kernel_object, scheduled
from hlo_mlc.runtime.records import OURS, XLA, Measured, Record, open_records
from hlo_mlc.support.errors import UsageError
from hlo_mlc.support.options import Options
from hlo_mlc.tuning import study
from hlo_mlc.tuning.history import attempts
from hlo_mlc.tuning.storage import journal_path
from hlo_mlc.tuning.tuner import Winner
from making.left import by_xla
from making.tunable import SCHEDULES, X, product, records_target

pytestmark = pytest.mark.usefixtures("empty_cache")


def only_kernel(function):
    module = jax.jit(function).lower(X).compiler_ir()
    _, plan = clusters_of(module, Options.from_environment(choose="ours"))
    ((cluster, _),) = plan.taken
    return cluster.kernel


def record_of(kernel, schedules, choice: str = "", ratio: float = 1.0) -> Record:
    return Record(
        kernel.fingerprint,
        records_target(),
        schedules,
        Measured(9.0, 9.0, 1.0, 9.0 * ratio, ratio),
        choice,
    )


def test_a_folder_with_our_name_is_not_run_instead(tmp_path: Path, monkeypatch) -> None:
    """A checkout, say, that a command has put in front of the path of an installed package."""
    (tmp_path / "hlo_mlc").mkdir()
    (tmp_path / "hlo_mlc" / "__init__.py").write_text("raise ImportError('another one')")
    monkeypatch.syspath_prepend(tmp_path)
    (kernel,) = mlc_jit(jnp.sin, choose="ours").tune(X, trials=1).kernels
    assert (kernel.reason, kernel.tried) == ("", 1)


def test_a_function_is_tuned() -> None:
    f = mlc_jit(lambda x: (jax.nn.softmax(x @ x.T), by_xla(x)), choose="ours")
    before = f(X)
    report = f.tune(X, trials=3)
    assert len(report.kernels) == 2
    records = {r.kernel: r for r in open_records(Options.from_environment()).all()}
    for kernel in report.kernels:
        assert kernel.tried == 3 and kernel.reason == ""
        assert records[kernel.record.kernel] == kernel.record
        assert kernel.record.measured.xla_us > 0
        assert kernel.name == kernel.record.name and "@test_tuning.py:" in kernel.name
    text = str(report)
    assert "configurations known" in text and "the whole function, measured" in text
    table = text[text.index("kernel  ") :].splitlines()
    assert table[0].split("  ")[-1] == "taken" and "default us" in table[0]
    for kernel, line in zip(report.kernels, table[1:], strict=False):
        best = kernel.record.measured
        assert line.split()[:4] == [
            kernel.name,
            f"{best.default_us:.1f}",
            f"{best.ours_us:.1f}",
            f"{best.speedup:.2f}",
        ]
    for old, new in zip(before, f(X), strict=True):
        np.testing.assert_allclose(old, new, rtol=1e-5)


def test_trials_are_those_of_the_study_whoever_makes_them() -> None:
    mlc_jit(product).tune(X, trials=2)
    (kernel,) = mlc_jit(product).tune(X, trials=3).kernels
    assert kernel.tried == 3
    (kernel,) = mlc_jit(product).tune(X, trials=1).kernels
    assert kernel.tried == 3


def test_a_search_begins_with_what_other_sizes_have() -> None:
    mlc_jit(product).tune(X, trials=1)
    records, known = (
        open_records(Options.from_environment()),
        record_of(only_kernel(product), SCHEDULES),
    )
    assert records.put(known, replaces=records.get(known.kernel, known.target)) == known
    (kernel,) = mlc_jit(product).tune(X[:60], trials=2).kernels
    journal = journal_path(Options.from_environment())
    default, second = attempts(journal, [kernel.id])[kernel.id]
    wanted = {"0.contraction.rows=4", "0.contraction.vectors=1"}
    assert wanted <= set(second.what.split(", ")) and not wanted <= set(default.what.split(", "))


def curve(x: jax.Array) -> jax.Array:
    return jnp.tanh(x) + 1


def test_what_was_tuned_in_another_program_takes_no_trials(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where nobody says how many, as many as pay: none more, unless the machine was busy then."""
    monkeypatch.setattr(tuning_studies, "BUSY", math.inf)
    monkeypatch.setattr(tuning_session, "_MOST_TRIALS", 10_000)
    monkeypatch.setattr(study, "_FEWEST", 12)  # the space has a few more
    (first,) = mlc_jit(curve).tune(X).kernels
    both = mlc_jit(lambda x: (curve(x), by_xla(x)), choose="ours").tune(X)
    (again,) = (kernel for kernel in both.kernels if kernel.id == first.id)
    assert again.tried == first.tried and again.record is not None
    (more,) = mlc_jit(curve).tune(X, trials=first.tried + 2).kernels
    assert more.tried == first.tried + 2


def test_what_is_recorded_is_compiled() -> None:
    kernel = only_kernel(product)
    options = Options.from_environment()
    backend = cpu_backend(options)
    default = kernel_object(kernel, options, backend)
    record = record_of(kernel, SCHEDULES)
    open_records(options).put(record)
    tuned = kernel_object(kernel, options, backend)
    assert tuned.code != default.code
    assert tuned.nests[0].parameters["rows"] == 4
    f = mlc_jit(product, choose="ours")
    np.testing.assert_allclose(f(X), product(X), rtol=1e-5)
    _, decisions = scheduled(kernel, options, backend)
    assert decisions[0].parameters["vectors"] == 1


def test_a_recorded_template_replaces_that_of_analysis() -> None:
    def function(x: jax.Array) -> jax.Array:
        return x @ x.T + 3

    kernel = only_kernel(function)
    options = Options.from_environment()
    open_records(options).put(record_of(kernel, {0: ("reduction", {"count": 2, "unroll": 1})}))
    (nest,) = kernel_object(kernel, options, cpu_backend(options)).nests
    assert (nest.template, nest.parameters["count"]) == ("reduction", 2)
    f = mlc_jit(function, choose="ours")
    np.testing.assert_allclose(f(X), function(X), rtol=1e-5, atol=1e-5)
    assert "reduction(count=2, unroll=1" in str(f.explain(X, verbose=True))


def test_the_same_records_give_the_same_code(tmp_path: Path) -> None:
    kernel = only_kernel(product)
    here = Options.from_environment()
    open_records(here).put(record_of(kernel, SCHEDULES))
    elsewhere = here.replace(cache_dir=tmp_path / "elsewhere")
    open_records(elsewhere).import_text(open_records(here).export_text(), unknown_names)
    codes = [
        kernel_object(kernel, options, cpu_backend(options)).code for options in (here, elsewhere)
    ]
    assert codes[0] == codes[1]


@pytest.mark.parametrize(("choice", "ratio", "kernels"), [(OURS, 10.0, 1), (XLA, 0.5, 0)])
def test_recorded_choices(choice: str, ratio: float, kernels: int) -> None:
    open_records(Options.from_environment()).put(record_of(only_kernel(product), {}, choice, ratio))
    report = mlc_jit(product, choose="auto").report(X)
    assert len(report.kernels) == kernels
    # Not by the time of a whole call, which XLA's was measured by.
    assert all(k.xla_us == pytest.approx(ratio * k.ours_us) for k in report.kernels)
    words = " ".join(report.explain().split())
    assert f"recorded when it was tuned: XLA takes {ratio:.2f} times as long" in words
    assert len(mlc_jit(product, choose="ours").report(X).kernels) == 1


def test_recorded_choices_are_made_kernel_by_kernel() -> None:
    def function(x: jax.Array) -> tuple[jax.Array, ...]:
        y = by_xla(jnp.sin(x))
        return y, jnp.cumsum(y, 1)

    module = jax.jit(function).lower(X).compiler_ir()
    _, plan = clusters_of(module, Options.from_environment(choose="ours"))
    (first, _), (second, _) = plan.taken
    for chosen in ((OURS, XLA), (XLA, OURS), (XLA, XLA), (OURS, OURS)):
        records = open_records(Options.from_environment())
        for cluster, choice in zip((first, second), chosen, strict=True):
            known = records.get(cluster.kernel.fingerprint, records_target())
            ratio = 10.0 if choice == OURS else 0.5
            records.put(record_of(cluster.kernel, {}, choice, ratio), replaces=known)
        forget()
        report = mlc_jit(function, choose="auto").report(X)
        taken = {kernel.id for kernel in report.kernels}
        assert taken == {
            c.kernel.fingerprint
            for c, choice in zip((first, second), chosen, strict=True)
            if choice == OURS
        }


def test_running_programs_get_the_winner(monkeypatch: pytest.MonkeyPatch) -> None:
    f = mlc_jit(product, choose="ours")
    f(X)
    winner = Winner(SCHEDULES, Measured(2.0, 1.0, 2.0), 5, 0)
    monkeypatch.setattr(tuning_session, "tune_kernel", lambda *_, **__: winner)
    (kernel,) = f.tune(X, trials=1).kernels
    assert kernel.record.schedules == SCHEDULES
    assert f.report(X).kernels[0].nests[0].parameters["rows"] == 4
    assert (
        "tuned: 2.00 times as fast as the default schedule (2.0 us, this one 1.0 us)"
        in f.report(X).explain()
    )
    np.testing.assert_allclose(f(X), product(X), rtol=1e-5)


def test_functions_that_are_jitted_again_get_the_winner() -> None:
    def another(x: jax.Array) -> jax.Array:
        return product(x)

    for function in (product, another):
        assert "tuned:" not in mlc_jit(function, choose="ours").report(X).explain()
    mlc_jit(product, choose="ours").tune(X, trials=1)
    for function in (product, another):
        assert "tuned:" in mlc_jit(function, choose="ours").report(X).explain()


def test_reports_say_tuned_only_of_what_is_built_as_recorded() -> None:
    kernel = only_kernel(product)
    assert "tuned" not in mlc_jit(product, choose="ours").report(X).explain()
    records = open_records(Options.from_environment())
    record = records.put(record_of(kernel, {}))
    forget()
    f = mlc_jit(product, choose="ours")
    assert "tuned: no schedule was faster than the default, 9.0 us" in f.report(X).explain()
    records.put(record_of(kernel, {0: ("contraction", {"rows": -1})}), replaces=record)
    with pytest.warns(RuntimeWarning, match="it gets the default"):
        rebuild_kernel(kernel, Options.from_environment(), cpu_backend(Options.from_environment()))
    forget()
    assert "tuned:" not in mlc_jit(product, choose="ours").report(X).explain()


def test_where_jax_runs_on_gpus_nothing_is_tuned_for_cpus(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    monkeypatch.setattr(tuning, "tune_module", lambda *_, **__: "tuned")
    f = mlc_jit(product)
    with pytest.raises(UsageError, match=r"runs on gpu here.*JAX_PLATFORMS=cpu"):
        f.tune(np.ones((4, 4), np.float32))
    on_cpu = jax.device_put(np.ones((4, 4), np.float32), jax.devices("cpu")[0])
    assert f.tune(on_cpu) == "tuned"
    with jax.default_device(jax.devices("cpu")[0]):
        assert f.tune(np.ones((4, 4), np.float32)) == "tuned"
    path = tmp_path / "product.mlir"
    path.write_text(jax.jit(product).lower(on_cpu).as_text())
    ran = CliRunner().invoke(main, ["tune", str(path)])
    assert ran.exit_code == 2 and "JAX runs on gpu here" in ran.output
    assert CliRunner().invoke(main, ["tune", str(path), "--target", "cpu"]).output == "tuned\n"


def test_methods_are_tuned_bound_to_their_object(monkeypatch: pytest.MonkeyPatch) -> None:
    class Model:
        @functools.partial(mlc_jit, static_argnums=0)
        def apply(self, x: jax.Array) -> jax.Array:
            return jnp.tanh(x)

    given = []
    monkeypatch.setattr(tuning, "tune_module", lambda *_, **named: given.append(named["given"]))
    x = np.ones((4, 4), np.float32)
    Model().apply.tune(x)
    np.testing.assert_array_equal(given[0], [x])


def test_what_is_not_tuned_says_why() -> None:
    def until(x: jax.Array) -> jax.Array:
        return jax.lax.while_loop(lambda v: v[0, 0] < 100, lambda v: v * 2 + 1, x)

    types = jax.ShapeDtypeStruct(X.shape, X.dtype)
    report = mlc_jit(until, choose="ours").tune(types, trials=1)
    (kernel,) = report.kernels
    assert kernel.record is None
    assert "not tuned: its time depends on the values of its operands" in str(report)


def test_the_arrays_of_the_call_are_used(monkeypatch: pytest.MonkeyPatch) -> None:
    tasks = []

    def tune_kernel(task, *_, **__):
        tasks.append(task)
        return Winner({}, Measured(1.0, 1.0, 1.0), 1, 0)

    monkeypatch.setattr(tuning_session, "tune_kernel", tune_kernel)
    table = np.arange(96, dtype=np.float32)

    def function(x: jax.Array, scale: float, unused: jax.Array) -> jax.Array:
        return jnp.cumsum(by_xla(x * scale), 1) + table

    report = mlc_jit(function, choose="ours").tune(X, 2.0, X, trials=1)
    assert len(tasks) == 2 and all(kernel.given for kernel in report.kernels)
    inputs = {array.tobytes() for task in tasks for array in task.operands}
    assert {X.tobytes(), np.asarray(by_xla(X * 2)).tobytes()} <= inputs
    assert "made-up" not in str(report)
    tasks.clear()
    types = jax.ShapeDtypeStruct(X.shape, X.dtype)
    report = mlc_jit(function, choose="ours").tune(types, 2.0, X, trials=1)
    assert len(tasks) == 2 and not any(kernel.given for kernel in report.kernels)
    assert "2 kernels measured on made-up operands" in str(report)


def test_arrays_that_may_be_another_argument_are_not_used() -> None:
    (kernel,) = mlc_jit(lambda x, y: jnp.sin(y), choose="ours").tune(X, 2 * X, trials=1).kernels
    assert kernel.record is not None and not kernel.given


def test_results_that_are_scalars_are_tuned() -> None:
    (kernel,) = mlc_jit(lambda x: (x * x).sum(), choose="ours").tune(X, trials=1).kernels
    assert kernel.record is not None, kernel.reason


def test_time_is_left_for_every_kernel() -> None:
    report = mlc_jit(lambda x: jnp.cumsum(by_xla(jnp.sin(x)), 1), choose="ours").tune(
        X, minutes=0.15
    )
    assert [kernel.reason for kernel in report.kernels] == ["", ""]


def test_what_depends_on_data_is_tuned_on_data() -> None:
    def until(x: jax.Array) -> jax.Array:
        return jax.lax.while_loop(lambda v: v[0, 0] < 100, lambda v: v * 2 + 3, x)

    (kernel,) = mlc_jit(until, choose="ours").tune(X, trials=1).kernels
    assert kernel.record is not None and kernel.given


def test_donated_arguments() -> None:
    f = mlc_jit(lambda x, y: jnp.sin(x) * y, choose="ours", donate_argnums=0)
    (kernel,) = f.tune(X, X, trials=1).kernels
    report = f.report(jnp.asarray(X), X)
    assert [k.id for k in report.kernels] == [kernel.record.kernel]


def test_nothing_to_tune() -> None:
    assert "nothing to tune" in str(mlc_jit(by_xla).tune(X, trials=1))
    with pytest.raises(UsageError, match=r'choose="xla".* tune the function without it'):
        mlc_jit(product, choose="xla").tune(X, trials=1)


@pytest.mark.parametrize(
    "budget",
    [
        {"trials": 0},
        {"trials": "3"},
        {"trials": 2.5},
        {"trials": True},
        {"minutes": 0},
        {"minutes": -1.0},
        {"minutes": float("inf")},
        {"minutes": "1"},
    ],
)
def test_budgets_that_are_none(budget: dict[str, object]) -> None:
    with pytest.raises(UsageError, match=f"at least one trial.*{next(iter(budget))}="):
        mlc_jit(product).tune(X, **budget)


def test_a_cluster_alone_computes_what_it_does_in_its_place() -> None:
    def function(x: jax.Array) -> tuple[jax.Array, ...]:
        y = by_xla(jnp.exp(x))
        return jnp.argmax(y, 1), y.at[3:5].set(y[:2]) @ x.T, jnp.cumsum(y, 1)

    module = jax.jit(function).lower(X).compiler_ir()
    options = Options.from_environment(choose="ours")
    graph, plan = clusters_of(module, options)
    assert len(plan.taken) > 1
    ours = mlc_jit(function, choose="ours")  # which keeps its kernels
    ours(X)
    backend = cpu_backend(options)
    for cluster, _ in plan.taken:
        operands = [np.ones(b.shape, b.dtype.numpy) for b in cluster.kernel.program.operands]
        built = built_kernel(cluster.kernel.fingerprint, backend, checked=False)
        expected, actual = (
            compile_stablehlo(str(program), choose="xla")(*operands)
            for program in (
                original_program(graph, module, cluster),
                kernel_program(module, cluster, backend, built),
            )
        )
        for a, b in zip(actual, expected, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-5)
