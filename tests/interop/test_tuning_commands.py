"""`hlo-mlc tune`: its arguments, and what they are tuned with."""

from __future__ import annotations

import inspect
import textwrap
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from click.testing import CliRunner

from hlo_mlc import compile_stablehlo, mlc_jit
from hlo_mlc.cli import main
from hlo_mlc.interop import tuning_session
from hlo_mlc.runtime.records import Measured
from hlo_mlc.support.errors import UsageError
from hlo_mlc.tuning.tuner import Winner
from making.tunable import X, product, records_target

pytestmark = pytest.mark.usefixtures("empty_cache")


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
