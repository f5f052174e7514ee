"""Evaluation of scalar expressions over NumPy arrays: what an expression means, executed."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from hlo_mlc.expr.core import Apply, Buffer, Const, Expr, Load, Var, walk
from hlo_mlc.expr.ops import compute

Array = np.ndarray
Read = Callable[[Buffer, tuple[Array, ...]], Array]


def evaluate(expr: Expr, env: Mapping[Var, Array], read: Read | None = None) -> Array:
    """The value of `expr` where each variable has the value that `env` gives it.

    Arrays broadcast against each other, so one call evaluates a whole iteration space; shared
    nodes are computed once.  `read(buffer, indices)` gives the elements that a load asks for; the
    indices of a load whose guard is false are zeros.

    Raises: KeyError for a free variable that `env` lacks.
    """
    values: dict[Expr, Array] = {}
    for node in walk(expr):
        match node:
            case Const():
                values[node] = np.asarray(node.value).astype(node.dtype.numpy)
            case Var():
                values[node] = np.asarray(env[node]).astype(node.dtype.numpy, copy=False)
            case Apply():
                values[node] = compute(node.op, [values[a] for a in node.args], node.dtype)
            case Load():
                values[node] = _load(node, values, read)
    return values[expr]


def _load(node: Load, values: Mapping[Expr, Array], read: Read | None) -> Array:
    if read is None:
        raise TypeError(f"evaluating {node!r} needs a `read` function for its buffer")
    indices = tuple(values[i] for i in node.indices)
    if node.guard is None:
        return np.asarray(read(node.source, indices))
    guard = values[node.guard]
    inside = read(node.source, tuple(np.where(guard, i, 0) for i in indices))
    return np.where(guard, inside, values[node.default])
