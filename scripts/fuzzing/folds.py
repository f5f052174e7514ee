"""Families that fold: reductions, norms, products, convolutions, windows, scans."""

from __future__ import annotations

import math

from fuzzing.draws import Draws
from fuzzing.program import Operand, UnfitError

REDUCTIONS = {
    "f": (
        "sum",
        "sum",
        "max",
        "min",
        "mean",
        "var",
        "std",
        "prod",
        "any",
        "argmax",
        "argmin",
        "nansum",
        "count_nonzero",
        "ptp",
    ),
    "i": ("sum", "sum", "max", "min", "prod", "all", "argmax", "argmin", "mean"),
    "b": ("any", "all", "sum", "argmax", "count_nonzero"),
    "c": ("sum", "prod"),
}
ONE_AXIS = ("argmax", "argmin")


def reduction(draw: Draws) -> str:
    x = draw.value(rank=1)
    name = draw.among(REDUCTIONS["i" if x.kind == "u" else x.kind])
    keep = ", keepdims=True" * draw.chance(30)
    if name in ONE_AXIS:
        axis = draw.axis(x) - x.rank * draw.below(2)
        return f"jnp.{name}({x}, {axis}{keep})"
    return f"jnp.{name}({x}, {draw.axes(x)}{keep})"


def several_reductions(draw: Draws) -> str:
    """Two folds of one value, which may share a nest."""
    x = draw.value("fi", rank=1)
    axis = draw.axis(x)
    names = ("sum", "max", "min", "argmax", "argmin")
    return f"{x}.{draw.among(names)}({axis}), {x}.{draw.among(names)}({axis})"


def variadic_reduction(draw: Draws) -> str:
    """`lax.reduce` with two accumulators."""
    x = draw.value("f", rank=1)
    y = draw.same(x)
    zero = f"jnp.zeros((), {x.dtype!r})"
    return (
        f"lax.reduce(({x}, {y}), ({zero}, {zero}), "
        f"lambda p, q: (p[0] + q[0], jnp.maximum(p[1], q[1])), {draw.axes(x)})"
    )


NORMS = (
    "jax.nn.softmax({x}, {a})",
    "jax.nn.log_softmax({x}, {a})",
    "jax.nn.logsumexp({x}, {a})",
    "({x} - {x}.mean({a}, keepdims=True)) * lax.rsqrt({x}.var({a}, keepdims=True) + 0.125)",
    "{x} * lax.rsqrt((({x} * {x}).mean({a}, keepdims=True)) + 0.125)",
    "{x} / (1 + jnp.abs({x}).sum({a}, keepdims=True))",
    "jax.nn.standardize({x}, {a})",
    "jnp.where({x} > 0, {x} - {x}.max({a}, keepdims=True), 0)",
    "jnp.exp({x} - {x}.max({a}, keepdims=True)).sum({a})",
    "{x}.argmax({a}) + (jnp.abs({x}).max({a}) > 1)",
    "jnp.linalg.norm({x}, axis={a})",
)


def norm(draw: Draws) -> str:
    x = draw.value("f", rank=1)
    return draw.among(NORMS).format(x=x, a=draw.among((-1, -1, draw.axis(x))))


def product(draw: Draws) -> str:
    """A product with a constant, with itself, or with another value that happens to fit."""
    x = draw.value("fic", rank=1)
    depth, name = x.shape[-1], repr(x.dtype)
    columns = draw.among((1, 2, 3, 8, 17, 33))
    match draw.below(8):
        case 0:
            return f"{x} @ table({(depth, columns)}, {name})"
        case 1:
            return (
                f"table({(columns, x.shape[0])}, {name}) @ {x}"
                if x.rank < 3
                else f"jnp.einsum('...ij,kj->...ki', {x}, table({(columns, depth)}, {name}))"
            )
        case 2 if x.rank >= 2:
            return f"jnp.einsum('...ij,...kj->...ik', {x}, {draw.same(x)})"
        case 3 if x.rank >= 2:
            return f"jnp.einsum('...ji,...jk->...ik', {x}, {draw.same(x)})"
        case 4 if x.rank >= 2:
            y = draw.value(
                rank=2, most_rank=2, fits=lambda v: v.dtype == x.dtype and v.shape[0] == depth
            )
            return f"jnp.dot({x}, {y})"
        case 5 if x.rank >= 2:
            return f"jnp.einsum('a...,b...->ab', {x}, {draw.same(x)})"
        case 6 if x.kind == "f" and x.rank >= 2:
            y = draw.same(x)
            scores = f"jnp.einsum('...ij,...kj->...ik', {x}, {y})"
            return f"jax.nn.softmax({scores} * 0.5, -1) @ {draw.same(x)}"
        case _:
            weights = f"table({(depth, columns)}, {name})"
            after = {"f": "jnp.tanh({} + 1) * 2", "c": "({}) * 2"}.get(x.kind, "jnp.maximum({}, 0)")
            return after.format(f"{x} @ {weights}")


PAIRS = (
    "jnp.abs({x} - {y})",
    "jnp.maximum({x}, {y})",
    "{x} * {y} + {x}",
    "{x} - {y}",
    "jnp.minimum({x} * 2, {y} + 1)",
    "{x} < {y}",
)


def pairs(draw: Draws) -> str:
    """A fold for all pairs of rows, of a value and a constant or the value itself."""
    x = draw.value("fi", rank=2)
    depth, columns = x.shape[-1], draw.among((2, 5, 16, 17, 33))
    if draw.chance(30) and x.rank == 2:
        one, other = f"{x}[:, None]", f"{draw.same(x)}[None]"
    else:
        one, other = f"{x}[..., None, :]", f"table({(columns, depth)}, {x.dtype!r})"
    names = ("sum", "max", "min", "argmin", "argmax")
    return f"({draw.among(PAIRS).format(x=one, y=other)}).{draw.among(names)}(-1)"


def padding(draw: Draws, axes: int) -> str:
    if draw.chance(40):
        return repr(draw.among(("SAME", "VALID")))
    return repr([(draw.below(3), draw.below(3)) for _ in range(axes)])


def few(draw: Draws, axes: int) -> tuple[int, ...]:
    return tuple(draw.among((1, 1, 2, 3)) for _ in range(axes))


def convolution(draw: Draws) -> str:
    x = draw.value("f", rank=2, most_rank=4)
    axes = 2 if x.rank > 2 else 1
    groups = draw.among((1, 1, 2, 3))
    inputs, features = draw.among((1, 2, 3)), groups * draw.among((1, 2, 4))
    channels = inputs * groups
    image = (
        f"jnp.broadcast_to({x}.reshape({(-1, 1, *x.shape[-axes:])}), "
        f"{(-(-x.size // max(1, math.prod(x.shape[-axes:]))), channels, *x.shape[-axes:])})"
    )
    window = tuple(draw.among((1, 2, 3, 3, 5)) for _ in range(axes))
    layout = ("NCHW", "OIHW", "NCHW") if axes == 2 else ("NCH", "OIH", "NCH")
    weights = (features, inputs, *window)
    if draw.chance(40):  # channels last
        layout = ("NHWC", "HWIO", "NHWC") if axes == 2 else ("NHC", "HIO", "NHC")
        image = f"jnp.moveaxis({image}, 1, -1)"
        weights = (*window, inputs, features)
    dilation = f", lhs_dilation={few(draw, axes)}, rhs_dilation={few(draw, axes)}" * draw.chance(40)
    return (
        f"lax.conv_general_dilated({image}, table({weights}, {x.dtype!r}), {few(draw, axes)}, "
        f"{padding(draw, axes)}{dilation}, dimension_numbers={layout}, "
        f"feature_group_count={groups})"
    )


OF_BITS = (("bitwise_or", "0"), ("bitwise_and", "1"), ("bitwise_xor", "0"))
MOST_OF_WINDOW, MOST_IN_WINDOWS = 16, 1 << 23
"""Along an axis, and in all, of which the reference takes 10 ns for each."""


def window(draw: Draws) -> str:
    """`reduce_window` with every parameter; initial values other than the neutral one as well."""
    x = draw.value("fiub", rank=1, most_rank=4)
    of_bits = x.kind == "b" or (x.kind in "iu" and draw.chance(20))
    name, start = draw.among(OF_BITS if of_bits else _of_numbers(x))
    dims = tuple(draw.among((1, 2, 3, 5, 8, min(max(1, e), MOST_OF_WINDOW))) for e in x.shape)
    if math.prod(dims) * x.size > MOST_IN_WINDOWS:
        raise UnfitError("windows of too many elements")
    dilations = (
        f", base_dilation={few(draw, x.rank)}, window_dilation={few(draw, x.rank)}"
        * draw.chance(40)
    )
    return (
        f"lax.reduce_window({x}, np.asarray({start}).astype({x.dtype!r}), lax.{name}, {dims}, "
        f"{few(draw, x.rank)}, {padding(draw, x.rank)}{dilations})"
    )


def _of_numbers(x: Operand) -> tuple[tuple[str, str], ...]:
    """Functions of two numbers, and what windows begin with."""
    return (
        ("add", "0"),
        ("max", _lowest(x)),
        ("min", _highest(x)),
        ("max", "0"),
        ("mul", "1"),
        ("add", "1"),
        ("mul", "2"),
    )


def _lowest(x: Operand) -> str:
    return "-np.inf" if x.kind == "f" else f"np.iinfo({x.dtype!r}).min"


def _highest(x: Operand) -> str:
    return "np.inf" if x.kind == "f" else f"np.iinfo({x.dtype!r}).max"


SCANS = {
    "f": ("cumsum", "cummax", "cummin", "cumprod", "cumlogsumexp"),
    "c": ("cumsum", "cumprod"),
    "i": ("cumsum", "cummax", "cummin", "cumprod"),
}


def scan(draw: Draws) -> str:
    x = draw.value("fic", rank=1)
    axis, reverse = draw.axis(x), bool(draw.below(2))
    names = SCANS[x.kind]
    if draw.chance(15):
        return f"lax.associative_scan(jnp.add, {x}, reverse={reverse}, axis={axis})"
    return f"lax.{draw.among(names)}({x}, {axis}, reverse={reverse})"


def difference(draw: Draws) -> str:
    x = draw.value("fic", rank=1)
    return f"jnp.diff({x}, axis={draw.axis(x)})"


FOURIER = (
    "jnp.fft.fft({x}, axis={a})",
    "jnp.fft.ifft({x}, axis={a})",
    "jnp.fft.rfft({r}, axis={a})",
    "jnp.fft.irfft({x}, axis={a})",
    "jnp.fft.fftshift({x}, {a})",
    "jnp.fft.fft2({x})",
    "jnp.real(jnp.fft.ifft(jnp.fft.fft({x}, axis={a}) * 0.5, axis={a}))",
)


def fourier(draw: Draws) -> str:
    x = draw.value("fc", rank=1, fits=lambda v: v.dtype not in ("float16", "bfloat16"))
    return draw.among(FOURIER).format(x=x, a=draw.axis(x), r=f"jnp.real({x})")
