"""Families of linear algebra: factorizations of well-conditioned small matrices, and solves."""

from __future__ import annotations

from fuzzing.draws import Draws

MOST_ROWS = 20
"""We compute matrices of up to 16 rows; larger ones are left to LAPACK."""
GENERAL = (
    "jnp.linalg.inv({m})",
    "jnp.linalg.solve({m}, {y})",
    "jnp.linalg.det({m})",
    "jnp.linalg.slogdet({m})[1]",
    "jnp.linalg.qr({m})[1]",
    "jnp.linalg.qr({m})[0]",
    "lax.linalg.lu({m})[0]",
    "lax.linalg.lu({m})[2]",
)
POSITIVE = (
    "jnp.linalg.cholesky({m})",
    "jax.scipy.linalg.cho_solve((jnp.linalg.cholesky({m}), True), {y})",
    "jnp.linalg.eigvalsh({m})",
    "(lambda w, v: (v * jnp.sqrt(w)[..., None, :]) @ jnp.conj(v).mT)(*jnp.linalg.eigh({m}))",
    "jnp.linalg.solve({m}, {y})",
    "jnp.linalg.inv({m})",
)


def matrices(draw: Draws) -> str:
    """Of stacks, squares of which a multiple of one is added to what the program has."""
    x = draw.value(
        "fc",
        rank=2,
        most_rank=4,
        fits=lambda v: v.dtype not in ("float16", "bfloat16") and 0 < v.shape[-1] <= MOST_ROWS,
    )
    rows = x.shape[-1]
    one = f"{2 * rows} * jnp.eye({rows}, dtype={x.dtype!r})"
    small = draw.among((f"jnp.tanh({x})", str(x)))
    positive = f"(jnp.einsum('...ji,...jk->...ik', jnp.conj({small}), {small}) + {one})"
    if draw.chance(30):
        return _triangular(draw, positive, f"{x}.mT")
    if draw.chance(50):
        return draw.among(POSITIVE).format(m=positive, y=f"{x}.mT")
    square = (
        f"(jnp.concatenate([{small}] * {-(-rows // max(1, x.shape[-2]))}, -2)"
        f"[..., :{rows}, :] + {one})"
    )
    return draw.among(GENERAL).format(m=square, y=f"{x}.mT")


def _triangular(draw: Draws, matrix: str, right: str) -> str:
    left = draw.chance(60)
    return (
        f"lax.linalg.triangular_solve({matrix}, {right if left else f'{right}.mT'}, "
        f"left_side={left}, lower={draw.chance(50)}, transpose_a={draw.chance(50)}, "
        f"unit_diagonal={draw.chance(15)})"
    )
