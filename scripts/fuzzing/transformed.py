"""Families of programs that JAX transforms on the way: what `vmap`, `grad` and `jvp` make of loops,
choices and indexing is not what anyone writes."""

from __future__ import annotations

from fuzzing.control import body_of
from fuzzing.draws import Draws
from fuzzing.program import Operand

TRIPS = ("0", "1", "3", "n % 4", "jnp.clip(n, 1, 3)")
INDEXED = (
    "lax.dynamic_slice_in_dim({x}, n, {half}, {a})",
    "lax.dynamic_index_in_dim({x}, n - 1, {a})",
    "lax.dynamic_update_slice_in_dim({x}, {x}[:1] * 2, n, 0)",
    "{x}.at[n].set({x}[0])",
    "{x}.at[n].add({x}[-1], mode='clip')",
    "jnp.roll({x}, n, {a})",
    "{x}[n]",
    "{x}.at[:, n].multiply(2) if {x}.ndim > 1 else {x}",
    "jnp.take({x}, n, axis={a})",
    "jnp.where(jnp.arange({x}.shape[0]) < n, 1, 2).astype({x}.dtype)",
    "jnp.sort({x}, {a})",
    "jnp.argsort({x}, {a})",
    "jnp.searchsorted(jnp.sort({x}.ravel()), {x})",
    "jnp.bincount(jnp.clip({x}.ravel().astype('int32'), 0, 4), length=5)",
    "jnp.cumsum({x}, {a})",
    "jnp.argmax({x}, {a})",
    "lax.top_k({x}, 1)[1]",
    "jnp.flip({x}, {a}) - {x}[n]",
)

PLACED = (
    "r.at[n].get(mode='fill', fill_value=7)",
    "r.at[n].get(mode='clip')",
    "r.at[n].set(3, mode='drop')",
    "r.at[n].set(q[0], mode='clip')",
    "r.at[n].multiply(2, mode='drop')",
    "r.at[n].min(q[-1], mode='clip')",
    "r.at[jnp.stack([n, n + 2])].add(2, mode={mode!r})",
    "r.at[jnp.stack([n, n + 2, n])].max(q[0], mode={mode!r})",
    "r.at[jnp.stack([n, n + 2])].get(mode={mode!r}, fill_value=5)",
    "r.at[jnp.stack([n, n * 3])].get(mode='fill', fill_value=1) * 2",
    "r.at[..., n].add(r[..., 0], mode={mode!r})",
    "r.at[n, ..., m].set(2, mode={mode!r})",
    "r.at[n, ..., m].get(mode={mode!r}, fill_value=3)",
    "lax.dynamic_update_slice(r, q[:{half}], (n, *(m,) * (r.ndim - 1)))",
    "lax.dynamic_update_slice(r, lax.slice(q, (0,) * q.ndim, {sizes}), (n, *(m,) * (r.ndim - 1)))",
    "lax.dynamic_slice(r, (n, *(m,) * (r.ndim - 1)), {sizes})",
    "lax.dynamic_update_index_in_dim(r, q[..., 0] * 2, n, r.ndim - 1)",
    "jnp.take_along_axis(r, jnp.full(r.shape, n), 0, mode={mode!r})",
    "jnp.take(r, jnp.stack([n, m]), r.ndim - 1, mode={mode!r})",
    "jnp.put_along_axis(r, jnp.full((1, *r.shape[1:]), n % {e}), 3, 0, inplace=False)",
    "jnp.insert(r, 1, n, 0)",
    "jnp.where(n > 1, r.at[n].set(0, mode='drop'), q)",
)
MODES = ("clip", "fill")


def mapped_control(draw: Draws) -> str:
    """Loops and choices of which each row has its own: with masks and selections in the end."""
    x = draw.value("fiu", rank=1, most_rank=3, fits=lambda v: v.shape[0] > 0)
    row = Operand("r", x.dtype, x.shape[1:])
    first, second = body_of(draw, row, "r", "q"), body_of(draw, row, "q", "r")
    inner = draw.among(
        (
            f"lax.fori_loop(0, {draw.among(TRIPS)}, lambda i, r: {first}, q)",
            f"lax.cond(n > 0, lambda r, q: {first}, lambda r, q: {second}, r, q)",
            f"lax.switch(n, [lambda r, q: {first}, lambda r, q: {second}, lambda r, q: q], r, q)",
            f"lax.while_loop(lambda s: s[0] < n, lambda s: (lambda i, r, q: "
            f"(i + 1, {second}, {first}))(*s), (jnp.zeros((), n.dtype), r, q))[1:]",
            f"lax.scan(lambda r, q: ({first}, r), r, jnp.stack([q, q, r]))",
        )
    )
    numbers = draw.among(("jnp.arange({n}) - 1", "jnp.arange({n}) * 3 % 5", "jnp.zeros({n}, int)"))
    result = (
        "[0]"
        if inner.startswith("lax.scan") and draw.chance(50)
        else "[1]"
        if inner.startswith(("lax.scan", "lax.while"))
        else ""
    )
    axes = draw.among(("0", "(0, None, 0)", "(0, 0, None)"))
    other = f"{x}[0]" if "None, 0)" in axes else f"{x}[::-1]"
    number = f"({numbers.format(n=x.shape[0])})" + ("[-1]" if "0, None)" in axes else "")
    return f"jax.vmap(lambda r, q, n: ({inner}){result}, {axes})({x}, {other}, {number})"


def mapped_indexing(draw: Draws) -> str:
    """Indexing, updates, sorts of rows by numbers of their own, some of them beyond the end."""
    x = draw.value("fiu", rank=2, most_rank=4, fits=lambda v: v.size > 0)
    axis = draw.below(x.rank - 1)
    expression = draw.among(INDEXED).format(x="r", a=axis, half=-(-x.shape[1 + axis] // 2))
    numbers = draw.among(("jnp.arange({n}) - 1", "jnp.arange({n}) * 3 % 5", "-jnp.arange({n})"))
    which = draw.among(("int32", "int8", "uint8"))
    if draw.chance(30):
        return (
            f"jax.vmap(lambda r: (lambda n: {expression})(jnp.int32({draw.between(-1, 2)})))({x})"
        )
    return (
        f"jax.vmap(lambda r, n: {expression})({x}, "
        f"({numbers.format(n=x.shape[0])}).astype({which!r}))"
    )


def placed(draw: Draws) -> str:
    """Reads and writes of rows at places of their own, beyond either end too, in every mode, with
    either the array, the places or the update the same for all; or their derivatives."""
    x = draw.value("fiu", rank=2, most_rank=4, fits=lambda v: v.size > 0)
    shape = x.shape[1:]
    expression = draw.among(PLACED).format(
        mode=draw.among(MODES),
        half=-(-shape[0] // 2),
        sizes=tuple(draw.between(1, min(3, e)) for e in shape),
        e=shape[0],
    )
    count, which = x.shape[0], draw.among(("int32", "int8", "int16", "uint8", "uint32"))
    numbers = draw.among(("jnp.arange({n}) - 2", "jnp.arange({n}) * 5 % 7", "-jnp.arange({n})"))
    places = f"({numbers.format(n=count)}).astype({which!r})"
    other = f"jnp.int32({draw.between(-3, 3)})"
    if x.kind == "f" and draw.chance(40):
        expression = f"jax.grad(lambda r, q: jnp.sum(jnp.sin({expression})), {{}})(r, q)"
        expression = expression.format(draw.among((0, 1)))
    axes, given = draw.among(
        (
            ("(0, 0, 0)", f"{x}, {x}[::-1], {places}"),
            ("(0, None, 0)", f"{x}, {x}[0], {places}"),
            ("(None, 0, 0)", f"{x}[-1], {x}, {places}"),
            ("(None, None, 0)", f"{x}[-1], {x}[0], {places}"),
            ("(0, 0, None)", f"{x}, {x}[::-1], {places}[-1]"),
        )
    )
    return f"jax.vmap(lambda r, q, n: (lambda m: {expression})({other}), {axes})({given})"


def derivative(draw: Draws) -> str:
    """Derivatives of a loop, a scan or a choice, forwards or backwards, also of a checkpoint."""
    c = draw.value("f", most_rank=3)
    x = draw.same(c)
    first, second = body_of(draw, c, "c", "x", "i"), body_of(draw, c, "x", "c", "i")
    trips = draw.among((1, 2, 5))
    wrapped = draw.among(("{}", "{}", "jax.checkpoint({})"))
    step = wrapped.format(f"lambda c, i: (lambda x: ({first}, {draw.among(('c', second))}))({x})")
    function = draw.among(
        (
            f"lambda c: lax.scan({step}, c, jnp.arange({trips}))",
            f"lambda c: lax.fori_loop(0, {trips}, lambda i, c: ({step})(c, i)[0], c)",
            f"lambda c: lax.cond(jnp.sum({x}) > 0, lambda c: ({step})(c, 0), "
            f"lambda c: (c, c * c), c)",
            f"lambda c: ({step})(({step})(c, 0)[0], 1)",
        )
    )
    total = f"lambda c: sum(jnp.sum(jnp.sin(r)) for r in jax.tree.leaves(({function})(c)))"
    how = draw.between(0, 5)
    if how == 4:
        return f"jax.jvp(jax.grad({total}), ({c},), ({x},))[1]"
    if how == 5:
        return f"jax.vmap(jax.grad({total}))(jnp.stack([{c}, {x}, {c} * 2]))"
    if how == 0:
        return f"jax.jvp({total}, ({c},), ({x},))[1]"
    if how == 1:
        return f"jax.jvp({function}, ({c},), (jnp.ones_like({c}),))[1]" + (
            "" if "fori_loop" in function else "[0]"
        )
    return f"jax.grad({total})({c})"


def associative(draw: Draws) -> str:
    """Running values by doubling, of one array or of two together."""
    x = draw.value("fiu", rank=1, most_rank=3)
    axis, backwards = draw.axis(x), draw.chance(30)
    rest = f"axis={axis}, reverse={backwards}"
    if draw.chance(50):
        combine = draw.among(("jnp.add", "jnp.multiply", "jnp.maximum", "jnp.minimum"))
        return f"lax.associative_scan({combine}, {x}, {rest})"
    y = draw.same(x)
    return (
        f"lax.associative_scan(lambda p, q: (p[0] * q[0], p[1] * q[0] + q[1]), "
        f"({x}, {y}), {rest})[1]"
    )


def segments(draw: Draws) -> str:
    """Rows that are folded into those of their numbers; some numbers are beyond the end."""
    x = draw.value("fiu", rank=1, most_rank=3)
    count = x.shape[0]
    numbers = draw.among(
        (
            f"jnp.arange({count}) // 2",
            f"jnp.arange({count}) * 7 % 5 - 1",
            f"jnp.sort(jnp.arange({count}) * 3 % 7)",
            f"jnp.zeros({count}, 'int32')",
        )
    )
    which = draw.among(("sum", "max", "min", "prod"))
    is_sorted = "% 5" not in numbers and draw.chance(50)
    return (
        f"jax.ops.segment_{which}({x}, {numbers}, {draw.among((1, 4, 9))}, "
        f"indices_are_sorted={is_sorted})"
    )
