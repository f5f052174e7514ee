"""Families of operations that compute each element for itself."""

from __future__ import annotations

from fuzzing.draws import Draws

FLOAT_UNARY = (
    "jnp.tanh({})",
    "jnp.sin({})",
    "jnp.cos({})",
    "jnp.exp(-jnp.abs({}))",
    "jnp.exp({})",
    "jnp.log({})",
    "jnp.log1p(jnp.abs({}))",
    "jnp.sqrt(jnp.abs({}))",
    "lax.rsqrt(jnp.abs({}) + 1)",
    "jax.nn.sigmoid({})",
    "lax.erf({})",
    "jnp.floor({})",
    "jnp.ceil({})",
    "jnp.round({})",
    "jnp.sign({})",
    "jnp.abs({})",
    "-{}",
    "jnp.cbrt({})",
    "jnp.expm1({})",
    "jnp.arctan({})",
    "jnp.square({})",
    "{} ** 3",
    "jax.nn.gelu({})",
    "jax.nn.relu({})",
    "jax.nn.silu({})",
    "jax.nn.softplus({})",
    "jax.nn.log_sigmoid({})",
    "1 / {}",
    "jnp.tan({})",
    "jnp.sinh({})",
    "jnp.nan_to_num({})",
    "lax.erf_inv(jnp.tanh({}))",
    "jnp.exp2({})",
    "jnp.arctanh({} / 4)",
    "jax.nn.elu({})",
    "lax.reduce_precision({}, 8, 7)",
    "jnp.trunc({})",
    "jnp.log2({})",
)
INTEGER_UNARY = (
    "-{}",
    "jnp.abs({})",
    "jnp.sign({})",
    "~{}",
    "lax.population_count({})",
    "lax.clz({})",
    "jnp.square({})",
    "{} ** 3",
)
FLOAT_BINARY = (
    "{} + {}",
    "{} - {}",
    "{} * {}",
    "{} / {}",
    "jnp.maximum({}, {})",
    "jnp.minimum({}, {})",
    "jnp.abs({}) ** {}",
    "jnp.arctan2({}, {})",
    "lax.rem({}, jnp.broadcast_to({}, {0}.shape))",
    "jnp.remainder({}, {})",
    "jnp.copysign({}, {})",
    "jnp.logaddexp({}, {})",
    "jnp.hypot({}, {})",
    "lax.nextafter({}, jnp.broadcast_to({}, {0}.shape))",
    "{} * {} + {0}",
    "{} - {} * {0}",
)
INTEGER_BINARY = (
    "{} + {}",
    "{} - {}",
    "{} * {}",
    "{} // {}",
    "{} % {}",
    "{} & {}",
    "{} | {}",
    "{} ^ {}",
    "jnp.left_shift({}, {})",
    "jnp.right_shift({}, {})",
    "jnp.maximum({}, {})",
    "jnp.minimum({}, {})",
    "lax.div({}, jnp.broadcast_to({}, {0}.shape))",
    "lax.rem({}, jnp.broadcast_to({}, {0}.shape))",
    "lax.shift_right_logical({}, jnp.broadcast_to({}, {0}.shape))",
)
COMPLEX_UNARY = (
    "-{}",
    "jnp.conj({})",
    "jnp.square({})",
    "jnp.exp({} * (0.25 + 0.5j))",
    "1 / ({} + 3)",
    "jnp.sqrt({})",
    "jnp.real({})",
    "jnp.imag({})",
    "jnp.abs({})",
    "jnp.angle({})",
    "jnp.tanh({} / 4)",
    "jnp.log({} + 4)",
    "{} * 1j",
    "jnp.sin({} / 2)",
    "{}.T",
    "jnp.abs({}) ** 2",
)
COMPLEX_BINARY = (
    "{} + {}",
    "{} - {}",
    "{} * {}",
    "{} / (jnp.abs({}) + 1)",
    "{} * jnp.conj({})",
    "{} * {} + {0}",
    "jnp.where({} == {}, {0}, 1j)",
    "{} / (3 + {})",
)
BOOL_BINARY = ("{} & {}", "{} | {}", "{} ^ {}")
COMPARISONS = ("<", "<=", ">", ">=", "==", "!=")
NARROW = (
    "float32",
    "bfloat16",
    "float16",
    "int32",
    "int8",
    "int16",
    "uint8",
    "uint16",
    "uint32",
    "bool",
)
WIDE = ("float64", "int64", "uint64")


def unary(draw: Draws) -> str:
    x = draw.value("fiuc")
    templates = {"f": FLOAT_UNARY, "c": COMPLEX_UNARY}.get(x.kind, INTEGER_UNARY)
    return draw.among(templates).replace("{}", str(x))


def binary(draw: Draws) -> str:
    x = draw.value("fiubc")
    templates = {"f": FLOAT_BINARY, "b": BOOL_BINARY, "c": COMPLEX_BINARY}.get(
        x.kind, INTEGER_BINARY
    )
    template = draw.among(templates).replace("{0}", str(x))
    return template.format(x, draw.like(x)) if template.count("{}") == 2 else template


def compare(draw: Draws) -> str:
    x = draw.value("fiub")
    return f"{x} {draw.among(COMPARISONS)} {draw.like(x)}"


def where(draw: Draws) -> str:
    x = draw.value()
    if draw.chance(50):
        condition = str(draw.value("b", fits=lambda v: v.shape == x.shape[x.rank - v.rank :]))
    else:
        y = draw.value("fiu", fits=lambda v: v.shape == x.shape)
        condition = f"{y} {draw.among(COMPARISONS)} {draw.like(y)}"
    return f"jnp.where({condition}, {x}, {draw.like(x)})"


def clip(draw: Draws) -> str:
    x = draw.value("fiu")
    return f"jnp.clip({x}, {draw.among((0, 1))}, {draw.like(x)})"


def convert(draw: Draws) -> str:
    x = draw.value("fiub")
    return f"{x}.astype({draw.among(NARROW + WIDE * draw.x64)!r})"


def invert(draw: Draws) -> str:
    return f"~{draw.value('b')}"


def classify(draw: Draws) -> str:
    return f"jnp.{draw.among(('isnan', 'isinf', 'isfinite', 'signbit'))}({draw.value('f')})"


def bitcast(draw: Draws) -> str:
    """Bits of floats as integers of their width, or the other way round."""
    x = draw.value("fiu")
    bits = {"float32": "uint32", "bfloat16": "uint16", "float16": "int16", "float64": "int64"}
    back = {"int32": "float32", "uint32": "float32", "uint16": "bfloat16", "int16": "float16"}
    to = bits.get(x.dtype) or back.get(x.dtype) or "int8"
    return f"lax.bitcast_convert_type({x}, {to!r})"


def random_bits(draw: Draws) -> str:
    x = draw.value("fiu")
    key = f"jax.random.PRNGKey({draw.below(100)})"
    return draw.among(
        (
            f"jax.random.bits({key}, {x.shape})",
            f"jax.random.uniform({key}, {x.shape})",
            f"jax.random.bernoulli({key}, 0.4, {x.shape})",
            f"jax.random.randint({key}, {x.shape}, -9, 9)",
            f"jax.random.normal({key}, {x.shape})",
        )
    )


def complex_numbers(draw: Draws) -> str:
    x = draw.value("f", fits=lambda v: v.dtype in ("float32", "float64"))
    y = draw.same(x)
    z = f"lax.complex({x}, {y})"
    return draw.among(
        (
            z,
            z,
            f"jnp.abs({z})",
            f"jnp.real({z} * {z})",
            f"jnp.imag(jnp.conj({z}))",
            f"jnp.angle({z})",
            f"jnp.real(jnp.exp({z} * (0.5 + 0.25j)))",
            f"jnp.imag({z} / lax.complex({y} * {y} + 1, {x}))",
            f"jnp.real(jnp.cumsum({z}.reshape(-1)) * 1j)",
            f"jnp.abs({z}.reshape(-1)[::-1] + {z}.reshape(-1))",
            f"jnp.imag(jnp.sum({z} * (1 - 2j), 0))" if x.rank else f"jnp.imag({z})",
        )
    )
