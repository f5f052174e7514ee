"""What the builder writes is what NumPy has for it, and nothing where nothing changes."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from hlo_mlc.expr.dtypes import F32, I32, U32, TensorType
from hlo_mlc.graph.builder import Builder
from hlo_mlc.graph.core import Graph, Value
from hlo_mlc.graph.rewrite import NodeList
from hlo_mlc.graph.verify import verify_graph
from hlo_mlc.ops.registry import evaluate_graph

X = np.arange(24, dtype=np.float32).reshape(2, 3, 4) - 11
Write = Callable[[Builder, Value], Value]


def _starts(new: Builder) -> list[Value]:
    return [new.scalar(n, I32) for n in (1, 0, 2)]


def _updated() -> np.ndarray:
    array = X.copy()
    array[1:2, :2, 2:] = 7
    return array


WRITTEN: dict[str, tuple[Write, np.ndarray]] = {
    "constant": (lambda new, x: new.constant(3, x.type), np.full_like(X, 3)),
    "like": (lambda new, x: new.like("stablehlo.add", x, x), X + X),
    "convert": (lambda new, x: new.convert(x, I32), X.astype(np.int32)),
    "bitcast": (lambda new, x: new.bitcast(x, U32), X.view(np.uint32)),
    "reshape": (lambda new, x: new.reshape(x, (6, 4)), X.reshape(6, 4)),
    "broadcast": (
        lambda new, x: new.broadcast(x, (2, 5, 3, 4), (0, 2, 3)),
        np.broadcast_to(X[:, None], (2, 5, 3, 4)),
    ),
    "transpose": (lambda new, x: new.transpose(x, (2, 0, 1)), X.transpose(2, 0, 1)),
    "move": (lambda new, x: new.move(x, 2, 0), np.moveaxis(X, 2, 0)),
    "slice": (lambda new, x: new.slice(x, (0, 1, 0), (2, 3, 4), (1, 1, 3)), X[:, 1:, ::3]),
    "cut": (lambda new, x: new.cut(x, 1, 2, 1), X[:, 2:3]),
    "pad": (lambda new, x: new.pad(x, (0, 1, 0), (2, 0, 3)), np.pad(X, ((0, 2), (1, 0), (0, 3)))),
    "iota": (lambda new, x: new.iota(TensorType((2, 3), I32), 1), np.indices((2, 3))[1]),
    "compare": (lambda new, x: new.compare("LT", x, new.constant(2, x.type)), X < 2),
    "select": (
        lambda new, x: new.select(
            new.compare("GT", x, new.constant(2, x.type)), x, new.like("stablehlo.negate", x)
        ),
        np.where(X > 2, X, -X),
    ),
    "dynamic_slice": (lambda new, x: new.dynamic_slice(x, _starts(new), (1, 2, 2)), X[1:2, :2, 2:]),
    "update": (
        lambda new, x: new.update(x, new.constant(7, TensorType((1, 2, 2), F32)), _starts(new)),
        _updated(),
    ),
    "fold": (
        lambda new, x: new.fold("stablehlo.add", x, new.scalar(0, F32), (2, 0)),
        X.sum((0, 2)),
    ),
}


@pytest.mark.parametrize("name", WRITTEN)
def test_what_is_written_is_what_numpy_has(name: str):
    write, expected = WRITTEN[name]
    x, new = Value(TensorType(X.shape, F32)), NodeList()
    result = write(new, x)
    graph = Graph((x,), tuple(new.nodes), (result,))
    verify_graph(graph)
    (found,) = evaluate_graph(graph, [X])
    assert found.shape == expected.shape == result.type.shape
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize(
    "write",
    [
        lambda new, x: new.convert(x, F32),
        lambda new, x: new.bitcast(x, F32),
        lambda new, x: new.reshape(x, X.shape),
        lambda new, x: new.transpose(x, (0, 1, 2)),
        lambda new, x: new.move(x, 1, 1),
        lambda new, x: new.slice(x, (0, 0, 0), X.shape),
        lambda new, x: new.cut(x, 1, 0, 3),
    ],
)
def test_what_changes_nothing_is_the_operand(write: Write):
    x, new = Value(TensorType(X.shape, F32)), NodeList()
    assert write(new, x) is x
    assert not new.nodes
