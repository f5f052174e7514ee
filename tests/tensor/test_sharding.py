"""Rules of what may be cut into parts, and that the parts are the whole."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from hlo_mlc.backends.cpu import cpu_backend
from hlo_mlc.building import build_kernels
from hlo_mlc.compiler import clusters_of
from hlo_mlc.partition.kernel import make_kernel
from hlo_mlc.runtime.measure import bind_kernel
from hlo_mlc.support.dumps import Recorder
from hlo_mlc.support.options import Options
from hlo_mlc.tensor.core import TensorProgram
from hlo_mlc.tensor.pieces import Piece, pieces
from hlo_mlc.tensor.sharding import Factor, described, factors, part_of

X = np.random.default_rng(0).normal(size=(8, 12)).astype(np.float32)
W = np.random.default_rng(1).normal(size=(12, 6)).astype(np.float32)
V = np.arange(12, dtype=np.float32)
SQUARE = X[:, :8]
PLACES = np.int32([3, 0, 7, 7, 1, 5, 2, 6])


def program_of(function: Callable, *arrays: np.ndarray) -> TensorProgram:
    """The tensor program of a function that is one kernel."""
    module = jax.jit(function).lower(*arrays).compiler_ir()
    _, plan = clusters_of(module, Options.from_environment(choose="ours"))
    ((cluster, _),) = plan.taken
    return cluster.kernel.program


RULES = {
    "elementwise": (lambda x, v: jnp.tanh(x) * v, (X, V), "ab, b -> ab"),
    "product": (lambda x, w: x @ w, (X, W), "ab, bc -> ac, add over b"),
    "product of rows with each other": (lambda x: x @ x.T, (X,), ".a -> .., add over a"),
    "softmax": (lambda x: jax.nn.softmax(x), (X,), "ab -> ab, add over b, max over b"),
    "transposed": (lambda x: x.T * 2, (X,), "ab -> ba"),
    "product of all": (lambda x: x.prod(0), (X,), "ab -> b, mul over a"),
    "largest": (lambda x: x.max(0), (X,), "ab -> b, max over a"),
    "any": (lambda x: (x > 0).any(1), (X,), "ab -> a, max over b"),
    "sum that is read": (lambda x: x.sum(0) * 2, (X,), "ab -> b, add over a"),
    "sum from a number": (lambda x: lax.reduce(x, np.float32(1), lax.add, (0,)), (X,), ".a -> a"),
    "rounded sum": (
        lambda x: x.astype(jnp.bfloat16).sum(0).reshape(1, 12).sum(0),
        (X,),
        "ab -> b, add over a",
    ),
    "two sums": (lambda x: (x.sum(0), (x * x).sum(0)), (X,), "ab -> b, b, add over a"),
    "running sum": (lambda x: jnp.cumsum(x, 0), (X,), ".a -> .a"),
    "sort": (lambda x: jnp.sort(x, 1), (X,), "a. -> a."),
    "reversed": (lambda x: x[::-1] * 2, (X,), ".a -> .a"),
    "part": (lambda x: x[:3] * 2, (X,), ".a -> .a"),
    "joined": (lambda x: jnp.concatenate([x, x]), (X,), ".a -> .a"),
    "counted": (lambda x: x * jnp.arange(8.0)[:, None], (X,), ".a -> .a"),
    "merged dimensions": (lambda x: x.reshape(96) * 2, (X,), "a. -> a"),
    "split dimension": (lambda x: x.reshape(2, 4, 12).sum(1) * 2, (X,), "ab -> ab"),
    "split and merged": (lambda x: jnp.tanh(x).reshape(4, 24).sum(1), (X,), "a. -> a"),
    "merged in another order": (lambda x: x.T.reshape(96) * 2, (X,), ".a -> a"),
    "heads": (
        lambda q: jax.nn.softmax(jnp.einsum("bqd,bkd->bqk", q, q)).sum(1),
        (X.reshape(4, 4, 6),),
        "a.b -> a., add over b",
    ),
    "heads of rows": (
        lambda x: (lambda q: jnp.einsum("bqd,bkd->bqk", q, q))(x.reshape(2, 4, 12)),
        (X,),
        "ab -> a.., add over b",
    ),
    "diagonal": (lambda x: x * x.T, (SQUARE,), ".. -> .."),
    "looked up": (lambda x, k: jnp.tanh(x)[k], (X, PLACES), ".a, b -> ba"),
    "places of itself": (
        lambda x: jnp.take(x[:, 0], x[:, 1].astype(int), mode="clip"),
        (X,),
        ".. -> .",
    ),
    "place of the largest": (lambda x: jnp.argmax(x, 0), (X,), ".a -> a"),
    "a row overwritten": (lambda x, v: x.at[1].set(v), (X, V), ".a, a -> .a"),
    "attention": (
        lambda q: jax.nn.softmax(jnp.einsum("bqd,bkd->bqk", q, q)) @ q,
        (X.reshape(4, 4, 6),),
        "a.b -> a.b, add over b",
    ),
    "loop": (
        lambda x: lax.fori_loop(0, 3, lambda i, a: jnp.tanh(a + x.sum(1, keepdims=True)), x),
        (X,),
        "ab -> ab, add over b",
    ),
    "loop over rows": (
        lambda v, x: lax.scan(lambda c, r: (jnp.tanh(c * 0.5 + r), c), v, x)[1],
        (V, X),
        "a, .a -> .a",
    ),
}


@pytest.mark.parametrize("name", RULES)
def test_rules(name: str) -> None:
    function, arrays, rule = RULES[name]
    assert described(program_of(function, *arrays)) == rule


def run(program: TensorProgram | Piece, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
    """What the kernel of a program computes."""
    options = Options.from_environment(choose="ours")
    kernel = make_kernel(program.steps, program.operands, program.results, program.aliases)
    built = build_kernels([kernel], options, cpu_backend(options), Recorder(None)).built
    results = [np.empty(b.shape, b.dtype.numpy) for b in program.results]
    bind_kernel(built[kernel.fingerprint].code, arrays, results)()
    return results


FOLDS = {"add": np.add, "mul": np.multiply, "max": np.maximum, "min": np.minimum}


def in_parts(
    program: TensorProgram, factor: Factor, count: int, arrays: Sequence[np.ndarray]
) -> list[np.ndarray]:
    """The same, computed part by part along a factor, as devices do it."""
    local, found = pieces(program, {factor: count})
    along = dict(factor.operands)
    cut = [
        np.split(a, count, along[n]) if n in along else [a] * count for n, a in enumerate(arrays)
    ]
    known = [
        {b: np.ascontiguousarray(a[p]) for b, a in zip(local.operands, cut, strict=True)}
        for p in range(count)
    ]
    for piece in found:
        for have in known:
            have.update(
                zip(piece.results, run(piece, [have[b] for b in piece.operands]), strict=True)
            )
        for buffer, over, name in piece.joins:
            assert over == (factor,)
            joined = FOLDS[name].reduce([have[buffer] for have in known])
            for have in known:
                have[buffer] = joined
    axes = dict(factor.results)
    return [
        np.concatenate([have[b] for have in known], axes[n]) if n in axes else known[-1][b]
        for n, b in enumerate(local.results)
    ]


@pytest.mark.parametrize("name", [name for name, (*_, rule) in RULES.items() if "a" in rule])
def test_parts_are_the_whole(name: str) -> None:
    function, arrays, _ = RULES[name]
    program = program_of(function, *arrays)
    whole = run(program, arrays)
    assert factors(program)
    for factor in factors(program):
        for count in (n for n in (2, 3, factor.extent) if factor.extent % n == 0):
            for ours, theirs in zip(in_parts(program, factor, count, arrays), whole, strict=True):
                step = 0.0 if ours.dtype.kind in "bi" else float(jnp.finfo(ours.dtype).eps)
                np.testing.assert_allclose(ours, theirs, rtol=32 * step, atol=32 * step)


def test_pieces_wait_as_seldom_as_can_be() -> None:
    program = program_of(lambda x: (x - x.mean(1, keepdims=True)) / x.std(1, keepdims=True), X)
    rows, columns = factors(program)
    assert [len(piece.joins) for piece in pieces(program, {rows: 4})[1]] == [0]
    waits = [len(piece.joins) for piece in pieces(program, {rows: 4, columns: 3})[1]]
    assert waits[-1] == 0
    assert all(waits[:-1])
    program = program_of(lambda x: (x.sum(1) * 2, (x * x).sum(1) * 3), X)
    _, columns = factors(program)
    assert [len(piece.joins) for piece in pieces(program, {columns: 2})[1]] == [2, 0]


def test_several_factors_at_once() -> None:
    program = program_of(*RULES["product"][:1], X, W)
    rows, depth, columns = sorted(factors(program), key=lambda f: -f.extent == -8)
    local = part_of(program, {rows: 2, depth: 2, columns: 2})
    assert sum(b.size for b in local.operands) * 4 == X.size + W.size
