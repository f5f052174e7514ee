"""What the printer writes: a kernel word by word, where threads wait, launches, and refusals."""

from __future__ import annotations

import textwrap

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from hlo_mlc.codegen.cuda.plan import CudaSource
from hlo_mlc.codegen.cuda.printer import print_program
from hlo_mlc.expr import index
from hlo_mlc.expr.build import apply, const, load, variable
from hlo_mlc.expr.core import Buffer, Var
from hlo_mlc.expr.dtypes import BOOL, F32
from hlo_mlc.loops.core import Accumulate, Allocate, For, LoopKind, LoopProgram, Stmt, Store
from hlo_mlc.support.errors import CodegenError
from hlo_mlc.target import cuda
from hlo_mlc.tensor.combine import named_combiner

SM90 = cuda.named("sm_90")
X, Y = Buffer("x", F32, (1024,), "operand"), Buffer("y", F32, (1024,), "result")
ONE = const(1.0, F32)


def loop(var: Var, kind: LoopKind, *body: Stmt) -> For:
    return For(var, index.constant(var.extent), kind, body)


def printed(*body: Stmt) -> CudaSource:
    return print_program(LoopProgram("k", (X,), (Y,), body), SM90)


def kernel(source: CudaSource) -> str:
    """The source without the functions of the prelude."""
    return source.text[source.text.index('extern "C"') :]


def test_a_kernel_word_by_word(take_apart, cuda_source, arrays) -> None:
    (x,) = arrays("float32", (2048,))
    (program,) = take_apart(lambda x: jnp.abs(x) + 1, x).programs
    source = cuda_source(program)
    assert kernel(source).replace(program.name, "k") == textwrap.dedent("""\
        extern "C" __global__ void __launch_bounds__(256)
        k_0(const float* __restrict__ a0, float* __restrict__ r0) {
          const int i0_o_o = blockIdx.x;
          const int i0_o_i = threadIdx.x;
          const auto v0 = mlc_load<4>(a0 + (i0_o_i * 4 + i0_o_o * 1024));
          Vector<float, 4> v1;
          #pragma unroll
          for (int i0_i = 0; i0_i < 4; ++i0_i) {
            v1.at[i0_i] = fabsf(v0.at[i0_i]) + 1.0f;
          }
          mlc_store<4>(r0 + (i0_o_i * 4 + i0_o_o * 1024), v1);
        }
        """)
    (launch,) = source.launches
    assert (launch.blocks, launch.threads, launch.buffers) == (2, 256, (0, 1))
    assert source.plan == (0, 2, 256, 0, 2, 0, 1, 0, 0)


def exchange(first_kind: LoopKind, threads: int, rows: int) -> CudaSource:
    """Threads write a shared value each, and read that of their neighbour in the same row."""
    b = variable("b", 1)
    r, lane = variable("r", rows), variable("l", threads // rows)
    shared = Buffer("s", F32, (rows, threads // rows), "shared")
    other = index.subtract(index.constant(threads // rows - 1), lane)
    place = index.add(index.multiply(r, index.constant(threads // rows)), lane)
    write = loop(
        r, LoopKind.THREAD, loop(lane, LoopKind.THREAD, Store(shared, (r, lane), load(X, (place,))))
    )
    read = loop(
        r,
        LoopKind.THREAD,
        loop(lane, LoopKind.THREAD, Store(Y, (place,), load(shared, (r, other)))),
    )
    return printed(loop(b, first_kind, Allocate(shared, (write, read))))


@pytest.mark.parametrize(
    ("threads", "rows", "barrier"),
    [
        (256, 4, "__syncthreads();"),
        (256, 8, "__syncwarp();"),
        (96, 3, "__syncwarp();"),
        (48, 3, "__syncthreads();"),
    ],
)
def test_threads_wait_for_what_they_read(threads: int, rows: int, barrier: str, emulator) -> None:
    """In rows of 64 the block waits, in rows of 32 the warp; no warp of which only a part is there
    does."""
    source = exchange(LoopKind.BLOCK, threads, rows)
    assert [line.strip() for line in source.text.splitlines() if "__sync" in line] == [barrier]
    x = np.arange(1024, dtype=np.float32)
    expected = x[:threads].reshape(rows, -1)[:, ::-1].reshape(-1)
    for order in (0, 1, 7):
        (y,) = emulator.run(source, LoopProgram("k", (X,), (Y,), ()), [x], order)
        np.testing.assert_array_equal(y[:threads], expected)


def test_without_the_barrier_the_emulator_shows_it(emulator) -> None:
    source = exchange(LoopKind.BLOCK, 256, 4)
    broken = CudaSource(source.text.replace("  __syncthreads();\n", ""), source.launches, 0)
    assert broken.text != source.text
    x = np.arange(1024, dtype=np.float32)
    (y,) = emulator.run(broken, LoopProgram("k", (X,), (Y,), ()), [x])
    assert np.isnan(y[:256]).any()


def test_threads_that_nobody_joins_are_reported(emulator) -> None:
    source = exchange(LoopKind.BLOCK, 256, 4)
    broken = CudaSource(
        source.text.replace("__syncthreads();", "if (threadIdx.x < 100) __syncwarp();"),
        source.launches,
        0,
    )
    with pytest.raises(CodegenError, match="4 for their warp"):
        emulator.run(broken, LoopProgram("k", (X,), (Y,), ()), [np.zeros(1024, np.float32)])


def test_threads_of_a_loop_wait_in_every_round(take_apart, cuda_source, arrays) -> None:
    (x,) = arrays("float32", (40,))
    (program,) = take_apart(
        lambda x: lax.fori_loop(0, 5, lambda i, c: c * 0.5 + jnp.roll(c, 1), x), x
    ).programs
    text = kernel(cuda_source(program))
    inside = text[text.index("for (int i") :]
    assert inside.index("{") < inside.index("__syncthreads();")


def test_memory_that_a_round_allocates_is_that_of_the_round_before(emulator) -> None:
    b, i, t = variable("b", 1), variable("i", 4), variable("t", 256)
    shared = Buffer("s", F32, (256,), "shared")
    place = index.add(index.multiply(i, index.constant(256)), t)
    other = index.subtract(index.constant(255), t)
    rounds = loop(
        i,
        LoopKind.SERIAL,
        Allocate(
            shared,
            (
                loop(t, LoopKind.THREAD, Store(shared, (t,), load(X, (place,)))),
                loop(t, LoopKind.THREAD, Store(Y, (place,), load(shared, (other,)))),
            ),
        ),
    )
    source = printed(loop(b, LoopKind.BLOCK, rounds))
    assert source.text.count("__syncthreads();") == 2
    x = np.arange(1024, dtype=np.float32)
    for order in (0, 1, 7):
        (y,) = emulator.run(source, LoopProgram("k", (X,), (Y,), ()), [x], order)
        np.testing.assert_array_equal(y, x.reshape(4, 256)[:, ::-1].reshape(-1))


def test_rounds_with_much_work_are_launches(take_apart, cuda_source, arrays) -> None:
    (x,) = arrays("float32", (600, 700))

    def function(x: jax.Array) -> jax.Array:
        return lax.fori_loop(0, 7, lambda i, c: jnp.sin(c) + jnp.roll(c, 1, 0) * i, x)

    (program,) = take_apart(function, x).programs
    source = cuda_source(program)
    counters = [launch.counters for launch in source.launches if launch.counters]
    assert {c[0] for c in counters} >= {0, 1, 2}
    assert len(source.functions) < len(source.launches)


THREAD, BLOCK, SERIAL = LoopKind.THREAD, LoopKind.BLOCK, LoopKind.SERIAL
A, B, T = variable("a", 8), variable("b", 8), variable("t", 2048)
LARGE = Buffer("large", F32, (100_000,), "shared")
COPY = Store(Y, (A,), load(X, (A,)))
SUM = Buffer("sum", F32, (), "shared")
FLAGS = Buffer("flags", BOOL, (8,), "result")
REFUSED = {
    "Expected a loop over blocks": (COPY,),
    "Expected at most 1024 threads, got 2048": (
        loop(B, BLOCK, loop(T, THREAD, Store(Y, (index.floordiv(T, 2),), ONE))),
    ),
    "Expected at most 232448 bytes of shared memory, got 400000": (
        loop(B, BLOCK, Allocate(LARGE, (loop(A, THREAD, Store(LARGE, (A,), ONE)),))),
    ),
    "Expected at most 4096 launches": (
        loop(variable("n", 5000), SERIAL, loop(B, BLOCK, loop(A, THREAD, COPY))),
    ),
    "Expected a loop that a block can run": (loop(B, BLOCK, loop(A, LoopKind.PARALLEL, COPY)),),
    "Expected stores and updates in a vector": (
        loop(B, BLOCK, loop(A, LoopKind.VECTORIZE, loop(variable("c", 2), SERIAL, COPY))),
    ),
    "Expected a product of small matrices by whole warps": (
        loop(B, BLOCK, loop(A, THREAD, loop(variable("e", 4), LoopKind.TENSOR, COPY))),
    ),
    "Expected one element of 16 bits or more": (
        loop(
            B,
            BLOCK,
            loop(
                A,
                THREAD,
                Accumulate(
                    (FLAGS,), (A,), named_combiner("or", BOOL), (const(True, BOOL),), None, True
                ),
            ),
        ),
    ),
    "Expected up to 32 threads": (
        loop(
            B,
            BLOCK,
            Allocate(
                SUM,
                (
                    loop(
                        variable("w", 64),
                        THREAD,
                        Accumulate((SUM,), (), named_combiner("add", F32), (ONE,)),
                    ),
                ),
            ),
        ),
    ),
}


@pytest.mark.parametrize("reason", REFUSED)
def test_refusals(reason: str) -> None:
    program = LoopProgram("k", (X,), (Y, FLAGS), REFUSED[reason])
    with pytest.raises(CodegenError, match=reason):
        print_program(program, SM90)


@pytest.mark.parametrize("count, is_whole", [(1024, True), (1021, False)])
def test_vectors_are_not_loaded_in_front_of_the_guard_that_they_need(count, is_whole) -> None:
    """A store's guard is asked lane by lane: what only it keeps inside is loaded lane by lane."""
    x = Buffer("x", F32, (count,), "operand")
    thread, lane = variable("t", 256), variable("v", 4)
    place = index.add(index.multiply(thread, index.constant(4)), lane)
    guard = apply("lt", place, index.constant(1021))
    body = loop(
        variable("b", 1),
        LoopKind.BLOCK,
        loop(
            thread,
            LoopKind.THREAD,
            loop(lane, LoopKind.VECTORIZE, Store(Y, (place,), load(x, (place,)), guard)),
        ),
    )
    text = kernel(print_program(LoopProgram("k", (x,), (Y,), (body,)), SM90))
    assert ("mlc_load<4>(x" in text) == is_whole, text


@pytest.mark.parametrize("is_asked_first", [True, False])
def test_what_a_load_asks_under_a_guard_is_not_asked_in_front_of_it(is_asked_first) -> None:
    """The load itself is always inside; what says whether it counts is so under the guard only."""
    flags = Buffer("flags", BOOL, (200,), "operand")
    thread, lane = variable("t", 256), variable("v", 4)
    place = index.add(index.multiply(thread, index.constant(4)), lane)
    number = index.minimum(thread, index.constant(199)) if is_asked_first else thread
    guard = apply("lt", place, index.constant(799))
    value = load(X, (place,), load(flags, (number,)), const(0.0, F32))
    body = loop(
        variable("b", 1),
        LoopKind.BLOCK,
        loop(
            thread,
            LoopKind.THREAD,
            loop(lane, LoopKind.VECTORIZE, Store(Y, (place,), value, guard)),
        ),
    )
    text = kernel(print_program(LoopProgram("k", (X, flags), (Y,), (body,)), SM90))
    assert ("mlc_load<4>(" in text) == is_asked_first, text


def test_a_single_thread_that_may_have_nothing_to_do_is_asked() -> None:
    block, thread, one = variable("b", 3), variable("t", 32), variable("o", 1)
    last = index.minimum(index.constant(1), index.subtract(index.constant(2), block))
    inner = For(one, last, THREAD, (Store(Y, (index.add(block, one),), ONE),))
    text = kernel(printed(loop(block, BLOCK, For(thread, index.constant(1), THREAD, (inner,)))))
    assert "if (" in text, text


def test_what_a_row_has_in_common_is_computed_once(take_apart, cuda_source, arrays) -> None:
    """By each thread, in front of the loop over its elements."""
    (x,) = arrays("float32", (64, 1024))
    (program,) = take_apart(
        lambda x: x * lax.rsqrt((x * x).mean(-1, keepdims=True) + 1e-5), x
    ).programs
    (line,) = (line for line in kernel(cuda_source(program)).splitlines() if "__fsqrt_rn" in line)
    assert line.startswith("  ") and not line.startswith("   ")


@pytest.mark.parametrize("dtype", ("bfloat16", "float16"))
def test_arithmetic_on_narrow_floats_stays_in_them(take_apart, cuda_source, arrays, dtype) -> None:
    x, y = arrays(dtype, (2048,), (2048,))
    (program,) = take_apart(lambda x, y: jnp.maximum((x + y) * x - y, x) / y, x, y).programs
    text = kernel(cuda_source(program))
    for op in ("add", "mul", "sub", "max", "div"):
        assert f"mlc_{op}_{'bf16' if dtype == 'bfloat16' else 'f16'}(" in text
    assert "mlc_from" not in text and "mlc_to" not in text


def test_limits_are_one_function() -> None:
    """But for zero, whose sign a comparison does not see."""
    number = variable("t", 1024)
    x = load(X, (number,))
    for limit, name in ((2.0, "mlc_max"), (0.0, "?")):
        bound = const(limit, F32)
        value = apply("select", apply("gt", bound, x), bound, x)
        block = Var("b", number.dtype, 1)
        text = kernel(
            printed(
                loop(
                    block, LoopKind.BLOCK, loop(number, LoopKind.THREAD, Store(Y, (number,), value))
                )
            )
        )
        assert name in text
