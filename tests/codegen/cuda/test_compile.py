"""Generated kernels through NVRTC: machine code for every architecture, without spills."""

from __future__ import annotations

import sys

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from emulation.compiler import why_not
from hlo_mlc.codegen.cuda.compile import Compiled, compile_source
from hlo_mlc.codegen.cuda.plan import CudaSource
from hlo_mlc.codegen.cuda.printer import print_program
from hlo_mlc.codegen.cuda.raw import raw_kernel
from hlo_mlc.support.errors import CodegenError
from hlo_mlc.target import cuda
from hlo_mlc.templates.cuda.program import schedule_program

pytestmark = pytest.mark.skipif(bool(why_not()), reason=why_not() or "it can")


def _layer_norm(x: jax.Array) -> jax.Array:
    centred = x - x.mean(-1, keepdims=True)
    return centred * lax.rsqrt((centred * centred).mean(-1, keepdims=True) + 1e-5)


# Of sizes that are worth a GPU, so that the default parameters are those for such.
KERNELS = {
    "map": (lambda x: jnp.tanh(x) * 2, "float32", (4096, 4096)),
    "map of narrow floats": (lambda x: jax.nn.gelu(x), "bfloat16", (4096, 4096)),
    "map of halves": (lambda x: x * x + 1, "float16", (4096, 4095)),
    "trigonometric": (lambda x: jnp.sin(x) + jnp.cos(x), "float32", (1 << 20,)),
    "integers": (lambda x: x // 3 + (x << 2) % 7, "int32", (1 << 20,)),
    "softmax": (jax.nn.softmax, "float32", (4096, 1024)),
    "softmax of long rows": (jax.nn.softmax, "float32", (64, 16_384)),
    "softmax of rows in shared memory": (jax.nn.softmax, "float32", (64, 40_000)),
    "softmax of narrow floats": (jax.nn.softmax, "bfloat16", (4096, 1024)),
    "layer norm": (_layer_norm, "float32", (4096, 4096)),
    "sum of all": (jnp.sum, "float32", (4096, 4096)),
    "sums of columns": (lambda x: x.sum(0), "float32", (4096, 4096)),
    "sums of few columns": (lambda x: x.sum(0), "float32", (100_000, 16)),
    "places of the largest": (lambda x: jnp.argmax(x, -1), "float32", (4096, 4096)),
    "cumulative sums": (lambda x: jnp.cumsum(x, 1), "float32", (4096, 4096)),
    "cumulative maxima": (lambda x: lax.cummax(x, 0), "float32", (100_000, 16)),
    "transpose": (lambda x: x.T + 1, "float32", (4096, 2048)),
    "product": (lambda x: jnp.tanh(x @ x.T), "float32", (1024, 512)),
    "product of narrow floats": (lambda x: jax.nn.gelu(x @ x.T), "bfloat16", (4096, 1024)),
    "product with prologues": (
        lambda x: jnp.maximum(x * 2, 0) @ (x.T + 1),
        "bfloat16",
        (4096, 1024),
    ),
    "product of halves": (lambda x: jax.nn.relu(x.T @ x), "float16", (1000, 2048)),
    "product of a long depth": (lambda x: x.T @ x, "bfloat16", (65_536, 64)),
    "product of integers": (lambda x: x @ x.T, "int32", (512, 512)),
    "batch of products": (lambda x: jnp.einsum("bik,bjk->bij", x, x), "bfloat16", (96, 128, 64)),
    "convolution": (
        lambda x: lax.conv_general_dilated(
            x,
            jnp.ones((3, 3, 64, 128), x.dtype),
            (1, 1),
            "SAME",
            dimension_numbers=("NHWC", "HWIO", "NHWC"),
        ),
        "bfloat16",
        (8, 56, 56, 64),
    ),
    "depthwise convolution": (
        lambda x: lax.conv_general_dilated(
            x,
            jnp.ones((3, 3, 1, 128), x.dtype),
            (1, 1),
            "SAME",
            feature_group_count=128,
            dimension_numbers=("NHWC", "HWIO", "NHWC"),
        ),
        "float32",
        (8, 56, 56, 128),
    ),
    "pool": (
        lambda x: lax.reduce_window(x, -jnp.inf, lax.max, (1, 3, 3, 1), (1, 2, 2, 1), "SAME"),
        "float32",
        (8, 112, 112, 64),
    ),
    "sums by places": (
        lambda x: jnp.zeros((1000, 64), x.dtype).at[jnp.abs(x[:, 0].astype(jnp.int32))].add(x),
        "float32",
        (10_000, 64),
    ),
    "largest by places": (
        lambda x: jnp.zeros((1000,), x.dtype).at[jnp.abs(x[:, 0].astype(jnp.int32))].max(x[:, 1]),
        "bfloat16",
        (10_000, 64),
    ),
    "loop": (
        lambda x: lax.fori_loop(0, 1000, lambda i, c: jnp.tanh(c + jnp.roll(c, 1)), x),
        "float32",
        (512,),
    ),
}


@pytest.fixture(scope="module")
def sources(take_apart):
    """`sources(name, architecture)`: the CUDA C++ of a kernel."""

    def make(name: str, architecture: str) -> list[CudaSource]:
        function, dtype, shape = KERNELS[name]
        parts = take_apart(function, jax.ShapeDtypeStruct(shape, dtype), platform="cuda")
        target = cuda.named(architecture)
        assert parts.programs
        return [print_program(schedule_program(p, target)[0], target) for p in parts.programs]

    return make


@pytest.mark.parametrize("architecture", cuda.names())
@pytest.mark.parametrize("name", KERNELS)
def test_machine_code_without_spills(sources, name: str, architecture: str) -> None:
    for source in sources(name, architecture):
        compiled = compile_source(source, cuda.named(architecture))
        assert compiled.cubin.startswith(b"\x7fELF")
        assert compiled.cubin.endswith(b"\0")
        assert set(compiled.usage) == set(source.functions)
        for usage in compiled.usage.values():
            assert usage.spilled_bytes == 0
            assert usage.stack_bytes == 0
            assert 0 < usage.registers <= 255
        assert Compiled.unpack(compiled.pack()) == compiled


def test_shared_memory_is_counted(sources) -> None:
    compiled = [compile_source(s, cuda.named("sm_90")) for s in sources("softmax", "sm_90")]
    assert any(usage.shared_bytes > 0 for c in compiled for usage in c.usage.values())


def test_spills_are_noticed() -> None:
    """Thirty-two registers do not hold a hundred values."""
    values = "\n".join(f"float v{n} = x[{n} * 1024 + threadIdx.x];" for n in range(100))
    total = "\n".join(f"y[{n} * 1024 + threadIdx.x] = v{n} / v{99 - n};" for n in range(100))
    text = (
        'extern "C" __global__ void __launch_bounds__(1024, 2)\n'
        f"k(const float* x, float* y) {{\n{values}\n__syncthreads();\n{total}\n}}"
    )
    usage = compile_source(CudaSource(text, (), 0), cuda.named("sm_90")).usage["k"]
    assert usage.spilled_bytes > 0
    assert usage.registers == 32


def test_rejected_sources_come_with_the_compiler_s_words() -> None:
    with pytest.raises(CodegenError, match="NVRTC rejects") as caught:
        compile_source(CudaSource("this is no C++", (), 0), cuda.named("sm_90"))
    assert "error" in str(caught.value)


def test_raw_kernels_without_cupy(sources, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "cupy", None)
    (source,) = sources("softmax", "sm_90")
    with pytest.raises(CodegenError, match="Expected CuPy for a RawKernel"):
        raw_kernel(source, source.launches[0].function)


def test_raw_kernels(sources) -> None:
    (source,) = sources("softmax", "sm_90")
    raw = raw_kernel(source, source.launches[0].function)
    assert raw.code == source.text
    assert raw.name == source.launches[0].function
    assert "-fmad=false" in raw.options
