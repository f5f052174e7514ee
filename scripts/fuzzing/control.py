"""Families of control flow; `kernel(…)` around a body is what `around` programs compile."""

from __future__ import annotations

from fuzzing.draws import Draws
from fuzzing.program import Operand

FLOAT_BODIES = (
    "jnp.tanh({c})",
    "{c} * 0.5 + {x}",
    "jnp.sin({c}) + 0.25 * {x}",
    "{c} * {x}",
    "{c}",
    "jnp.where({c} > {x}, {c}, {x})",
    "jnp.maximum({c}, {x}) - 1",
    "{x}",
    "{c} / (1 + {c} * {c})",
)
COMPLEX_BODIES = (
    "{c} * 0.5 + {x}",
    "{c} * {x}",
    "{c}",
    "{x}",
    "jnp.conj({c}) - {x}",
    "{c} * 0.5j",
    "jnp.where(jnp.abs({c}) > 2, {x}, {c} * {c} + {x})",
)
INTEGER_BODIES = (
    "{c} + {x}",
    "{c} * 3 + 1",
    "{c} ^ {x}",
    "jnp.maximum({c}, {x})",
    "{c}",
    "jnp.where({c} > {x}, {c} - 1, {x})",
    "{x}",
)
SHAPED_BODIES = (
    "jnp.roll({c}, 1, {a})",
    "jnp.flip({c}, {a})",
    "{c}.at[0].set({x}[-1])",
    "jnp.sort({c}, {a})",
    "jnp.cumsum({c}, {a}, dtype={c}.dtype)",
    "jnp.concatenate([{c}[1:], {x}[:1]])",
    "{c} - {c}.max({a}, keepdims=True)",
    "{c}.at[1:].add({c}[:-1])",
    "{c} + {c}.sum({a}, keepdims=True, dtype={c}.dtype)",
    "{c}[::-1]",
    "lax.dynamic_update_index_in_dim({c}, {x}[0], {i}, 0)",
    "lax.dynamic_update_index_in_dim({c}, lax.dynamic_index_in_dim({x}, {i}, 0), {i}, 0)",
    "lax.dynamic_update_slice_in_dim({c}, {x}[:2], 2 * {i} - 1, 0)",
    "lax.dynamic_update_slice_in_dim("
    "{c}, lax.dynamic_slice_in_dim({x}, 3 - {i}, 1, {a}), {i}, {a})",
    "{c}.at[{i}].add({x}[0])",
    "{c}.at[-1].set({c}[{i}])",
    "jnp.where((jnp.arange({c}.shape[0]) > {i}).reshape(-1, *(1,) * ({c}.ndim - 1)), {c}, {x})",
    "{c}.at[1:].set({x}[:-1])",
)


def body_of(draw: Draws, value: Operand, c: str, x: str, i: str = "0") -> str:
    """An expression of the type of `value` in a carried `c`, another `x` and the trip `i`."""
    simple = {"f": FLOAT_BODIES, "c": COMPLEX_BODIES}.get(value.kind, INTEGER_BODIES)
    bodies = simple + SHAPED_BODIES * (value.rank > 0 < value.size)
    expression = draw.among(bodies).format(c=c, x=x, i=i, a=draw.below(max(1, value.rank)))
    if draw.chance(40):
        expression = draw.among(simple).format(c=f"({expression})", x=x)
    return f"({expression}).astype({value.dtype!r})"


def _numbers(draw: Draws) -> Operand:
    return draw.value("fiuc", most_rank=3)


def fori(draw: Draws) -> str:
    c = _numbers(draw)
    x = draw.same(c)
    body = f"kernel(lambda i, c: {body_of(draw, c, 'c', str(x), 'i')})"
    return f"lax.fori_loop(0, {draw.among((0, 1, 2, 3, 7))}, {body}, {c})"


def while_two(draw: Draws) -> str:
    """Two carried arrays and a counter; they may be permuted or not change at all."""
    c = _numbers(draw)
    x = draw.same(c)
    first, second = body_of(draw, c, "p", "q", "i"), body_of(draw, c, "q", "p", "i")
    order = draw.among((f"{first}, {second}", f"{second}, {first}", "q, p", f"p, {second}"))
    trips = draw.among((0, 1, 2, 5))
    return (
        f"lax.while_loop(lambda s: s[0] < {trips}, lambda s: kernel("
        f"lambda i, p, q: (i + 1, {order}))(*s), (0, {c}, {x}))[1:]"
    )


def while_data(draw: Draws) -> str:
    """A loop that ends when the data says so, at last after seven doublings."""
    c = draw.value("f", rank=1, most_rank=3)
    return (
        f"lax.while_loop(lambda s: (jnp.sum(s[1]) < 40) & (s[0] < 7), lambda s: kernel("
        f"lambda s: (s[0] + 1, s[1] * 2 + 1))(s), (jnp.int32(0), {c}))"
    )


def scan(draw: Draws) -> str:
    """A loop over the rows of a value, with the rows that it makes."""
    x = draw.value("fiuc", rank=1, most_rank=3)
    row = Operand("c", x.dtype, x.shape[1:])
    carried, made = body_of(draw, row, "c", "x"), body_of(draw, row, "x", "c")
    start = f"jnp.ones({row.shape}, {x.dtype!r})"
    return (
        f"lax.scan(kernel(lambda c, x: ({carried}, {made})), {start}, {x}, "
        f"reverse={draw.chance(30)}, unroll={draw.among((1, 1, 2))})"
    )


def conditional(draw: Draws) -> str:
    x = _numbers(draw)
    y = draw.same(x)
    flag = draw.value("fiu")
    bodies = [f"kernel(lambda p, q: {body_of(draw, x, 'p', 'q')})" for _ in range(2)]
    return f"lax.cond(jnp.sum({flag}) > 0, {bodies[0]}, {bodies[1]}, {x}, {y})"


def switch(draw: Draws) -> str:
    x = _numbers(draw)
    index = draw.value("i")
    bodies = ", ".join(f"kernel(lambda p: {body_of(draw, x, 'p', str(x))})" for _ in range(3))
    return f"lax.switch({index}.reshape(-1)[:1].sum(), [{bodies}], {x})"


def branches_in_loop(draw: Draws) -> str:
    """A loop that chooses in each trip what to do with two carried arrays: they may stay, change
    places, or go through another loop or choice."""
    c = _numbers(draw)
    x = draw.same(c)
    numbers = draw.value("i", rank=1)

    def branch(depth: int) -> str:
        first, second = body_of(draw, c, "p", "q", "i"), body_of(draw, c, "q", "p", "i")
        body = draw.among((f"{first}, q", f"p, {second}", f"{first}, {second}", "p, q", "q, p"))
        if depth and draw.chance(30):
            return (
                f"lambda i, p, q: lax.fori_loop(0, {draw.among((1, 3))}, "
                f"lambda i, s: ({branch(0)})(i, *s), (p, q))"
            )
        if depth and draw.chance(20):
            return f"lambda i, p, q: lax.cond(i > 1, {branch(0)}, {branch(0)}, i, p, q)"
        return f"lambda i, p, q: ({body})"

    branches = ", ".join(branch(1) for _ in range(draw.among((2, 2, 3))))
    chosen = draw.among(
        (
            f"jnp.resize({numbers}, 7)[i].astype('int32')",
            "i % 2",
            "i - 1",
            f"(jnp.resize({numbers}, 7)[i] > 0).astype('int32')",
            "3 - i",
            "i // 2",
        )
    )
    return (
        f"lax.fori_loop(0, {draw.among((0, 1, 2, 3, 7))}, kernel(lambda i, s: "
        f"lax.switch({chosen}, [{branches}], i, *s)), ({c}, {x}))"
    )


CONDITIONS = (
    "jnp.any({c} > {x})",
    "jnp.all({c} <= {x})",
    "(jnp.max({c}, initial=0) > 2)",
    "(jnp.sum({c}.reshape(-1)[:1]) > 0)",
    "(i > 0)",
    "(i % 2 == 0)",
)


def flags(draw: Draws) -> str:
    """A loop that carries a bool: it may end it, choose what is computed, or change each trip."""
    c = _numbers(draw)
    x = draw.same(c)
    body = body_of(draw, c, "c", str(x), "i")
    flag = draw.among(CONDITIONS).format(c="c", x=x)
    done = draw.among((flag, f"done | {flag}", f"done ^ {flag}", "~done"))
    kept = draw.among(
        (
            "c",
            f"jnp.where(done, c, {body})",
            f"jnp.where({done}, {body}, c)",
            f"lax.cond(done, lambda c: c, lambda c: {body}, c)",
            body,
        )
    )
    ends = draw.among(("", " & ~s[1]", f" & ({draw.chance(50)} ^ s[1])"))
    return (
        f"lax.while_loop(lambda s: (s[0] < {draw.among((0, 1, 3, 5))}){ends}, lambda s: kernel("
        f"lambda i, done, c: (i + 1, {done}, {kept}))(*s), (0, {draw.chance(30)}, {c}))[1:]"
    )


def masked(draw: Draws) -> str:
    """A loop that carries which elements still change."""
    c = _numbers(draw)
    x = draw.same(c)
    body = body_of(draw, c, "c", str(x), "i")
    condition = draw.among((f"c < {x}", "c > 1", "c != c[::-1]" if c.rank else "c > 0", "~on"))
    joined = draw.among(("on & ({})", "{}", "on ^ ({})", "on | ({})")).format(condition)
    return (
        f"lax.fori_loop(0, {draw.among((0, 1, 2, 5))}, kernel(lambda i, s: (lambda on, c: "
        f"({joined}, jnp.where({draw.among(('on', joined))}, {body}, c)))(*s)), "
        f"({c} > 0, {c}))"
    )


def nested(draw: Draws) -> str:
    """A loop in a loop, whose trips may depend on the outer one or on a value."""
    c = _numbers(draw)
    x = draw.same(c)
    inner, outer = body_of(draw, c, "c", str(x), "j"), body_of(draw, c, "c", str(x), "i")
    number = draw.value("iu")
    some = f"jnp.clip({number}.reshape(-1)[:1].sum(), 0, 3).astype('int32')"
    first, last = draw.among(
        (
            ("0", "i"),
            ("i", "3"),
            ("0", "2"),
            ("0", some),
            ("1", some),
            ("i", "i + 2"),
            ("2 - i", "2"),
        )
    )
    loop = f"lax.fori_loop({first}, {last}, lambda j, c: {inner}, c)"
    return (
        f"lax.fori_loop({draw.among(('0', '1'))}, {draw.among(('3', some, '0'))}, "
        f"kernel(lambda i, c: (lambda c: {outer})({loop})), {c})"
    )


def mapped(draw: Draws) -> str:
    x = draw.value("fiuc", rank=1, most_rank=3)
    row = Operand("r", x.dtype, x.shape[1:])
    return f"lax.map(kernel(lambda r: {body_of(draw, row, 'r', 'r')}), {x})"


DEEP = (
    "lax.fori_loop({low}, {high}, lambda i, c: {one}, {c})",
    "lax.fori_loop(0, jnp.clip(i, 1, 3), lambda i, c: {one}, {c})",
    "lax.scan(lambda c, x: ({one}, {two}), {c}, jnp.stack([x, {c}]), reverse={flag})[0]",
    "lax.scan(lambda c, x: ({one}, {two}), {c}, jnp.stack([x, {c}, x]), reverse={flag})[1][-1]",
    "lax.while_loop(lambda s: (s[0] < 3) & ~(lambda i, c: {condition})(*s), "
    "lambda s: (lambda i, c: (i + 1, {one}))(*s), (0, {c}))[1]",
    "lax.cond({condition}, lambda c: {one}, lambda c: {two}, {c})",
    "lax.cond({condition}, lambda c: {one}, lambda c: c, {c})",
    "lax.switch({index}, [lambda c: {one}, lambda c: {two}, lambda c: x], {c})",
    "(lambda c: {one})({two})",
    "jnp.where({condition}, {one}, {two})",
    "jax.vmap(lambda c, x: {one})(jnp.stack([{c}, x]), jnp.stack([x, {c}]))[1]",
)
MOST_DEPTH = 4


def deep(draw: Draws) -> str:
    """Loops and choices in each other, as deep as it comes."""
    c = _numbers(draw)
    x, numbers = draw.same(c), draw.value("iu")

    def body(depth: int) -> str:
        if depth == 0 or draw.chance(20):
            return body_of(draw, c, "c", "x", "i")
        text = draw.among(DEEP)
        return text.format(
            c="c",
            one=body(depth - 1),
            two=body(depth - 2) if depth > 1 else draw.among(("c", "x")),
            low=draw.among(("0", "i")),
            high=draw.among(("2", "3", "i + 1")),
            flag=draw.chance(30),
            condition=draw.among(CONDITIONS).format(c="c", x="x"),
            index=draw.among(("i", "i % 3", f"{numbers}.reshape(-1)[:1].sum().astype('int32')")),
        )

    return (
        f"(kernel(lambda i, c, x: {body(draw.between(2, MOST_DEPTH))}))({draw.below(3)}, {c}, {x})"
    )
