"""Families that move values: joining, cutting, turning, indexing, updating, ordering."""

from __future__ import annotations

from fuzzing.draws import Draws
from fuzzing.program import Operand, UnfitError


def _goes_along(x: Operand, axis: int):
    """Whether a value can be joined with `x` along the axis."""

    def fits(value: Operand) -> bool:
        return (
            value.dtype == x.dtype
            and value.rank == x.rank
            and all(a == axis or value.shape[a] == x.shape[a] for a in range(x.rank))
        )

    return fits


def concatenate(draw: Draws) -> str:
    x = draw.value(rank=1)
    axis = draw.axis(x)
    parts = [x, *(draw.value(fits=_goes_along(x, axis)) for _ in range(draw.between(1, 3)))]
    if draw.chance(30):
        parts.reverse()
    return f"jnp.concatenate([{', '.join(map(str, parts))}], {axis})"


def stack(draw: Draws) -> str:
    x = draw.value()
    return f"jnp.stack([{x}, {draw.same(x)}], {draw.below(x.rank + 1)})"


def pad(draw: Draws) -> str:
    """Borders may be negative, elements may be pushed apart."""
    x = draw.value("fiuc", rank=1)
    if draw.chance(30):
        mode = draw.among(("edge", "reflect", "wrap", "constant"))
        widths = tuple((draw.below(3), draw.below(3)) for _ in range(x.rank))
        return f"jnp.pad({x}, {widths}, mode={mode!r})"
    borders = tuple(
        (draw.between(-2, 3), draw.between(-2, 3), draw.among((0, 0, 1, 2))) for _ in range(x.rank)
    )
    fill = draw.among((0, 1, 7))
    return f"lax.pad({x}, np.asarray({fill}).astype({x.dtype!r}), {borders})"


def cut(draw: Draws) -> str:
    """Basic indexing: strides, both directions, from either end."""
    x = draw.value(rank=1)
    items = []
    for extent in x.shape:
        items.append(
            draw.among(
                (
                    ":",
                    ":",
                    "::-1",
                    "1:",
                    ":-1",
                    "::2",
                    "1::3",
                    f"{extent // 2}:",
                    f":{extent // 2 + 1}",
                    "::-2",
                    "None, :",
                    "0" if extent else ":",
                    "-1" if extent else ":",
                )
            )
        )
    return f"{x}[{', '.join(items)}]"


MOVES = (
    "{x}.T",
    "jnp.flip({x}, {a})",
    "jnp.roll({x}, {n}, {a})",
    "jnp.roll({x}, -{n}, {a})",
    "jnp.repeat({x}, {n}, {a})",
    "jnp.swapaxes({x}, {a}, {b})",
    "jnp.moveaxis({x}, {a}, {b})",
    "{x}.reshape(-1)",
    "jnp.expand_dims({x}, {a})",
    "jnp.tile({x}, {n})",
    "{x}[:, None]",
    "{x}.reshape({x}.shape[::-1])",
    "jnp.squeeze({x})",
    "jnp.diagonal({x})",
    "jnp.rot90({x})",
    "jnp.tril({x})",
    "jnp.triu({x}, 1)",
    "{x} + {x}.T",
    "jnp.broadcast_to({x}, {wide})",
    "jnp.tile({x}, (2, {n}))",
    "{x}.reshape({x}.shape[0], -1)",
    "jnp.unstack({x})[{z}]",
    "jnp.vstack([{x}, {x}])",
    "jnp.hstack([{x}, {x}, {x}])",
    "lax.optimization_barrier({x})",
)


def move(draw: Draws) -> str:
    x = draw.value(rank=1)
    return draw.among(MOVES).format(
        x=x,
        a=draw.axis(x),
        b=draw.axis(x),
        n=draw.between(1, 3),
        z=0,
        wide=(draw.between(1, 3), *x.shape),
    )


def _index(draw: Draws, extent: int) -> str:
    """Places along an axis: constants, or a value of the program."""
    if draw.chance(50):
        return str(draw.value("iu", rank=1, most_rank=1))
    count = draw.between(1, 6)
    if draw.chance(30) and extent:
        step = draw.between(1, 3)
        return f"np.arange(0, {extent}, {step})"
    return f"np.array({[draw.between(-extent, extent) for _ in range(count)]})"


def gather(draw: Draws) -> str:
    x = draw.value(rank=1)
    axis = draw.axis(x)
    places = _index(draw, x.shape[axis])
    match draw.below(4):
        case 0:
            mode = draw.among(("clip", "wrap", "fill"))
            return f"jnp.take({x}, {places}, {axis}, mode={mode!r})"
        case 1:
            return f"{x}[{':, ' * axis}{places}]"
        case 2:
            return f"jnp.take_along_axis({x}, jnp.argsort({x}, {axis}), {axis})"
        case _:
            return f"{x}[{places} % {max(1, x.shape[0])}]"


def update(draw: Draws) -> str:
    """`.at[…]`: set where places differ, all else wherever they are."""
    x = draw.value("fiuc", rank=1)
    match draw.below(5):
        case 0:
            places, operations = _index(draw, x.shape[0]), ("add", "max", "min", "multiply")
            return f"{x}.at[{places}].{draw.among(operations)}({draw.among((1, 2, 3))})"
        case 1:
            places = f"np.arange({x.shape[0]})[::{draw.between(1, 3)}]"
            return f"{x}.at[{places}].{draw.among(('set', 'add'))}(2, unique_indices=True)"
        case 2:
            return f"{x}.at[{draw.among(('0', '-1', '1:', '::2', ':-1', '2:4'))}].set(3)"
        case 3:
            y = draw.same(x)
            part = draw.among(("1:", ":-1", "::2", ":1"))
            return f"{x}.at[{part}].{draw.among(('set', 'add', 'mul'))}({y}[{part}])"
        case _:
            places = draw.value("iu", rank=1, most_rank=1, fits=lambda v: v.shape[0] == x.shape[0])
            count = draw.between(1, 9)
            return f"jax.ops.segment_sum({x}, {places}, {count})"


def dynamic(draw: Draws) -> str:
    """Slices that begin where a value says; what is out of range is clamped."""
    x = draw.value(rank=1)
    axis = draw.axis(x)
    start = draw.value("iu")
    begin = f"{start}.reshape(-1)[:1].sum().astype('int32')"
    length = max(1, x.shape[axis] // draw.between(1, 3))
    if draw.chance(50):
        return f"lax.dynamic_slice_in_dim({x}, {begin}, {length}, {axis})"
    part = f"lax.slice_in_dim({draw.same(x)}, 0, {length}, axis={axis})"
    return f"lax.dynamic_update_slice_in_dim({x}, {part}, {begin}, {axis})"


def order(draw: Draws) -> str:
    x = draw.value("fiu", rank=1)
    axis = draw.axis(x)
    match draw.below(6):
        case 0:
            return f"jnp.sort({x}, {axis}, descending={draw.chance(30)})"
        case 1:
            return f"jnp.argsort({x}, {axis}, descending={draw.chance(30)})"
        case 3:
            return f"jnp.unique({x}, size={draw.between(1, 9)}, fill_value=0)"
        case 4:
            return f"jnp.searchsorted(jnp.sort({x}.reshape(-1)), {draw.same(x)})"
        case 2:
            y = draw.value("fiub", fits=lambda v: v.shape == x.shape)
            return f"lax.sort(({x}, {y}), dimension={axis}, num_keys=1)[1]"
        case _:
            return f"jnp.median({x}, {axis})" if x.kind == "f" else f"jnp.sort({x}, {axis})[::-1]"


def keys(draw: Draws) -> str:
    """Rows of several values sorted by the first few; keys of few values have ties."""
    x = draw.value("fiub", rank=1)
    axis = draw.axis(x)
    others = [
        draw.value("fiub", fits=lambda v: v.shape == x.shape) for _ in range(draw.between(1, 3))
    ]
    names = [str(x), *map(str, others)]
    if draw.chance(40):
        names[0] = f"{x} > {draw.like(x)}"
    if draw.chance(30):
        names.append(f"lax.broadcasted_iota('int32', {x.shape}, {axis})")
    count = draw.between(1, len(names))
    return (
        f"lax.sort(({', '.join(names)}), dimension={axis}, num_keys={count})"
        f"[{draw.among(('0', '-1'))}::{len(names) - 1}]"
    )


def largest(draw: Draws) -> str:
    x = draw.value("fi", rank=1)
    return f"lax.top_k({x}, {max(1, x.shape[-1] // draw.between(1, 4))})"


def split(draw: Draws) -> str:
    """Two parts along an axis."""
    x = draw.value(rank=1)
    axis = draw.axis(x)
    if x.shape[axis] < 2:
        raise UnfitError("too short to be split")
    at = draw.between(1, x.shape[axis] - 1)
    return f"jnp.split({x}, [{at}], {axis})"


def one_hot(draw: Draws) -> str:
    return f"jax.nn.one_hot({draw.value('iu', most_rank=2)}, {draw.between(1, 9)})"
