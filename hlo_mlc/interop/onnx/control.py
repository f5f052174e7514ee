"""Operators that run graphs, and those on sequences of arrays, which are lists."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from hlo_mlc.interop.onnx.node import Node, Operator, integers, is_known
from hlo_mlc.interop.onnx.shapes import split


class _Varies(Exception):
    """A loop whose iterations are not all of one kind."""


def _arrays(values: Any) -> Any:
    return jax.tree.map(jnp.asarray, values)


def _if(node: Node, condition: Any) -> Any:
    def branch(name: str) -> list[Any]:
        return node.run(node[name])

    if is_known(condition):
        return tuple(branch("then_branch" if condition.all() else "else_branch"))
    return tuple(
        lax.cond(
            condition.reshape(()),
            lambda: _arrays(branch("then_branch")),
            lambda: _arrays(branch("else_branch")),
        )
    )


def _loop(node: Node, limit: Any = None, go: Any = None, *state: Any) -> Any:
    """As a scan where the number of iterations is known, all are of one kind, and what the first
    gives is not; else one after another where each says, when it is imported, whether the next
    follows; else while it holds."""
    go = np.array(True) if go is None else go
    count = None if limit is None else int(np.reshape(limit, ())) if is_known(limit) else limit
    counted = count is None or isinstance(count, int)

    def body(at: Any, go: Any, state: Any) -> tuple[Any, list[Any], list[Any]]:
        go, *outs = node.run(node["body"], at, go, *state)
        return go, outs[: len(state)], outs[len(state) :]

    def scanned(state: Any, at: Any) -> Any:
        follows, state, rows = body(at, np.array(True), state)
        if not is_known(follows) or not follows.all():
            raise _Varies
        return _arrays(state), _arrays(rows)

    if (
        counted
        and count is not None
        and count > 1
        and is_known(go)
        and go.all()
        and not (is_known(*state) and is_known(body(np.array(0, np.int64), go, state)))
    ):
        with contextlib.suppress(Exception):  # shapes that grow, or that depend on the iteration
            last, rows = lax.scan(
                scanned, _arrays(list(state)), jnp.arange(count, dtype=_integer())
            )
            return (*last, *rows)
    if counted and is_known(go):
        with contextlib.suppress(_Varies):
            return _one_after_another(body, count, go, list(state))

    def step(given: Any) -> Any:
        at, go, state = given
        go, state, rows = body(at, go, state)
        if rows:
            raise NotImplementedError("a number of iterations that depends on the model's inputs")
        return at + 1, jnp.asarray(go).reshape(()), _arrays(state)

    def follows(given: Any) -> Any:
        return given[1] & (True if count is None else given[0] < jnp.reshape(count, ()))

    start = jnp.asarray(0, _integer()), jnp.asarray(go).reshape(()), _arrays(list(state))
    return tuple(lax.while_loop(follows, step, start)[2])


def _one_after_another(body: Any, count: int | None, go: Any, state: list[Any]) -> Any:
    all_rows, at = [], 0
    while go.all() and (count is None or at < count):
        go, state, rows = body(np.array(at, np.int64), go, state)
        if not is_known(go):
            raise _Varies
        all_rows.append(rows)
        at += 1
    if not all_rows:
        _, _, rows = body(np.array(0, np.int64), go, state)  # for their types
        return (*state, *(jnp.zeros((0, *row.shape), row.dtype) for row in rows))
    stack = np.stack if is_known(all_rows) else jnp.stack
    return (*state, *map(stack, zip(*all_rows, strict=True)))


def _integer() -> np.dtype[Any]:
    return jax.dtypes.canonicalize_dtype(np.int64)


def _scan(node: Node, *values: Any) -> Any:
    count, body = node["num_scan_inputs"], node["body"]
    if node.version < 9:
        raise NotImplementedError(
            "Scan of before set 9: convert the model by onnx.version_converter"
        )
    state, rows = values[:-count], values[-count:]
    outs = len(body.output) - len(state)

    def each(name: str, number: int) -> Any:
        return node[name] or (0,) * number

    given = tuple(
        jnp.flip(jnp.moveaxis(row, axis, 0), 0) if backwards else jnp.moveaxis(row, axis, 0)
        for row, axis, backwards in zip(
            rows, each("scan_input_axes", count), each("scan_input_directions", count), strict=True
        )
    )

    def step(state: Any, rows: Any) -> Any:
        found = _arrays(node.run(body, *state, *rows))
        return tuple(found[: len(state)]), tuple(found[len(state) :])

    last, found = lax.scan(step, _arrays(tuple(state)), given)
    return (
        *last,
        *(
            jnp.moveaxis(jnp.flip(row, 0) if backwards else row, 0, axis)
            for row, axis, backwards in zip(
                found,
                each("scan_output_axes", outs),
                each("scan_output_directions", outs),
                strict=True,
            )
        ),
    )


def _position(at: Any) -> int:
    (number,) = integers(at, "its input position")
    return number


def _insert(node: Node, sequence: list[Any], value: Any, at: Any = None) -> list[Any]:
    at = (
        len(sequence)
        if at is None
        else _position(at) % (len(sequence) + 1)
        if _position(at) >= 0
        else _position(at) + len(sequence)
    )
    return [*sequence[:at], value, *sequence[at:]]


def _erase(node: Node, sequence: list[Any], at: Any = None) -> list[Any]:
    at = (-1 if at is None else _position(at)) % len(sequence)
    return [*sequence[:at], *sequence[at + 1 :]]


def _split_to_sequence(node: Node, x: Any, sizes: Any = None) -> list[Any]:
    length, axis = x.shape[node["axis"]], node["axis"]
    if sizes is None:
        parts = split(node, x, np.ones(length, np.int64))
        return [part if node["keepdims"] else part.squeeze(axis) for part in parts]
    if np.ndim(sizes) == 0:
        size = _position(sizes)
        sizes = np.array([min(size, length - first) for first in range(0, length, size)])
    return list(split(node, x, sizes))


def _map(node: Node, sequence: list[Any], *others: Any) -> Any:
    rows = [
        node.run(
            node["body"],
            value,
            *(other[n] if isinstance(other, list) else other for other in others),
        )
        for n, value in enumerate(sequence)
    ]
    return tuple([row[n] for row in rows] for n in range(node.results))


def _from_sequence(node: Node, sequence: list[Any]) -> Any:
    return (node.numpy.stack if node["new_axis"] else node.numpy.concatenate)(
        sequence, node["axis"]
    )


def _has_element(node: Node, value: Any = None) -> Any:
    return np.array(value is not None)


CONTROL: Mapping[str, Operator] = {
    "ConcatFromSequence": _from_sequence,
    "If": _if,
    "Loop": _loop,
    "Optional": lambda node, value=None: value,
    "OptionalGetElement": lambda node, value: value,
    "OptionalHasElement": _has_element,
    "Scan": _scan,
    "SequenceAt": lambda node, sequence, at: sequence[_position(at)],
    "SequenceConstruct": lambda node, *values: list(values),
    "SequenceEmpty": lambda node: [],
    "SequenceErase": _erase,
    "SequenceInsert": _insert,
    "SequenceLength": lambda node, sequence: np.array(len(sequence), np.int64),
    "SequenceMap": _map,
    "SplitToSequence": _split_to_sequence,
}
