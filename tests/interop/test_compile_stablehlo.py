"""`compile_stablehlo`: every form of a module gives the function that JAX runs."""

from __future__ import annotations

import io
import re
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export, lax
from jax.interpreters import mlir
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo

from hlo_mlc import UnsupportedOpError, compile_stablehlo, mlc_jit
from hlo_mlc.building import keeping
from hlo_mlc.support.errors import UsageError

A = np.arange(6, dtype=np.float32).reshape(2, 3)
B = np.arange(12, dtype=np.float32).reshape(3, 4)


def f(a: jax.Array, b: jax.Array) -> tuple[jax.Array, jax.Array]:
    return jnp.tanh(a @ b), jnp.argmax(a, axis=1)


TEXT = jax.jit(f).lower(A, B).as_text()

TWO_FUNCTIONS = """
func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {
  %0 = stablehlo.add %x, %x : tensor<4xf32>
  return %0 : tensor<4xf32>
}
func.func @twice(%x: tensor<4xf32>) -> tensor<4xf32> {
  %0 = func.call @main(%x) : (tensor<4xf32>) -> tensor<4xf32>
  %1 = func.call @main(%0) : (tensor<4xf32>) -> tensor<4xf32>
  return %1 : tensor<4xf32>
}
"""

DYNAMIC = """
func.func @main(%x: tensor<?x2xf32>) -> tensor<?x2xf32> {
  %0 = func.call @double(%x) : (tensor<?x2xf32>) -> tensor<?x2xf32>
  return %0 : tensor<?x2xf32>
}
func.func private @double(%x: tensor<?x2xf32>) -> tensor<?x2xf32> {
  %0 = stablehlo.add %x, %x : tensor<?x2xf32>
  return %0 : tensor<?x2xf32>
}
"""


def bytecode() -> bytes:
    with mlir.make_ir_context():
        buffer = io.BytesIO()
        ir.Module.parse(TEXT).operation.write_bytecode(buffer)
        return buffer.getvalue()


def artifact() -> bytes:
    return stablehlo.serialize_portable_artifact_str(TEXT, stablehlo.get_minimum_version())


def check(function: Any, *arguments: Any) -> None:
    for got, expected in zip(function(*arguments), f(A, B), strict=True):
        assert isinstance(got, jax.Array)
        np.testing.assert_allclose(got, expected, rtol=1e-6)


@pytest.mark.parametrize("choose", ["xla", "auto", "ours"])
@pytest.mark.parametrize("form", [lambda: TEXT, TEXT.encode, bytecode, artifact])
def test_forms(form: Any, choose: str) -> None:
    check(compile_stablehlo(form(), choose=choose), A, B)


@pytest.mark.parametrize("form", [TEXT.encode, bytecode, artifact])
def test_files(form: Any, tmp_path: Path) -> None:
    path = tmp_path / "module.mlir"
    path.write_bytes(form())
    check(compile_stablehlo(path), A, B)
    check(compile_stablehlo(str(path)), A, B)


def test_numpy_and_jax_arrays() -> None:
    function = compile_stablehlo(TEXT)
    check(function, jnp.asarray(A), jnp.asarray(B))
    check(function, jax.device_put(A, jax.devices()[3]), B)


def test_an_input_may_change_after_the_call() -> None:
    function = compile_stablehlo(TEXT)
    a = A.copy()
    out = function(a, B)[0]
    a[:] = 0
    np.testing.assert_allclose(out, f(A, B)[0], rtol=1e-6)


def test_module_replaced_by_the_compiler(replacing: Any) -> None:
    function = compile_stablehlo(TWO_FUNCTIONS, entry="twice", choose="ours")
    (out,) = function(np.ones(4, np.float32))
    np.testing.assert_array_equal(out, np.full(4, 4.0))
    assert re.findall(r"@(\w+)\(%arg0: tensor", replacing.modules[0]) == ["main", "main_"]
    assert function.report().reasons == ("it was copied",)


def test_entries() -> None:
    ones = np.ones(4, np.float32)
    assert compile_stablehlo(TWO_FUNCTIONS)(ones)[0][0] == 2
    assert compile_stablehlo(TWO_FUNCTIONS, entry="twice")(ones)[0][0] == 4


def test_64_bit_types_without_x64() -> None:
    text = """
    func.func @main(%x: tensor<2xf64>, %n: tensor<2xi64>) -> (tensor<2xf64>, tensor<2xi64>) {
      %0 = stablehlo.multiply %x, %x : tensor<2xf64>
      %1 = stablehlo.add %n, %n : tensor<2xi64>
      return %0, %1 : tensor<2xf64>, tensor<2xi64>
    }"""
    x, n = np.array([1 + 1e-12, 2]), np.array([2**40, 1])
    squares, sums = compile_stablehlo(text)(x, n)
    assert (squares.dtype, sums.dtype) == (np.float64, np.int64)
    np.testing.assert_array_equal(squares, x * x)
    np.testing.assert_array_equal(sums, n + n)


@pytest.mark.parametrize(
    "spelled", ["i1", "i4", "ui8", "i64", "f16", "bf16", "f8E4M3FN", "complex<f32>"]
)
def test_element_types(spelled: str) -> None:
    tensor = f"tensor<2x3x{spelled}>"
    function = compile_stablehlo(
        f"func.func @main(%x: {tensor}) -> tensor<3x2x{spelled}> {{\n"
        f"  %0 = stablehlo.transpose %x, dims = [1, 0] : ({tensor}) -> tensor<3x2x{spelled}>\n"
        f"  return %0 : tensor<3x2x{spelled}>\n}}"
    )
    with pytest.raises(UsageError) as refusal:
        function(np.empty((2, 3), "S1"))
    name = str(refusal.value).partition("expected ")[2].partition("[")[0]
    x = np.arange(6).reshape(2, 3).astype(jnp.dtype(name))
    (out,) = function(x)
    assert out.dtype == x.dtype
    np.testing.assert_array_equal(np.asarray(out), x.T)


@pytest.mark.parametrize(
    ("shape", "dense"),
    [((2,), "(1.0, -2.0)"), ((2,), "[(1.0, -2.0), (0.0, 3.0)]"), ((), "(1.0, -2.0)"), ((0,), "")],
)
def test_complex_constants(shape: tuple[int, ...], dense: str) -> None:
    tensor = f"tensor<{''.join(f'{e}x' for e in shape)}complex<f32>>"
    (out,) = compile_stablehlo(
        f"func.func @main(%x: {tensor}) -> {tensor} {{\n"
        f"  %0 = stablehlo.constant dense<{dense}> : {tensor}\n"
        f"  %1 = stablehlo.multiply %x, %0 : {tensor}\n  return %1 : {tensor}\n}}"
    )(np.full(shape, 1j, np.complex64))
    expected = np.array([1 - 2j, 3j if "[" in dense else 1 - 2j], np.complex64) * 1j
    np.testing.assert_array_equal(out, expected[: out.size].reshape(shape))


def test_no_arguments_and_no_results() -> None:
    constant = compile_stablehlo(
        "func.func @main() -> tensor<f32> {\n"
        "  %0 = stablehlo.constant dense<3.0> : tensor<f32>\n  return %0 : tensor<f32>\n}"
    )
    assert constant()[0] == 3
    assert (
        compile_stablehlo("func.func @main(%x: tensor<2xf32>) {\n  return\n}")(
            np.ones(2, np.float32)
        )
        == ()
    )


@pytest.mark.filterwarnings("error")
def test_convolutions_in_loops_that_leave_out_what_is_usual() -> None:
    """Strides, padding and dilations have defaults."""

    def repeated(x: jax.Array, k: jax.Array) -> jax.Array:
        def step(_, x: jax.Array) -> jax.Array:
            return lax.conv_general_dilated(x, k, (1,), ((0, 0),))

        return lax.fori_loop(0, 4, step, x)

    x, k = np.arange(24, dtype=np.float32).reshape(1, 3, 8), np.eye(3, dtype=np.float32)[..., None]
    text = re.sub(r"window = \{[^}]*\}", "window = {}", jax.jit(repeated).lower(x, k).as_text())
    for choose in ("auto", "ours"):
        function = compile_stablehlo(text, choose=choose)
        np.testing.assert_array_equal(function(x, k)[0], x)


def test_constants_that_were_hoisted_out_of_the_body_that_uses_them() -> None:
    module = """func.func @main(%x: tensor<2x3xf32>) -> tensor<2xf32> {
      %z = stablehlo.constant dense<0.0> : tensor<f32>
      %half = stablehlo.constant dense<0.5> : tensor<f32>
      %0 = stablehlo.reduce(%x init: %z) across dimensions = [1]
          : (tensor<2x3xf32>, tensor<f32>) -> tensor<2xf32>
        reducer(%a: tensor<f32>, %b: tensor<f32>) {
          %1 = stablehlo.maximum %a, %b : tensor<f32>
          %2 = stablehlo.maximum %1, %half : tensor<f32>
          stablehlo.return %2 : tensor<f32>
        }
      return %0 : tensor<2xf32>
    }"""
    compiled = compile_stablehlo(module, choose="ours")
    assert compiled.report().coverage == 1, str(compiled.explain())
    (result,) = compiled(np.float32([[0, 0, -1], [0, 0, 1]]))
    np.testing.assert_array_equal(result, [0.5, 1])


def test_what_jax_exports_for_symbolic_sizes() -> None:
    """What it asserts of them is looked at before anything is compiled."""
    b, c = export.symbolic_shape("b, c", constraints=["b >= c"])
    types = (jax.ShapeDtypeStruct((b, 2 * c), jnp.float32), jax.ShapeDtypeStruct((c,), jnp.float32))

    def function(x: jax.Array, y: jax.Array) -> tuple[jax.Array, jax.Array]:
        return jnp.tanh(x) * 2, jnp.concatenate([x[:, 0], y])

    exported = export.export(jax.jit(function))(*types)
    for module in (
        exported.mlir_module(),
        exported.mlir_module_serialized,
        exported,
        exported.serialize(),
    ):
        compiled = compile_stablehlo(module, choose="ours")
        for rows, columns in ((3, 4), (6, 2)):
            args = (np.ones((rows, columns), np.float32), np.ones(columns // 2, np.float32))
            for ours, expected in zip(compiled(*args), jax.jit(function)(*args), strict=True):
                np.testing.assert_allclose(ours, expected, rtol=1e-6)
            assert compiled.report(*args).coverage == 1
        with pytest.raises(UsageError, match=r"not for these arguments: .*b >= c.*found -1"):
            compiled(np.ones((1, 4), np.float32), np.ones(2, np.float32))
        with pytest.raises(UsageError, match=r"args\[1\].shape\[0\] \(= 3\)"):
            compiled(np.ones((3, 4), np.float32), np.ones(3, np.float32))


def test_modes_of_jax_change_nothing() -> None:
    function = compile_stablehlo(TEXT, choose="ours")
    expected = function(A, B)
    for mode in (jax.disable_jit(), jax.enable_x64(True), jax.default_device(jax.devices()[0])):
        with mode:
            for given in ((A, B), (jnp.array(A), jnp.array(B)), (A, np.asfortranarray(B))):
                for one, other in zip(function(*given), expected, strict=True):
                    assert one.dtype == other.dtype
                    np.testing.assert_array_equal(one, other)


def exported_layers() -> Any:
    """Two layers and a softmax, for any number of rows."""
    (b,) = export.symbolic_shape("b")
    w, v = (
        np.random.default_rng(0).standard_normal(s).astype(np.float32) / 8
        for s in ((64, 96), (96, 10))
    )

    def layers(x: jax.Array) -> tuple[jax.Array, jax.Array]:
        y = jax.nn.gelu(x @ w) @ v
        return jax.nn.softmax(y), jnp.argmax(y, 1)

    return export.export(jax.jit(layers))(jax.ShapeDtypeStruct((b, 64), jnp.float32))


@pytest.mark.parametrize("columns", [4, 5])
def test_rows_of_integers_of_less_than_a_byte(columns: int) -> None:
    """Some of which end within a byte."""
    (b,) = export.symbolic_shape("b")
    exported = export.export(jax.jit(lambda x: (x + 1, x.astype(jnp.float32) * 2)))(
        jax.ShapeDtypeStruct((b, columns), jnp.int4)
    )
    compiled = compile_stablehlo(exported, choose="ours")
    for rows in (3, 7, 64, 131, 1000):
        x = np.random.default_rng(rows).integers(-8, 8, (rows, columns)).astype(jnp.int4)
        wide = x.astype(np.int32)
        more, twice = compiled(x)
        np.testing.assert_array_equal(np.asarray(more).astype(np.int32), (wide + 9) % 16 - 8)
        np.testing.assert_array_equal(twice, wide * 2)
        assert compiled.report(x).coverage == 1


def rows_of_numbers(count: int) -> np.ndarray:
    return np.random.default_rng(count).standard_normal((count, 64)).astype(np.float32)


def test_many_numbers_of_rows_have_a_few_kernels() -> None:
    exported = exported_layers()
    compiled = compile_stablehlo(exported, choose="ours")
    sizes = [55, 85, *range(1, 50), 1000]
    kernels = []
    for rows in sizes:
        x = rows_of_numbers(rows)
        ours, expected = compiled(x), exported.call(x)
        np.testing.assert_allclose(ours[0], expected[0], rtol=2e-5, atol=1e-6)
        np.testing.assert_array_equal(ours[1], expected[1])
        report = compiled.report(x)
        assert report.coverage == 1
        kernels.append({kernel.id for kernel in report.kernels})
    own, shared, *others = kernels
    assert not own & shared
    alone = kernels[sizes.index(1)]  # one row is no block of several
    assert set().union(*others) - alone <= shared


@pytest.mark.parametrize(
    ("function", "shapes"),
    [
        (lambda x: jnp.tanh(x) * 2, ["16, b"]),
        (lambda x: x - x.mean(1, keepdims=True), ["4, b, 24"]),
        (lambda x, w: jax.nn.gelu(x @ w), ["3, b, 24", "24, 40"]),
        (lambda x: jax.nn.softmax(x, -1), ["16, b"]),
        (lambda y, x: jax.nn.softmax(x, -1) * y, ["b", "16, b"]),
        (lambda x: jax.nn.softmax(x.T, -1), ["b, 16"]),
        (lambda x: jax.nn.softmax(x.T, -1).T, ["b, 16"]),
    ],
)
def test_rows_along_any_dimension(function: Any, shapes: Sequence[str]) -> None:
    scope = export.SymbolicScope()
    exported = export.export(jax.jit(function))(
        *(jax.ShapeDtypeStruct(export.symbolic_shape(s, scope=scope), jnp.float32) for s in shapes)
    )
    compiled, generated = compile_stablehlo(exported, choose="ours"), []
    with keeping() as kept:
        for rows in (55, 85, 40, 300, 1025, 4000):
            rng = np.random.default_rng(rows)
            given = [
                rng.standard_normal([rows if d == "b" else int(d) for d in s.split(", ")])
                for s in shapes
            ]
            given = [one.astype(np.float32) for one in given]
            expected = jax.jit(function)(*given)
            np.testing.assert_allclose(compiled(*given)[0], expected, rtol=1e-4, atol=1e-6)
            assert compiled.report(*given).coverage == 1
            generated.append({built.kernel.fingerprint for built in kept})
    assert generated[-1] == generated[0]


def test_rows_of_other_numbers_where_no_thread_can_be_started(monkeypatch) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    exported = exported_layers()
    compiled = compile_stablehlo(exported)
    for x in map(rows_of_numbers, (3, *[5] * 33)):
        np.testing.assert_allclose(compiled(x)[0], exported.call(x)[0], rtol=2e-5, atol=1e-6)


def test_rows_that_recur_get_kernels_of_their_own() -> None:
    compiled = compile_stablehlo(exported_layers(), choose="ours")
    x, others = rows_of_numbers(70), rows_of_numbers(71)
    compiled(others)
    first = compiled(x)
    assert any(" row" in kernel.name for kernel in compiled.report(x).kernels)
    give_up = time.monotonic() + 120
    while any(" row" in kernel.name for kernel in compiled.report(x).kernels):
        assert time.monotonic() < give_up
        for one, other in zip(compiled(x), first, strict=True):
            np.testing.assert_allclose(one, other, rtol=2e-5, atol=1e-6)
    np.testing.assert_allclose(compiled(x)[0], first[0], rtol=2e-5, atol=1e-6)
    assert not any(" row" in kernel.name for kernel in compiled.report(others).kernels)


def test_what_recurs_is_looked_at_where_predictions_may_be_wrong(monkeypatch) -> None:
    """On the arguments of a call, which may be others when that is done."""
    monkeypatch.setenv("HLO_MLC_SETTLE", "1")

    def function(x: jax.Array) -> jax.Array:
        return lax.while_loop(lambda v: v[0, 0] < 9, lambda v: v + jnp.tanh(x @ x) ** 2 + 1, x)

    x = np.random.default_rng(0).standard_normal((200, 200)).astype(np.float32)
    compiled = compile_stablehlo(jax.jit(function).lower(x).as_text())
    (first,) = compiled(x)
    give_up = time.monotonic() + 120
    while not compiled.report().comparisons:
        assert time.monotonic() < give_up, str(compiled.explain())
        np.testing.assert_allclose(compiled(x.copy())[0], first, rtol=1e-4)
    report = compiled.report()
    assert all(found.ours_us > 0 and found.xla_us > 0 for found in report.comparisons)
    # Which side won is the machine's; neither was dropped as wrong.
    assert all(reason.startswith("XLA's is kept") for reason in report.reasons), report.reasons
    np.testing.assert_allclose(compiled(x)[0], first, rtol=1e-4)


def test_nothing_is_looked_at_where_that_is_off(monkeypatch) -> None:
    monkeypatch.setenv("HLO_MLC_SETTLE", "0")
    compiled = compile_stablehlo(TEXT)
    before = threading.active_count()
    for _ in range(40):
        compiled(A, B)
    assert threading.active_count() <= before and not compiled.report().comparisons


def test_kernels_are_not_shared_where_every_run_has_the_same_bits(monkeypatch) -> None:
    monkeypatch.setenv("HLO_MLC_DETERMINISTIC", "1")
    exported = exported_layers()
    alone = {
        rows: compile_stablehlo(exported, choose="ours")(rows_of_numbers(rows))
        for rows in (5, 66, 130)
    }
    compiled = compile_stablehlo(exported, choose="ours")
    for rows, results in alone.items():
        for one, other in zip(compiled(rows_of_numbers(rows)), results, strict=True):
            np.testing.assert_array_equal(one, other)


def test_many_threads_call_for_rows_of_their_own() -> None:
    exported = exported_layers()
    compiled = compile_stablehlo(exported, choose="ours")

    def calls(rows: int) -> None:
        x = rows_of_numbers(rows)
        expected = exported.call(x)
        for _ in range(40):  # until they recur
            np.testing.assert_allclose(compiled(x)[0], expected[0], rtol=2e-5, atol=1e-6)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(calls, (3, 64, 65, 150, 3, 64, 65, 150, 7, 31)))


def test_exported_functions_are_called_in_others() -> None:
    """Their symbolic sizes are those of what they are called with; so in their derivatives."""
    b, c = export.symbolic_shape("b, c")
    called = export.deserialize(
        export.export(jax.jit(lambda x, w: jnp.tanh(x @ w).sum(0)))(
            jax.ShapeDtypeStruct((b, c), jnp.float32), jax.ShapeDtypeStruct((c, 8), jnp.float32)
        ).serialize(vjp_order=1)
    ).call
    x, w = np.ones((3, 4), np.float32) / 3, np.ones((4, 8), np.float32) / 2
    for function in (
        called,
        lambda x, w: (called(x, w) * 2, called(x[:2], w)),
        jax.grad(lambda x, w: called(x, w).sum()),
    ):
        ours = mlc_jit(function, choose="ours")
        expected = jax.tree.leaves(jax.jit(function)(x, w))
        for one, other in zip(jax.tree.leaves(ours(x, w)), expected, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-5)
        assert ours.report(x, w).coverage == 1


def test_dynamic_shapes() -> None:
    function = compile_stablehlo(DYNAMIC)
    with pytest.raises(UsageError, match=r"dynamic shapes.*call it before"):
        function.report()
    for size in (3, 5, 3):
        (out,) = function(np.ones((size, 2), np.float32))
        np.testing.assert_array_equal(out, np.full((size, 2), 2.0))
    assert 0 <= function.report().coverage <= 1
    with pytest.raises(UsageError, match=r"expected float32\[\?,2\], got float32\[2,3\]"):
        function(np.ones((2, 3), np.float32))


def test_shapes_that_depend_on_values_are_refused() -> None:
    function = compile_stablehlo(
        "func.func @main(%n: tensor<1xi32>, %x: tensor<?xf32>) -> tensor<?xf32> {\n"
        "  %0 = stablehlo.dynamic_iota %n, dim = 0 : (tensor<1xi32>) -> tensor<?xf32>\n"
        "  return %0 : tensor<?xf32>\n}"
    )
    with pytest.raises(UnsupportedOpError, match=r"dynamic shapes|depend on more than"):
        function(np.array([3], np.int32), np.ones(2, np.float32))


def test_results_of_open_sizes_for_arguments_of_known_ones() -> None:
    """Their sizes follow, or are refused."""
    text = """
    func.func @main(%x: tensor<8xf32>, %n: tensor<1xi32>) -> tensor<?xf32> {
      %one = stablehlo.constant dense<1> : tensor<1xi32>
      %five = stablehlo.constant dense<5> : tensor<1xi32>
      %0 = stablehlo.real_dynamic_slice %x, %one, LIMIT, %one
          : (tensor<8xf32>, tensor<1xi32>, tensor<1xi32>, tensor<1xi32>) -> tensor<?xf32>
      return %0 : tensor<?xf32>
    }"""
    known = compile_stablehlo(text.replace("LIMIT", "%five"), choose="ours")
    (result,) = known(np.arange(8, dtype=np.float32), np.int32([3]))
    np.testing.assert_array_equal(result, np.arange(1, 5))
    with pytest.raises(UnsupportedOpError, match=r"dynamic shapes|depend on more than"):
        compile_stablehlo(text.replace("LIMIT", "%n"))


def test_report() -> None:
    function = compile_stablehlo(TEXT, choose="xla")
    assert function.report().coverage == 0
    assert 'choose="xla"' in str(function.explain())
