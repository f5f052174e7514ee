"""Chains of two products computed block by block of rows: attention in its many forms."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from hlo_mlc.loops.core import For, walk
from hlo_mlc.loops.interpret import interpret
from hlo_mlc.loops.verify import verify
from hlo_mlc.target.cpu import named
from hlo_mlc.target.levels import runnable
from hlo_mlc.templates.program import choose_template, schedule_program

# What is expected of choices does not depend on the machine that the tests run on.
TARGET = named("x86-64-v4")

# Levels with and without masks, with 16 and with 32 registers, of 16, 32 and 64 bytes.
LEVELS = ["host", *(level for level in ("x86-64", "x86-64-v3") if level in runnable())]


def scores(q, k):
    return jnp.einsum("bqhd,bkhd->bhqk", q, k) / math.sqrt(q.shape[-1])


def mixed(p, v):
    return jnp.einsum("bhqk,bkhd->bqhd", p, v)


def causal(q, k, v, x):
    s = scores(q, k)
    return mixed(jax.nn.softmax(jnp.where(jnp.tri(*s.shape[2:], dtype=bool), s, -jnp.inf)), v)


def heads_first(q, k, v, x):
    q, k, v = (a.transpose(0, 2, 1, 3) for a in (q, k, v))
    return jnp.einsum("bhqk,bhkd->bhqd", jax.nn.softmax(jnp.einsum("bhqd,bhkd->bhqk", q, k)), v)


def keys_transposed(q, k, v, x):
    """Keys [.., depth, keys] and values [.., columns, keys], as caches keep them."""
    k, v = k.transpose(0, 2, 3, 1) * 1, v.transpose(0, 2, 3, 1) * 1
    return jnp.einsum(
        "bhqk,bhdk->bhdq",
        jax.nn.softmax(jnp.einsum("bqhd,bhdk->bhqk", q, jax.lax.optimization_barrier(k))),
        jax.lax.optimization_barrier(v),
    )


def with_sink(q, k, v, x):
    s, sink = scores(q, k), x[0, 0, :1, :1]
    most = jnp.maximum(s.max(-1, keepdims=True), sink)
    e = jnp.exp(s - most)
    return mixed(e / (e.sum(-1, keepdims=True) + jnp.exp(sink - most)), v)


def normalized_late(q, k, v, x):
    s = scores(q, k)
    e = jnp.exp(s - s.max(-1, keepdims=True))
    return mixed(e, v) / e.sum(-1).transpose(0, 2, 1)[..., None]


def two_folds_of_one_pass(q, k, v, x):
    s = scores(q, k)
    spread = (s - s.mean(-1, keepdims=True)) / (1 + jnp.abs(s).max(-1, keepdims=True))
    return mixed(spread * spread, v)


# By name: functions of q: [b, s, h, d], k: [b, t, h, d], v: [b, t, h, e], x: [b, h, s, t].
FORMS = {
    "plain": lambda q, k, v, x: mixed(jax.nn.softmax(scores(q, k)), v),
    "heads first": heads_first,
    "keys transposed": keys_transposed,
    "causal": causal,
    "biased": lambda q, k, v, x: mixed(jax.nn.softmax(scores(q, k) + x), v),
    "masked": lambda q, k, v, x: mixed(jax.nn.softmax(jnp.where(x > 0, scores(q, k), -1e9)), v),
    "dropout": lambda q, k, v, x: mixed(
        jnp.where(x > -1, jax.nn.softmax(scores(q, k)) / 0.9, 0), v
    ),
    "capped": lambda q, k, v, x: mixed(jax.nn.softmax(5 * jnp.tanh(scores(q, k) / 5)), v),
    "with a sink": with_sink,
    "normalized late": normalized_late,
    "two folds": two_folds_of_one_pass,
    "prologues": lambda q, k, v, x: (
        jnp.maximum(mixed(jax.nn.softmax(scores(q * 2 - 1, jnp.sin(k))), v * v + 1) - 1, 0.5) * 3
    ),
    "cosine": lambda q, k, v, x: mixed(
        jax.nn.softmax(scores(q / jnp.linalg.norm(q, axis=-1, keepdims=True), k)), v
    ),
}
# (b, s, t, h, d, e); a length is at least 8, or products of rows stay as they are
SHAPES = ((2, 17, 23, 3, 8, 5), (1, 64, 64, 2, 16, 16), (1, 131, 97, 1, 33, 65))


def arguments(arrays, dtype, b, s, t, h, d, e):
    return arrays(dtype, (b, s, h, d), (b, t, h, d), (b, t, h, e), (b, h, s, t))


def templates(report) -> list[str]:
    return [nest.template for kernel in report.kernels for nest in kernel.nests]


@pytest.mark.parametrize("form", FORMS)
def test_forms(check, arrays, form):
    shape = SHAPES[len(form) % len(SHAPES)]
    report = check(FORMS[form], *arguments(arrays, "float32", *shape), ulps=64)
    assert templates(report).count("attention") == 1, report.explain()


@pytest.mark.parametrize(
    ("dtype", "form"),
    [
        ("bfloat16", "causal"),
        ("bfloat16", "prologues"),
        ("float16", "biased"),
        ("float16", "normalized late"),
    ],
)
def test_narrow_floats(check, arrays, dtype, form):
    report = check(FORMS[form], *arguments(arrays, dtype, *SHAPES[0]), ulps=4)
    assert "attention" in templates(report)


@pytest.mark.parametrize("form", ["causal", "with a sink"])
def test_f64(check, arrays, form):
    with jax.enable_x64(True):
        report = check(FORMS[form], *arguments(arrays, "float64", *SHAPES[2]), ulps=64)
    assert "attention" in templates(report)


@pytest.mark.parametrize(("heads", "is_causal"), [((6, 2), False), ((4, 1), True)])
def test_grouped_heads(check, arrays, heads, is_causal):
    many, few = heads
    q, k, v = arrays("float32", (2, 19, many, 8), (2, 21, few, 8), (2, 21, few, 8))

    def function(q, k, v):
        return jax.nn.dot_product_attention(q, k, v, is_causal=is_causal)

    def repeated(q, k, v):
        return FORMS["plain"](q, *(jnp.repeat(a, many // few, 2) for a in (k, v)), None)

    for f in (function, repeated):
        assert "attention" in templates(check(f, q, k, v, ulps=64))


@pytest.mark.parametrize("lengths", [(1, 40), (40, 1), (8, 2), (15, 16), (65, 129)])
def test_lengths(check, arrays, lengths):
    """Few rows, or a single key, are left to other templates; the results are the same."""
    check(causal, *arguments(arrays, "float32", 1, *lengths, 2, 8, 8), ulps=64)


def test_maps_alone_between_wide_products(check, arrays):
    """Sigmoid attention: one pass, worth it where the scores would leave the caches."""
    args = arguments(arrays, "float32", 1, 260, 260, 4, 8, 8)
    report = check(lambda q, k, v, x: mixed(jax.nn.sigmoid(scores(q, k) - 1), v), *args, ulps=64)
    assert "attention" in templates(report)


def test_masks_of_minus_infinity(check, arrays):
    """A row that is masked as a whole gives NaN, as it does in JAX, and no other row does."""
    q, k, v, x = arguments(arrays, "float32", 1, 40, 50, 2, 8, 8)
    mask = x > 0
    mask[:, :, 3], mask[:, 1, 17] = False, False

    def function(q, k, v, mask):
        s = jnp.where(mask, scores(q, k), -jnp.inf)
        return mixed(jax.nn.softmax(s), v), mixed(jax.nn.softmax(scores(q, k), where=mask), v)

    check(function, q, k, v, mask, ulps=64)


@pytest.mark.parametrize("form", ["causal", "normalized late"])
def test_extreme_values(check, arrays, form):
    """A key that no row may see still makes NaN of a weight of 0, if its value is not finite."""
    q, k, v, x = arguments(arrays, "float32", 1, 40, 40, 2, 8, 8)
    q[0, 5] *= 1e4
    k[0, 39, 0, 3], v[0, 38, 1, 2], v[0, 7, 0, 4] = np.nan, np.inf, -np.inf
    check(FORMS[form], q, k, v, x, ulps=64)


def test_what_is_needed_outside_is_kept(check, arrays):
    """The scores or the weights as results; a gradient, which needs them again."""
    q, k, v, x = arguments(arrays, "float32", *SHAPES[0])

    def both(q, k, v):
        p = jax.nn.softmax(scores(q, k))
        return p, mixed(p, v)

    assert "attention" not in templates(check(both, q, k, v, ulps=64))
    check(
        lambda *a: jax.grad(lambda *b: (causal(*b) ** 2).sum(), (0, 1, 2, 3))(*a),
        q,
        k,
        v,
        x,
        ulps=256,
    )


def test_memory_grows_with_the_length_only(take_apart):
    """Neither a result nor scratch of queries by keys."""

    def bytes_of(length):
        like = jax.ShapeDtypeStruct((1, length, 2, 16), jnp.float32)
        parts = take_apart(lambda q, k, v: causal(q, k, v, None), like, like, like)
        (program,) = parts.programs
        loops, (decision,) = schedule_program(program, TARGET)
        assert decision.template.name == "attention"
        assert all(b.size < length * length for b in (*program.operands, *program.results))
        return loops.scratch_bytes

    once, twice = bytes_of(4096), bytes_of(8192)
    assert 0 < twice <= 2.1 * once


def test_attention_inside_a_loop(check, arrays):
    q, k, v, x = arguments(arrays, "float32", 1, 24, 24, 2, 8, 8)
    check(
        lambda q, k, v, x: jax.lax.fori_loop(0, 2, lambda i, c: c + FORMS["plain"](c, k, v, x), q),
        q,
        k,
        v,
        x,
        ulps=256,
    )


@pytest.fixture(scope="module")
def sample_of(take_apart, arrays):
    """A form over a shape: its kernels, arguments and what JAX gives."""

    def make(form, shape):
        args = arguments(arrays, "float32", *shape)
        return take_apart(FORMS[form], *args), args, np.asarray(jax.jit(FORMS[form])(*args))

    return make


@pytest.mark.parametrize("form", ["keys transposed", "causal", "two folds"])
def test_machine_code_does_what_the_loops_say(sample_of, form):
    """The interpreter gives what JAX does, and the verifier finds nothing wrong."""
    parts, args, expected = sample_of(form, (1, 9, 7, 2, 3, 5))

    def interpreted(program, operands):
        scheduled, _ = schedule_program(program, TARGET)
        verify(scheduled)
        return interpret(scheduled, operands, seed=1)

    (result,) = parts.run(args, interpreted)
    np.testing.assert_allclose(result, expected, 1e-5, 1e-5)


@pytest.mark.parametrize(
    ("form", "rows", "versions"),
    [("causal", 125, 1), ("keys transposed", 127, 1), ("biased", 125, 2), ("causal", 70, 2)],
)
def test_the_last_block_shares_the_code_of_the_others(
    sample_of, machine_code, form, rows, versions
):
    """Where it has as many vectors of rows, and nothing else is read row by row."""
    parts, args, expected = sample_of(form, (1, rows, 40, 2, 8, 8))
    programs = [schedule_program(p, TARGET)[0] for p in parts.programs]
    passes = [
        s
        for p in programs
        for s in walk(p.body)
        if isinstance(s, For) and s.var.name.endswith("_chunk0")
    ]
    assert len(passes) == versions
    for fence in ("start", "end"):
        (result,) = parts.run(args, machine_code.executing(threads=2, fence_at=fence))
        np.testing.assert_allclose(result, expected, 1e-5, 1e-5)
    for program in programs:
        verify(program)


@pytest.mark.parametrize("form", ["causal", "keys transposed", "two folds"])
@pytest.mark.parametrize(("keys", "tiles"), [(64, 1), (77, 1), (59, 1), (97, 2)])
def test_tiles_of_scores_share_their_code(sample_of, machine_code, form, keys, tiles):
    """The last one begins earlier, unless a chunk may have fewer keys than a tile."""
    parts, args, expected = sample_of(form, (1, 64, keys, 2, 8, 8))
    zeroed = [
        s
        for p in parts.programs
        for s in walk(schedule_program(p, TARGET)[0].body)
        if isinstance(s, For) and s.var.name.endswith("_szi")
    ]
    assert len(zeroed) == tiles
    for fence in ("start", "end"):
        (result,) = parts.run(args, machine_code.executing(threads=2, fence_at=fence))
        np.testing.assert_allclose(result, expected, 1e-5, 1e-5)


@pytest.mark.parametrize(
    ("form", "seed"),
    [("heads first", 0), ("keys transposed", 1), ("biased", 0), ("normalized late", 1)],
)
def test_every_choice_of_parameters_is_right(sample_of, machine_code, form, seed):
    """On all levels, with buffers that border on memory without access."""
    rng = np.random.default_rng(seed)
    parts, args, expected = sample_of(form, SHAPES[seed * 2])
    for level in LEVELS:
        target = named(level)

        def execute(program, operands, target=target):
            tuned = {}
            for number, decision in enumerate(schedule_program(program, target)[1]):
                space = decision.template.space(decision.nest, target)
                drawn = {key: int(rng.choice(values)) for key, values in space.items()}
                tuned[number] = decision.template.name, drawn
            place = ("start", "end")[int(rng.integers(2))]
            return machine_code.executing(tuned=tuned, target=target, threads=2, fence_at=place)(
                program, operands
            )

        (result,) = parts.run(args, execute)
        np.testing.assert_allclose(result, expected, 2e-5, 2e-5)


def test_results_do_not_depend_on_threads(sample_of, machine_code):
    parts, args, _ = sample_of("causal", (2, 200, 300, 3, 16, 16))
    once, *others = [
        parts.run(args, machine_code.executing(threads=threads))[0] for threads in (1, 2, 8)
    ]
    for other in others:
        assert once.tobytes() == other.tobytes()


def test_what_is_kept_for_many_keys_is_in_the_arena(sample_of, machine_code):
    parts, args, expected = sample_of("plain", (1, 70, 3000, 2, 8, 8))
    (program,) = parts.programs
    assert schedule_program(program, TARGET)[0].scratch_bytes > 0
    (result,) = parts.run(args, machine_code.executing(threads=2))
    np.testing.assert_allclose(result, expected, 1e-4, 1e-5)


def test_refusals(take_apart, arrays):
    """Reasons in the words of the report."""
    q, k = arrays("float32", (1, 20, 2, 8), (1, 20, 2, 8))
    parts = take_apart(scores, q, k)
    (nest,) = parts.programs[0].steps
    refused = dict(choose_template(nest, TARGET)[1])
    assert refused["attention"] == "not a chain of two products"
