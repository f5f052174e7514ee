"""Families of functions of one and two floats that are no arithmetic: special ones among them."""

from __future__ import annotations

from fuzzing.draws import Draws

OF_ONE = (
    "lax.erfc({x})",
    "lax.erf({x})",
    "lax.lgamma({x})",
    "lax.digamma({x})",
    "lax.bessel_i0e({x})",
    "lax.bessel_i1e({x})",
    "jnp.arcsin(jnp.clip({x}, -1, 1))",
    "jnp.arccos({x} / 4)",
    "jnp.arcsinh({x})",
    "jnp.arccosh(jnp.abs({x}) + 1)",
    "jnp.cosh({x})",
    "jnp.log10(jnp.abs({x}))",
    "jnp.i0({x})",
    "jax.scipy.special.expit({x})",
    "jax.scipy.special.logit(jax.nn.sigmoid({x}))",
    "jax.scipy.special.ndtr({x})",
    "jax.scipy.special.ndtri(jax.nn.sigmoid({x}))",
    "jax.scipy.special.log_ndtr({x})",
    "jax.scipy.special.entr({x})",
    "jax.scipy.special.polygamma(2, jnp.minimum(jnp.abs({x}), 99) + 0.5)",
    "jax.scipy.special.zeta(jnp.abs({x}) + 1.5, 2)",
    "jax.nn.mish({x})",
    "jax.nn.selu({x})",
    "jax.nn.celu({x})",
    "jax.nn.hard_swish({x})",
    "jax.nn.gelu({x}, approximate=False)",
    "jax.nn.squareplus({x})",
    "jax.nn.relu6({x})",
    "lax.reduce_precision({x}, {exponent}, {mantissa})",
    "jnp.rint({x} * 2.5)",
    "lax.round({x} * 2.5, lax.RoundingMethod.AWAY_FROM_ZERO)",
    "jnp.nextafter({x}, jnp.inf)",
    "jnp.spacing({x})",
)
OF_TWO = (
    "jax.scipy.special.xlogy({x}, jnp.abs({y}))",
    "jax.scipy.special.xlog1py({x}, jnp.abs({y}))",
    "jax.scipy.special.gammainc(jnp.abs({x}) + 0.5, jnp.abs({y}))",
    "jax.scipy.special.gammaincc(jnp.abs({x}) + 0.5, jnp.abs({y}))",
    "jax.scipy.special.betaln(jnp.abs({x}) + 0.5, jnp.abs({y}) + 0.5)",
    "jax.scipy.special.kl_div(jnp.abs({x}), jnp.abs({y}))",
    "jnp.logaddexp2({x}, {y})",
    "jnp.float_power(jnp.abs({x}), {y})",
    "jnp.fmax({x}, {y})",
    "jnp.fmin({x}, {y})",
    "jnp.floor_divide({x}, {y})",
    "jnp.isclose({x}, {y})",
    "lax.pow({x}, jnp.round({y}))",
    "lax.atan2({x}, {y})",
    "jnp.where(jnp.signbit({x}), {y}, {x})",
)
EXPONENTS, MANTISSAS = (2, 4, 5, 8), (0, 1, 3, 10, 23)


def function(draw: Draws) -> str:
    """A function, or its derivative."""
    x = draw.value("f")
    text = draw.among(OF_ONE + OF_TWO).format(
        x="x", y="y", exponent=draw.among(EXPONENTS), mantissa=draw.among(MANTISSAS)
    )
    y = draw.same(x)
    if draw.chance(25):
        return f"jax.grad(lambda x, y: jnp.sum({text}), {draw.below(2)})({x}, {y})"
    return f"(lambda x, y: {text})({x}, {y})"
