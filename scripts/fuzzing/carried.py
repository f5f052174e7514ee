"""Families of loops that carry more than a number of each element: cells, delays, caches, walks."""

from __future__ import annotations

from fuzzing.draws import Draws

CELLS = {
    "gates": (
        "(lambda h, c: (lambda g: ((jax.nn.sigmoid(g[..., :{n}]) * jnp.tanh(c), "
        "c * 0.5 + jnp.tanh(g[..., {n}:])), h + c))"
        "(jnp.concatenate([h, x], -1) @ table(({m}, {m}), {t!r}) * 0.125))(*s)",
        "(jnp.zeros({row}, {t!r}), jnp.ones({row}, {t!r}))",
    ),
    "delay": (
        "(lambda s: (s, s[0] - s[-1] * 2))(jnp.concatenate([s[1:], x[None]]))",
        "jnp.zeros({several}, {t!r})",
    ),
    "delay backwards": (
        "(lambda s: (s, s.sum(0, dtype={t!r})))(jnp.concatenate([x[None] * 2, s[:-1]]))",
        "jnp.ones({several}, {t!r})",
    ),
    "joined": (
        "(lambda s: (s, s[..., 1:]))(jnp.concatenate([s[..., {n}:], x + s[..., :{n}]], -1))",
        "jnp.zeros({doubled}, {t!r})",
    ),
    "joined of a fold": (
        "(lambda s: (s, s[..., ::2]))(jnp.concatenate([x, s[..., {n}:] - x, "
        "x.max(-1, keepdims=True)], -1)[..., :{m}])",
        "jnp.zeros({doubled}, {t!r})",
    ),
    "cache": (
        "(lambda i, s: (lambda s: ((i + 1, s), jnp.einsum('l,l...->...', jax.nn.softmax("
        "jnp.where(jnp.arange({k}) <= i, jnp.einsum('l...,...->l', s, x) * 0.125, -jnp.inf)), "
        "s)))(lax.dynamic_update_index_in_dim(s, x, i, 0)))(*s)",
        "(0, jnp.zeros({several}, {t!r}))",
    ),
    "outer products": (
        "(lambda s: (s, x @ s))(s * 0.5 + x[..., :, None] * x[..., None, :] * 0.25)",
        "jnp.zeros({squared}, {t!r})",
    ),
    "running maximum": (
        "(lambda m, l: (lambda to: ((to, l * jnp.exp(m - to) + jnp.exp(x - to)), to - m))"
        "(jnp.maximum(m, x)))(*s)",
        "(jnp.full({row}, -3, {t!r}), jnp.zeros({row}, {t!r}))",
    ),
    "stencil": (
        "(lambda s: (s, s[..., :1] + x))(s.at[..., 1:-1].set((s[..., :-2] + s[..., 2:]) "
        "* 2 + x[..., 1:-1]))",
        "jnp.ones({row}, {t!r})",
    ),
    "line by line": (
        "(lambda s: (s, s.sum(dtype={t!r})))(jnp.cumsum(x - s, -1, dtype={t!r}))",
        "jnp.zeros({row}, {t!r})",
    ),
    "extremes": (
        "(lambda low, high, i: ((jnp.minimum(low, x), jnp.maximum(high, x), "
        "jnp.where(x > high, i[..., :1] + 1, i)), high - low))(*s)",
        "(jnp.zeros({row}, {t!r}), jnp.zeros({row}, {t!r}), jnp.zeros({row}, 'int32'))",
    ),
}
OF_FLOATS = ("gates", "cache", "outer products", "running maximum")
MOST_COLUMNS = 40


def cell(draw: Draws) -> str:
    """A scan with what cells of networks and filters carry: the last of it, and all rows made."""
    x = draw.value(
        "fi", rank=2, most_rank=3, fits=lambda v: v.shape[-1] <= MOST_COLUMNS and v.size > 0
    )
    body, start = CELLS[draw.among([n for n in CELLS if x.kind == "f" or n not in OF_FLOATS])]
    row, k = x.shape[1:], draw.among((1, 2, 3, 8))
    names = {
        "n": row[-1],
        "m": 2 * row[-1],
        "t": x.dtype,
        "row": row,
        "k": k,
        "several": (k, *row),
        "doubled": (*row[:-1], 2 * row[-1]),
        "squared": (*row, row[-1]),
    }
    scan = (
        f"lax.scan(kernel(lambda s, x: {body.format(**names)}), {start.format(**names)}, {x}, "
        f"reverse={draw.chance(20)})"
    )
    return f"(lambda s, y: (jax.tree.leaves(s)[-1], y))(*{scan})"


WALKS = (
    "lax.dynamic_update_slice(c, lax.dynamic_slice(c, {at}, {size}) * 2, {to})",
    "lax.dynamic_update_slice(c, lax.dynamic_slice({x}, {at}, {size}) + "
    "lax.dynamic_slice(c, {to}, {size}), {to})",
    "(lambda p, q: c.at[p].set(c[q]).at[q].set(c[p]))(j, i)",
    "c.at[j].add({x}[i])",
    "c.at[i].set(jnp.where((jnp.arange({e}) < i).reshape(-1, *(1,) * (c.ndim - 1)), c, 0)"
    ".sum(0, dtype=c.dtype) + {x}[j])",
    "c.at[i].add(c[i - 1] * {x}[j])",
    "c.at[(i, *(0,) * (c.ndim - 1))].set(c[j].sum(dtype=c.dtype))",
    "c.at[..., i].set(c[..., j] - {x}[..., i])",
    "jnp.concatenate([lax.dynamic_slice_in_dim(c, j, 1), c[:-1]])",
    "c + lax.dynamic_slice_in_dim({x}, j, 1)",
    "jnp.roll(c, j, 0) * 2 - {x}",
    "c.at[jnp.array([0, {e} // 2])].set({x}[jnp.array([i, j])])",
)


def walk(draw: Draws) -> str:
    """A loop whose trips read and write where they, or numbers of the program, say."""
    c = draw.value("fiu", rank=1, most_rank=3, fits=lambda v: v.size > 0)
    x, numbers = draw.same(c), draw.value("iu", rank=1, fits=lambda v: v.size > 0)
    size = tuple(draw.between(1, min(3, e)) for e in c.shape)

    def begin() -> str:
        return f"({', '.join(draw.among(('i', 'j', '0', '2 * i - 1', 'i + j')) for _ in size)},)"

    names = {"x": x, "size": size, "e": c.shape[0]}
    body = draw.among(WALKS).format(at=begin(), to=begin(), **names)
    if draw.chance(40):
        body = f"(lambda c: {draw.among(WALKS).format(at=begin(), to=begin(), **names)})({body})"
    place = f"jnp.resize({numbers}.reshape(-1), 9)[i].astype('int32')"
    return (
        f"lax.fori_loop({draw.among((0, 1))}, {draw.among((1, 3, 6))}, kernel(lambda i, c: "
        f"(lambda j: ({body}).astype({c.dtype!r}))({place})), {c})"
    )
