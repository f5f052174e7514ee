"""Families of primitives in their general form: with attributes that NumPy's functions never give
them."""

from __future__ import annotations

import math
from dataclasses import dataclass

from fuzzing.contracted import COLUMNS, MOST_PRODUCTS, WIDER
from fuzzing.draws import Draws
from fuzzing.folds import few, padding
from fuzzing.program import Operand, UnfitError

INDEX_TYPES = ("int32", "int32", "int8", "uint8", "uint32")
ROLES = ("batch", "dropped", "part", "part", "whole")
"""Of an axis of an array of which there are windows."""


@dataclass(frozen=True, slots=True)
class Windows:
    """Windows of an array at places that numbers say, which gathers read and scatters write."""

    numbers: str  # shape [*leading, one for each axis that is searched]
    shape: tuple[int, ...]  # of all windows, the leading axes of the numbers among theirs
    sizes: tuple[int, ...]
    kept: tuple[int, ...]  # which axes of `shape` are those of a window
    dropped: tuple[int, ...]  # axes of the array that have one element in a window, and no axis
    searched: tuple[int, ...]
    batch: tuple[int, ...]  # axes of the array that go along with axes of the numbers
    batch_of_numbers: tuple[int, ...]
    mode: str

    @property
    def are_apart(self) -> bool:
        """Whether no two of them have an element in common."""
        return len(self.shape) == len(self.kept) + len(self.batch)


def _windows(draw: Draws, x: Operand, are_read: bool = True) -> Windows:
    roles = [draw.among(ROLES) for _ in x.shape]
    batch, dropped = (
        tuple(a for a, role in enumerate(roles) if role == which) for which in ("batch", "dropped")
    )
    sizes = tuple(
        1 if role in ("batch", "dropped") else e if role == "whole" else draw.between(1, e)
        for role, e in zip(roles, x.shape, strict=True)
    )
    searched = tuple(
        draw.shuffled([a for a in range(x.rank) if a not in batch and draw.chance(70)])
    )
    # Of updates that no number places XLA makes the last alone.
    many = draw.below(3) if are_read or searched else 0
    extra = [(None, draw.between(1, 4)) for _ in range(many)]
    leading = draw.shuffled([*((a, x.shape[a]) for a in batch), *extra])
    windows = [s for a, s in enumerate(sizes) if a not in (*batch, *dropped)]
    rank = len(leading) + len(windows)
    kept = tuple(sorted(draw.shuffled(range(rank))[: len(windows)]))
    others, inner = iter([e for _, e in leading]), iter(windows)
    shape = tuple(next(inner) if a in kept else next(others) for a in range(rank))
    mode = draw.among(("clip", "fill", "promise_in_bounds"))
    numbers = (*(e for _, e in leading), len(searched))
    most = [x.shape[a] - sizes[a] + 1 for a in searched] if mode == "promise_in_bounds" else ()
    return Windows(
        _numbers(draw, numbers, most),
        shape,
        sizes,
        kept,
        dropped,
        searched,
        batch,
        tuple([a for a, _ in leading].index(b) for b in batch),
        mode,
    )


def _numbers(draw: Draws, shape: tuple[int, ...], most: list[int] | tuple[()]) -> str:
    """Numbers of the program or constants, beyond either end too where no `most` are given."""
    if draw.chance(50):
        some = draw.value("iu", fits=lambda v: v.size > 0)
        numbers = f"jnp.resize({some}, {shape}).astype('int32')"
    else:
        numbers = f"(jnp.asarray(table({shape}, 'int32', {draw.below(9)})) * {draw.between(1, 3)})"
    if most:
        numbers = f"({numbers} % np.array({most}, 'int32'))"
    return f"{numbers}.astype({draw.among(INDEX_TYPES)!r})"


def gathered(draw: Draws) -> str:
    """Windows of any axes, in any order; or what derivatives write back to where they came from."""
    x = draw.value(rank=1, most_rank=4, fits=lambda v: v.size > 0)
    w = _windows(draw, x)
    found = (
        f"lax.gather(x, {w.numbers}, lax.GatherDimensionNumbers(offset_dims={w.kept}, "
        f"collapsed_slice_dims={w.dropped}, start_index_map={w.searched}, "
        f"operand_batching_dims={w.batch}, start_indices_batching_dims={w.batch_of_numbers}), "
        f"{w.sizes}, mode={w.mode!r})"
    )
    if x.kind == "f" and draw.chance(25):
        return f"jax.grad(lambda x: jnp.sum(jnp.sin({found})))({x})"
    return f"(lambda x: {found})({x})"


SCATTERS = (
    "scatter",
    "scatter_add",
    "scatter_sub",
    "scatter_mul",
    "scatter_min",
    "scatter_max",
    "scatter_apply",
)
APPLIED = {"f": ("lax.neg", "lax.abs"), "c": ("lax.neg",), "b": ("lax.bitwise_not",)}
APPLIED_TO_INTEGERS = ("lax.neg", "lax.bitwise_not", "lambda q: q * q.dtype.type(3)")
"""What may be done again to what it gave; of floats what rounds nothing."""


def put(draw: Draws) -> str:
    """The same windows written: what differs only where they are apart."""
    x = draw.value(rank=1, most_rank=4, fits=lambda v: v.size > 0)
    y = draw.value(fits=lambda v: v.dtype == x.dtype and v.size > 0)
    w = _windows(draw, x, are_read=False)
    name = draw.among(SCATTERS)
    updates = (
        f"jnp.resize({y}, {w.shape})"
        if name != "scatter" or w.are_apart
        else f"jnp.full({w.shape}, 3).astype({x.dtype!r})"
    )
    shape = ""
    if name == "scatter_apply":
        updates = draw.among(APPLIED.get(x.kind, APPLIED_TO_INTEGERS))
        shape = f", update_shape={w.shape}"
    return (
        f"lax.{name}({x}, {w.numbers}, {updates}, lax.ScatterDimensionNumbers("
        f"update_window_dims={w.kept}, inserted_window_dims={w.dropped}, "
        f"scatter_dims_to_operand_dims={w.searched}, operand_batching_dims={w.batch}, "
        f"scatter_indices_batching_dims={w.batch_of_numbers}), mode={w.mode!r}{shape})"
    )


def general_product(draw: Draws) -> str:
    """A product whose axes of a batch, and those that are folded, stand anywhere on either side;
    of two types, into a third."""
    x = draw.value("fiubc", rank=1, most_rank=4)
    roles = [draw.among(("batch", "folded", "own")) for _ in x.shape]
    batch = draw.shuffled([a for a, role in enumerate(roles) if role == "batch"])
    folded = draw.shuffled([a for a, role in enumerate(roles) if role == "folded"])
    own = [draw.among(COLUMNS) for _ in range(draw.below(3))]
    axes = draw.shuffled([*((a, x.shape[a]) for a in (*batch, *folded)), *((None, e) for e in own)])
    shape = tuple(e for _, e in axes)
    if x.size * math.prod(own) > MOST_PRODUCTS:
        raise UnfitError("too many products")
    places = [a for a, _ in axes]
    dims = (
        (tuple(folded), tuple(map(places.index, folded))),
        (tuple(batch), tuple(map(places.index, batch))),
    )
    other = f"table({shape}, {x.dtype!r})"
    if draw.chance(30):
        other = str(draw.value(fits=lambda v: v.kind in "fiu" and v.shape == shape))
    elif x.kind in "fiu" and draw.chance(25):
        other = f"table({shape}, {draw.among(('bfloat16', 'float32', 'int8', 'int32'))!r})"
    wider = WIDER.get(x.dtype) if draw.chance(50) else None
    return f"lax.dot_general({x}, {other}, {dims}, preferred_element_type={wider!r})"


FOLDED = (
    (
        "(x, i)",
        "(np.asarray({high}, {t!r}), np.int32(1 << 30))",
        "lambda p, q: (lambda first: tuple(lax.select(first, *pair) for pair in zip(p, q)))"
        "((p[0] < q[0]) | ((p[0] == q[0]) & (p[1] < q[1])))",
    ),
    (
        "(x, x > 1, i)",
        "(np.asarray({low}, {t!r}), np.False_, np.int32(0))",
        "lambda p, q: (lax.max(p[0], q[0]), p[1] | q[1], p[2] + q[2])",
    ),
    (
        "(i, x)",
        "(np.int32(-1), np.asarray({high}, {t!r}))",
        "lambda p, q: (p[0] & q[0], lax.min(p[1], q[1]))",
    ),
)


def folded_together(draw: Draws) -> str:
    """Arrays of several types folded by one combiner, of whole axes or of windows."""
    x = draw.value("fiu", rank=1, most_rank=3)
    arrays, starts, combine = draw.among(FOLDED)
    low, high = (
        ("-np.inf", "np.inf")
        if x.kind == "f"
        else (f"np.iinfo({x.dtype!r}).min", f"np.iinfo({x.dtype!r}).max")
    )
    starts = starts.format(low=low, high=high, t=x.dtype)
    if draw.chance(50):
        fold = f"lax.reduce({arrays}, {starts}, {combine}, {draw.axes(x)})"
    else:
        size = tuple(draw.among((1, 2, 3, 5)) for _ in x.shape)
        holes = f"base_dilation={few(draw, x.rank)}, window_dilation={few(draw, x.rank)}"
        fold = (
            f"lax.reduce_window({arrays}, {starts}, {combine}, {size}, {few(draw, x.rank)}, "
            f"{padding(draw, x.rank)}, {holes * draw.chance(40)})"
        )
    count = f"lax.broadcasted_iota('int32', {x}.shape, {draw.axis(x)})"  # which may be open
    # Of NaN, which is neither first nor last, what is found depends on the order.
    value = f"jnp.nan_to_num({x})" if x.kind == "f" else str(x)
    return f"(lambda x, i: {fold}[:2])({value}, {count})"


def chosen(draw: Draws) -> str:
    """One of several by a number, or bounds that may be any way round."""
    x = draw.value()
    y, z = draw.same(x), draw.same(x)
    if x.kind in "fiu" and draw.chance(50):
        low, high = (
            str(v) if draw.chance(60) else f"np.asarray({draw.among((0, 1, 2))}, {x.dtype!r})"
            for v in (y, z)
        )
        return f"lax.clamp({low}, {x}, {high})"
    which = draw.value("iu", fits=lambda v: v.shape == x.shape)
    return f"lax.select_n(({which} % 3).astype('int32'), {x}, {y}, {z})"


GENERATORS = ("RNG_DEFAULT", "RNG_THREE_FRY", "RNG_PHILOX")


def generated(draw: Draws) -> str:
    """Random bits of a generator of XLA's, and its state after."""
    seed = draw.value("iu", fits=lambda v: v.size > 0)
    x = draw.value(fits=lambda v: v.size > 0)
    name = draw.among(("uint32", "uint32", "uint8", "uint16"))
    return (
        f"lax.rng_bit_generator(jnp.resize({seed}, 4).astype('uint32'), {x.shape}, {name!r}, "
        f"lax.RandomAlgorithm.{draw.among(GENERATORS)})"
    )
