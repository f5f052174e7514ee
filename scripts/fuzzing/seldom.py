"""Families of what `lax` offers and programs seldom call, by its own names: functions of complex
numbers, convolutions of every make, small matrices of every kind, rules that people write.
"""

from __future__ import annotations

from fuzzing.draws import Draws
from fuzzing.matrices import MOST_ROWS

OF_COMPLEX = (
    "lax.tan({x})",
    "lax.sinh({x} / 4)",
    "lax.cosh({x} / 4)",
    "lax.cos({x} / 2)",
    "lax.asin({x} / 4 + 0.5j)",
    "lax.acos({x} / 4 + 0.5j)",
    "lax.atan({x} / 4 + 0.25)",
    "lax.asinh({x} + 0.5)",
    "lax.acosh({x} + 4)",
    "lax.atanh({x} / 4 + 0.25j)",
    "lax.expm1({x} / 4)",
    "lax.log1p({x} + 4)",
    "lax.rsqrt({x} + 4)",
    "lax.sign({x} + 4)",
    "lax.logistic({x} / 4)",
    "lax.integer_pow({x}, 3)",
    "lax.pow({x} + 4, {y} / 4)",
    "lax.select({x} == {y}, {x}, -{y})",
    "lax.full_like({x}, 2) * {y}",
    "lax.cumsum({x}, {a}, reverse=True)",
    "lax.sort({x}, dimension={a})",
)
OF_INTEGERS = (
    "lax.mulhi({x}, {y})",
    "lax.reduce_xor({x}, ({a},))",
    "lax.reduce_and({x}, ({a},))",
    "lax.reduce_or({x}, ({a},))",
    "lax.integer_pow({x}, 5)",
    "lax.pow({x}, jnp.abs({y}) % 5)",
    "lax.sort_key_val({x}, {y}, dimension={a})[1]",
    "lax.bitwise_not({x})",
    "lax.approx_min_k({x}.astype('float32'), 1)[0]",
    "lax.square({x})",
    "lax.cond({x}.sum() > 0, lambda q: q + 1, lambda q: q, {y})",
)
OF_FLOATS = (
    # Of eight elements: the reference takes a loop of thousands of trips for each.  Of up to 100:
    # beyond, what JAX writes out loses its digits (igamma_grad_a(a, a) for 5.6e6 in f32 is -5.4e-4
    # by XLA, too, and -1.7e-4 in fact).
    "(lambda p, q: lax.betainc(p, q, lax.logistic(p - q)))({few})",
    "lax.random_gamma_grad({few})",
    "lax.igamma_grad_a({few})",
    "lax.exp2(lax.reciprocal(jnp.abs({x}) + 1))",
    "lax.acos(lax.clamp(-1.0, {x}, 1.0).astype({t!r}))",
    "lax.composite(lambda q, r: lax.sin(q) * 2 + r, 'my.own')({x}, {y})",
    "lax.composite(lambda q: q - q.max({a}, keepdims=True), 'my.centred')({x}) * {y}",
    "lax.sort_key_val({x}, {y}, dimension={a})[1]",
    "lax.approx_max_k(jnp.nan_to_num({x}), 1)[0]",  # which has no place for NaN
    "lax.batch_matmul({x}[None], jnp.swapaxes({y}[None], -1, -2))",
    "lax.dot({x}.reshape(-1), {y}.reshape(-1))",
    "lax.collapse({x}, 0) * 2",
    "lax.rev(lax.expand_dims({x}, (0,)), (1,))",
    "lax.index_in_dim({x}, -1, {a}, keepdims=False)",
    "lax.dynamic_index_in_dim({x}, {a}, {a}) + {y}",
    "lax.map(lambda r: lax.sin(r).sum(), {x}, batch_size=2)",
    # Derivatives that people define; of what they define nothing follows from the function.
    "jax.grad(lambda q: jnp.sum((lambda f: (f.defjvps(lambda t, ans, q: t * ans), f)[1])("
    "jax.custom_jvp(lambda q: lax.sin(q) + 1))(q)))({x})",
    "jax.grad(lambda q: jnp.sum((lambda f: (f.defvjp(lambda q: (lax.cos(q), q), "
    "lambda r, g: (g * r * 3,)), f)[1])(jax.custom_vjp(lambda q: lax.cos(q)))(q)))({x})",
    "jax.jvp(lambda q: lax.reduce_window(q, -np.inf, lax.max, {window}, {ones}, 'SAME'), ({x},), "
    "({y},))[1]",
    "jax.linear_transpose(lambda q: lax.rev(q, ({a},)) * 3, {x})({y})[0]",
    "lax.custom_linear_solve(lambda v: v * 3, {x}, lambda mv, b: b / 3)",
)
OF_IMAGES = (
    "lax.conv_transpose(v, table((2, 2, 3), {t!r}), (2,), {border})",
    "lax.conv_transpose(v, table((3, 3, 2), {t!r}), (2,), {border}, transpose_kernel=True, "
    "dimension_numbers=('NHC', 'HIO', 'NHC'))",
    "lax.conv_general_dilated_patches(jnp.swapaxes(v, 1, 2), (3,), ({stride},), {border})",
    "lax.conv_general_dilated_local(jnp.swapaxes(v, 1, 2)[:, :, :6], "
    "table((3, 4, 5), {t!r}), (1,), 'VALID', (2,))",
    "lax.conv_with_general_padding(jnp.swapaxes(v, 1, 2), table((3, 2, 2), {t!r}), ({stride},), "
    "((1, 2),), (2,), (1,))",
    "lax.conv(jnp.swapaxes(v, 1, 2), table((3, 2, 2), {t!r}), ({stride},), {border})",
    "lax.ragged_dot(v.reshape(-1, 2), table((3, 2, 4), {t!r}), np.array([5, 0, 7], 'int32'))",
    "jax.grad(lambda w: jnp.sum(lax.sin(lax.ragged_dot(v.reshape(-1, 2), w, "
    "np.array([3, 5, 4], 'int32')))))(jnp.asarray(table((3, 2, 4), {t!r})))",
)
OF_MATRICES = (
    "lax.linalg.symmetric_product({m}, {m}, alpha=0.5, beta=2.0, symmetrize_output=True)",
    "lax.linalg.tridiagonal_solve(jnp.tanh({m}[..., 0, :]) * (np.arange({n}) > 0), "
    "jnp.diagonal({m}, 0, -2, -1), jnp.sin({m}[..., 1, :]) * (np.arange({n}) < {n} - 1), {m})",
    "lax.linalg.cholesky_update(jnp.linalg.cholesky({m}).mT[{first}], {m}[{first}][0])",
    "jnp.linalg.svd({m}, compute_uv=False)",
    "jnp.linalg.pinv({m})",
    "jnp.linalg.matrix_power({m} / {n}, 3)",
    "jax.scipy.linalg.expm({m} / {n})",
    "jax.scipy.linalg.lu_solve(jax.scipy.linalg.lu_factor({m}[{first}]), {m}[{first}][0])",
    "lax.linalg.lu_pivots_to_permutation(lax.linalg.lu({m})[1], {n})",
    "(lambda h, scales: lax.linalg.ormqr(h.mT, scales, {m}))(*jnp.linalg.qr({m}, mode='raw'))",
)
# Of others than JAX: functions of one and of two floats, and small matrices.
OF_OTHERS = (
    "foreign('chlo.is_inf', {x})",
    "foreign('chlo.is_pos_inf', {x} / {y})",
    "foreign('chlo.is_neg_inf', {x} / {y})",
    "foreign('chlo.tan', {x})",
    "foreign('stablehlo.logistic', {x})",
    "foreign('stablehlo.map', {x}, {y})",
    "foreign('stablehlo.get_dimension_size', {x}) * {y}",
)
OF_OTHERS_MATRICES = (
    "jnp.tril(foreign('stablehlo.cholesky', {m}))",
    "foreign('stablehlo.triangular_solve', {m}, jnp.cos({m}))",
)


def lax_function(draw: Draws) -> str:
    """A function of elements or rows."""
    x = draw.value("fic", rank=1, most_rank=3, fits=lambda v: v.size > 0)
    texts = {"f": OF_FLOATS, "c": OF_COMPLEX}.get(x.kind, OF_INTEGERS)
    return draw.among(texts).format(
        x=x,
        y=(y := draw.same(x)),
        few=", ".join(f"jnp.minimum(jnp.abs({v}.reshape(-1)[:8]), 100) + 0.5" for v in (x, y)),
        a=draw.axis(x),
        t=x.dtype,
        window=tuple(draw.between(1, 3) for _ in x.shape),
        ones=(1,) * x.rank,
    )


def lax_image(draw: Draws) -> str:
    """A convolution along one axis, or products by groups of rows."""
    x = draw.value("f", rank=1, fits=lambda v: v.size > 0)
    text = draw.among(OF_IMAGES).format(
        t=x.dtype, border=draw.among(("'SAME'", "'VALID'")), stride=draw.between(1, 2)
    )
    return f"(lambda v: {text})(jnp.resize({x}, (2, 6, 2)))"


def lax_matrix(draw: Draws) -> str:
    """What else there is of positive definite matrices, none of them large."""
    x = draw.value(
        "f",
        rank=2,
        most_rank=3,
        fits=lambda v: v.dtype in ("float32", "float64") and 1 < v.shape[-1] <= MOST_ROWS,
    )
    rows = x.shape[-1]
    one = f"{2 * rows} * jnp.eye({rows}, dtype={x.dtype!r})"
    positive = f"jnp.einsum('...ji,...jk->...ik', t, t) + {one}"
    text = draw.among(OF_MATRICES + OF_OTHERS_MATRICES).format(
        m="m", n=rows, first=", ".join("0" * (x.rank - 2)) or "..."
    )
    return f"(lambda t: (lambda m: {text})({positive}))(jnp.tanh({x}))"


def put_together(draw: Draws) -> str:
    """Numbers that one op puts into two arrays, at places of which some are none.  Never into one
    that is given twice, with which XLA's code (0.10.2) writes beside it.
    """
    x = draw.value("fiu", rank=1, fits=lambda v: v.size > 0)
    y = draw.value("fiu", fits=lambda v: v.shape == x.shape)
    at = draw.value("iu", fits=lambda v: v.size > 0)
    count = draw.between(1, 40)
    updates = ", ".join(f"jnp.resize({v}, ({count},))" for v in (x, y))
    return (
        f"tuple(v.reshape({x}.shape) for v in foreign('stablehlo.scatter', {x}.reshape(-1), "
        f"(-{y}).reshape(-1), jnp.resize({at}, ({count}, 1)).astype('int32') * "
        f"{draw.between(1, 3)}, {updates}))"
    )


def foreign_function(draw: Draws) -> str:
    """An op that JAX has no function for."""
    x = draw.value("f", rank=1)
    return draw.among(OF_OTHERS).format(x=x, y=draw.same(x))
