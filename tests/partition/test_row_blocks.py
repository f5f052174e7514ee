"""Kernels that serve any number of rows compute what kernels of their own do."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from hlo_mlc import mlc_jit
from hlo_mlc.frontend.parse import parse_module
from hlo_mlc.interop import compat
from hlo_mlc.interop.compiling import compile_extracted
from hlo_mlc.interop.devices import ANY_ROWS, CPU
from hlo_mlc.loops.interpret import interpret
from hlo_mlc.ops.registry import DEFINITIONS
from hlo_mlc.partition.row_blocks import RowBlocks, row_blocks
from hlo_mlc.report import Report
from hlo_mlc.runtime.measure import made_up
from hlo_mlc.support.options import Options
from hlo_mlc.target.cpu import named
from hlo_mlc.templates.program import schedule_program
from hlo_mlc.tensor.core import TensorProgram

W = np.random.default_rng(0).standard_normal((24, 40)).astype(np.float32)
IMAGES = np.random.default_rng(1).standard_normal((3, 3, 2, 5)).astype(np.float32)


def layer(x):
    return jax.nn.gelu(x @ W)


def factor_as_argument(x, w):
    return jnp.tanh(x @ w) + w[0]


def normalized(x):
    centered = x - x.mean(-1, keepdims=True)
    return centered / jnp.sqrt((centered**2).mean(-1, keepdims=True) + 1e-5)


def attention(q, k, v):
    scores = jnp.einsum("bid,bjd->bij", q, k)
    return jax.nn.softmax(scores, -1) @ v


def convolved(x):
    return jax.nn.relu(
        lax.conv_general_dilated(
            x, IMAGES, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
        )
    )


def several(x, y):
    return x > y, (x + y).astype(jnp.bfloat16), jnp.argmax(x, 1), jnp.cumsum(y, 1)


def recurrent(x):
    return lax.fori_loop(0, 5, lambda i, c: jnp.tanh(c + x[:, :1] * i), x)


def looked_up(x, table):
    return table[jnp.clip(x.astype(jnp.int32), 0, 9)]


def sorted_rows(x):
    return jnp.sort(x, -1)


ROWS: dict[Callable, Sequence[tuple[int, ...]]] = {
    layer: [(-1, 24)],
    factor_as_argument: [(-1, 24), (24, 40)],
    normalized: [(-1, 50)],
    attention: [(-1, 6, 8), (-1, 7, 8), (-1, 7, 8)],
    convolved: [(-1, 9, 7, 2)],
    several: [(-1, 33), (-1, 33)],
    recurrent: [(-1, 16)],
    looked_up: [(-1, 3), (10, 4)],
    sorted_rows: [(-1, 21)],
    jnp.sin: [(-1,)],
}
"""Functions of independent rows, and the shapes of their arguments; -1 is the number of rows."""

OTHERS: dict[str, Callable] = {
    "running": lambda x: jnp.cumsum(x, 0),
    "reversed": lambda x: x[::-1] + 1,
    "numbered": lambda x: x * jnp.arange(x.shape[0], dtype=x.dtype)[:, None],
    "turned": lambda x: x.T * 2,
    "windows": lambda x: x[1:] - x[:-1],
    "second": lambda x: jnp.sin(x)[None],
    "sorted": lambda x: jnp.sort(x, 0),
}


def trained(w, v, x, labels):
    """Loss and gradients of a classifier, mean over the rows."""

    def loss(w, v):
        logits = jax.nn.relu(x @ w) @ v
        return -jnp.mean(jnp.take_along_axis(jax.nn.log_softmax(logits), labels, 1))

    return jax.value_and_grad(loss, (0, 1))(w, v)


def batch_norm(x, scale):
    mean = x.mean(0)
    variance = ((x - mean) ** 2).mean(0)
    return (x - mean) * lax.rsqrt(variance + 1e-5) * scale, 0.9 * mean, 0.9 * variance


def batch_norm_gradient(x, scale):
    return jax.grad(lambda x, scale: (batch_norm(x, scale)[0] ** 3).sum(), (0, 1))(x, scale)


def several_folds(x):
    y = x * 2
    return (
        y.max(0),
        y.min(),
        (y > 1).any(0),
        (y > -9).all(),
        (y > 0).sum(0),
        x.astype(jnp.bfloat16).sum(0),
        x + 1,
        jnp.abs(x).max(1),
    )


def weight_gradient(x, g):
    return x.T @ g


def unbiased(x):
    return x.var(0, ddof=1), jnp.sqrt(x.shape[0]) * x.mean()


FOLDS: dict[Callable, Callable[[int], list[np.ndarray]]] = {
    trained: lambda rows: [
        *arguments([(12, 24), (24, 5), (-1, 12)], rows),
        np.arange(rows, dtype=np.int32)[:, None] % 5,
    ],
    batch_norm: lambda rows: arguments([(-1, 30), (30,)], rows),
    batch_norm_gradient: lambda rows: arguments([(-1, 30), (30,)], rows),
    several_folds: lambda rows: arguments([(-1, 17)], rows),
    unbiased: lambda rows: arguments([(-1, 40)], rows),
    jnp.mean: lambda rows: arguments([(-1,)], rows),
    weight_gradient: lambda rows: arguments([(-1, 200), (-1, 300)], rows),
}
"""Functions that fold their rows, and arguments with so many."""


def compiled(
    function: Callable, args: Sequence[np.ndarray], platform: str
) -> tuple[list[np.ndarray], Report]:
    """The results by kernels for a platform, all ops being in them, and the report."""
    module = parse_module(jax.jit(function).lower(*args).as_text())
    return run(module, args, platform)


def run(module, args: Sequence[np.ndarray], platform: str) -> tuple[list[np.ndarray], Report]:
    made, report = compile_extracted(
        module, Options(choose="ours"), entry="main", platform=platform
    )
    assert made is not None, str(report)
    return [np.asarray(r) for r in compat.compile_for(made)(args)], report


def arguments(shapes: Sequence[tuple[int, ...]], rows: int) -> list[np.ndarray]:
    rng = np.random.default_rng(rows)
    return [
        rng.standard_normal([rows if d == -1 else d for d in shape]).astype(np.float32)
        for shape in shapes
    ]


def rows_of(report: Report) -> int:
    """How many rows the blocks of one call have."""
    return sum(
        int(re.search(r", (\d+) row", kernel.name)[1]) * kernel.calls for kernel in report.kernels
    )


@pytest.mark.parametrize("rows", [2, 3, 5, 17, 64, 67, 150, 1000])
@pytest.mark.parametrize("function", ROWS, ids=lambda f: f.__name__)
def test_rows_are_computed_once_each(function: Callable, rows: int) -> None:
    args = arguments(ROWS[function], rows)
    results, report = compiled(function, args, ANY_ROWS)
    assert report.coverage == 1
    kernels = len({kernel.name.partition(",")[0] for kernel in report.kernels})
    assert rows_of(report) == kernels * rows
    for one, other in zip(results, jax.tree.leaves(jax.jit(function)(*args)), strict=True):
        assert one.dtype == other.dtype
        np.testing.assert_allclose(
            np.asarray(one, np.float64), np.asarray(other, np.float64), rtol=2e-5, atol=1e-5
        )


@pytest.mark.parametrize("function", ROWS, ids=lambda f: f.__name__)
def test_kernels_are_the_same_for_any_number_of_rows(function: Callable) -> None:
    found = [
        {k.id for k in compiled(function, arguments(ROWS[function], rows), ANY_ROWS)[1].kernels}
        for rows in (85, 2, 17, 100, 230, 4000)
    ]
    assert set().union(*found) == found[0]


def in_f64(function: Callable, args: Sequence[np.ndarray]) -> list[np.ndarray]:
    with jax.enable_x64(True):
        wide = [a.astype(np.float64) if a.dtype == np.float32 else a for a in args]
        return [np.asarray(r) for r in jax.tree.leaves(jax.jit(function)(*wide))]


@pytest.mark.parametrize("rows", [3, 7, 64, 150, 1000, 6000])
@pytest.mark.parametrize("function", FOLDS, ids=lambda f: f.__name__)
def test_rows_are_folded_block_by_block(function: Callable, rows: int) -> None:
    args = FOLDS[function](rows)
    results, report = compiled(function, args, ANY_ROWS)
    assert report.coverage == 1
    # Sums of few are written out.
    assert rows < 10 or any(", " in kernel.name for kernel in report.kernels)
    for one, other in zip(results, in_f64(function, args), strict=True):
        if one.dtype.kind in "bi":
            np.testing.assert_array_equal(one, other)
            continue
        step = float(jnp.finfo(one.dtype).eps)
        largest = float(np.max(np.abs(other.astype(np.float64))))
        np.testing.assert_allclose(
            one.astype(np.float64), other.astype(np.float64), atol=400 * step * max(largest, 1e-3)
        )
    for one, other in zip(results, compiled(function, args, ANY_ROWS)[0], strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("function", FOLDS, ids=lambda f: f.__name__)
def test_kernels_are_the_same_for_any_number_of_folded_rows(function: Callable) -> None:
    """5461 rows are in groups of blocks, of each size; by 64 may be multiplied."""
    found = [
        {k.id for k in compiled(function, FOLDS[function](rows), ANY_ROWS)[1].kernels}
        for rows in (5461, 341, 64, 100, 21, 128, 230, 4500, 10)
    ]
    assert set().union(*found) == set().union(*found[:3])


def test_many_rows_are_summed_exactly_enough() -> None:
    x = np.random.default_rng(0).random((70_000, 3), np.float32)
    (ours,), report = compiled(lambda x: x.mean(0), [x], ANY_ROWS)
    assert report.coverage == 1
    np.testing.assert_allclose(ours, x.mean(0, dtype=np.float64), rtol=5e-7)


def test_what_is_folded_is_nan_where_a_row_is() -> None:
    x = np.ones((300, 5), np.float32)
    x[130, 2] = np.nan
    results, _ = compiled(lambda x: (x.sum(0), x.max(0), x.min(0)), [x], ANY_ROWS)
    for ours in results:
        np.testing.assert_array_equal(np.isnan(ours), [False, False, True, False, False])


@pytest.mark.parametrize("name", OTHERS)
def test_rows_that_need_each_other_stay_in_one_kernel(name: str) -> None:
    args = arguments([(-1, 12)], 37)
    results, report = compiled(OTHERS[name], args, ANY_ROWS)
    assert not any(", " in kernel.name for kernel in report.kernels)
    for one, other in zip(results, compiled(OTHERS[name], args, CPU)[0], strict=True):
        np.testing.assert_array_equal(one, other)


def test_functions_for_any_number_of_rows() -> None:
    """Through `mlc_jit`: values, gradients and `vmap` of it."""

    def loss(x):
        return (normalized(layer(x)) ** 3).sum(-1)

    def gradient(x):
        return jax.grad(lambda x: loss(x).sum())(x)

    # Kernels for 16, 4 and 1 row each: three with AVX-512, where the layer is one, six without.
    for function, most in ((loss, 6), (gradient, 9)):
        ours, kernels = mlc_jit(function, any_rows=True, choose="ours"), set()
        for rows in (21, 2, 7, 16, 5, 23):
            x = np.random.default_rng(rows).standard_normal((rows, 24)).astype(np.float32)
            np.testing.assert_allclose(ours(x), function(x), rtol=2e-3, atol=2e-3)
            assert ours.report().coverage == 1
            kernels |= {kernel.id for kernel in ours.report().kernels}
        assert len(kernels) <= most
    ours = mlc_jit(loss, any_rows=True, choose="ours")
    stack = np.random.default_rng(0).standard_normal((3, 5, 24)).astype(np.float32)
    np.testing.assert_allclose(jax.vmap(ours)(stack), loss(stack), rtol=2e-4, atol=2e-4)


def test_what_all_rows_need_is_computed_once() -> None:
    def function(x, w):
        return x @ jnp.linalg.matrix_power(w, 4)

    args = arguments([(-1, 24), (24, 24)], 90)
    results, report = compiled(function, args, ANY_ROWS)
    powers = [k for k in report.kernels if ", " not in k.name]
    assert powers and all(k.calls <= 2 for k in powers)
    np.testing.assert_allclose(results[0], jax.jit(function)(*args), rtol=2e-4, atol=1e-2)


def test_blocks_fit_into_a_cache(take_apart) -> None:
    parts = take_apart(lambda x: jnp.tanh(x) + 1, np.ones((100, 256), np.float32))
    (kernel,) = parts.kernels.values()
    row = 2 * 256 * 4
    for room, sizes in ((1 << 20, [64, 16, 4]), (row * 16, [16, 4]), (row * 15, [4]), (8, [1])):
        (call,) = row_blocks(kernel, room).calls
        assert list(call.kernels) == sizes
        assert sum(rows * count for rows, (count, _) in call.kernels.items()) == 100


EXAMPLES = [
    pytest.param(text, id=f"{definition.name}-{k}")
    for definition in DEFINITIONS.values()
    if "lapack" not in definition.name
    for k, text in enumerate(definition.examples)
]


def interpreted(program: TensorProgram, operands: Sequence[np.ndarray]) -> list[np.ndarray]:
    loops, _ = schedule_program(program, named("x86-64-v4"))
    return interpret(loops, operands)


def assert_same(one: np.ndarray, other: np.ndarray) -> None:
    """Equal but for the order of sums, which may be another one in a few rows than in many."""
    assert one.dtype == other.dtype
    if not jnp.issubdtype(one.dtype, jnp.inexact):
        np.testing.assert_array_equal(one, other)
        return
    wide = np.complex128 if one.dtype.kind == "c" else np.float64
    largest = np.max(np.abs(other.astype(wide)), initial=0, where=np.isfinite(other.astype(wide)))
    np.testing.assert_allclose(
        one.astype(wide),
        other.astype(wide),
        atol=4 * float(jnp.finfo(one.dtype).eps) * float(largest),
    )


@pytest.mark.parametrize("text", EXAMPLES)
def test_examples_of_all_ops(text: str, take_module_apart) -> None:
    """Kernel by kernel, as long as rows are; each in blocks of two rows and of one."""
    for kernel in take_module_apart(parse_module(text)).kernels.values():
        rng = np.random.default_rng(len(text))
        operands = [made_up(b.shape, b.dtype.numpy, rng) for b in kernel.program.operands]
        found = [row_blocks(kernel, room) for room in (1, 1 << 20)]
        if None in found:
            continue
        whole = interpreted(kernel.program, operands)
        for blocks in found:
            for one, other in zip(in_blocks(blocks, kernel.program, operands), whole, strict=True):
                assert_same(one, other)


def in_blocks(
    blocks: RowBlocks, program: TensorProgram, operands: Sequence[np.ndarray]
) -> list[np.ndarray]:
    """The results of all calls, each block after the other."""
    known = dict(zip(program.operands, operands, strict=True))
    for call in blocks.calls:
        known.update(call.constants)
        if not call.has_rows:
            ((_, kernel),) = call.kernels.values()
            results = interpreted(kernel.program, [known[b] for b in call.operands])
            known.update(zip(call.results, results, strict=True))
            continue
        befores = [f.before for f in call.folds]
        given = [known[b] for b in call.operands if b not in befores]
        sizes = [size for size, (count, _) in call.kernels.items() for _ in range(count)]
        assert sum(sizes) == blocks.rows
        groups = call.groups or len(sizes)
        rows = iter(range(blocks.rows))
        parts, folded = [], []
        for group in range(groups):
            folds = [
                np.full(f.before.shape, f.initial.value, f.before.dtype.numpy) for f in call.folds
            ]
            first, last = (n * len(sizes) // groups for n in (group, group + 1))
            for size in sizes[first:last]:
                block = list(itertools.islice(rows, size))
                kernel = call.kernels[size][1]
                here = [
                    a if a.shape == b.shape else a[block]
                    for b, a in zip(kernel.program.operands, given, strict=False)
                ]
                results = interpreted(kernel.program, [*here, *folds])
                count = len(results) - len(folds)
                parts.append(results[:count])
                folds = results[count:]
            folded.append(folds)
        count = len(call.results) - len(call.folds)
        known.update(
            zip(call.results[:count], map(np.concatenate, zip(*parts, strict=True)), strict=True)
        )
        known.update(
            zip(
                call.results[count:],
                (
                    np.stack(all_groups) if groups > 1 else all_groups[0]
                    for all_groups in zip(*folded, strict=True)
                ),
                strict=True,
            )
        )
    return [known[b] for b in program.results]
