"""Sorts in vectors: networks, merges, the codes that they compare, and ties among these."""

from __future__ import annotations

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from hlo_mlc import compile_stablehlo
from hlo_mlc.interop.jit import mlc_jit
from hlo_mlc.loops.core import walk
from hlo_mlc.loops.interpret import interpret
from hlo_mlc.loops.prove import prove
from hlo_mlc.target.cpu import named
from hlo_mlc.target.levels import runnable
from hlo_mlc.templates.program import schedule_program
from hlo_mlc.templates.sorting.networks import sorted_pairs
from hlo_mlc.templates.sorting.template import SortTemplate

LEVELS = ["host", *(level for level in ("x86-64", "x86-64-v3") if level in runnable())]
OTHER = {"ranked": 0, "digit": 8, "runs": 1, "candidates": 0, "bits": 0}
NETWORK, MERGES = {**OTHER, "network": 1, "merges": 0}, {**OTHER, "network": 0, "merges": 1}
DTYPES = (
    "bool",
    "int8",
    "uint8",
    "int16",
    "uint16",
    "float16",
    "bfloat16",
    "int32",
    "uint32",
    "float32",
    "int64",
    "uint64",
    "float64",
)


def elements(dtype: str, shape: tuple[int, ...], seed: int = 0) -> np.ndarray:
    """Of all kinds, with ties; of floats zeros of both signs, infinities, and NaNs of several kinds
    and both signs."""
    rng = np.random.default_rng([seed, *dtype.encode(), *shape])
    kind = jnp.dtype(dtype)
    if kind == np.bool_:
        return rng.random(shape) < 0.5
    if not jnp.issubdtype(kind, jnp.floating):
        info = np.iinfo(kind)
        near, far = rng.integers(0, 4, shape), rng.integers(info.min, info.max, shape, kind, True)
        return np.where(rng.random(shape) < 0.4, near.astype(kind), far)
    x = rng.standard_normal(shape).astype(kind)
    special = np.array([0.0, -0.0, np.inf, -np.inf, 1.0, np.nan, -np.nan], np.float64).astype(kind)
    x = np.where(rng.random(shape) < 0.4, rng.choice(special, shape), x)
    odd = rng.random(shape) < 0.05
    bits = x.view(f"u{kind.itemsize}")
    bits[odd & np.isnan(x.astype(np.float64))] ^= 1  # another NaN
    return x


def bits(x: object) -> bytes:
    return np.asarray(x).tobytes()


def stable(x: np.ndarray, axis: int = -1) -> np.ndarray:
    """In order, what is equal as it comes, by NumPy."""
    with np.errstate(invalid="ignore"):
        wide = x.astype(np.float64) if jnp.issubdtype(x.dtype, jnp.floating) else x
    return np.take_along_axis(x, np.argsort(wide, axis, kind="stable"), axis)


def test_pairs_sort_all_zeros_and_ones():
    """By which they sort anything (Knuth, volume 3, theorem 5.3.4Z)."""
    for count in (2, 4, 8, 16):
        lists = np.array(list(itertools.product((0, 1), repeat=count))).T
        for pairs in sorted_pairs(count):
            assert len({k for pair in pairs for k in pair}) == 2 * len(pairs)
            for low, high in pairs:
                lists[[low, high]] = (
                    np.minimum(*lists[[low, high]]),
                    np.maximum(*lists[[low, high]]),
                )
        assert (np.diff(lists, axis=0) >= 0).all()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(70, 2), (67, 3), (64, 16), (130, 37), (35, 256), (3, 300)])
def test_every_type(take_apart, machine_code, dtype, shape):
    """As it comes where nothing else decides, zeros of both signs and odd NaNs included."""
    with jax.enable_x64(True):
        x = elements(dtype, shape)
        parts = take_apart(lambda x: (jnp.sort(x), jnp.argsort(x)), x)
        for number, level in enumerate(LEVELS):
            execute = machine_code.executing(
                tuned={k: ("sort", NETWORK) for k in range(len(parts.programs))},
                target=named(level),
                threads=1 + number,
                fence_at=("end", "start")[number % 2],
            )
            ordered, positions = parts.run([x], execute)
            assert bits(ordered) == bits(stable(x))
            np.testing.assert_array_equal(
                np.take_along_axis(x, np.asarray(positions, np.int64), -1).view(np.uint8),
                np.asarray(ordered).view(np.uint8),
            )


@pytest.mark.parametrize("dtype", ["int32", "uint8", "float32", "float16"])
def test_downwards(take_apart, machine_code, dtype):
    x = elements(dtype, (40, 90), 2)
    parts = take_apart(lambda x: jnp.sort(x, descending=True), x)
    (ordered,) = parts.run([x], machine_code.executing(tuned={0: ("sort", NETWORK)}))
    assert bits(ordered) == bits(stable(x)[:, ::-1])


@pytest.mark.parametrize("dtype, kind", [("float32", "f32"), ("float64", "f64"), ("int16", "i16")])
def test_the_larger_first(dtype, kind):
    """NaNs before all, and what is equal as it comes."""
    text = f"""
func.func @main(%a: tensor<70x90x{kind}>) -> tensor<70x90x{kind}> {{
  %s = "stablehlo.sort"(%a) ({{
  ^bb0(%x: tensor<{kind}>, %y: tensor<{kind}>):
    %r = stablehlo.compare GT, %x, %y, {"SIGNED" if kind == "i16" else "FLOAT"} : (
        tensor<{kind}>, tensor<{kind}>) -> tensor<i1>
    stablehlo.return %r : tensor<i1>
  }}) {{dimension = 1 : i64, is_stable = true}} : (tensor<70x90x{kind}>) -> tensor<70x90x{kind}>
  return %s : tensor<70x90x{kind}>
}}"""
    with jax.enable_x64(True):
        x = elements(dtype, (70, 90), 3)
        compiled = compile_stablehlo(text, choose="ours")
        (ordered,) = compiled(x)
        assert compiled.report(x).coverage == 1
    assert bits(ordered) == bits(stable(x[:, ::-1])[:, ::-1])


@pytest.mark.parametrize(
    "axis, shape",
    [(0, (30, 50)), (0, (130, 9, 4)), (1, (9, 40, 12)), (1, (2, 30, 127)), (2, (3, 7, 33))],
)
def test_every_axis(axis, shape):
    x = elements("float32", shape)
    ours = mlc_jit(
        lambda x: (jnp.sort(x, axis), lax.sort_key_val(x, x * 2, axis)[1]), choose="ours"
    )
    ordered, values = ours(x)
    assert bits(ordered) == bits(stable(x, axis))
    np.testing.assert_array_equal(values, stable(x, axis) * 2)
    assert ours.report(x).coverage == 1


def test_what_surrounds_a_sort_is_computed_in_it(take_apart, machine_code):
    x, y = elements("int16", (50, 41)), elements("float32", (50, 41))

    def function(x, y):
        first, second = lax.sort((x * 3, y), num_keys=1)
        return first + 1, jnp.where(second > 0, second, -first), lax.top_k(x, 7)

    parts = take_apart(function, x, y)
    tuned = {k: ("sort", NETWORK) for k in range(len(parts.programs))}
    expected = jax.tree.leaves(jax.jit(function)(x, y))
    for one, other in zip(
        parts.run([x, y], machine_code.executing(tuned=tuned)), expected, strict=True
    ):
        assert bits(one) == bits(other)


@pytest.mark.parametrize("level", ["x86-64", "x86-64-v4"])
@pytest.mark.parametrize(
    "dtype, shape", [("float32", (18, 5)), ("uint8", (3, 33)), ("float16", (33, 17))]
)
def test_networks_are_proved_and_mean_the_same(take_apart, level, dtype, shape):
    """No index needs a guard, and nothing is read that nobody wrote."""
    x = elements(dtype, shape)
    parts = take_apart(lambda x: (jnp.sort(x), jnp.argsort(x)[:, 1:3]), x)

    def interpreted(program, operands):
        loops, _ = schedule_program(
            program, named(level), {k: ("sort", NETWORK) for k in range(len(parts.programs))}
        )
        loops, proof = prove(loops)
        assert not proof.guarded and "turn" in str(loops)
        return interpret(loops, operands, seed=1)

    ordered, positions = parts.run([x], interpreted)
    assert bits(ordered) == bits(stable(x))
    again = np.take_along_axis(x, np.asarray(positions), 1)
    assert bits(again) == bits(stable(x)[:, 1:3])


@pytest.mark.parametrize(
    "rows, count, dtype, is_chosen",
    [
        (4096, 256, "float32", True),
        (4096, 256, "int64", True),
        (70_000, 8, "int32", True),
        (1, 256, "int32", False),
        (3, 4096, "int32", False),
        (64, 16_384, "float32", True),
    ],
)
def test_many_rows_are_sorted_side_by_side(take_apart, rows, count, dtype, is_chosen):
    with jax.enable_x64(True):
        (program,) = take_apart(jnp.sort, np.zeros((rows, count), dtype)).programs
        (nest,) = program.steps
        assert SortTemplate().default(nest, named("x86-64-v4"))["network"] == is_chosen


def test_rows_too_long_for_the_stack():
    x = elements("float32", (37, 5000))
    ours = mlc_jit(jnp.sort, choose="ours")
    assert bits(ours(x)) == bits(stable(x))
    assert ours.report(x).coverage == 1


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(1, 5000), (3, 700), (1, 70_000)])
def test_runs_of_codes_are_merged(take_apart, machine_code, dtype, shape):
    """Runs that end among the largest codes, in one part or several."""
    with jax.enable_x64(True):
        x = elements(dtype, shape)
        parts = take_apart(jnp.sort, x)
        for number, level in enumerate(LEVELS):
            execute = machine_code.executing(
                tuned={0: ("sort", MERGES)},
                target=named(level),
                threads=1 + number,
                fence_at=("end", "start")[number % 2],
            )
            assert bits(parts.run([x], execute)[0]) == bits(stable(x))


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("pair", [(0.0, -0.0), (-0.0, 0.0), (np.nan, -np.nan), (-np.nan, np.nan)])
def test_equal_elements_that_differ_lie_far_apart(take_apart, machine_code, level, pair):
    """In other runs, and other parts."""
    for size, first, last in ((40, 0, 39), (3000, 100, 2500), (100_003, 7, 99_000)):
        x = np.full(size, 1.5, np.float32)
        x[first], x[last] = pair
        parts = take_apart(lambda x: jnp.sort(x), x)
        (ordered,) = parts.run(
            [x], machine_code.executing(tuned={0: ("sort", MERGES)}, target=named(level))
        )
        assert bits(ordered) == bits(stable(x))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
@pytest.mark.parametrize("kind", ["zeros", "nans", "both"])
@pytest.mark.parametrize("level", LEVELS)
def test_all_are_equal_and_many_differ(take_apart, machine_code, dtype, kind, level):
    """Blocks, parts and rows that have nothing else, and some that have nothing of it."""
    with jax.enable_x64(True):
        rng = np.random.default_rng(0)
        for way, shape in ((MERGES, (3, 700)), (MERGES, (1, 40_003)), (NETWORK, (33, 37))):
            zeros = rng.choice([0.0, -0.0], shape).astype(dtype)
            nans = rng.choice([np.nan, -np.nan], shape).astype(dtype)
            x = {
                "zeros": zeros,
                "nans": nans,
                "both": np.where(rng.random(shape) < 0.5, zeros, nans),
            }[kind]
            x[-1, -shape[1] // 3 :] = np.abs(rng.standard_normal(-(-shape[1] // 3))).astype(dtype)
            (ordered,) = take_apart(jnp.sort, x).run(
                [x], machine_code.executing(tuned={0: ("sort", way)}, target=named(level))
            )
            assert bits(ordered) == bits(stable(x))


@pytest.mark.parametrize("order", ["sorted", "reversed", "equal", "largest", "nan"])
def test_orders_that_are_there_already(take_apart, machine_code, order):
    """One run has everything that comes first, or all codes are like those behind the last."""
    x = np.random.default_rng(0).standard_normal(40_000).astype(np.float32)
    x = {
        "sorted": np.sort(x),
        "reversed": np.sort(x)[::-1],
        "equal": np.full_like(x, 2),
        "largest": np.where(x < 0, x, -np.nan),
        "nan": np.where(x < 0, np.nan, x),
    }[order].astype(np.float32)
    parts = take_apart(jnp.sort, x)
    (ordered,) = parts.run([x], machine_code.executing(tuned={0: ("sort", MERGES)}))
    assert bits(ordered) == bits(stable(x))


@pytest.mark.parametrize("level", ["x86-64", "x86-64-v4"])
@pytest.mark.parametrize("dtype", ["float32", "int64", "uint16"])
def test_merges_are_proved_and_mean_the_same(take_apart, level, dtype):
    with jax.enable_x64(True):
        x = elements(dtype, (2, 300))
        parts = take_apart(jnp.sort, x)

        def interpreted(program, operands):
            loops, _ = schedule_program(program, named(level), {0: ("sort", MERGES)})
            loops, proof = prove(loops)
            assert not proof.guarded and "merged" in str(loops)
            return interpret(loops, operands, seed=1)

        assert bits(parts.run([x], interpreted)[0]) == bits(stable(x))


def test_long_rows_take_no_more_code(take_apart):
    """What is done at every level of merges is there once, or twice where the second room is the
    result's: from the one into the other, and back."""

    def statements(size):
        (program,) = take_apart(jnp.sort, np.zeros((size,), np.float32)).programs
        loops, _ = schedule_program(program, named("x86-64-v3"), {0: ("sort", MERGES)})
        return sum(1 for _ in walk(loops.body))

    assert statements(1 << 20) == statements(1 << 17)
    assert statements(1 << 23) == statements(1 << 21) < 1.2 * statements(1 << 20)
