"""Families of many axes: convolutions in any layout, transforms of any length, arrays of eight."""

from __future__ import annotations

import math

from fuzzing.draws import Draws
from fuzzing.program import UnfitError

MOST_PRODUCTS = 300_000
"""Of a convolution, as many as the reference computes in some milliseconds."""


def laid_out(draw: Draws) -> str:
    """A convolution of one to three axes, its operands' axes in any order, groups of features or of
    examples, borders that cut, and dilations of either side."""
    x = draw.value("fic", rank=1, most_rank=3, fits=lambda v: v.size > 0)
    axes = draw.among((1, 1, 2, 2, 3))
    groups, of_batch = draw.among((1, 1, 2, 3)), draw.chance(25)
    space = "HWD"[:axes]
    inputs, features = draw.among((1, 2, 3)), groups * draw.among((1, 2))
    extents = dict(zip(space, (draw.between(1, 7) for _ in space), strict=True))
    batch = groups * draw.among((1, 2)) if of_batch else draw.between(1, 3)
    channels = inputs if of_batch else inputs * groups
    lhs, rhs, out = ("".join(draw.shuffled(f"{two}{space}")) for two in ("NC", "OI", "NC"))
    window = {a: draw.among((1, 2, 3, 4)) for a in space}
    left = tuple({"N": batch, "C": channels, **extents}[a] for a in lhs)
    right = tuple({"O": features, "I": inputs, **window}[a] for a in rhs)
    if math.prod(left) * math.prod(window.values()) * features > MOST_PRODUCTS:
        raise UnfitError("too many products")
    few = (1, 1, 2, 3)
    strides, spread, holes = (tuple(draw.among(few) for _ in space) for _ in range(3))
    borders = [(draw.between(-1, 3), draw.between(-1, 3)) for _ in space]
    weights = f"table({right}, {x.dtype!r})"
    image = f"jnp.resize({x}, {left})"
    if draw.chance(30):  # both sides are values: of a weight that is not finite, what lies in a
        # border is left out by some of XLA's convolutions, and by ours
        weights = f"jnp.nan_to_num(jnp.resize({x}, {right}), posinf=2, neginf=-2)"
    name = "batch_group_count" if of_batch else "feature_group_count"
    wider = ", preferred_element_type='int32'" * (x.dtype in ("int8", "int16", "int32"))
    return (
        f"lax.conv_general_dilated({image}, {weights}, {strides}, {borders}, "
        f"lhs_dilation={spread}, rhs_dilation={holes}, dimension_numbers={(lhs, rhs, out)}, "
        f"{name}={groups}{wider})"
    )


TRANSFORMS = (
    "jnp.fft.fft({x}, n={n}, axis={a})",
    "jnp.fft.ifft({x}, n={n}, axis={a}, norm='ortho')",
    "jnp.fft.rfft({r}, n={n}, axis={a})",
    "jnp.fft.irfft({x}, n={n}, axis={a})",
    "jnp.fft.hfft({x}, n={n}, axis={a})",
    "jnp.fft.ihfft({r}, n={n}, axis={a})",
    "jnp.fft.fftn({x}, axes={some})",
    "jnp.fft.ifftn({x}, axes={some})",
    "jnp.fft.rfftn({r}, axes={some})",
    "jnp.fft.irfftn({x}, axes={some})",
    "jnp.fft.irfft(jnp.fft.rfft({r}, axis={a}) * 2, n={e}, axis={a})",
    "jnp.abs(jnp.fft.rfft({r} - {r}.mean({a}, keepdims=True), axis={a})) ** 2",
    "jax.jvp(lambda r: jnp.fft.irfft(jnp.fft.rfft(r, axis={a}), n={e}, axis={a}), "
    "({r},), ({r} * 2,))[1]",
    "jax.grad(lambda r: (jnp.abs(jnp.fft.fft(r, axis={a})) ** 2).sum())({r})",
)


def transform(draw: Draws) -> str:
    """A Fourier transform of any length, odd and prime ones among them."""
    x = draw.value(
        "fc", rank=1, fits=lambda v: v.dtype not in ("float16", "bfloat16") and v.size > 0
    )
    some = draw.axes(x)[-3:]
    return draw.among(TRANSFORMS).format(
        x=x,
        r=f"jnp.real({x})",
        a=(axis := draw.axis(x)),
        e=x.shape[axis],
        n=draw.between(1, 20),
        some=some,
    )


MANY = (
    "{v}",
    "{v} * 2 - {v}[::-1]",
    "{v} + {v}.sum(({p}, {q}), keepdims=True, dtype={t!r})",
    "jnp.cumsum({v}, {p}, dtype={t!r})",
    "jnp.flip({v}, ({p}, {q}))",
    "jnp.roll({v}, (1, 2), ({p}, {q}))",
    "lax.broadcast_in_dim({v}.sum({p}, dtype={t!r}), {shape}, {others})",
    "jnp.concatenate([{v}, {v}], {p})",
    "jnp.take({v}, jnp.array([0, -1]), {p})",
    "{v}.max(({p}, {q}), keepdims=True, initial=0) - {v}",
    "jnp.where({v} > 0, {v}, jnp.swapaxes(jnp.swapaxes({v}, {p}, {q}), {q}, {p}))",
)


def many_axes(draw: Draws) -> str:
    """An array of more axes than anyone names, turned about and computed with there."""
    x = draw.value("fiu", rank=1, most_rank=4, fits=lambda v: v.size > 0)
    shape: list[int] = []
    for extent in x.shape:
        factor = next((f for f in (2, 3, 5, 7) if extent % f == 0 and draw.chance(70)), 1)
        shape += [extent // factor, factor]
    order = draw.shuffled(range(len(shape)))
    turned = tuple(shape[a] for a in order)
    first = draw.below(len(order))
    second = (first + draw.between(1, len(order) - 1)) % len(order)
    # Extents may be open in a module, but not what is a product of numbers here.
    value = f"jnp.resize({x}, {tuple(shape)}).transpose({tuple(order)})"
    body = draw.among(MANY).format(
        v="v",
        p=first,
        q=second,
        t=x.dtype,
        shape=turned,
        others=tuple(a for a in range(len(order)) if a != first),
    )
    return f"(lambda v: ({body}).reshape({(-1, turned[-1])}))({value})"
