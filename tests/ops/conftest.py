"""Running op definitions: examples, their inputs, and lowered tensor expressions point by point."""

from __future__ import annotations

import functools
import itertools
import zlib
from collections.abc import Callable, Sequence

import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from jax.interpreters import mlir
from jaxlib.mlir import passmanager
from jaxlib.mlir.dialects import stablehlo

from hlo_mlc.expr import index
from hlo_mlc.expr.build import load
from hlo_mlc.expr.core import Buffer, Expr, Load, Var
from hlo_mlc.expr.dtypes import BOOL, INDEX, Kind, TensorType, from_numpy
from hlo_mlc.expr.evaluate import evaluate
from hlo_mlc.expr.layout import restored, stored
from hlo_mlc.expr.procedure import Move, Put
from hlo_mlc.frontend.importer import import_function
from hlo_mlc.frontend.parse import parse_module
from hlo_mlc.graph.core import Graph, Node, Value
from hlo_mlc.interop.compat import compile_for
from hlo_mlc.ops.definition import (
    Fold,
    Indices,
    Pointwise,
    Read,
    Sorted,
    Staged,
    Stepwise,
    Unrolled,
    Update,
)
from hlo_mlc.ops.registry import DEFINITIONS

SPECIAL = (0.0, -0.0, 1.0, -1.0, 0.5, -2.5, 3.0, 1e-3, 100.0, np.inf, -np.inf, np.nan)


def random_input(kind: TensorType, seed: str) -> np.ndarray:
    """Values of every magnitude, with special ones at random places."""
    if kind.dtype.kind is Kind.COMPLEX:
        return in_numbers([random_input(kind.part, f"{seed} {part}") for part in range(2)], kind)
    rng = np.random.default_rng(zlib.crc32(seed.encode()))
    dtype, numpy_type = kind.dtype, kind.dtype.numpy
    if dtype is BOOL:
        return rng.integers(0, 2, kind.shape).astype(np.bool_)
    small = rng.integers(-3, 8, kind.shape)
    if dtype.is_float:
        values = rng.standard_normal(kind.shape) * 10.0 ** rng.integers(-2, 2, kind.shape)
        chosen = rng.choice(SPECIAL, kind.shape)
        return np.asarray(np.where(rng.random(kind.shape) < 0.3, chosen, values)).astype(numpy_type)
    if dtype.is_packed:
        info = ml_dtypes.iinfo(numpy_type)
        return rng.integers(int(info.min), int(info.max) + 1, kind.shape).astype(numpy_type)
    info = np.iinfo(numpy_type)
    wide = rng.integers(info.min, info.max, kind.shape, numpy_type, endpoint=True)
    edges = rng.choice(np.array([info.min, info.max, 0, 1], numpy_type), kind.shape)
    pick = rng.random(kind.shape)
    near = np.maximum(small, 0) if not dtype.is_signed else small
    return np.where(pick < 0.5, near.astype(numpy_type), np.where(pick < 0.8, wide, edges))


def in_numbers(parts: Sequence[np.ndarray], kind: TensorType) -> np.ndarray:
    """Complex numbers of these parts."""
    numbers = np.empty(kind.shape, kind.dtype.numpy)
    numbers.real, numbers.imag = parts
    return numbers


def tame(values: np.ndarray) -> np.ndarray:
    """Small numbers of few bits, whose sums are exact in any order."""
    if values.dtype.kind == "c":
        return tame(values.real) + values.dtype.type(1j) * tame(values.imag)
    if values.dtype == np.bool_:
        return values
    with np.errstate(all="ignore"):
        finite = np.nan_to_num(values.astype(np.float64), nan=1.0, posinf=2.0, neginf=-2.0)
    return np.clip(np.round(finite), -3, 8).astype(values.dtype)


def reads_of(arrays: Sequence[np.ndarray], types: Sequence[TensorType]) -> tuple[list[Read], dict]:
    """A read for each array, and the arrays by buffer: complex numbers as their two parts."""
    buffers = [Buffer(f"b{k}", t.stored.dtype, t.stored.shape) for k, t in enumerate(types)]
    arrays = [np.stack((a.real, a.imag), -1) if a.dtype.kind == "c" else stored(a) for a in arrays]

    def read(buffer: Buffer) -> Read:
        return lambda indices: Load(buffer, indices)

    return [read(b) for b in buffers], dict(zip(buffers, arrays, strict=True))


class Memory:
    """Reads that must be within bounds; indices of loads that are off are 0."""

    def __init__(self, arrays: dict[Buffer, np.ndarray]) -> None:
        self._arrays = arrays

    def __call__(self, buffer: Buffer, indices: tuple[np.ndarray, ...]) -> np.ndarray:
        array = self._arrays[buffer]
        for i, extent in zip(indices, array.shape, strict=True):
            assert np.all((np.asarray(i) >= 0) & (np.asarray(i) < extent)), (buffer, i)
        return np.asarray(array[tuple(indices)])


def run_lowered(node: Node, arrays: Sequence[np.ndarray]) -> tuple[np.ndarray, ...]:
    """The results of a node through its tensor expressions."""
    types = [v.type for v in node.operands]
    if node.op == "stablehlo.constant":
        arrays, types = [node.literal], [node.results[0].type]
    reads, memory = reads_of(arrays, types)
    lowered = DEFINITIONS[node.op].lower(node, reads)
    match lowered:
        case Pointwise():
            return _run_pointwise(node, lowered, Memory(memory))
        case Fold():
            return _run_fold([v.type for v in node.results], lowered, Memory(memory))
        case Sorted():
            return _run_sorted(node, lowered, Memory(memory))
        case Update():
            return (_run_update(lowered, arrays, Memory(memory)),)
        case Unrolled():
            return _run_unrolled(node, lowered, Memory(memory))
        case Stepwise():
            return _run_stepwise(node, lowered, Memory(memory))
        case Staged():
            first = [e.dtype for e in lowered.first.finish(lowered.first.initial)]
            (between,) = _run_fold(
                [TensorType(lowered.shape, t) for t in first], lowered.first, Memory(memory)
            )
            buffer = Buffer("between", first[0], lowered.shape)
            then = lowered.then(lambda indices: Load(buffer, indices))
            return _run_fold(
                [v.type for v in node.results], then, Memory({**memory, buffer: between})
            )


def axes_of(shape: Sequence[int], prefix: str) -> tuple[Indices, dict[Var, np.ndarray]]:
    variables = tuple(Var(f"{prefix}{d}", INDEX, n) for d, n in enumerate(shape))
    return variables, dict(zip(variables, np.indices(tuple(shape), sparse=True), strict=True))


def _values(
    expressions: Sequence[Expr], env: dict, memory: Memory, kinds: Sequence[TensorType]
) -> tuple[np.ndarray, ...]:
    results = []
    for e, kind in zip(expressions, kinds, strict=True):
        assert e.dtype is kind.dtype, (e, kind)
        if kind.size == 0:
            results.append(np.zeros(kind.shape, kind.dtype.numpy))
        else:
            results.append(np.broadcast_to(evaluate(e, env, memory), kind.shape))
    return tuple(results)


def _run_pointwise(node: Node, lowered: Pointwise, memory: Memory) -> tuple[np.ndarray, ...]:
    results = []
    for element, value in zip(lowered.elements, node.results, strict=True):
        kind = value.type.stored
        indices, env = axes_of(kind.shape, "i")
        (result,) = _values([element(indices)], env, memory, [kind])
        results.append(
            in_numbers(np.moveaxis(result, -1, 0), value.type)
            if value.type.dtype.kind is Kind.COMPLEX
            else restored(result, value.type)
        )
    return tuple(results)


def _run_fold(kinds: Sequence[TensorType], lowered: Fold, memory: Memory) -> tuple[np.ndarray, ...]:
    shape = kinds[0].shape
    indices, env = axes_of(shape, "i")
    reduced, _ = axes_of(lowered.extents, "r")
    combiner = lowered.combiner
    terms = lowered.terms(indices, reduced)
    accumulator_kinds = [TensorType(shape, v.dtype) for v in combiner.lhs]
    state = _values(lowered.initial, env, memory, accumulator_kinds)
    for point in itertools.product(*map(range, lowered.extents)):
        at = env | dict(zip(reduced, map(np.asarray, point), strict=True))
        new = _values(terms, at, memory, accumulator_kinds)
        bound = dict(zip((*combiner.lhs, *combiner.rhs), (*state, *new), strict=True))
        state = _values(combiner.results, bound, memory, accumulator_kinds)
    if lowered.finish is None:
        return state
    bound = dict(zip(combiner.lhs, state, strict=True))
    return _values(lowered.finish(combiner.lhs), bound, memory, kinds)


def _run_sorted(node: Node, lowered: Sorted, memory: Memory) -> tuple[np.ndarray, ...]:
    shape = list(node.operands[0].type.shape)
    shape[lowered.axis] = lowered.extent
    indices, env = axes_of(tuple(shape), "i")
    terms = lowered.terms(indices)
    kinds = [TensorType(tuple(shape), e.dtype) for e in (*terms, *lowered.keys(terms))]
    values = _values((*terms, *lowered.keys(terms)), env, memory, kinds)
    order = np.lexsort(values[: len(terms) - 1 : -1], axis=lowered.axis)
    kept = node.results[0].type.shape[lowered.axis]
    return tuple(
        np.take_along_axis(v, order, lowered.axis).take(range(kept), lowered.axis)
        for v in values[: len(terms)]
    )


def _run_stepwise(node: Node, lowered: Stepwise, memory: Memory) -> tuple[np.ndarray, ...]:
    point, env = axes_of(lowered.extents, "i")
    tables = {
        Buffer(f"table{k}", from_numpy(t.dtype), t.shape): t for k, t in enumerate(lowered.tables)
    }
    procedure = lowered.procedure(
        point, tuple(functools.partial(load, buffer) for buffer in tables)
    )
    extents = tuple(lowered.extents)
    arrays = {b: np.full((*b.shape, *extents), 77, b.dtype.numpy) for b in procedure.arrays}

    def read(buffer: Buffer, indices: tuple[np.ndarray, ...]) -> np.ndarray:
        if buffer in tables:
            return tables[buffer][tuple(map(int, indices))]
        if buffer not in arrays:
            return memory(buffer, indices)
        assert all(0 <= i < n for i, n in zip(indices, buffer.shape, strict=True)), buffer
        return arrays[buffer][tuple(map(int, indices))]

    def run(body: Sequence[Move], env: dict) -> None:
        for move in body:
            if isinstance(move, Put):
                at = tuple(int(evaluate(i, env, read)) for i in move.indices)
                assert all(0 <= i < n for i, n in zip(at, move.array.shape, strict=True)), move
                arrays[move.array][at] = evaluate(move.value, env, read)
            else:
                for i in range(int(evaluate(move.extent, env, read))):
                    assert i < move.var.extent
                    run(move.body, {**env, move.var: np.asarray(i)})

    if 0 not in extents:
        run(procedure.body, env)
    found = []
    for array, value in zip(lowered.results, node.results, strict=True):
        result = np.full(value.type.stored.shape, 77, array.dtype.numpy)
        for own in np.ndindex(array.shape):
            place = lowered.place(point, tuple(map(index.constant, own)))
            result[tuple(evaluate(i, env, read).astype(int) for i in place)] = arrays[array][own]
        found.append(
            in_numbers(np.moveaxis(result, -1, 0), value.type)
            if value.type.dtype.kind is Kind.COMPLEX
            else result
        )
    return tuple(found)


def _run_unrolled(node: Node, lowered: Unrolled, memory: Memory) -> tuple[np.ndarray, ...]:
    point, env = axes_of(lowered.extents, "i")
    extents = tuple(lowered.extents)
    results = []
    for value, elements in zip(node.results, lowered.elements(point), strict=True):
        kind = value.type.stored
        result, written = np.zeros(kind.shape, kind.dtype.numpy), np.zeros(kind.shape, int)
        for place, element in elements:
            assert element.dtype is kind.dtype
            if 0 in extents:
                continue
            at = tuple(np.broadcast_to(evaluate(i, env, memory), extents) for i in place)
            result[at] = evaluate(element, env, memory)
            written[at] += 1
        assert np.all(written == 1)
        results.append(
            in_numbers(np.moveaxis(result, -1, 0), value.type)
            if value.type.dtype.kind is Kind.COMPLEX
            else result
        )
    return tuple(results)


def _run_update(lowered: Update, arrays: Sequence[np.ndarray], memory: Memory) -> np.ndarray:
    result = arrays[lowered.target].copy()
    point, env = axes_of(lowered.extents, "p")
    extents = tuple(lowered.extents)
    if 0 in extents:
        return result

    def spread(e: Expr) -> np.ndarray:
        return np.broadcast_to(evaluate(e, env, memory), extents)

    places = [spread(e) for e in lowered.place(point)]
    element = lowered.element(point)
    if lowered.guard is not None:
        guard = lowered.guard(point)
    for p in np.ndindex(extents):
        here = {v: np.asarray(k) for v, k in zip(point, p, strict=True)}
        if lowered.guard is not None and not evaluate(guard, here, memory):
            continue
        value = evaluate(element, here, memory)
        place = tuple(int(k[p]) for k in places)
        assert all(0 <= k < n for k, n in zip(place, result.shape, strict=True)), place
        if lowered.combiner is not None:
            combiner = lowered.combiner
            both = {combiner.lhs[0]: np.asarray(result[place]), combiner.rhs[0]: value}
            value = evaluate(combiner.results[0], both, memory)
        result[place] = value
    return result


def run_graph_lowered(graph: Graph, arrays: Sequence[np.ndarray]) -> tuple[np.ndarray, ...]:
    """The results of a graph, node by node through tensor expressions."""
    known: dict[Value, np.ndarray] = dict(zip(graph.parameters, arrays, strict=True))
    for node in graph.nodes:
        results = run_lowered(node, [known[v] for v in node.operands])
        known.update(zip(node.results, results, strict=True))
    return tuple(known[v] for v in graph.results)


class Examples:
    """What a test does with the text of a function."""

    def __init__(self) -> None:
        self._context = mlir.make_ir_context()
        stablehlo.register_stablehlo_passes()
        jnp.linalg.cholesky(jnp.eye(2))  # jaxlib looks up LAPACK's functions when JAX needs one

    def graph(self, text: str) -> Graph:
        return import_function(parse_module(text, self._context))

    def inputs(self, graph: Graph, seed: str, tamed: bool = False) -> list[np.ndarray]:
        arrays = [random_input(v.type, f"{seed} {k}") for k, v in enumerate(graph.parameters)]
        return [tame(a) for a in arrays] if tamed else arrays

    def lowered(self, graph: Graph, arrays: Sequence[np.ndarray]) -> tuple[np.ndarray, ...]:
        return run_graph_lowered(graph, arrays)

    def compiled(self, text: str, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
        """The results by XLA."""
        module = parse_module(text, self._context)
        if "chlo." in text:
            with self._context:
                passmanager.PassManager.parse(
                    "builtin.module(func.func(chlo-legalize-to-stablehlo))"
                ).run(module.operation)
        return [np.asarray(result) for result in compile_for(module)(arrays)]


@pytest.fixture(scope="session")
def examples() -> Examples:
    return Examples()


@pytest.fixture(scope="session")
def lowered_results() -> Callable[[Node, Sequence[np.ndarray]], tuple[np.ndarray, ...]]:
    return run_lowered
