"""Families that make one array of several computed parts: joined, stacked, woven, written."""

from __future__ import annotations

from fuzzing.draws import Draws
from fuzzing.program import Operand

PARTS = (
    "{x}",
    "{y}",
    "{x} * 2 + {y}",
    "{x} - {y}",
    "{x} * {y}",
    "jnp.flip({x}, {b})",
    "jnp.roll({x}, {n}, {b})",
    "lax.slice_in_dim({x}, {low}, {high}, axis={a})",
    "lax.slice_in_dim({x} * {y} + 1, {low}, {high}, axis={a})",
    "jnp.broadcast_to({x}.sum({b}, keepdims=True, dtype={t!r}), {shape})",
    "{x} + {x}.sum({b}, keepdims=True, dtype={t!r})",
    "{x}.sum({a}, keepdims=True, dtype={t!r})",
    "jnp.zeros_like({x})",
    "table({shape}, {t!r})",
    "jnp.where({x} == {y}, {x}, 0)",
    "jnp.cumsum({x}, {b}, dtype={t!r})",
    "jnp.repeat({x}, 2, {a})",
)
ORDERED_PARTS = (
    "{x} - {x}.max({b}, keepdims=True)",
    "{x}.max({a}, keepdims=True)",
    "jnp.minimum({x}, {y}.min({b}, keepdims=True))",
    "jnp.broadcast_to({x}.argmax({b}, keepdims=True), {shape})",
    "jnp.where({x} > {y}, {x}, {y})",
    "jnp.sort({x}, {b})",
    "jnp.argsort({x}, {b})",
    "lax.cummax({x}, {b})",
    "lax.broadcasted_iota('int32', {shape}, {b})",
)
FLOAT_PARTS = (
    "jnp.tanh({x})",
    "jax.nn.softmax({x}, {b})",
    "jnp.exp({x} - {x}.max({b}, keepdims=True))",
    "{x} * lax.rsqrt(({x} * {x}).mean({b}, keepdims=True) + 0.125)",
    "{x}.mean({a}, keepdims=True)",
)
AFTER_JOINING = (
    "{}",
    "{}",
    "{} * 2",
    "({} + 1)[..., ::-1]",
    "{}.sum({a})",
    "{}.T",
    "{}.reshape(-1)",
    "jnp.where({0} != 0, {0}, 1)",
)


def _parts_of(x: Operand) -> tuple[str, ...]:
    ordered = ORDERED_PARTS * (x.kind in "fiu")
    return PARTS + ordered + FLOAT_PARTS * (x.kind == "f")


def _part(draw: Draws, x: Operand, y: Operand, axis: int) -> str:
    """Something that goes with `x` along the axis, computed of both values."""
    low = draw.below(x.shape[axis] + 1)
    text = draw.among(_parts_of(x)).format(
        x=x,
        y=y,
        a=axis,
        b=draw.axis(x),
        n=draw.between(1, 3),
        low=low,
        high=draw.between(low, x.shape[axis]),
        shape=x.shape,
        t=x.dtype,
    )
    return f"({text}).astype({x.dtype!r})"


def joined(draw: Draws) -> str:
    """Parts of which some are computed of the same elements, or of folds of them."""
    x = draw.value("fiuc", rank=1, most_rank=4)
    y, axis = draw.same(x), draw.axis(x)
    parts = ", ".join(_part(draw, x, y, axis) for _ in range(draw.between(2, 5)))
    whole = f"jnp.concatenate([{parts}], {axis})"
    return draw.among(AFTER_JOINING).replace("{a}", str(axis)).format(whole)


FOLDS = (
    "{x}.sum({a}, keepdims=True, dtype={t!r})",
    "{x}.max({a}, keepdims=True)",
    "{x}.min({a}, keepdims=True)",
    "({x} * {y}).sum({a}, keepdims=True, dtype={t!r})",
    "{x}.argmax({a}, keepdims=True)",
    "({x} > {y}).sum({a}, keepdims=True)",
    "({x} - {x}.max({a}, keepdims=True)).sum({a}, keepdims=True, dtype={t!r})",
    "{x}.prod({a}, keepdims=True, dtype={t!r})",
)


def summaries(draw: Draws) -> str:
    """Folds of a value along one axis or several, side by side or spread beside the value."""
    x = draw.value("fiu", rank=1, most_rank=4)
    y, axis = draw.same(x), draw.axis(x)

    def fold(along: int) -> str:
        text = draw.among(FOLDS).format(x=x, y=y, a=along, t=x.dtype)
        return f"({text}).astype({x.dtype!r})"

    count = draw.between(2, 4)
    match draw.below(4):
        case 0:
            return f"jnp.concatenate([{', '.join(fold(axis) for _ in range(count))}], {axis})"
        case 1:
            flat = ", ".join(f"{fold(draw.axis(x))}.reshape(-1)" for _ in range(count))
            return f"jnp.concatenate([{flat}])"
        case 2:
            spread = ", ".join(
                f"jnp.broadcast_to({fold(draw.axis(x))}, {x.shape})" for _ in range(count)
            )
            return f"jnp.concatenate([{x}, {spread}], {axis})"
        case _:
            stacked = ", ".join(fold(axis) for _ in range(count))
            return f"jnp.stack([{stacked}], {draw.below(x.rank + 1)})"


def woven(draw: Draws) -> str:
    """Elements of two parts that take turns along an axis, or rows of pairs that are turned."""
    x = draw.value("fiuc", rank=1, most_rank=3)
    y, axis = draw.same(x), draw.axis(x)
    if draw.chance(40) and x.shape[-1] % 2 == 0:
        first, second = draw.among(
            (
                (f"{x}[..., ::2]", f"{x}[..., 1::2]"),
                (f"{x}[..., :{x.shape[-1] // 2}]", f"{x}[..., {x.shape[-1] // 2}:]"),
            )
        )
        one, other = f"({first} * 2 - {second} * 3)", f"({second} * 2 + {first} * 3)"
        if draw.chance(50):
            return f"jnp.concatenate([{one}, {other}], -1)"
        return f"jnp.stack([{one}, {other}], -1).reshape({x.shape})"
    shape = [2 * e if a == axis else e for a, e in enumerate(x.shape)]
    other = draw.among((f"{x} * {y}", f"-{x}", f"jnp.flip({y}, {axis})", f"jnp.zeros_like({x})"))
    return f"jnp.stack([{x}, {other}], {axis + 1}).reshape({tuple(shape)})"


def written(draw: Draws) -> str:
    """An array written part by part, of which some lie over others."""
    x = draw.value("fiuc", rank=1, most_rank=3)
    y, axis = draw.same(x), draw.axis(x)
    whole = draw.among((f"jnp.zeros({x.shape}, {x.dtype!r})", str(y), f"({x} + {y})"))
    extent = x.shape[axis]
    for _ in range(draw.between(2, 4)):
        low = draw.below(extent + 1)
        high = draw.between(low, extent)
        text = draw.among(("{x}", "{x} * {y}", "{y} - {x}", "{x} * 2")).format(x=x, y=y)
        part = f"lax.slice_in_dim({text}, {low}, {high}, axis={axis})"
        if draw.chance(30):
            begin = f"{draw.value('iu')}.reshape(-1)[:1].sum().astype('int32')"
            whole = f"lax.dynamic_update_slice_in_dim({whole}, {part}, {begin}, {axis})"
        else:
            place = draw.between(0, extent - (high - low))
            items = ":, " * axis + f"{place}:{place + high - low}"
            whole = f"{whole}.at[{items}].{draw.among(('set', 'set', 'add', 'mul'))}({part})"
    return whole
