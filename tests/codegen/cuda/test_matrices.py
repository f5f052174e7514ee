"""Products by tensor cores: which are, what is fused with them, and how exact they are."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from emulation.compiler import why_not
from hlo_mlc.codegen.cuda.compile import compile_source
from hlo_mlc.codegen.cuda.plan import CudaSource
from hlo_mlc.codegen.cuda.printer import print_program
from hlo_mlc.expr import index
from hlo_mlc.expr.build import apply, const, load, variable
from hlo_mlc.expr.core import Buffer
from hlo_mlc.expr.dtypes import BF16, F32
from hlo_mlc.loops import matrices
from hlo_mlc.loops.core import Accumulate, Allocate, For, LoopKind, LoopProgram
from hlo_mlc.ops.contraction import as_tf32
from hlo_mlc.support.errors import CodegenError
from hlo_mlc.target import cuda
from hlo_mlc.templates.cuda.program import schedule_program
from hlo_mlc.tensor.combine import named_combiner

SM90 = cuda.named("sm_90")


def as_tf32_in_numpy(x: np.ndarray) -> np.ndarray:
    bits = x.view(np.uint32).astype(np.uint64)
    rounded = (bits + 0xFFF + (bits >> 13 & 1)) & 0xFFFFE000
    return np.where(np.isnan(x), x, rounded.astype(np.uint32).view(np.float32))


def in_tf32(x: jax.Array, y: jax.Array) -> jax.Array:
    return lax.dot(x, y, precision=lax.DotAlgorithmPreset.TF32_TF32_F32)


TF32 = {"rows by columns": in_tf32, "both the other way": lambda x, y: in_tf32(x.T, y.T)}


@pytest.mark.parametrize("tuned", [None, {"rows": 64, "columns": 64, "depth": 128, "warps": 4}])
@pytest.mark.parametrize("name", TF32)
def test_tf32_where_it_is_asked_for(take_apart, emulator, cuda_source, arrays, name, tuned) -> None:
    x, y = arrays("float32", (40, 50), (50, 60))
    x[3, 4], x[7, 8] = np.nan, np.inf
    args = (x, y) if name == "rows by columns" else (x.T.copy(), y.T.copy())
    (program,) = take_apart(TF32[name], *args, platform="cuda").programs
    source = cuda_source(program, tuned and {0: ("contraction", tuned)})
    assert "mlc_multiply_tf32(" in source.text
    assert len(source.launches) == 1  # operands are rounded on their way
    (actual,) = emulator.run(source, program, args, 7)
    with np.errstate(invalid="ignore"):
        expected = as_tf32_in_numpy(x).astype(np.float64) @ as_tf32_in_numpy(y)
    np.testing.assert_allclose(actual, expected, 1e-5, 1e-5)
    finite = np.isfinite(expected)
    unrounded = (x.astype(np.float64) @ y)[finite]
    assert np.abs(actual[finite] - unrounded).max() > 1e-4
    if not why_not():
        for architecture in cuda.names():
            (usage,) = compile_source(source, cuda.named(architecture)).usage.values()
            assert usage.spilled_bytes == usage.stack_bytes == 0


@pytest.mark.parametrize("precision", [None, "default", "high", "highest"])
def test_f32_is_exact_otherwise(take_apart, cuda_source, arrays, precision) -> None:
    """XLA takes default and high precision for tf32 on GPUs; we do not."""
    x, y = arrays("float32", (40, 50), (50, 60))
    parts = take_apart(lambda x, y: jnp.dot(x, y, precision=precision), x, y, platform="cuda")
    assert ["mlc_multiply" in cuda_source(p).text for p in parts.programs] == [False]


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_one_kernel_with_all_that_is_around(
    take_apart, emulator, cuda_source, arrays, dtype
) -> None:
    """Bias, activation, residual and conversion in the kernel of the product."""

    def function(x, w, b, z):
        product = jnp.dot(x, w, preferred_element_type=jnp.float32)
        return (jax.nn.relu(product + b) * 2 + z).astype(jnp.float16)

    args = [*arrays(dtype, (21, 35), (35, 44)), *arrays("float32", (44,), (21, 44))]
    (program,) = take_apart(function, *args).programs
    source = cuda_source(program)
    kind = "bf16" if dtype == "bfloat16" else "f16"
    assert f"mlc_multiply_{kind}(" in source.text
    assert len(source.launches) == 1
    (actual,) = emulator.run(source, program, args, 7)
    np.testing.assert_allclose(actual, jax.jit(function)(*args), 2e-3, 2e-3)


# By name: what is done with the factors on their way, their types, what multiplies them.
PROLOGUES = {
    "wide floats made narrow": (
        lambda x, y: (x.astype(jnp.bfloat16), y.astype(jnp.bfloat16)),
        ("float32", "float32"),
        "mlc_multiply_bf16",
    ),
    "bytes made floats": (
        lambda x, y: (x, y.astype(jnp.bfloat16) * jnp.bfloat16(0.5)),
        ("bfloat16", "int8"),
        "mlc_multiply_bf16",
    ),
    "narrow floats made wide": (
        lambda x, y: (x.astype(jnp.float32), y.astype(jnp.float32)),
        ("float16", "float16"),
        "mlc_multiply_f16",
    ),
    "narrow and wide floats": (
        lambda x, y: (x.astype(jnp.float32), y),
        ("bfloat16", "float32"),
        "__fmaf_rn",
    ),
    "arithmetic": (
        lambda x, y: (jnp.maximum(x * 2, 0), y + 1),
        ("bfloat16", "bfloat16"),
        "mlc_multiply_bf16",
    ),
}


@pytest.mark.parametrize("name", PROLOGUES)
def test_factors_are_computed_on_their_way(
    take_apart, emulator, cuda_source, arrays, name: str
) -> None:
    prologue, dtypes, means = PROLOGUES[name]
    (x,), (y,) = arrays(dtypes[0], (21, 100)), arrays(dtypes[1], (100, 36))

    def function(x, y):
        return jnp.dot(*prologue(x, y), preferred_element_type=jnp.float32) + 1

    (program,) = take_apart(function, x, y, platform="cuda").programs
    source = cuda_source(program)
    assert means in source.text
    assert len(source.launches) == 1
    (actual,) = emulator.run(source, program, (x, y), 7)
    left, right = (
        np.asarray(f).astype(np.float64) for f in prologue(jnp.asarray(x), jnp.asarray(y))
    )
    np.testing.assert_allclose(actual, left @ right + 1, 1e-4, 1e-4)


# Parameters, and what they are to be seen by: whether tiles are copied into twice, launches.
LONG = {
    "as analysis has it": (None, True, 2),
    "one tile": ({"buffers": 1, "chunks": 1}, False, 1),
    "two tiles": ({"buffers": 2, "chunks": 1}, True, 1),
    "chunks": ({"buffers": 1, "chunks": 4}, False, 2),
    "large tiles": (
        {"rows": 64, "columns": 64, "depth": 128, "warps": 4, "buffers": 2, "chunks": 3},
        True,
        1,
    ),
}


@pytest.mark.parametrize("name", LONG)
def test_tiles_on_their_way_and_chunks(
    take_apart, emulator, cuda_source, arrays, name: str
) -> None:
    """Whole numbers: sums are exact in every order.  Copies arrive when they are waited for."""
    parameters, twice, launches = LONG[name]
    x, y = (
        np.round(np.asarray(a, np.float32) * 2).astype(a.dtype)
        for a in arrays("bfloat16", (40, 2048), (2048, 36))
    )
    (program,) = take_apart(
        lambda x, y: jnp.dot(x, y, preferred_element_type=jnp.float32) * 2, x, y, platform="cuda"
    ).programs
    source = cuda_source(program, parameters and {0: ("contraction", parameters)})
    assert ("_h_b" in source.text) is twice
    assert len(source.launches) == launches
    for order in (0, 1, 7):
        (actual,) = emulator.run(source, program, (x, y), order)
        np.testing.assert_array_equal(actual, 2 * (x.astype(np.float32) @ y.astype(np.float32)))


def test_copies_that_are_not_waited_for_are_noticed(
    take_apart, emulator, cuda_source, arrays
) -> None:
    x, y = arrays("bfloat16", (40, 256), (256, 36))
    (program,) = take_apart(
        lambda x, y: jnp.dot(x, y, preferred_element_type=jnp.float32), x, y, platform="cuda"
    ).programs
    source = cuda_source(program)
    broken = CudaSource(source.text.replace("  mlc_wait_for_copies();\n", ""), source.launches, 0)
    assert broken.text != source.text
    (actual,) = emulator.run(broken, program, (x, y))
    assert np.isnan(actual).any()


def test_every_element_belongs_to_one_lane() -> None:
    lane, e = variable("l", 32), variable("e", 4)
    found = {(n // 4 + 8 * (k // 2), n % 4 * 2 + k % 2) for n in range(32) for k in range(4)}
    assert found == {(r, c) for r in range(16) for c in range(8)}
    assert str(matrices.row(lane, e)) == "floordiv(e, 2) * 8 + floordiv(l, 4)"
    assert str(matrices.column(lane, e)) == "floormod(e, 2) + floormod(l, 4) * 2"


def test_what_is_known_to_be_tf32() -> None:
    x, y = (
        load(Buffer(name, dtype, (4,), "operand"), (variable("i", 4),))
        for name, dtype in (("x", F32), ("y", BF16))
    )
    assert not matrices.is_tf32(x)
    assert matrices.is_tf32(as_tf32(x))
    assert matrices.is_tf32(apply("convert", y, dtype=F32))
    assert not matrices.is_tf32(apply("mul", as_tf32(x), const(3.0, F32)))


def test_other_layouts_are_refused() -> None:
    """Rows of the left factor in the order of lanes, which is not that of the instruction."""
    block, lane = variable("b", 1), variable("l", 32)
    e, k = variable("e", 4), variable("k", 16)
    lhs, rhs = (Buffer(name, BF16, (32, 24), "shared") for name in ("lhs", "rhs"))
    sums = Buffer("sums", F32, (32, 4), "thread")

    def program(row) -> LoopProgram:
        term = apply(
            "mul",
            apply("convert", load(lhs, (row, k)), dtype=F32),
            apply("convert", load(rhs, (matrices.column(lane, e), k)), dtype=F32),
        )
        update = Accumulate((sums,), (lane, e), named_combiner("add", F32), (term,))
        body = (For(lane, index.constant(32), LoopKind.THREAD, (matrices.product(update, e, k),)),)
        for buffer in (lhs, rhs, sums):
            body = (Allocate(buffer, body),)
        return LoopProgram("k", (), (), (For(block, index.constant(1), LoopKind.BLOCK, body),))

    assert "mlc_multiply_bf16" in print_program(program(matrices.row(lane, e)), SM90).text
    with pytest.raises(CodegenError, match="Expected a matrix in shared memory"):
        print_program(program(lane), SM90)


def test_large_tiles_for_large_products(take_apart) -> None:
    shapes = [jax.ShapeDtypeStruct((n, n), jnp.bfloat16) for n in (4096, 64)]
    chosen = []
    for shape in shapes:
        (program,) = take_apart(lambda x, y: jnp.tanh(x @ y), shape, shape).programs
        (decision,) = schedule_program(program, SM90)[1]
        assert decision.template.name == "contraction"
        chosen.append((decision.parameters["rows"], decision.parameters["columns"]))
    assert chosen == [(128, 128), (16, 32)]
