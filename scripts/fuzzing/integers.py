"""Families of integers at the ends of their range, and of numbers that are rounded on their way
from one type to another."""

from __future__ import annotations

from fuzzing.draws import Draws
from fuzzing.program import Operand

CORNERS = (
    "{x}",
    "{x} ^ np.{t}({low})",
    "{x} + np.{t}({high})",
    "{x} * np.{t}({odd})",
    "np.{t}({high}) - {x}",
    "({x} << {last}) | ({x} & 1)",
    "jnp.where({x} > 1, np.{t}({low}), {x})",
)
"""What lies at the ends of a type's range and beside zero, of numbers that do not."""
SECOND = (
    "np.{t}({low})",
    "np.{t}({high})",
    "np.{t}({least})",
    "np.{t}(0)",
    "np.{t}(1)",
    "np.{t}(3)",
    "np.{t}(7)",
    "np.{t}(10)",
    "np.{t}({half})",
    "np.{t}({bits})",
    "np.{t}({last})",
    "{y}",
    "{y} - 1",
)
OF_TWO = (
    "{p} // {q}",
    "{p} % {q}",
    "jnp.divmod({p}, {q})[1]",
    "lax.div({p}, {q})",
    "lax.rem({p}, {q})",
    "lax.div({p}, {q}) * {q} + lax.rem({p}, {q})",
    "lax.shift_left({p}, {q})",
    "lax.shift_right_logical({p}, {q})",
    "lax.shift_right_arithmetic({p}, {q})",
    "lax.shift_right_logical(lax.shift_left({p}, {q}), {q})",
    "lax.shift_right_arithmetic(lax.shift_left({p}, {q}), {q})",
    "lax.shift_left({p}, {q}) | lax.shift_right_logical({p}, np.{t}({bits}) - {q})",
    "{p} - {q} < {p}",
    "{p} + {q} >= {q}",
    "jnp.maximum({p}, {q}) - jnp.minimum({p}, {q})",
    "{p} * {q} // 2",
    "jnp.clip({p}, {q}, np.{t}({high}))",
    "lax.pow({p}, jnp.abs({q}) % 9)",
    "jnp.where({p} == {q}, {p} + 1, {q})",
)
OF_ONE = (
    "lax.population_count({p})",
    "lax.clz({p})",
    "lax.integer_pow({p}, {n})",
    "-{p}",
    "jnp.abs({p})",
    "jnp.sign({p})",
    "{p} & -{p}",
    "{p} >> {last}",
    "{p}.sum(dtype={t!r})",
    "{p}.prod(dtype={t!r})",
    "jnp.cumsum({p}.reshape(-1), dtype={t!r})",
    "jnp.vdot({p}, {p}, preferred_element_type={t!r})",
    "lax.reduce({p}, np.{t}(0), lax.bitwise_xor, tuple(range({p}.ndim)))",
    "lax.reduce({p}, ~np.{t}(0), lax.bitwise_and, (0,)) if {p}.ndim else {p}",
    "({p} % 16) * 16 + {p} // 16",
    "{p} // 5 * 5 == {p}",
)
MOST_POWER = 7


def corners(draw: Draws) -> str:
    """Arithmetic that wraps, shifts by more than there are bits, quotients that have no value."""
    x = draw.value("iu")
    y, names = draw.same(x), _names(x)
    first = f"({draw.among(CORNERS).format(x=x, **names)})"
    if draw.chance(40):
        return draw.among(OF_ONE).format(p=first, n=draw.between(0, MOST_POWER), **names)
    second = draw.among(SECOND).format(y=y, **names)
    second = f"jnp.broadcast_to(jnp.asarray({second}).astype({x.dtype!r}), {x.shape})"
    return draw.among(OF_TWO).format(p=first, q=second, **names)


def _names(x: Operand) -> dict[str, object]:
    bits = int("".join(c for c in x.dtype if c.isdigit()))
    is_signed = x.kind == "i"
    return {
        "t": x.dtype,
        "bits": bits,
        "last": bits - 1,
        "low": -(1 << bits - 1) if is_signed else 0,
        "high": (1 << bits - is_signed) - 1,
        "least": -1 if is_signed else (1 << bits) - 1,
        "half": (1 << bits - 2) + 1,
        "odd": 0x5DEECE66D % (1 << bits - 1) | 1,
    }


SCALES = ("1", "1.0078125", "100.5", "3e4", "3e9", "1e19", "-129.5", "1e-3", "1e-7")
FLOATS = ("bfloat16", "float16", "float32")
INTEGERS = ("int8", "uint8", "int16", "uint16", "int32", "uint32")


def rounded(draw: Draws) -> str:
    """Numbers through one or several narrower types: halves to even, once for each."""
    x = draw.value("fiu")
    floats, integers = FLOATS + ("float64",) * draw.x64, INTEGERS + ("int64", "uint64") * draw.x64
    value = str(x)
    if draw.chance(60):
        value = f"({value}.astype({draw.among(floats)!r}) * {draw.among(SCALES)})"
    if draw.chance(30):
        value = f"({value} + 0.5)"
    for _ in range(draw.between(1, 3)):
        value = f"{value}.astype({draw.among(floats + integers)!r})"
    if draw.chance(30):
        value = f"({value} + {value})"
    return value
