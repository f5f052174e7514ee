"""Random programs: recipes that Hypothesis draws and shrinks, built into JAX functions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

Value = jax.Array
Recipe = Sequence[tuple[int, int, int, int]]

# Most elements of a value: large enough for several vectors and a rest along every axis.
_LARGEST = 3000


@dataclass(slots=True)
class _Choice:
    """Numbers that decide what an op does, read one digit at a time."""

    number: int

    def below(self, count: int) -> int:
        self.number, digit = divmod(self.number, count)
        return digit

    def of(self, options: Sequence) -> object:
        return options[self.below(len(options))]


def _bounded(v: Value) -> Value:
    """Small whole numbers stay exact in sums of thousands of products."""
    return v if v.dtype == jnp.bool_ else jnp.clip(v, -4, 4)


def _numeric(v: Value) -> Value:
    return v.astype(jnp.int32) if v.dtype == jnp.bool_ else v


def _alike(v: Value, w: Value) -> tuple[Value, Value]:
    """Both of one type and of shapes that broadcast; else the second becomes a scalar."""
    v, w = _numeric(v), _numeric(w)
    if v.dtype != w.dtype:
        w = w.astype(v.dtype)
    try:
        np.broadcast_shapes(v.shape, w.shape)
    except ValueError:
        w = w.reshape(-1)[:1].sum() if w.size else jnp.zeros((), v.dtype)
    return v, w


def _axis(v: Value, choice: _Choice) -> int:
    return choice.below(v.ndim)


def _unary(v: Value, w: Value, choice: _Choice) -> Value:
    v = _numeric(v)
    return choice.of(
        [
            jnp.negative,
            jnp.abs,
            jnp.sign,
            lambda x: x * x,
            lambda x: 3 - x,
            lambda x: jnp.maximum(x, 0),
        ]
    )(v)


def _binary(v: Value, w: Value, choice: _Choice) -> Value:
    v, w = _alike(v, w)
    return choice.of([jnp.add, jnp.subtract, jnp.multiply, jnp.maximum, jnp.minimum])(v, w)


def _select(v: Value, w: Value, choice: _Choice) -> Value:
    v, w = _alike(v, w)
    return jnp.where(choice.of([jnp.less, jnp.equal, jnp.greater_equal])(v, w), v, w + 1)


def _compare(v: Value, w: Value, choice: _Choice) -> Value:
    v, w = _alike(v, w)
    return choice.of([jnp.less, jnp.not_equal, lambda x, y: (x > y) | (y > 2)])(v, w)


def _cast(v: Value, w: Value, choice: _Choice) -> Value:
    return jnp.nan_to_num(_numeric(v)).astype(
        choice.of([jnp.float32, jnp.int32, jnp.bool_, jnp.bfloat16, jnp.int8])
    )


def _transpose(v: Value, w: Value, choice: _Choice) -> Value:
    axes = list(range(v.ndim))
    order = [axes.pop(choice.below(len(axes))) for _ in range(v.ndim)]
    return jnp.transpose(v, order)


def _reshape(v: Value, w: Value, choice: _Choice) -> Value:
    if v.ndim >= 2 and choice.below(2):
        axis = choice.below(v.ndim - 1)
        shape = (*v.shape[:axis], v.shape[axis] * v.shape[axis + 1], *v.shape[axis + 2 :])
    else:
        axis = _axis(v, choice) if v.ndim else 0
        extent = v.shape[axis] if v.ndim else 1
        factor = next((f for f in (4, 3, 2) if extent and extent % f == 0), 1)
        shape = (*v.shape[:axis], factor, extent // factor, *v.shape[axis + 1 :])
    return v.reshape(shape)


def _slice(v: Value, w: Value, choice: _Choice) -> Value:
    if not v.ndim:
        return v
    axis = _axis(v, choice)
    start, step = choice.below(3), choice.of([1, 1, 2, 3])
    stop = max(start, v.shape[axis] - choice.below(3))
    start = min(start, v.shape[axis])
    return lax.slice_in_dim(v, start, min(stop, v.shape[axis]), step, axis)


def _reverse(v: Value, w: Value, choice: _Choice) -> Value:
    return lax.rev(v, [_axis(v, choice)]) if v.ndim else v


def _pad(v: Value, w: Value, choice: _Choice) -> Value:
    config = [
        (choice.below(4) - 1, choice.below(4) - 1, choice.below(2)) if d else (0, 0, 0)
        for d in v.shape
    ]
    sizes = [
        low + high + d + max(0, d - 1) * inner
        for d, (low, high, inner) in zip(v.shape, config, strict=True)
    ]
    if any(size < 0 for size in sizes):
        return v
    return lax.pad(v, jnp.asarray(1, v.dtype), config)


def _concatenate(v: Value, w: Value, choice: _Choice) -> Value:
    v, w = _alike(v, w)
    if not v.ndim:
        v = v[None]
    axis = _axis(v, choice)
    fits = v.ndim == w.ndim and all(
        a == b for d, (a, b) in enumerate(zip(v.shape, w.shape, strict=True)) if d != axis
    )
    return jnp.concatenate([v, w, v][: 2 + choice.below(2)] if fits else [v, v[::-1]], axis)


def _mix(v: Value, w: Value, choice: _Choice) -> Value:
    """The beginning of one tensor, then the rest of another of its shape."""
    if not v.ndim or v.shape != w.shape:
        w = lax.rev(v, tuple(range(v.ndim)))
    v, w = _alike(v, w)
    if not v.ndim:
        return v
    axis = _axis(v, choice)
    cut = choice.below(v.shape[axis] + 1)
    return jnp.concatenate(
        [lax.slice_in_dim(v, 0, cut, axis=axis), lax.slice_in_dim(w, cut, None, axis=axis)], axis
    )


def _expand(v: Value, w: Value, choice: _Choice) -> Value:
    axis = choice.below(v.ndim + 1)
    return jnp.repeat(jnp.expand_dims(v, axis), choice.of([1, 2, 3]), axis)


def _reduce(v: Value, w: Value, choice: _Choice) -> Value:
    if v.size == 0 or not v.ndim:
        return v
    axes = tuple(d for d in range(v.ndim) if choice.below(2)) or (choice.below(v.ndim),)
    fold = choice.of([jnp.sum, jnp.max, jnp.min, jnp.sum, jnp.any, jnp.all])
    return fold(v, axis=axes, keepdims=bool(choice.below(2)))


def _normalize(v: Value, w: Value, choice: _Choice) -> Value:
    """A row-wise chain: what softmax and layer norms are made of, in exact arithmetic."""
    if v.size == 0 or not v.ndim:
        return v
    v, axis = _numeric(v), choice.of([-1, -1, 0])
    centred = v - jnp.max(v, axis, keepdims=True)
    return centred * 2 - jnp.sum(_bounded(centred), axis, keepdims=True)


def _argmax(v: Value, w: Value, choice: _Choice) -> Value:
    if v.size == 0 or not v.ndim:
        return v
    return choice.of([jnp.argmax, jnp.argmin])(v, axis=_axis(v, choice))


def _cumulative(v: Value, w: Value, choice: _Choice) -> Value:
    if not v.ndim:
        return v
    v = _numeric(v)
    fold = choice.of([jnp.cumsum, lax.cummax, lax.cummin])
    return fold(v, axis=_axis(v, choice))


def _matmul(v: Value, w: Value, choice: _Choice) -> Value:
    v, w = _numeric(v), _numeric(w)
    if not v.ndim or not w.ndim or v.dtype != w.dtype or v.ndim > 3 or w.ndim > 3:
        return v
    pairs = [(a, b) for a in range(v.ndim) for b in range(w.ndim) if v.shape[a] == w.shape[b]]
    if not pairs:
        w, pairs = v, [(a, a) for a in range(v.ndim)]
    return lax.dot_general(v, w, (tuple(zip(choice.of(pairs), strict=True)), ((), ())))


def _gather(v: Value, w: Value, choice: _Choice) -> Value:
    if not v.ndim or 0 in v.shape:
        return v
    places = jnp.nan_to_num(_numeric(w)).astype(jnp.int32).reshape(-1)[: choice.of([1, 5, 20])]
    return jnp.take(v, places, axis=_axis(v, choice), mode=choice.of(["wrap", "clip"]))


def _update(v: Value, w: Value, choice: _Choice) -> Value:
    if not v.ndim or 0 in v.shape:
        return v
    v = _numeric(v)
    extent = v.shape[0]
    places = jnp.nan_to_num(_numeric(w)).astype(jnp.int32).reshape(-1)[:7]
    where = choice.of([slice(1, None, 2), slice(0, max(1, extent // 2)), places, extent // 2])
    at = v.at[where]
    return choice.of([at.set, at.add, at.max])(choice.of([2, v[0]]))


def _window(v: Value, w: Value, choice: _Choice) -> Value:
    """A slice whose place depends on data, or such a place overwritten."""
    if not v.ndim or 0 in v.shape:
        return v
    v, sizes = _numeric(v), [max(1, d // 2) for d in v.shape]
    start = jnp.nan_to_num(_numeric(w)).astype(jnp.int32).sum() if w.size else jnp.int32(0)
    starts = [start - d for d in range(v.ndim)]
    part = lax.dynamic_slice(v, starts, sizes)
    return part if choice.below(2) else lax.dynamic_update_slice(v, part + 1, [start] * v.ndim)


def _loop(v: Value, w: Value, choice: _Choice) -> Value:
    """Up to four carried tensors with a random body: in place, shifted, swapped, kept, doubled."""
    v, w = jnp.broadcast_arrays(*map(jnp.atleast_1d, _alike(v, w)))
    if not v.size:
        return v
    carried = (v, w, v + 1, v[0])[: 2 + choice.below(3)]
    steps = [_LoopStep.drawn(choice) for _ in range(1 + choice.below(5))]
    returned = [choice.of([0, 0, 0, 1, 2, 5]) for _ in carried]

    def body(i: Value, state: tuple[Value, ...]) -> tuple[Value, ...]:
        values = list(state)
        for step in steps:
            values.append(step(i, values))
        fitting = (
            [x for x in reversed(values) if (x.shape, x.dtype) == (c.shape, c.dtype)] for c in state
        )
        return tuple(x[k % len(x)] for x, k in zip(fitting, returned, strict=True))

    trips = choice.of([0, 1, 2, 3, 5])
    match choice.below(4):
        case 0:
            bound = trips + jnp.minimum(jnp.abs(v.ravel()[0]), 0).astype(jnp.int32)
            results = lax.fori_loop(0, bound, body, carried)
        case 1:
            results = lax.while_loop(
                lambda s: (s[0] < trips) & (jnp.max(s[1][0]) < 4),
                lambda s: (s[0] + 1, body(s[0], s[1])),
                (jnp.int32(0), carried),
            )[1]
        case 2:
            results = lax.fori_loop(
                0, trips, lambda i, s: lax.fori_loop(0, 2, lambda j, t: body(i + j, t), s), carried
            )
        case _:
            results = lax.fori_loop(0, trips, body, carried)
    return choice.of(results)


@dataclass(frozen=True, slots=True)
class _LoopStep:
    """One value of a loop's body, made of two earlier ones."""

    kind: int
    first: int
    second: int
    at: int
    way: int

    @classmethod
    def drawn(cls, choice: _Choice) -> _LoopStep:
        return cls(*(choice.below(n) for n in (9, 6, 6, 5, 9)))

    def __call__(self, i: Value, values: Sequence[Value]) -> Value:
        x, y = values[-1 - self.first % len(values)], values[-1 - self.second % len(values)]
        if x.shape != y.shape:
            y = jnp.broadcast_to(y.ravel()[0], x.shape)
        if not x.ndim:
            return _bounded(x + y)
        row = i % x.shape[0]
        match self.kind:
            case 0:
                return _bounded(x * 2 - y + i.astype(x.dtype))
            case 1:
                return jnp.roll(x, 1 + self.at, 0) if self.way % 2 else jnp.flip(x, 0)
            case 2:
                total = jnp.sum(_bounded(y), 0, keepdims=True).astype(x.dtype)
                return jnp.maximum(x, total % 3)
            case 3:
                return jnp.where(x > y, lax.cummax(y, axis=0), x)
            case 4:
                return x.at[1:].set(_bounded(x[:-1] + y[1:]))
            case 5:
                return lax.dynamic_update_slice_in_dim(
                    x, y[:1], y.ravel()[0].astype(jnp.int32) + row, 0
                )
            case _:
                at = x.at[_place(self.at, row, y)]
                new = (y[_place(self.at, row, x)], _bounded(y[0] + x[-1]), 1)[self.way // 3]
                return (at.set, at.add, at.max)[self.way % 3](new)


def _place(kind: int, row: Value, x: Value) -> object:
    """Elements along the first axis: of the counter, of data, fixed, repeated."""
    return (
        row,
        x.ravel()[0].astype(jnp.int32) % x.shape[0],
        slice(None, None, 2),
        0,
        jnp.stack([row, row * 0, row]),
    )[kind]


def _scan(v: Value, w: Value, choice: _Choice) -> Value:
    if not v.ndim:
        return v
    v = _numeric(v)
    start = jnp.zeros(v.shape[1:], v.dtype)
    body = choice.of(
        [
            lambda c, x: (_bounded(c + x), c),
            lambda c, x: (x, jnp.maximum(c, x)),
            lambda c, x: (_bounded(jnp.flip(c) - x), _bounded(c * x)),
        ]
    )
    last, stacked = lax.scan(body, start, v, reverse=bool(choice.below(2)))
    return choice.of([last, stacked])


def _while(v: Value, w: Value, choice: _Choice) -> Value:
    v = _numeric(v)
    limit = choice.of([-5, 3, 20])

    def going(state: tuple[Value, Value]) -> Value:
        return (jnp.sum(_bounded(state[0])) < limit) & (state[1] < 6)

    return lax.while_loop(going, lambda s: (_bounded(s[0] + 1), s[1] + 1), (v, jnp.int32(0)))[0]


_OPS = (
    _unary,
    _binary,
    _select,
    _compare,
    _cast,
    _transpose,
    _reshape,
    _slice,
    _reverse,
    _pad,
    _concatenate,
    _mix,
    _expand,
    _reduce,
    _normalize,
    _argmax,
    _cumulative,
    _matmul,
    _gather,
    _update,
    _window,
    _loop,
    _scan,
    _while,
)
_GROWING = (_unary, _binary, _reduce, _normalize, _cumulative, _matmul, _update, _window, _loop)


def _shrunk(v: Value) -> Value:
    """At most four axes and `_LARGEST` elements."""
    if v.ndim > 4:
        v = v.reshape(-1, *v.shape[-3:])
    while v.size > _LARGEST:
        longest = int(np.argmax(v.shape))
        v = lax.slice_in_dim(v, 0, v.shape[longest] // 2, axis=longest)
    return v


@dataclass(frozen=True)
class RandomProgram:
    """A function made of a recipe: op, its two operands (counted back), and its choices."""

    recipe: Recipe
    outputs: int

    def __call__(self, *args: Value) -> tuple[Value, ...]:
        values = list(args)
        for op, first, second, number in self.recipe:
            function = _OPS[op % len(_OPS)]
            v, w = (values[-1 - n % len(values)] for n in (first, second))
            result = function(v, w, _Choice(number))
            values.append(_shrunk(_bounded(result) if function in _GROWING else result))
        return tuple(values[-self.outputs :])

    def __repr__(self) -> str:
        ops = ", ".join(_OPS[op % len(_OPS)].__name__ for op, *_ in self.recipe)
        return f"RandomProgram({self.recipe!r}, {self.outputs})  # {ops}"


@pytest.fixture(scope="session")
def random_program() -> Callable[[Recipe, int], RandomProgram]:
    return RandomProgram
