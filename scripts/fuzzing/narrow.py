"""Families of numbers of half a byte and of a byte: integers of four bits, floats of eight."""

from __future__ import annotations

from fuzzing.draws import Draws

OF_ANY = (
    "jnp.where({x} > {y}, {x}, {y})",
    "{x}",
    "({x} == {y})",
    "jnp.concatenate([{x}, {y}], -1)",
    "{x}[..., ::-1]",
    "jnp.stack([{x}, {y}], -1).reshape(-1)",
    "jnp.maximum({x}, {y})",
    "{x}.T",
    "jnp.roll({x}, 1, -1)",
    "jnp.pad({x}, 1)",
    "{x}[..., ::2]",
    "jnp.take({x}, np.array([0, -1]), -1)",
    "{x}.at[..., 0].set({y}[..., -1])",
    "lax.fori_loop(0, 3, lambda i, c: jnp.roll(c, 1, -1) + {y}, {x})",
    "lax.scan(lambda c, r: (c + r, jnp.minimum(c, r)), {x}[0], {y})[1]",
    "lax.dynamic_slice_in_dim({x}, 1, 1, -1)",
    "lax.cond({x}.reshape(-1)[0] > 0, lambda: {x}, lambda: {y})",
    "jnp.sort({x}, -1)",
    "({x} > {y}).sum(-1)",
    "jnp.sum({x}, -1, dtype={wide!r})",
    "jnp.einsum('...i,...i->...', {x}, {y}, preferred_element_type={wide!r})",
    "jnp.einsum('...i,ij->...j', {x}, table(({n}, 3), {t!r}), preferred_element_type={wide!r})",
    "jnp.max({x}, -1)",
    "jnp.argmax({x}, -1)",
    "{x} + {y}",
    "{x} - {y}",
    "{x} * {y}",
    "-{x}",
)
# XLA counts the bits of the byte that holds a negative number.
OF_INTEGERS = ("~{x}", "{x} & {y}", "lax.shift_right_logical({x}, {y})", "{x} << 1")
OF_FLOATS = (
    "jnp.exp({x})",
    "{x} / {y}",
    "jnp.tanh({x} * {y})",
    "lax.bitcast_convert_type({x}, 'uint8')",
    "jnp.sqrt(jnp.abs({x}))",
    "{x}.astype('float8_e5m2')",
    "{x}.astype('bfloat16') @ table(({n}, 3), 'bfloat16')",
    "jnp.isnan({x})",
)
INTEGERS = ("int4", "uint4", "int2", "uint2")
FLOATS = (
    "float8_e4m3fn",
    "float8_e5m2",
    "float8_e4m3",
    "float8_e3m4",
    "float8_e4m3b11fnuz",
    "float8_e5m2fnuz",
    "float8_e4m3fnuz",
)
RESULTS = ("int32", "float32", "int8", "bfloat16")


def few_bits(draw: Draws) -> str:
    """Numbers through so narrow a type, and back."""
    x = draw.value("fiu", rank=1, fits=lambda v: v.size > 0)
    y = draw.same(x)
    if draw.chance(50):
        narrow, wide, texts = draw.among(INTEGERS), "int32", OF_ANY + OF_INTEGERS
    else:
        narrow, wide, texts = draw.among(FLOATS), "float32", OF_ANY + OF_FLOATS
    text = draw.among(texts).format(x="x", y="y", n=x.shape[-1], t=narrow, wide=wide)
    return (
        f"(lambda x, y: ({text}).astype({draw.among(RESULTS)!r}))"
        f"({x}.astype({narrow!r}), {y}.astype({narrow!r}))"
    )
