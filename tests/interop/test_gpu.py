"""Programs lowered for NVIDIA GPUs on a machine that need not have one."""

from __future__ import annotations

import json
import re
from typing import Any, NoReturn

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from emulation.compiler import why_not
from hlo_mlc import kernel_objects, mlc_jit
from hlo_mlc.codegen.cuda import compile
from hlo_mlc.frontend.emit import KERNEL_TARGET
from hlo_mlc.interop import compat, devices, measuring
from hlo_mlc.loops.core import LoopProgram
from hlo_mlc.runtime.measure import PairedTimes, Timing
from hlo_mlc.support.errors import CodegenError, VerifyError
from hlo_mlc.target.cuda import names

pytestmark = pytest.mark.skipif(bool(why_not()), reason=why_not() or "it can")

X = jax.ShapeDtypeStruct((64, 300), jnp.float32)


def lowered(function: Any, *args: Any) -> str:
    return function.trace(*args).lower(lowering_platforms=("cuda",)).as_text()


def calls(text: str) -> list[str]:
    """The lines that call our kernels."""
    return [line for line in text.splitlines() if f"@{KERNEL_TARGET}(" in line]


def test_kernels_are_custom_calls() -> None:
    softmax = mlc_jit(jax.nn.softmax, choose="ours")
    (call,) = calls(lowered(softmax, X))
    assert "api_version = 4" in call
    assert re.search(r'id = "[0-9a-f]{24}"', call)
    report = softmax.report()
    assert report.coverage == 1
    assert "rows(team=32" in report.explain()
    assert re.search(
        r"_0: \d+ registers, \d+ bytes of shared memory, 0 bytes spilled", report.explain()
    )


def cumulative(x: jax.Array) -> jax.Array:
    return lax.cummax(x, 1)


def test_without_being_asked_it_takes_what_should_be_much_faster() -> None:
    """By a model: partition/choose/gpu_cost.py, whose tests have more of each kind."""
    scan = mlc_jit(cumulative)
    wide = jax.ShapeDtypeStruct((4096, 1024), jnp.float32)
    assert len(calls(lowered(scan, wide))) == 1
    assert (
        "a scan: ours is expected to be much faster, by a model" in scan.report().kernels[0].reason
    )
    assert re.search(r"predicted [\d.]+ us, XLA [\d.]+ us", scan.report().explain())


def test_without_being_asked_it_leaves_what_xla_should_be_as_good_at() -> None:
    softmax = mlc_jit(jax.nn.softmax)
    assert not calls(lowered(softmax, X))
    assert "XLA is expected to be about as fast" in softmax.report().explain()


def test_nothing_is_measured_where_there_is_no_gpu() -> None:
    scan = mlc_jit(cumulative, choose="measure")
    assert calls(lowered(scan, jax.ShapeDtypeStruct((4096, 1024), jnp.float32)))
    assert "predicted, not measured: there is no GPU here" in scan.report().explain()


class Gpu:
    device_kind = "NVIDIA H200"
    compute_capability = "9.0"


@pytest.mark.parametrize(("ours", "choice"), [(True, "ours"), (False, "xla")])
def test_what_is_measured_on_a_gpu_is_kept(monkeypatch, tmp_path, ours: bool, choice: str) -> None:
    """The CPU stands in for the GPU: our kernels have the same names on both."""
    monkeypatch.setenv("HLO_MLC_CACHE", str(tmp_path))
    monkeypatch.setattr(devices, "first_gpu", Gpu)
    compile_for, place_on = compat.compile_for, compat.place_on
    monkeypatch.setattr(compat, "compile_for", lambda module, platform: compile_for(module))
    monkeypatch.setattr(compat, "place_on", lambda array, platform: place_on(array))
    xla_us = 20.0 if ours else 5.0
    monkeypatch.setattr(
        measuring,
        "_time",
        lambda original, run, seconds: PairedTimes(
            Timing(xla_us, 0.0, xla_us), Timing(10.0, 0.0, 10.0), xla_us / 10.0, 0.0
        ),
    )

    def function(x: jax.Array) -> jax.Array:
        return jax.nn.softmax(x) * 3

    x = np.random.default_rng(0).standard_normal((64, 300)).astype(np.float32)
    on_the_cpu = mlc_jit(function, choose="ours")  # whose kernels are there as long as it is
    on_the_cpu(x)
    measured = mlc_jit(function, choose="measure")
    for _ in range(2):  # the second time from the note on disk
        assert bool(calls(lowered(measured, x))) is ours
        (comparison,) = measured.report().comparisons
        assert (comparison.candidate, comparison.xla_us) == ("ours", xla_us)
        monkeypatch.setattr(measuring, "_time", None)
        measured = mlc_jit(function, choose="measure")
    (note,) = (tmp_path / "choices").iterdir()
    assert json.loads(note.read_text())["choose"] == choice


def test_scratch_is_a_result_more() -> None:
    total = mlc_jit(lambda x: x.sum(), choose="ours")
    (call,) = calls(lowered(total, jax.ShapeDtypeStruct((1000, 1000), jnp.float32)))
    (kernel,) = total.kernels(jax.ShapeDtypeStruct((1000, 1000), jnp.float32))
    size = kernel.source.scratch_bytes
    assert size > 0
    assert f"-> (tensor<f32>, tensor<{size}xui8>)" in call


def test_large_matrix_products_stay_with_cublas() -> None:
    product = mlc_jit(lambda x, y: x @ y, choose="ours")
    large, small = (jax.ShapeDtypeStruct((n, n), jnp.float32) for n in (512, 64))
    assert not calls(lowered(product, large, large))
    assert "cuBLAS" in product.report().explain()
    assert calls(lowered(product, small, small))
    fused = mlc_jit(lambda x, y: jnp.tanh(x @ y + 1), choose="ours")
    assert calls(lowered(fused, large, large))
    assert "contraction(rows=" in fused.report().explain()


def complex_numbers(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.complex64)


def test_large_complex_products_stay_whole_with_cublas() -> None:
    """What is around them is in kernels; small ones are, too."""
    function = mlc_jit(lambda x, y: jnp.tanh(x @ y * 2), choose="ours")
    text = lowered(function, complex_numbers(128, 128), complex_numbers(128, 128))
    assert len(re.findall(r"dot_general .*tensor<128x128xcomplex<f32>>", text)) == 1
    assert len(calls(text)) == 1
    assert (
        "complex matrix products of this size stay with XLA's library"
        in function.report().explain()
    )
    assert "dot_general" not in lowered(function, complex_numbers(64, 64), complex_numbers(64, 64))
    assert function.report().coverage == 1


@pytest.mark.parametrize("length", [16, 1024])
def test_fourier_transforms_stay_with_cufft(length: int) -> None:
    """However short; what is around them is in kernels."""

    def transformed(x: jax.Array) -> jax.Array:
        return abs(jnp.fft.ifft(jnp.fft.fft(x * 2j) * x.conj()))

    text = lowered(mlc_jit(transformed, choose="ours"), complex_numbers(8, length))
    left = text[text.index("func.func private @mlc_transformed") :]
    assert len(re.findall("stablehlo.fft ", left)) == 2
    assert len(calls(left)) == 3
    assert set(re.findall(r"stablehlo\.(\w+) ", left)) == {"fft", "custom_call"}


def test_complex_numbers_are_sorted_whole() -> None:
    function = mlc_jit(lambda x: jnp.sort(x * 2j) + 1, choose="ours")
    text = lowered(function, complex_numbers(100))
    assert re.search(r'"stablehlo.sort"\(%\w+\)', text)
    assert len(calls(text)) == 2


def evolved(x: jax.Array) -> jax.Array:
    return lax.fori_loop(0, 100, lambda i, x: x - 0.1j * (jnp.roll(x, 1) - x), x)


@pytest.mark.parametrize(
    "function",
    [
        evolved,
        lambda x: jnp.cumprod(x),
        lambda x: lax.scan(lambda s, y: (s * 0.9j + y, s.real), x[0], x)[1],
    ],
    ids=["loop", "product", "scan"],
)
def test_without_being_asked_it_takes_complex_loops_and_scans(function: Any) -> None:
    compiled = mlc_jit(function)
    assert calls(lowered(compiled, complex_numbers(3000)))
    assert all(1.5 * k.ours_us < k.xla_us for k in compiled.report().kernels)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: jnp.exp(x) * 2j,
        lambda x: x.sum(1),
        lambda x: x.T * 2j,
        lambda x: x @ x,
        lambda x: lax.fori_loop(0, 3, lambda i, x: x @ x / 9, x),
        lambda x: jnp.cumsum(x, 1),
        lambda x: lax.fori_loop(0, 9, lambda i, x: jnp.fft.fft(x * 0.1j), x),
    ],
    ids=["map", "sums", "transpose", "product", "products", "running sums", "transforms"],
)
def test_without_being_asked_it_leaves_other_complex_numbers_whole(function: Any) -> None:
    compiled = mlc_jit(function)
    text = lowered(compiled, complex_numbers(512, 512))
    assert not calls(text)
    assert "stablehlo.real" not in text
    assert (
        "complex arithmetic of this kind stays with XLA" in compiled.report().explain()
        or "complex matrix products" in compiled.report().explain()
    )


def test_sums_whose_order_is_open_are_pointed_out() -> None:
    def total(values: jax.Array, places: jax.Array) -> jax.Array:
        return jax.ops.segment_sum(values, places, num_segments=10)

    places = jax.ShapeDtypeStruct((500,), jnp.int32)
    for dtype, noted in ((jnp.float32, True), (jnp.int32, False)):
        compiled = mlc_jit(total, choose="ours")
        lowered(compiled, jax.ShapeDtypeStruct((500,), dtype), places)
        text = compiled.report().explain()
        assert "scatter(threads=" in text
        assert ("order in which threads arrive" in text) is noted


def test_the_gradient_is_compiled_too() -> None:
    def loss(x: jax.Array) -> jax.Array:
        return jnp.sum(jnp.tanh(x) ** 2)

    gradient = jax.jit(jax.grad(mlc_jit(loss, choose="ours")))
    text = gradient.trace(X).lower(lowering_platforms=("cuda",)).as_text()
    assert calls(text)


def test_what_is_lowered_for_several_platforms_stays_with_xla() -> None:
    softmax = mlc_jit(jax.nn.softmax, choose="ours")
    both = softmax.trace(X).lower(lowering_platforms=("cpu", "cuda")).as_text()
    assert not calls(both)
    assert "one of cpu, cuda alone" in softmax.report().explain()


def test_without_a_compiler_it_says_what_to_install(monkeypatch) -> None:
    monkeypatch.setattr(
        compile,
        "_nvrtc",
        lambda: "NVRTC cannot be used (no module named cupy); pip install 'hlo-mlc[cuda]'",
    )
    asked = mlc_jit(lambda x: x * 3, choose="ours")
    with pytest.raises(CodegenError, match=r"pip install 'hlo-mlc\[cuda\]'"):
        lowered(asked, X)
    assert not calls(lowered(mlc_jit(lambda x: x * 3), X))  # nothing of it is worth a kernel
    worth_it = mlc_jit(cumulative)
    with pytest.warns(RuntimeWarning, match=r"leaves cumulative to XLA.*'hlo-mlc\[cuda\]'"):
        assert not calls(lowered(worth_it, jax.ShapeDtypeStruct((4096, 1024), jnp.float32)))
    assert "pip install" in worth_it.report().explain()


def test_kernels_can_be_had_one_by_one() -> None:
    (kernel,) = mlc_jit(jax.nn.softmax).kernels(X)
    assert kernel.target.name == names()[-1]
    assert kernel.raw_kernel().code == kernel.source.text
    assert kernel.source.functions == tuple(kernel.compiled.usage)


def test_the_same_function_still_runs_here() -> None:
    """The kernel for CPUs has the same id."""
    softmax = mlc_jit(jax.nn.softmax, choose="ours")
    x = np.random.default_rng(0).standard_normal((64, 300)).astype(np.float32)
    (gpu_call,) = calls(lowered(softmax, x))
    (cpu_call,) = calls(softmax.lower(x).as_text())
    assert re.search(r'id = "(\w+)"', gpu_call)[1] == re.search(r'id = "(\w+)"', cpu_call)[1]
    np.testing.assert_allclose(softmax(x), jax.nn.softmax(x), 1e-5, 1e-6)


def test_every_stage_can_be_seen(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("HLO_MLC_DUMP", str(tmp_path))
    lowered(mlc_jit(lambda x: x * 3 + 1, choose="ours"), X)
    (folder,) = tmp_path.iterdir()
    files = sorted(path.name for path in folder.iterdir())
    assert [name for name in files if name.endswith(".cu")]
    (resources,) = folder.glob("90-*.resources.txt")
    assert "registers" in resources.read_text()
    assert KERNEL_TARGET in (folder / "99-stablehlo.mlir").read_text()


@pytest.mark.parametrize("shape", [(40, 5), (1, 7), (5, 1), (1, 1), (3, 17), (9,), (1,), (2, 3, 4)])
def test_scans_of_few_elements_are_proved(shape: tuple[int, ...]) -> None:
    for axis in range(len(shape)):
        scan = mlc_jit(lambda x, axis=axis: lax.cummax(x * 2, axis), choose="ours")
        assert len(calls(lowered(scan, jax.ShapeDtypeStruct(shape, jnp.float32)))) == 1
        assert scan.report().coverage == 1


def test_what_is_not_proved_stays_with_xla(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(loops: LoopProgram) -> NoReturn:
        raise VerifyError("could not prove what was planted")

    monkeypatch.setattr(kernel_objects.prove, "prove", refuse)
    function = mlc_jit(lambda x: jnp.exp(x) * 2, choose="ours")
    assert not calls(lowered(function, jax.ShapeDtypeStruct((23, 5), jnp.float16)))
    assert "could not prove what was planted" in function.report().explain()


def test_rows_that_are_written_at_a_place_known_at_run_time_are_proved() -> None:
    """Their ends are not of vectors."""

    def update(x: jax.Array, rows: jax.Array, i: jax.Array) -> jax.Array:
        return lax.dynamic_update_slice_in_dim(x, rows[:11], i, 0)

    function = mlc_jit(update, choose="ours")
    shapes = [jax.ShapeDtypeStruct((23, 5), jnp.float16)] * 2
    assert len(calls(lowered(function, *shapes, jax.ShapeDtypeStruct((), jnp.int32)))) == 1
    assert function.report().coverage == 1
