"""Every pass of the simplifier is proved on all small programs of those that it is for.

What rules do is proved in test_proved_rules.py.  Each pass sees a program as the passes before it
leave it, changes it, and must then give the same bits for all inputs: every place, and whole
numbers of which sums are exact, so that other roundings than those of the program would be seen.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator, Mapping

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jaxlib.mlir import passmanager

from hlo_mlc.frontend.importer import import_function
from hlo_mlc.graph.core import Graph
from hlo_mlc.graph.verify import verify_graph
from hlo_mlc.ops.registry import evaluate_graph, references
from hlo_mlc.passes.simplify import simplification
from proving.inputs import same_bits
from proving.meanings import MEANINGS

PASSES = {p.name: p for p in simplification(references)}
RULES = "apply-rules"
ROWS, WIDE = 8, 8  # products of fewer terms stay in loops
Written = tuple[Callable, tuple[jax.ShapeDtypeStruct, ...]]


def of(*shape: int, dtype: str = "float32") -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, dtype)


def constants() -> Iterator[Written]:
    """Numbers from outside of loops and branches, and tables in them."""
    for trips, table, count in itertools.product((0, 1, 3), (False, True), (1, 3)):

        def looped(x: jax.Array, trips: int = trips, table: bool = table) -> jax.Array:
            def step(_: jax.Array, x: jax.Array) -> jax.Array:
                return x * (jnp.array(np.arange(x.size), x.dtype) if table else 2) + 1

            return lax.fori_loop(0, trips, step, x)

        yield looped, (of(count),)
        yield (
            lambda c, x, table=table: lax.cond(
                c > 0,
                lambda x: x + (jnp.arange(1.0, 1 + x.size) if table else 2),
                lambda x: x * 2,
                x,
            ),
            (of(dtype="int32"), of(count)),
        )


def copies() -> Iterator[Written]:
    """Nodes that are alike, also in the bodies of loops."""
    for one, other in itertools.product((jnp.abs, jnp.negative, lambda x: x * x), repeat=2):
        yield lambda x, f=one, g=other: (f(x) - g(x[::-1]), f(x)), (of(3),)
        yield (
            lambda x, f=one, g=other: lax.fori_loop(0, 3, lambda _, x: f(x) + g(x) - f(x), x),
            (of(3),),
        )


def unread() -> Iterator[Written]:
    """Values that nobody reads: results of functions that are called."""
    called = jax.jit(lambda x, y: (x + y, (x * y)[::-1], jnp.cumsum(x - y)))
    for kept in itertools.product((False, True), repeat=3):
        yield (
            lambda x, y, kept=kept: [v for v, k in zip(called(x, y), kept, strict=True) if k],
            (of(3), of(3)),
        )


def loops() -> Iterator[Written]:
    """Loops that carry what stays as it is, what goes round, and what nobody reads."""
    bodies = (
        lambda i, a, b, c: (a + b, b, c),
        lambda i, a, b, c: (a + i, b, b),
        lambda i, a, b, c: (a * b, c, b),
        lambda i, a, b, c: (a, b, a + b + c),
        lambda i, a, b, c: (b - a, b + 0 * i, c),
    )
    for body, trips, read in itertools.product(bodies, (0, 1, 2, 3), (1, 2, 3)):
        yield (
            lambda x, y, z, body=body, trips=trips, read=read: lax.fori_loop(
                0, trips, lambda i, s: body(i.astype(jnp.float32), *s), (x, y, z)
            )[:read],
            (of(2), of(2), of(2)),
        )


def lanes() -> Iterator[Written]:
    """Loops in which each lane has an end of its own, as it computes it, or looks it up."""
    ends = (
        lambda x: x * 3 - 1 < 4,
        lambda x: (x + 1 < 3) & (x < 2),
        lambda x: jnp.sum(jnp.stack([x, x * 2])) < 5,
        lambda x: x < 3,
    )
    for goes_on, by in itertools.product(ends, (1, 2)):
        yield (
            jax.vmap(
                lambda x, goes_on=goes_on, by=by: lax.while_loop(goes_on, lambda x: x + by, x)
            ),
            (of(3),),
        )


def same_in_all_trips() -> Iterator[Written]:
    """What a loop computes anew in each trip, used at once, later, or never."""
    for trips, f in itertools.product(
        (0, 1, 3), (jnp.negative, lambda y: y[::-1] * y, lambda y: jnp.sum(y * 2) + y)
    ):
        yield (
            lambda x, y, f=f, trips=trips: lax.fori_loop(0, trips, lambda i, x: x + f(y) * i, x),
            (of(3), of(3)),
        )
        yield (
            lambda x, y, f=f, trips=trips: lax.scan(
                lambda x, r: (x + f(y), r + f(y)), x, jnp.arange(trips, dtype=jnp.float32)
            ),
            (of(3), of(3)),
        )


def products_of_rows() -> Iterator[Written]:
    """Rows of what a loop does not change, in either order, some of them, from either side."""
    for reverse, first, left in itertools.product((False, True), (0, 1), (False, True)):

        def step(h: jax.Array, x: jax.Array, w: jax.Array, left: bool = left) -> tuple:
            new = (w.T @ x.T).T if left else x @ w
            return jnp.where(h > 2, new, new + h), h

        yield (
            lambda xs, w, h, step=step, reverse=reverse, first=first: lax.scan(
                functools.partial(step, w=w), h, xs[first:], reverse=reverse
            ),
            (of(ROWS, 2, WIDE), of(WIDE, 2), of(2, 2)),
        )


def products_for_rows() -> Iterator[Written]:
    """Rows of a result, and sums, that are products of what a loop computes."""
    for reverse, summed in itertools.product((False, True), repeat=2):

        def step(s: tuple, x: jax.Array, w: jax.Array, summed: bool = summed) -> tuple:
            h, total = s
            h = jnp.where(h > 2, h - 3, h + x)
            return (h, total + h.T @ x if summed else total), h @ w

        yield (
            lambda xs, w, h, t, step=step, reverse=reverse: lax.scan(
                functools.partial(step, w=w), (h, t), xs, reverse=reverse
            ),
            (of(ROWS, 2, WIDE), of(WIDE, 3), of(2, WIDE), of(WIDE, WIDE)),
        )


def updates() -> Iterator[Written]:
    """Updates of zeros that are added to what has no -0.0, or is of whole numbers; and others."""
    for dtype, before, count in itertools.product(
        ("float32", "int32"), (jnp.abs, lambda x: x, lambda x: x * x + 0), (1, 2)
    ):
        place = of(dtype="int32")

        def sliced(x: jax.Array, u: jax.Array, i: jax.Array, f: Callable = before) -> jax.Array:
            return lax.dynamic_update_slice(jnp.zeros_like(x), u, (i,)) + f(x)

        def scattered(x: jax.Array, u: jax.Array, i: jax.Array, f: Callable = before) -> jax.Array:
            return f(x) + jnp.zeros_like(x).at[i].add(u[0])

        yield sliced, (of(3, dtype=dtype), of(count, dtype=dtype), place)
        yield scattered, (of(3, dtype=dtype), of(count, dtype=dtype), place)


def folds_of_parts() -> Iterator[Written]:
    """What is put together of two or three parts, changed element by element, and folded."""
    folds = (jnp.sum, jnp.max, jnp.min, jnp.prod)
    for fold, axis, sizes in itertools.product(
        folds, (0, 1, None), ((1, 2), (2, 2, 1), (0, 3), (3, 3, 3))
    ):
        yield (
            lambda *parts, fold=fold, axis=axis: fold(
                jnp.square(jnp.concatenate(parts)) - 3, axis=axis
            ),
            tuple(of(size, 2) for size in sizes),
        )


def parts_of_results() -> Iterator[Written]:
    """Of what is computed, only some is read, or less of each element."""
    for start, step, f in itertools.product(
        (0, 1),
        (1, 2),
        (lambda x, w: x @ w, lambda x, w: x[:, :2] + w[0], lambda x, w: (x @ w).sum(1)),
    ):
        yield lambda x, w, f=f, s=start, by=step: f(x, w)[s::by], (of(4, 3), of(3, 2))
        yield lambda x, w, f=f: f(x, w).astype(jnp.bfloat16), (of(4, 3), of(3, 2))


PROGRAMS: Mapping[str, Callable[[], Iterator[Written]]] = {
    "sink-constants": constants,
    "merge-common-nodes": copies,
    "eliminate-dead-nodes": unread,
    "close-loops": loops,
    "carry-conditions": lanes,
    "hoist-invariants": same_in_all_trips,
    "multiply-before-loops": products_of_rows,
    "multiply-after-loops": products_for_rows,
    "update-in-place": updates,
    "fold-parts": folds_of_parts,
    "narrow-results": parts_of_results,
}


def graph_of(function: Callable, arguments: tuple[jax.ShapeDtypeStruct, ...]) -> Graph:
    """As JAX writes it."""
    module = jax.jit(function, keep_unused=True).lower(*arguments).compiler_ir("stablehlo")
    with module.context:
        passmanager.PassManager.parse("builtin.module(inline,symbol-dce)").run(module.operation)
    return import_function(module)


def inputs(graph: Graph) -> Iterator[list[np.ndarray]]:
    """Places within, and beyond either end; small numbers, among them 0.0 and -0.0."""
    small = np.array([1, -2, 0, 2, -1, -0.0, 3])
    choices = [
        [np.int32(n) for n in range(-1, 5)]
        if v.type.dtype.is_integer and not v.type.shape
        else [np.resize(np.roll(small, n), v.type.shape).astype(v.type.dtype.numpy)]
        for n, v in enumerate(graph.parameters)
    ]
    return map(list, itertools.product(*choices))


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_pass_is_proved(name: str) -> None:
    changed = 0
    for function, arguments in PROGRAMS[name]():
        before = graph_of(function, arguments)
        for earlier in itertools.takewhile(lambda p: p.name != name, PASSES.values()):
            if earlier.name != RULES:
                before = earlier.run(before)
        after = PASSES[name].run(before)
        if after is before:
            continue
        changed += 1
        verify_graph(after)
        for arrays in inputs(before):
            results = [evaluate_graph(graph, arrays, instead=MEANINGS) for graph in (after, before)]
            assert all(map(same_bits, *results)), f"{before}\n->\n{after}\n{results}"
    assert changed > 1


def test_all_passes_are_there() -> None:
    assert PROGRAMS.keys() | {RULES} == PASSES.keys()
