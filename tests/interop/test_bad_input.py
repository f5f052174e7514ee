"""What `compile_stablehlo` cannot take, one test for each way; and what is no path."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import hlo_mlc
from hlo_mlc import MlcError, UnsupportedOpError, compile_stablehlo, load, mlc_jit
from hlo_mlc.interop.load import describe
from hlo_mlc.support.errors import FrontendError, UnknownTargetError, UsageError

TEXT = """
func.func @main(%x: tensor<2x3xf32>, %y: tensor<f32>) -> tensor<2x3xf32> {
  return %x : tensor<2x3xf32>
}
func.func @other() {
  return
}
"""
X, Y = np.ones((2, 3), np.float32), np.float32(1)


@pytest.mark.parametrize(
    ("module", "diagnostic"),
    [
        ("func.func @main() {\n  nonsense\n}", "custom op 'nonsense' is unknown"),
        ("{", "unexpected|expected"),
        (
            "func.func @main(%x: tensor<2xf32>) -> tensor<3xf32> {\n  return %x : tensor<2xf32>\n}",
            "doesn't match function result type",
        ),
        ("func.func @main() {\n  %0 = other.op\n}", "unknown|unregistered|expected"),
        (b"", "got an empty text"),
        (b"ML\xefR\x0dnot bytecode", "bytecode|string"),
        (b"ML\xefR\x0dStableHLO_v1.0.0\0not bytecode", "artifact"),
        (b"\xff\xfe\x00", "text of 3 bytes"),
    ],
)
def test_malformed_modules(module: str | bytes, diagnostic: str) -> None:
    with pytest.raises(FrontendError, match=diagnostic):
        compile_stablehlo(module)


def test_truncated_files(tmp_path: Path) -> None:
    path = tmp_path / "module.mlir"
    path.write_text(TEXT[:60])
    with pytest.raises(FrontendError, match="expected"):
        compile_stablehlo(path)


@pytest.mark.parametrize("path", ["missing.mlir", Path("missing.mlir"), Path("/"), ""])
def test_files_that_cannot_be_read(path: str | Path) -> None:
    with pytest.raises(UsageError, match="expected StableHLO text or the path of a file, got"):
        compile_stablehlo(path)


def test_no_module_at_all() -> None:
    with pytest.raises(UsageError, match="bytes or path, or an exported function, got int"):
        compile_stablehlo(3)


def test_what_is_close_to_a_module() -> None:
    with pytest.raises(UsageError, match="got an empty text"):
        compile_stablehlo("")
    with pytest.raises(UsageError, match=r"got Lowered; give its as_text\(\)"):
        compile_stablehlo(jax.jit(jnp.sin).lower(1.0))
    with pytest.raises(UsageError, match="a function of JAX is for mlc_jit"):
        compile_stablehlo(jnp.sin)


def test_missing_entry_lists_the_others() -> None:
    with pytest.raises(FrontendError, match=r"no function @missing; .* are: @main, @other"):
        compile_stablehlo(TEXT, entry="missing")


def test_options() -> None:
    with pytest.raises(UsageError, match="choose='best'"):
        compile_stablehlo(TEXT, choose="best")
    with pytest.raises(UnknownTargetError, match="'abacus'"):
        compile_stablehlo(TEXT, target="abacus")


def test_several_partitions() -> None:
    text = f"module attributes {{mhlo.num_partitions = 2 : i32}} {{{TEXT}}}"
    with pytest.raises(UnsupportedOpError, match=r"num_partitions.*one device"):
        compile_stablehlo(text)


@pytest.mark.parametrize(
    "argument", ["!stablehlo.token", "tuple<tensor<f32>>", "tensor<*xf32>", "index"]
)
def test_arguments_that_are_no_arrays(argument: str) -> None:
    with pytest.raises(MlcError):
        compile_stablehlo(f"func.func @main(%x: {argument}) {{\n  return\n}}")


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ((X,), r"@main takes 2 arguments \(float32\[2,3\], float32\[\]\), got 1"),
        ((X, Y, Y), "takes 2 arguments .* got 3"),
        ((X.T, Y), r"Argument 0 of @main: expected float32\[2,3\], got float32\[3,2\]"),
        ((X[0], Y), r"Argument 0 .* got float32\[3\]"),
        ((X.astype(np.float64), Y), r"Argument 0 .* got float64\[2,3\]"),
        ((X, np.int32(1)), r"Argument 1 of @main: expected float32\[\], got int32\[\]"),
        ((X, 1.0), "Argument 1 .* got float; convert it with numpy.asarray"),
        (([[1, 2, 3], [4, 5, 6]], Y), "Argument 0 .* got list"),
        ((None, Y), "Argument 0 .* got NoneType"),
    ],
)
def test_arguments(arrays: tuple[Any, ...], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        compile_stablehlo(TEXT, choose="xla")(*arrays)


USES: dict[str, Callable[[Any], object]] = {
    "load": load,
    "describe": describe,
    "export": lambda path: hlo_mlc.export(jnp.sin, X, path=path),
    "export_c": lambda path: hlo_mlc.export_c(jnp.sin, X, path=path),
    "trace": lambda path: mlc_jit(jnp.sin).trace(X, path=path),
    "html": lambda path: mlc_jit(jnp.sin, choose="xla").report(X).html(path),
}


@pytest.mark.parametrize("use", USES.values(), ids=USES)
def test_what_is_no_path(use: Callable[[Any], object]) -> None:
    with pytest.raises(UsageError, match="expected the path of a file, got int"):
        use(3)


@pytest.mark.parametrize(
    ("name", "problem"), [("zero\0byte.a", "with a zero byte in it"), ("n" * 999, "name too long")]
)
@pytest.mark.parametrize("use", [*USES.values(), compile_stablehlo], ids=[*USES, "compile"])
def test_names_that_no_file_has(
    use: Callable[[Any], object], name: str, problem: str, tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match=problem):
        use(str(tmp_path / name))


def test_one_argument_is_no_arguments() -> None:
    text = "func.func @main(%x: tensor<2x?xf32>) -> tensor<2x?xf32> { return %x : tensor<2x?xf32> }"
    with pytest.raises(UsageError, match=r"takes 1 argument \(float32\[2,\?\]\), got 2"):
        compile_stablehlo(text)(X, X)
