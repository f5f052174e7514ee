"""Tuning a function: winners are recorded, compiled from then on, and found again elsewhere."""

from __future__ import annotations

import functools
import inspect
import math
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from click.testing import CliRunner

from hlo_mlc import compile_stablehlo, mlc_jit
from hlo_mlc.backends.cpu import cpu_backend, target_of
from hlo_mlc.backends.recorded import unknown_names
from hlo_mlc.building import built_kernel, rebuild_kernel
from hlo_mlc.cli import main
from hlo_mlc.compiler import clusters_of
from hlo_mlc.interop import tuning, tuning_session
from hlo_mlc.interop.cluster_programs import kernel_program, original_program
from hlo_mlc.interop.staged import forget
from hlo_mlc.interop.tuning_report import TunedKernel
from hlo_mlc.kernel_objects import kernel_object, scheduled
from hlo_mlc.runtime.records import OURS, XLA, Measured, Record, open_records
from hlo_mlc.support.errors import UsageError
from hlo_mlc.support.options import Options
from hlo_mlc.tuning import study
from hlo_mlc.tuning.history import attempts
from hlo_mlc.tuning.storage import journal_path
from hlo_mlc.tuning.tuner import Winner
from making.left import by_xla

X = np.linspace(-1, 1, 64 * 96, dtype=np.float32).reshape(64, 96)
SCHEDULES = {0: ("contraction", {"rows": 4, "vectors": 1})}


def product(x: jax.Array) -> jax.Array:
    return x @ x.T + 1


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HLO_MLC_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    return tmp_path / "cache"


def only_kernel(function):
    module = jax.jit(function).lower(X).compiler_ir()
    _, plan = clusters_of(module, Options.from_environment(choose="ours"))
    ((cluster, _),) = plan.taken
    return cluster.kernel


def records_target() -> str:
    return target_of(Options.from_environment()).key


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
    monkeypatch.setattr(tuning_session, "BUSY", math.inf)
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


def test_on_the_command_line(tmp_path: Path) -> None:
    (tmp_path / "my_model.py").write_text(
        textwrap.dedent("""
        import jax, jax.numpy as jnp
        def product(x):
            return x @ x.T + 1
        product.example_args = (jax.ShapeDtypeStruct((64, 96), jnp.float32),)
    """)
    )
    runner = CliRunner()
    result = runner.invoke(main, ["tune", "my_model:product", "--trials", "2"])
    assert result.exit_code == 0, result.output
    assert "2 configurations known" in result.output
    listed = runner.invoke(main, ["records", "list"]).output.splitlines()
    assert len(listed) == 3 and listed[2].startswith("1 record in ")
    again = runner.invoke(
        main, ["tune", "my_model:product", "--trials", "2", "--arg", "f32[64,96]"]
    )
    assert "2 configurations known" in again.output
    assert runner.invoke(main, ["records", "export", "all.json"]).exit_code == 0
    imported = runner.invoke(
        main, ["records", "import", "all.json"], env={"HLO_MLC_CACHE": str(tmp_path / "elsewhere")}
    )
    assert imported.output.splitlines() == [
        "1 of 1 record kept",
        f"1 record for this machine ({records_target()}) by now",
    ]
    wrong = runner.invoke(main, ["records", "import", "my_model.py"])
    assert wrong.exit_code == 1
    assert wrong.output.startswith("error: my_model.py: These are no exported records")
    missing = runner.invoke(main, ["records", "import", "gone.json"])
    assert missing.exit_code == 2 and "Cannot read gone.json" in missing.output


def test_a_stablehlo_file(tmp_path: Path) -> None:
    (tmp_path / "model.mlir").write_text(jax.jit(product).lower(X).as_text())
    result = CliRunner().invoke(main, ["tune", "model.mlir", "--trials", "2"])
    assert result.exit_code == 0, result.output
    assert "2 configurations known" in result.output and "made-up operands" in result.output


def look_up(table: jax.Array, rows: jax.Array, on: jax.Array) -> jax.Array:
    return jnp.where(on[:, None], jnp.take(table, rows, axis=0), 0).sum(0)


TABLE = np.linspace(-1, 1, 1000 * 16, dtype=np.float32).reshape(1000, 16)
ROWS, ON = np.arange(300, dtype=np.int32)[::-1] * 3, np.arange(300) % 2 == 0


@pytest.fixture
def measured_on(monkeypatch: pytest.MonkeyPatch) -> list[np.ndarray]:
    """The operands that kernels were to be measured on."""
    found: list[np.ndarray] = []

    def tune_kernel(task, *_, **__):
        found.extend(task.operands)
        return Winner({}, Measured(1.0, 1.0, 1.0), 1, 0)

    monkeypatch.setattr(tuning_session, "tune_kernel", tune_kernel)
    return found


@pytest.mark.parametrize("kind", ["npy", "npz"])
@pytest.mark.parametrize("program", ["model.mlir", "looking_up:look_up"])
def test_arrays_from_files(tmp_path: Path, measured_on: list, kind: str, program: str) -> None:
    arrays = (TABLE, ROWS, ON)
    (tmp_path / "model.mlir").write_text(jax.jit(look_up).lower(*arrays).as_text())
    (tmp_path / "looking_up.py").write_text(
        f"import jax, jax.numpy as jnp\n{inspect.getsource(look_up)}"
    )
    if kind == "npz":
        np.savez("all.npz", *arrays)
        files = ["all.npz"]
    else:
        files = ["0.npy", "1.npy", "2.npy"]
        for file, array in zip(files, arrays, strict=True):
            np.save(file, array)
    result = CliRunner().invoke(
        main, ["tune", program, "--trials", "1", *(f"--arg-file={file}" for file in files)]
    )
    assert result.exit_code == 0, result.output
    assert "made-up operands" not in result.output
    assert {TABLE.tobytes(), ROWS.tobytes()} <= {array.tobytes() for array in measured_on}


def test_made_up_indices_are_within_bounds_and_reach_all(tmp_path: Path, measured_on: list) -> None:
    (tmp_path / "model.mlir").write_text(jax.jit(look_up).lower(TABLE, ROWS, ON).as_text())
    result = CliRunner().invoke(main, ["tune", "model.mlir", "--trials", "1"])
    assert result.exit_code == 0 and "made-up operands" in result.output, result.output
    (rows,) = (array for array in measured_on if array.dtype == np.int32)
    assert rows.min() >= 0 and 900 < rows.max() < 1000
    (on,) = (array for array in measured_on if array.dtype == np.bool_)
    assert on.any() and not on.all()


def test_dynamic_shapes_are_tuned_for_those_that_are_given(tmp_path: Path) -> None:
    text = "tensor<?xf32>"
    (tmp_path / "open.mlir").write_text(
        f"func.func @main(%x: {text}) -> {text} {{\n%0 = stablehlo.sine %x : {text}\n"
        f"return %0 : {text}\n}}"
    )
    result = CliRunner().invoke(main, ["tune", "open.mlir", "--arg", "f32[4096]", "--trials", "1"])
    assert result.exit_code == 0 and "1 configuration known" in result.output, result.output
    f = compile_stablehlo(Path("open.mlir"), choose="ours")
    (kernel,) = f.tune(X[0], trials=1).kernels
    assert kernel.given
    np.testing.assert_allclose(f(X[0])[0], np.sin(X[0]), rtol=1e-5)
    assert "tuned: " in f.report().explain()


def test_kernels_for_any_number_of_rows() -> None:
    """As many as a block has are tuned, others are refused."""

    def exponential(x):
        return jax.nn.softmax(jnp.exp(x))

    ours = mlc_jit(exponential, any_rows=True, choose="ours")
    report = ours.tune(X, trials=2)
    assert [k.id for k in report.kernels] == [k.id for k in ours.report(X).kernels]
    with pytest.raises(UsageError, match="in blocks of 16, 4, 1: tune it for"):
        ours.tune(X[:21], trials=2)
    assert "any_rows=True" in str(
        mlc_jit(exponential, any_rows=True, tune="background").report(X[:21]).background
    )
    scaled = mlc_jit(lambda x: jnp.tanh(x * 3) / 7, any_rows=True, choose="ours")
    (tuned,) = scaled.tune(X, trials=2).kernels
    assert tuned.id == scaled.report(X).kernels[0].id and tuned.record is not None
    for folding in (lambda x: x.sum(0), lambda x: x - x.mean(0)):
        (left,) = mlc_jit(folding, any_rows=True, choose="ours").tune(X, trials=2).kernels
        assert "in pieces" in left.reason and left.record is None


def test_killed_and_started_again(tmp_path: Path) -> None:
    """kill -9 leaves no process behind, and what was measured."""
    (tmp_path / "model.mlir").write_text(jax.jit(product).lower(X).as_text())
    command = [
        sys.executable,
        "-P",
        "-c",
        "from hlo_mlc.cli import main; main()",
        "tune",
        "model.mlir",
        "--minutes",
        "5",
    ]
    journal = journal_path(Options.from_environment())
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
        while not journal.exists() or journal.read_text().count("speedup") < 3:
            assert process.poll() is None
            time.sleep(0.05)
        workers = children(process.pid)
        assert workers
        process.kill()
    for _ in range(200):
        if not any(map(is_alive, workers)):
            break
        time.sleep(0.05)
    assert not any(map(is_alive, workers))
    known = journal.read_text().count("speedup")
    result = CliRunner().invoke(main, ["tune", "model.mlir", "--trials", str(known)])
    assert f"{known} configuration" in result.output


def children(process: int) -> list[int]:
    running = [int(path.name) for path in Path("/proc").iterdir() if path.name.isdecimal()]
    return [p for p in running if (status(p) or ["", ""])[1] == str(process)]


def is_alive(process: int) -> bool:
    return (status(process) or "Z")[0] != "Z"


def status(process: int) -> list[str] | None:
    """The state of a process and its parent's number; None if there is no such process."""
    try:
        text = Path(f"/proc/{process}/stat").read_text()
    except OSError:
        return None
    return text.rpartition(")")[2].split()[:2]


def test_a_second_interrupt_and_kernels_that_had_no_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    def tune_kernel(task, study, *_, **__):
        if started:
            raise KeyboardInterrupt
        started.append(study)
        return Winner(SCHEDULES, Measured(2.0, 1.0, 2.0), 5, 0, interrupted=again)

    monkeypatch.setattr(tuning_session, "tune_kernel", tune_kernel)
    for again, known in ((False, 1), (True, 1)):
        started: list = []
        f = mlc_jit(lambda x: (x @ x.T + 1, jnp.cumsum(x, 1)), choose="ours")
        with pytest.raises(tuning.TuningInterrupted, match="tuning again goes on") as stopped:
            f.tune(X, trials=9)
        report = stopped.value.report
        assert len(report.kernels) == 2
        assert [k.record is not None for k in report.kernels] == [True] * known + [False]
        assert report.kernels[0].interrupted == again
        assert "not tuned: interrupted before its winner was known" in str(report)
        assert report.whole is None


def test_an_interrupt_keeps_what_is_known(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "model.mlir").write_text(jax.jit(product).lower(X).as_text())

    def interrupted(self, study, outcome) -> None:
        if len(study.tried) == 2:
            raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(tuning.TuningProgress, "on_trial", interrupted)
        stopped = CliRunner().invoke(main, ["tune", "model.mlir", "--trials", "3"])
    assert stopped.exit_code == 130 and "the same command goes on" in stopped.output
    assert "2 configurations known" in stopped.output
    assert "interrupted: this is the winner so far" in stopped.output
    (record,) = open_records(Options.from_environment()).all()
    assert record.measured.xla_us > 0
    trials = []
    monkeypatch.setattr(
        tuning.TuningProgress, "on_trial", lambda self, study, outcome: trials.append(outcome)
    )
    assert CliRunner().invoke(main, ["tune", "model.mlir", "--trials", "3"]).exit_code == 0
    assert len(trials) == 1


def test_a_kernel_that_there_was_no_time_for() -> None:
    """Of which it is not said that nothing is faster."""
    record = Record("abc", "cpu", {}, Measured(2.0, 2.0, 1.0))
    text = str(TunedKernel("sum@m.py:1", ("stablehlo.reduce",), 1, record))
    assert text == "sum@m.py:1: reduce\n  nothing was tried: there was no time left"
