"""Families of products over any axes, and of what derivatives make of products and windows."""

from __future__ import annotations

import math

from fuzzing.draws import Draws
from fuzzing.program import UnfitError

COLUMNS = (1, 2, 3, 8, 17, 33)
MOST_PRODUCTS = 300_000
"""Of a contraction, as many as the reference computes in some milliseconds."""
WIDER = {"bfloat16": "float32", "float16": "float32", "int8": "int32", "uint8": "int32"}


def contraction(draw: Draws) -> str:
    """A product whose axes stand anywhere: of a batch, folded, of one side alone, left out."""
    x = draw.value("fiuc", rank=1, most_rank=4)
    own = "xy"[: draw.below(3)]
    extents = dict(zip("abcd", x.shape, strict=False)) | {a: draw.among(COLUMNS) for a in own}
    letters = "abcd"[: x.rank]
    shared = [a for a in letters if draw.chance(60)]
    kept = [a for a in (*letters, *own) if draw.chance(70)]
    second = draw.shuffled([*shared, *own])
    fold = f"{letters},{''.join(second)}->{''.join(draw.shuffled(kept))}"
    shape = tuple(extents[a] for a in second)
    if math.prod(extents.values()) > MOST_PRODUCTS:
        raise UnfitError("too many products")
    other = f"table({shape}, {x.dtype!r})"
    if draw.chance(30):
        other = str(draw.value(fits=lambda v: v.dtype == x.dtype and v.shape == shape))
    if x.dtype in WIDER and draw.chance(50):
        return f"jnp.einsum('{fold}', {x}, {other}, preferred_element_type={WIDER[x.dtype]!r})"
    return f"jnp.einsum('{fold}', {x}, {other})"


def weights(draw: Draws) -> str:
    """Derivatives by what a product or a convolution closes over."""
    x = draw.value("f", rank=2, most_rank=3)
    depth, columns = x.shape[-1], draw.among((1, 3, 8, 17))
    taps = draw.among((1, 2, 3))
    image = f"{x}.reshape({(-1, *x.shape[-2:])})"
    stride, border = draw.among((1, 2)), draw.among(("'SAME'", "'VALID'", "[(1, 2)]"))
    products = (
        (f"{x} @ w", (depth, columns)),
        (f"jnp.tanh({x} @ w)", (depth, columns)),
        (f"jax.nn.softmax({x} @ w, -1)", (depth, columns)),
        (
            f"lax.conv_general_dilated({image}, w, ({stride},), {border}, "
            f"dimension_numbers=('NHC', 'HIO', 'NHC'))",
            (taps, depth, columns),
        ),
        (f"{x} * w", (depth,)),
        (f"({x} - w).max(-1)", (depth,)),
    )
    function, shape = draw.among(products)
    start = f"jnp.asarray(table({shape}, {x.dtype!r})) * 0.5"
    return f"jax.grad(lambda w: jnp.sum(jnp.sin({function})))({start})"


def pooled(draw: Draws) -> str:
    """Derivatives of windows: of the largest, of means, of what a convolution sees."""
    x = draw.value("f", rank=1, most_rank=3)
    size = tuple(draw.among((1, 2, 3)) for _ in x.shape)
    stride = tuple(draw.among((1, 2, 3)) for _ in x.shape)
    border = draw.among(("'SAME'", "'VALID'"))
    start, name = draw.among((("-np.inf", "max"), ("0", "add"), ("np.inf", "min")))
    window = (
        f"lax.reduce_window(x, np.asarray({start}).astype({x.dtype!r}), lax.{name}, {size}, "
        f"{stride}, {border})"
    )
    function = draw.among(("jnp.sum({0})", "jnp.sum({0} * {0})", "jnp.sum(jnp.tanh({0}))"))
    return f"jax.grad(lambda x: {function.format(window)})({x})"
