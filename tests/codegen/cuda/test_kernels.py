"""Every class of kernel as CUDA C++ on the emulator, against JAX and against the interpreter."""

from __future__ import annotations

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from emulation.compiler import why_not
from hlo_mlc import mlc_jit
from hlo_mlc.loops.interpret import interpret
from hlo_mlc.loops.verify import verify
from hlo_mlc.target import cuda
from hlo_mlc.templates.cuda.program import schedule_program

SM90 = cuda.named("sm_90")
ORDERS = (0, 1, 7)  # of the threads: upwards, downwards, shuffled


def _normalized(x):
    centred = x - x.mean(-1, keepdims=True)
    return centred * lax.rsqrt((centred * centred).mean(-1, keepdims=True) + 1e-5)


# name -> (function, dtype, shapes)
CASES = {
    "map of whole vectors": (lambda x: x * 2 + 1, "float32", [(1024,)]),
    "map with a rest": (lambda x: x * 2 + 1, "float32", [(1003,)]),
    "map of one": (lambda x: x * 2 + 1, "float32", [()]),
    "map with a row": (lambda x, b: jnp.abs(x) + b, "float32", [(7, 12), (12,)]),
    "map with a column": (lambda x, b: x * b[:, None], "float32", [(7, 13), (7,)]),
    "map of narrow floats": (lambda x, y: x * y + x, "bfloat16", [(9, 40), (9, 40)]),
    "map of halves": (lambda x: x * x - 1, "float16", [(333,)]),
    "map of bytes": (lambda x, y: x * y + 3, "int8", [(77,), (77,)]),
    "several results": (lambda x: (x + 1, x > 0, x.astype(jnp.int32)), "float32", [(5, 52)]),
    "softmax": (jax.nn.softmax, "float32", [(9, 256)]),
    "softmax of odd rows": (jax.nn.softmax, "float32", [(13, 131)]),
    "softmax of short rows": (jax.nn.softmax, "float32", [(50, 6)]),
    "softmax of long rows": (jax.nn.softmax, "float32", [(2, 3000)]),
    "layer norm": (_normalized, "float32", [(5, 384)]),
    "sums of rows": (lambda x: x.sum(1), "float32", [(11, 700)]),
    "largest of rows": (lambda x: (x.max(1), x.min(1)), "float32", [(11, 70)]),
    "sum of all": (lambda x: x.sum(), "float32", [(300, 333)]),
    "sum of narrow rows": (lambda x: x.sum(1), "bfloat16", [(6, 264)]),
    "places of the largest": (lambda x: jnp.argmax(x, 1), "float32", [(9, 333)]),
    "any and all": (lambda x: ((x > 1).any(1), (x > -2).all(1)), "float32", [(7, 90)]),
    "sums of columns": (lambda x: x.sum(0), "float32", [(130, 37)]),
    "matrix product": (lambda x, y: x @ y, "float32", [(17, 33), (33, 20)]),
    "product of halves": (lambda x, y: x @ y, "float16", [(18, 40), (40, 34)]),
    "product of transposed narrow floats": (
        lambda x, y: jnp.dot(x.T, y.T, preferred_element_type=jnp.float32),
        "bfloat16",
        [(24, 35), (33, 24)],
    ),
    "product of narrow and wide floats": (
        lambda x, y: jnp.dot(
            jnp.abs(x).astype(jnp.bfloat16),
            y.astype(jnp.bfloat16),
            preferred_element_type=jnp.float32,
        ),
        "float32",
        [(20, 150), (150, 36)],
    ),
    "product with bias": (
        lambda x, y, b: jax.nn.relu(x @ y + b) * 2,
        "float32",
        [(5, 31), (31, 36), (36,)],
    ),
    "products of a batch": (
        lambda x, y: jnp.einsum("bhik,bhjk->bhij", x, y),
        "float32",
        [(2, 3, 9, 12), (2, 3, 7, 12)],
    ),
    "convolution": (
        lambda x, w: lax.conv_general_dilated(x, w, (1, 1), "SAME"),
        "float32",
        [(2, 3, 6, 7), (16, 3, 3, 3)],
    ),
    "depthwise convolution": (
        lambda x, w: lax.conv_general_dilated(
            x, w, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"), feature_group_count=8
        ),
        "float32",
        [(2, 5, 6, 8), (3, 3, 1, 8)],
    ),
    "pool": (
        lambda x: lax.reduce_window(x, -jnp.inf, lax.max, (3, 3), (2, 2), "SAME"),
        "float32",
        [(13, 14)],
    ),
    "sums by places": (
        lambda x, y: x.at[jnp.array([1, 3, 1, 9])].add(y * 2),
        "float32",
        [(5,), (4,)],
    ),
    "largest by places": (
        lambda x, y: x.at[jnp.array([1, 3, 1, 9])].max(y),
        "bfloat16",
        [(5,), (4,)],
    ),
    "cumulative sum": (lambda x: jnp.cumsum(x, 0), "int32", [(9, 20)]),
    "cumulative sums of rows": (lambda x: jnp.cumsum(jnp.abs(x), 1), "float32", [(5, 1204)]),
    "cumulative maxima from the end": (
        lambda x: lax.cummax(x, 0, reverse=True),
        "float32",
        [(1003,)],
    ),
    "scatter": (lambda x, y: x.at[jnp.array([1, 3, 1])].add(y), "float32", [(5, 8), (3, 8)]),
    "transpose": (lambda x: x.T * 2, "float32", [(33, 47)]),
    "transpose of inner axes": (
        lambda x, y: x.transpose(0, 2, 1) + y,
        "float32",
        [(3, 40, 36), (3, 36, 40)],
    ),
    "sums of few columns": (lambda x: (x.sum(0), x.max(0)), "float32", [(1500, 6)]),
    "sums of wide columns": (lambda x: x.sum(0), "float32", [(50, 260)]),
    "places of the largest in columns": (lambda x: jnp.argmax(x, 0), "float32", [(90, 33)]),
    "loop": (
        lambda x: lax.fori_loop(0, 5, lambda i, c: c * 0.5 + jnp.roll(c, 1) + i, x),
        "float32",
        [(40,)],
    ),
    "loop until": (
        lambda x: lax.while_loop(lambda c: jnp.sum(jnp.abs(c)) > 1, lambda c: c * 0.5, x),
        "float32",
        [(40,)],
    ),
}
# Too large for the interpreter.
LARGE = {
    "softmax of rows in shared memory": (jax.nn.softmax, "float32", [(2, 33_001)]),
    "place of the largest of all": (lambda x: jnp.argmax(x), "float32", [(35_001,)]),
    "cumulative sums of a long row": (lambda x: jnp.cumsum(jnp.abs(x)), "float32", [(17_000,)]),
    "product of a long depth": (lambda x, y: x @ y - 1, "bfloat16", [(20, 2048), (2048, 24)]),
}
ALL = CASES | LARGE


@pytest.fixture(scope="module")
def prepared(take_apart, arrays, emulator, cuda_source):
    """The kernels of all cases, compiled together."""
    made = {}
    for name, (function, dtype, shapes) in ALL.items():
        args = arrays(dtype, *shapes, seed=len(made))
        made[name] = take_apart(function, *args, platform="cuda"), args
    emulator.prepare([cuda_source(p) for parts, _ in made.values() for p in parts.programs])
    return made


@pytest.mark.parametrize("name", ALL)
def test_like_jax(prepared, emulator, cuda_source, name):
    parts, args = prepared[name]
    assert parts.programs
    function, *_ = ALL[name]
    expected = jax.tree.leaves(jax.jit(function)(*args))
    for order in ORDERS:

        def execute(program, operands, order=order):
            return emulator.run(
                cuda_source(program), program, operands, order, "end" if order else "start"
            )

        for ours, theirs in zip(parts.run(args, execute), expected, strict=True):
            assert ours.dtype == theirs.dtype
            eps = float(jnp.finfo(theirs.dtype).eps) if theirs.dtype.kind not in "biu" else 0
            np.testing.assert_allclose(
                ours.astype(np.float64), np.asarray(theirs).astype(np.float64), 64 * eps, 64 * eps
            )


def test_what_large_kernels_are_made_of(prepared, cuda_source) -> None:
    """Rows in shared memory that the launch gives, results in stages, depths in chunks."""
    sources = {name: [cuda_source(p) for p in prepared[name][0].programs] for name in LARGE}
    (softmax,) = sources["softmax of rows in shared memory"]
    (launch,) = softmax.launches
    assert launch.shared_bytes > 4 * 33_001
    assert not launch.takes_scratch
    assert all(
        len(kernel.launches) > 1
        for name, (kernel,) in sources.items()
        if not name.startswith("softmax")
    )


def elementwise_in_place(x, y):
    """Several results of one stage, of which one takes the memory of what the others read."""
    return x * 2 + y, x > y


def rows_in_place(x, y):
    """Threads that replace a row read it all before, what others replace too."""
    probabilities, back = jax.vjp(lambda x: jax.nn.softmax(x, -1), x)
    return probabilities, *back(y)


@pytest.mark.skipif(bool(why_not()), reason=why_not() or "it can")
@pytest.mark.parametrize("function", [elementwise_in_place, rows_in_place])
@pytest.mark.parametrize("shape", [(31, 37), (3, 1500), (2, 33_001)])
def test_donated_operands_are_overwritten(emulator, arrays, function, shape):
    x, y = arrays("float32", shape, shape)
    kernels = mlc_jit(function, donate_argnums=(0, 1)).kernels(x, y)
    in_place = [k for k in kernels if k.kernel.program.aliases]
    assert in_place
    for kernel in in_place:
        program = kernel.kernel.program
        operands = [x, y][: len(program.operands)]
        assert not verify(schedule_program(program, SM90)[0]).open
        for order in ORDERS:
            separate, shared = (
                emulator.run(kernel.source, p, operands, order)
                for p in (replace(program, aliases=()), program)
            )
            for one, other in zip(separate, shared, strict=True):
                np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("name", CASES)
def test_like_the_loops(prepared, emulator, cuda_source, name):
    """Bit by bit, where nothing but basic arithmetic is used; and the loops pass the verifier."""
    parts, args = prepared[name]

    def check(program, operands):
        loops, _ = schedule_program(program, SM90)
        report = verify(loops)
        assert not [why for why in report.open if "independent" in why]
        expected = interpret(loops, operands)
        actual = emulator.run(cuda_source(program), program, operands)
        for one, other in zip(actual, expected, strict=True):
            np.testing.assert_allclose(one.astype(np.float64), other.astype(np.float64), 2e-6, 2e-6)
        return actual

    parts.run(args, check)
