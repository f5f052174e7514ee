"""Families of indexing along several axes, and of what JAX's library makes of searches and bins."""

from __future__ import annotations

import math

from fuzzing.draws import Draws
from fuzzing.program import Operand

ITEMS = (":", ":", "::2", "1:", "::-1", "None, :")
"""Slices of an axis."""


def _items(draw: Draws, x: Operand) -> str:
    """An index of some axes by numbers, which go together along one axis or several, and of others
    by slices."""
    items, count = [], draw.between(1, 5)
    table = (draw.between(1, 3), count)
    for extent in x.shape:
        shape = table if draw.chance(20) else (table[0], 1) if draw.chance(10) else (count,)
        size = math.prod(shape)
        if not extent or draw.chance(45):
            items.append(draw.among(ITEMS))
        elif draw.chance(25):
            numbers = draw.value("iu", rank=1, most_rank=1)
            items.append(f"jnp.resize({numbers}, {shape}) % {extent}")
        else:
            numbers = [draw.between(-extent, extent - 1) for _ in range(size)]
            items.append(f"np.reshape(np.array({numbers}), {shape})")
    return ", ".join(items)


def indexed(draw: Draws) -> str:
    """Elements or rows at places of several axes, which may stand apart."""
    x = draw.value(rank=2, most_rank=4)
    return f"{x}[{_items(draw, x)}]"


def scattered(draw: Draws) -> str:
    """The same written: places may be equal, what is done there goes in any order."""
    x = draw.value("fiu", rank=2, most_rank=3)
    items = _items(draw, x)
    operations = ("add(2)", "min(1)", "max(1)", "mul(2)", "set(3)", f"add({x}[{items}])")
    return f"{x}.at[{items}].{draw.among(operations)}"


LIBRARY = (
    "jnp.interp({x}, np.linspace(-2, 2, 9), np.sin(np.arange(9)))",
    "jnp.digitize({x}, np.array([-1.0, 0.25, 1.5]))",
    "jnp.polyval(np.array([0.5, -1, 2]), {x})",
    "jnp.convolve({x}.reshape(-1), np.array([1.0, -2, 0.5]))",
    "jnp.correlate({x}.reshape(-1), np.array([1.0, -2]))",
    "jax.image.resize({x}, {other}, 'nearest')",
    "jax.image.resize({x}, {other}, 'linear')",
    "jnp.gradient({x}.reshape(-1))",
    "jnp.trapezoid({x}, axis={a})",
    "jnp.nonzero({x}.reshape(-1) > 0, size=7)[0]",
    "jnp.nanmax({x}, {a})",
    "jnp.kron({x}, np.array([[1.0, -1]]))",
    "jax.nn.glu(jnp.concatenate([{x}, {x} * 2], {a}), {a})",
    "jnp.cov({x}.reshape({x}.shape[0], -1))",
    "jnp.outer({x}, np.arange(3.0))",
    "jnp.quantile({x}, 0.25, axis={a})",
    "jnp.packbits({x} > 0, axis={a})",
    "jnp.unpackbits(({x} > 0).astype('uint8'), axis={a})",
    "lax.bitcast_convert_type({x}, 'uint8')",
    "jnp.flip(lax.bitcast_convert_type({x}, 'uint8'), -1)",
    "jnp.vander({x}.reshape(-1), 3)",
    "jnp.roll({x}, {shift}, tuple(range({x}.ndim)))",
    "jnp.array_split({x}, 3, {a})[1]",
    "jnp.column_stack([{x}, {x}])",
    "jnp.select([{x} > 1, {x} < 0], [{x} * 2, -{x}], 7)",
    "jnp.heaviside({x}, 0.5)",
    "jnp.ldexp({x}, 3)",
    "jnp.frexp({x})[0]",
    "jnp.modf({x})[0]",
    "jnp.fmod({x}, 1.5)",
    "jnp.sinc({x})",
    "jnp.deg2rad({x})",
    "jnp.linalg.vector_norm({x}, axis={a}, ord=1)",
    "jnp.apply_along_axis(lambda r: r[::-1].cumsum(), {a}, {x})",
    "lax.reduce({x}, np.asarray(0).astype({t!r}), lambda p, q: jnp.where(p > q, p, q), ({a},))",
    "lax.reduce({x} > 0, np.True_, lax.bitwise_and, ({a},))",
)


def library(draw: Draws) -> str:
    """Functions of NumPy's that JAX makes of several others."""
    x = draw.value("f", rank=1, most_rank=3)
    return draw.among(LIBRARY).format(
        x=x,
        a=draw.axis(x),
        t=x.dtype,
        other=tuple(draw.among((1, max(1, e // 2), e, 2 * e)) for e in x.shape),
        shift=tuple(draw.below(4) for _ in x.shape),
    )
