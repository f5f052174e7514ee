"""Families of loops and running folds that carry several arrays of several types together."""

from __future__ import annotations

from fuzzing.control import body_of
from fuzzing.draws import Draws
from fuzzing.program import Operand

OPERATORS = (
    "lambda p, q: jnp.where(q != 0, q, p)",
    "lambda p, q: q",
    "lambda p, q: jnp.where(p > q, p - q, q)",
    "lambda p, q: p * 2 + q",
)
OPERATORS_OF_TWO = (
    "lambda p, q: (p[0] * q[0], p[1] * q[0] + q[1])",
    "lambda p, q: (jnp.where(q[1] > 0, q[0], p[0] + q[0]), jnp.maximum(p[1], q[1]))",
    "lambda p, q: (p[0] + q[0], jnp.maximum(p[1] + q[0], q[1]))",
    "lambda p, q: (jnp.where(p[1] >= q[1], p[0], q[0]), jnp.maximum(p[1], q[1]))",
    "lambda p, q: (q[0] + p[1], q[1] - p[0])",
)


def running(draw: Draws) -> str:
    """Running folds whose operands must not change places: the last that is not zero, matrices,
    permutations, sums that begin anew."""
    x = draw.value("fiu", rank=1, most_rank=3, fits=lambda v: v.size > 0)
    axis, backwards = draw.axis(x), draw.chance(30)
    rest = f"axis={axis}, reverse={backwards}"
    match draw.below(4):
        case 0:
            return f"lax.associative_scan({draw.among(OPERATORS)}, {x}, {rest})"
        case 1 if x.size <= 600:
            turns = f"({x}[..., None, None] * table((2, 2), {x.dtype!r}, 3))"
            return f"lax.associative_scan(jnp.matmul, {turns}, {rest})[..., 0, :]"
        case 2 if x.rank > 1 and axis < x.rank - 1:
            follow = "lambda p, q: jnp.take_along_axis(q, p, -1)"
            return f"lax.associative_scan({follow}, jnp.argsort({x}, -1), {rest})"
        case _:
            y, which = draw.same(x), draw.below(2)
            pair = f"({x}, {y})"
            return f"lax.associative_scan({draw.among(OPERATORS_OF_TWO)}, {pair}, {rest})[{which}]"


def nested_scans(draw: Draws) -> str:
    """A scan in a scan; both carry an array, a number and a flag, and hand rows out."""
    x = draw.value("fi", rank=1, most_rank=3, fits=lambda v: v.size > 0)
    row = Operand("r", x.dtype, x.shape[1:])
    first, second = body_of(draw, row, "r", "y", "n"), body_of(draw, row, "y", "r", "n")
    flag = draw.among(("f ^ (n > 1)", "~f", "f | (n == 2)", "(r > y).any()", "f"))
    kept = draw.among(
        (first, f"jnp.where(f, {first}, r)", f"lax.cond(f, lambda: {first}, lambda: r)")
    )
    step = f"lambda s, y: (lambda r, n, f: (({kept}, n + 1, {flag}), {second}))(*s)"
    rows = draw.among(("jnp.stack([x, x * 2, x])", "x[None]", "jnp.stack([r, x])"))
    inner = f"lax.scan({step}, (r, n, f), {rows}, reverse={draw.chance(25)})"
    after = draw.among(
        ("(s, made)", "((s[0], n + 1, s[2]), made[0])", "((made[-1], s[1], f), s[0])")
    )
    outer = f"lambda s, x: (lambda r, n, f: (lambda s, made: {after})(*{inner}))(*s)"
    start = f"(jnp.ones({row.shape}, {x.dtype!r}), jnp.int32(0), jnp.bool_({draw.chance(50)}))"
    return (
        f"(lambda s, made: (s[0], made))(*lax.scan(kernel({outer}), {start}, {x}, "
        f"reverse={draw.chance(25)}))"
    )


ORDERED = (
    "(p, q, i)",
    "(q, p, i)",
    "(p % 3 if p.dtype.kind in 'iu' else jnp.round(p), q, i)",
    "(-p, i.astype(p.dtype), i + t)",
    "(jnp.where(p > q, q, p), jnp.where(p > q, p, q), i)",
    "(jnp.roll(p, t, {a}), q, i)",
)


def sorted_in_loop(draw: Draws) -> str:
    """A loop that puts several arrays in order by one or several of them, each trip anew."""
    x = draw.value("fiu", rank=1, most_rank=3)
    y, axis = draw.same(x), draw.axis(x)
    parts = draw.among(ORDERED).format(a=axis)
    call = f"lax.sort({parts}, dimension={axis}, num_keys={draw.between(1, 3)})"
    start = f"({x}, {y}, lax.broadcasted_iota('int32', {x.shape}, {axis}))"
    loop = (
        f"lax.fori_loop(0, {draw.among((1, 2, 4))}, kernel(lambda t, s: "
        f"(lambda p, q, i: tuple({call}))(*s)), {start})"
    )
    return f"{loop}[::{draw.among((1, 2))}][:2]"


KEYS = (
    "jax.random.permutation({k}, {n})",
    "jax.random.randint({k}, {s}, -100, 1000)",
    "jax.random.bits({k}, {s}, 'uint8')",
    "jax.random.bits({k}, {s}, 'uint16')",
    "jax.random.uniform({k}, {s}, minval=-2, maxval=3)",
    "jax.random.normal({k}, {s})",
    "jax.random.categorical({k}, jnp.zeros({s}))",
    "jax.random.choice({k}, {n}, {s})",
    "jax.random.rademacher({k}, {s})",
    "jax.random.exponential({k}, {s})",
    "jax.random.truncated_normal({k}, -1, 2, {s})",
)


def keys_in_loop(draw: Draws) -> str:
    """Random numbers of a key that a loop carries and splits."""
    x = draw.value(rank=1, fits=lambda v: v.size > 0)
    made = draw.among(KEYS).format(k="k[1]", n=draw.between(2, 40), s=x.shape[-2:])
    step = f"lambda k, _: (lambda k: (k[0], {made}))(jax.random.split(k))"
    key = f"jax.random.PRNGKey({draw.below(1000)})"
    return f"lax.scan(kernel({step}), {key}, None, length={draw.between(1, 4)})[1]"
