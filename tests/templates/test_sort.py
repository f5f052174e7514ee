"""Sorts of every kind of key, in every way: ranks, digits, runs, candidates, networks."""

from __future__ import annotations

import itertools
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from hlo_mlc import compile_stablehlo
from hlo_mlc.expr.dtypes import F8E8M0FNU, FLOATS_OF_A_BYTE
from hlo_mlc.interop.jit import mlc_jit
from hlo_mlc.loops.interpret import interpret
from hlo_mlc.loops.prove import prove
from hlo_mlc.target.cpu import named
from hlo_mlc.target.levels import runnable
from hlo_mlc.templates.by_hand import store
from hlo_mlc.templates.program import schedule_program
from hlo_mlc.templates.sorting import rooms
from hlo_mlc.templates.sorting.candidates import _Candidates
from hlo_mlc.templates.sorting.merges import PART
from hlo_mlc.templates.sorting.template import RUN, SortTemplate

LEVELS = ["host", *(level for level in ("x86-64", "x86-64-v3") if level in runnable())]
DTYPES = (
    "float32",
    "float64",
    "bfloat16",
    "float16",
    "int8",
    "int16",
    "int32",
    "int64",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
    "bool",
)
WAYS = tuple(
    {
        "ranked": ranked,
        "digit": digit,
        "runs": runs,
        "candidates": candidates,
        "bits": bits,
        "network": 0,
        "merges": 0,
    }
    for ranked, (digit, runs), candidates, bits in itertools.product(
        (0, 1024), ((8, 1), (8, 4), (11, 2)), (0, 1), (0, 1)
    )
)
WAYS += ({**WAYS[0], "network": 1}, {**WAYS[0], "merges": 1})


def values(dtype: str, shape: tuple[int, ...], seed: int = 0) -> np.ndarray:
    """Bits of all kinds: NaNs with payloads and signs, zeros of both signs, many ties; but no
    subnormal numbers, which XLA takes for zeros."""
    rng = np.random.default_rng([seed, *dtype.encode(), *shape])
    kind = jnp.dtype(dtype)
    if kind == np.bool_:
        return rng.random(shape) < 0.5
    bits = rng.integers(0, 256, (*shape, kind.itemsize), np.uint8)
    raw = bits.view(kind).reshape(shape)
    near = np.asarray(rng.integers(0, 5, shape), kind)
    mixed = np.where(rng.random(shape) < 0.6, raw, near)
    if jnp.issubdtype(kind, jnp.floating):
        special = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, -np.nan], np.float64).astype(kind)
        mixed = np.where(rng.random(shape) < 0.2, rng.choice(special, shape), mixed).astype(kind)
        with np.errstate(invalid="ignore"):
            mixed = np.where(np.abs(mixed) < jnp.finfo(kind).tiny, np.asarray(0, kind), mixed)
    return mixed.astype(kind)


def same_bits(actual: object, expected: object) -> None:
    for one, other in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
        one, other = np.asarray(one), np.asarray(other)
        assert (one.dtype, one.shape) == (other.dtype, other.shape)
        assert one.tobytes() == other.tobytes()


def agrees(function, *args) -> None:
    """Bit by bit as XLA has it, and wholly in our kernels."""
    ours = mlc_jit(function, choose="ours")
    same_bits(ours(*args), jax.jit(function)(*args))
    assert ours.report().coverage == 1, str(ours.explain(verbose=True))


def in_order(x: np.ndarray, axis: int = -1) -> np.ndarray:
    """The positions of a stable sort, by another way: NumPy's, NaNs last and zeros equal."""
    with np.errstate(invalid="ignore"):
        wide = x.astype(np.float64) if x.dtype.kind in "fV" else x
    return np.argsort(wide, axis, kind="stable")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(1, 2), (7, 5), (3, 40), (2, 300), (9000,)])
def test_every_type(dtype, shape):
    with jax.enable_x64(True):
        x = values(dtype, shape)
        if x.dtype == jnp.bfloat16:
            x = np.where(np.isnan(x.astype(np.float32)), np.nan, x).astype(x.dtype)
        agrees(lambda x: (jnp.sort(x), jnp.argsort(x), jnp.sort(x, descending=True)), x)
        np.testing.assert_array_equal(mlc_jit(jnp.argsort, choose="ours")(x), in_order(x))


@pytest.mark.parametrize("dtype", sorted({*FLOATS_OF_A_BYTE} - {F8E8M0FNU}, key=str), ids=str)
@pytest.mark.parametrize("count", [7, 300, 9000])
def test_floats_of_a_byte(dtype, count):
    """As the numbers of f32 that they are, NaNs last; those that are equal stay as they come."""
    rng = np.random.default_rng(count)
    x = rng.integers(0, 256, count).astype(np.uint8).view(dtype.numpy)
    wide = x.astype(np.float32)
    expected = (np.sort(wide), np.argsort(wide, kind="stable"), lax.top_k(wide, 3)[1])
    ours = mlc_jit(lambda x: (jnp.sort(x), jnp.argsort(x), lax.top_k(x, 3)[1]), choose="ours")
    for one, other in zip(ours(x), expected, strict=True):
        np.testing.assert_array_equal(np.asarray(one).astype(np.float32), other)
    assert ours.report(x).coverage == 1


@pytest.mark.parametrize("order", ["equal", "few", "nan"])
@pytest.mark.parametrize("dtype", ["float32", "float64", "int16", "uint8"])
def test_places_among_keys_that_hardly_differ(dtype, order):
    """The bits in which those that are left do not differ are passed over."""
    rng = np.random.default_rng(0)
    x = {
        "equal": np.full(9001, 3),
        "few": rng.choice([1, 64, 65, 100], 9001),
        "nan": np.where(rng.random(9001) < 0.5, 7, 8),
    }[order].astype(dtype)
    if order == "nan" and dtype.startswith("float"):
        x[x == 7] = np.nan
    for place in (0, 1, 4500, 8999, 9000):
        agrees(lambda x, place=place: jnp.sort(x)[place], x)
    agrees(jnp.median, x)


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_every_axis(arrays, axis):
    (x,) = arrays("float32", (9, 70, 12))
    agrees(lambda x: (jnp.sort(x, axis), jnp.argsort(x.transpose(2, 0, 1), axis)), x)


@pytest.mark.parametrize("count", [50, 6000])
def test_several_keys(count):
    """The first that differ decide; the rest goes along."""
    a, b, c = (values(t, (count,), 3) for t in ("int8", "float32", "uint16"))
    agrees(lambda a, b, c: lax.sort((a, b, c), num_keys=3), a, b, c)
    agrees(lambda a, b, c: lax.sort((c, a, b), num_keys=2), a, b, c)
    agrees(lambda a, b, c: jnp.lexsort((a, b, c)), a, b, c)


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_every_way_is_the_same(take_apart, machine_code, way):
    """Whatever is chosen, on any number of threads, next to memory that cannot be touched."""
    x, y = values("float32", (2, 777), 1), values("int16", (2, 777), 2)

    def function(x, y):
        return (
            jnp.sort(x),
            lax.sort((y, x), num_keys=1),
            lax.sort((y, x), num_keys=2),
            lax.top_k(y, 3),
            lax.top_k(x, 90),
            jnp.sort(x)[:, 300:302],
            jnp.argsort(y)[:, -2:],
            lax.sort((y, x), num_keys=2)[1][:, 5],
        )

    parts = take_apart(function, x, y)
    expected = jax.tree.leaves(jax.jit(function)(x, y))
    for number, level in enumerate(LEVELS):
        execute = machine_code.executing(
            tuned={0: ("sort", way)},
            target=named(level),
            threads=1 + number,
            fence_at=("end", "start")[number % 2],
        )
        same_bits(parts.run([x, y], execute), expected)


@pytest.mark.parametrize("runs", [1, 2, 4, 8])
@pytest.mark.parametrize("count", [8 << 14, (8 << 14) + 1, (9 << 14) - 3])
def test_runs_that_are_merged(take_apart, machine_code, runs, count):
    """Shares that end in the middle of a part, and runs that are shorter than others."""
    x = values("int32", (count,), 7)
    parts = take_apart(jnp.argsort, x)
    tuned = {0: ("sort", {**WAYS[0], "runs": runs})}
    (positions,) = parts.run([x], machine_code.executing(tuned=tuned, threads=2))
    np.testing.assert_array_equal(positions, in_order(x))


@pytest.mark.parametrize("count", [200_000, 199_999])
@pytest.mark.parametrize("rows", [1, 3])
def test_records_are_moved_within_results(take_apart, rows, count):
    """So that there is room for one more of each, on any number of cores for two."""

    def scratch(function, dtype):
        (program,) = take_apart(function, values(dtype, (rows, count), 3)).programs
        target = replace(named("x86-64-v3"), cores=cores)
        return schedule_program(program, target)[0].scratch_bytes / (rows * count)

    cores = 2
    assert 12 <= scratch(jnp.argsort, "float32") < 12.01
    assert 8 <= scratch(lambda x: lax.sort_key_val(x, x * 2), "float32") < 8.01
    # Codes are merged from one room into another: a part is filled up with the largest ones.
    assert 8 <= scratch(jnp.sort, "float32") < 8.4
    cores = 16
    assert 8 <= scratch(jnp.sort, "float32") < 8.4


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("shape", [(1, 65_536), (1, 40_001), (3, 16_385), (2, 9)], ids=str)
@pytest.mark.parametrize("dtype", ["float32", "int64", "float16"])
def test_many_codes_are_merged_within_a_result(
    take_apart, machine_code, monkeypatch, dtype, shape, level
):
    """So that they need as much memory again, and not twice that; equal elements, which are put
    right in the other room, and parts that are not whole among them."""
    with jax.enable_x64(True):
        x = values(dtype, shape, 5)
        parts = take_apart(jnp.sort, x)
        expected = jax.jit(jnp.sort)(x)
    tuned = {0: ("sort", {**WAYS[0], "merges": 1})}
    target = replace(named(level), cores=2)

    def scheduled():
        loops, proof = prove(schedule_program(parts.programs[0], target, tuned)[0])
        assert not proof.guarded
        return loops.scratch_bytes

    two_rooms = scheduled()
    monkeypatch.setattr(rooms, "MANY_BYTES", 0)
    one_room = scheduled()
    has_two = max(shape) > 2 * PART or dtype != "int64"
    assert one_room < (0.52 if has_two and x.size > PART else 1.01) * two_rooms
    execute = machine_code.executing(tuned=tuned, target=target, threads=2)
    same_bits(parts.run([x], execute), [expected])


@pytest.mark.parametrize(
    ("level", "dtype", "count", "merged"),
    [
        ("x86-64-v2", "float64", 8192, False),
        ("x86-64-v2", "float64", 1 << 20, False),
        ("x86-64-v3", "float64", 8192, True),
        ("x86-64-v3", "float64", 1 << 20, True),
        ("x86-64-v3", "int64", 1 << 20, False),
        ("x86-64-v4", "float64", 1 << 20, True),
        ("x86-64-v4", "int64", 1 << 20, True),
    ],
)
def test_codes_are_merged_where_vectors_hold_enough(take_apart, level, dtype, count, merged):
    """Integers of 64 bits often have bytes in common, which digits do not sort by."""
    with jax.enable_x64(True):
        (program,) = take_apart(jnp.sort, np.zeros(count, dtype)).programs
    (nest,) = program.steps
    target = replace(named(level), cores=2)
    assert SortTemplate().default(nest, target)["merges"] == merged


@pytest.mark.parametrize(
    ("level", "dtype", "function", "way"),
    [
        ("x86-64-v3", "float32", jnp.sort, "network"),
        ("x86-64-v3", "float64", jnp.sort, "network"),
        ("x86-64-v4", "float32", jnp.sort, "network"),
        ("x86-64-v2", "float64", jnp.median, "bits"),
        ("x86-64-v3", "float64", jnp.median, "bits"),
        ("x86-64-v4", "float32", jnp.median, "bits"),
    ],
)
def test_rows_of_no_power_of_two(take_apart, level, dtype, function, way):
    """What a network is padded with is not compared; few places are looked for bit by bit."""
    with jax.enable_x64(True):
        taken = take_apart(lambda x: function(x, axis=1), np.zeros((500, 257), dtype))
    nests = [n for p in taken.programs for n in p.steps if n.stages[0].sort is not None]
    default = SortTemplate().default(nests[0], replace(named(level), cores=2))
    assert next(name for name in ("network", "merges", "bits", "digit") if default[name]) == way


@pytest.mark.parametrize("dtype", ["int16", "uint16", "float16"])
def test_results_that_are_temporaries(dtype):
    """Records are moved within what the kernel keeps for itself."""
    x = values(dtype, (40_000,))
    agrees(lambda x: jnp.sort(x, descending=True), x)
    agrees(lambda x: jnp.sort(x)[::-1].reshape(-1, 8), x)


@pytest.mark.parametrize("count", [16_384, 40_001])
def test_parts_of_complex_numbers_share_a_result(count):
    parts = np.round(np.random.default_rng(0).standard_normal((count, 2)), 1).astype(np.float32)
    numbers = parts.view(np.complex64)[:, 0]
    compiled = mlc_jit(jnp.sort, choose="ours")
    np.testing.assert_array_equal(compiled(numbers), np.sort(numbers))
    assert compiled.report(numbers).coverage == 1


@pytest.mark.parametrize(
    "order", ["as they come", "sorted", "reversed", "equal", "two values", "one apart", "nan"]
)
@pytest.mark.parametrize("dtype", ["float32", "int64"])
def test_orders_that_are_there_already(order, dtype):
    with jax.enable_x64(True):
        x = np.random.default_rng(5).integers(-1 << 30, 1 << 30, 70_000).astype(dtype)
        if order == "nan" and dtype == "float32":
            x[::2] = np.nan
        x = {
            "sorted": np.sort(x),
            "reversed": np.sort(x)[::-1],
            "equal": np.full_like(x, 3),
            "two values": x % 2,
            "one apart": np.where(np.arange(len(x)) == 40_000, -1, 5),
        }.get(order, x).astype(dtype)
        agrees(lambda x: (jnp.sort(x), jnp.argsort(x), lax.top_k(x, 5)), x)


@pytest.mark.parametrize(
    "count,kept",
    [
        (2, 1),
        (9, 9),
        (40, 3),
        (200, 2),
        (1000, 8),
        (2048, 1),
        (5000, 700),
        (20_000, 80),
        (66_000, 17),
    ],
)
@pytest.mark.parametrize("dtype", ["float32", "int32", "uint8", "float16"])
def test_the_first_few(count, kept, dtype):
    """Of equal ones the first; many candidates, since each is better than all before it."""
    x = values(dtype, (3, count), 4)
    if x.dtype.kind == "f":
        x = np.nan_to_num(x)  # in which order NaNs come is a matter of their bits
    agrees(lambda x: lax.top_k(x, kept), x)
    agrees(lambda x: lax.top_k(x, kept), np.sort(x))
    agrees(lambda x: lax.top_k(x, kept), np.sort(x)[:, ::-1])
    agrees(lambda x: lax.top_k(x, kept), np.sign(x))
    where = np.asarray(mlc_jit(lambda x: lax.top_k(x, kept)[1], choose="ours")(np.abs(x)))
    flipped = -np.abs(x).astype(np.float64)
    np.testing.assert_array_equal(where, in_order(flipped)[:, :kept])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("count", [5, 40, 130, 9000])
def test_a_few_places(dtype, count):
    """The middle, the ends and places that data say, of values with many ties and their places."""
    with jax.enable_x64(True):
        x = values(dtype, (3, count), 6)
        if x.dtype == jnp.bfloat16:
            x = np.where(np.isnan(x.astype(np.float32)), np.nan, x).astype(x.dtype)
        places = np.array([count - 1, 0, count // 3], np.int32)

        def function(x, places):
            rows = jnp.arange(3)
            return (
                jnp.sort(x)[:, count // 2],
                jnp.argsort(x)[:, -1:],
                jnp.argsort(x)[:, 0],
                jnp.sort(x)[rows, places],
                jnp.argsort(x, axis=1)[:, places[0]],
                jnp.argsort(x)[::-1, ::-1][:, :1],
                jnp.argsort(x)[:, places[:1]],
            )

        agrees(function, x, places)


@pytest.mark.parametrize("left", [3, 511, 512, 513, 4000])
def test_keys_that_are_alike_are_as_many_as_they_are(left):
    """Whether they fit into what is collected or not, and where among them the place is."""
    x = np.random.default_rng(left).integers(-1 << 30, 1 << 30, 9000).astype(np.int32)
    x[np.random.default_rng(1).permutation(9000)[:left]] = 77
    below = int((x < 77).sum())
    for place in (below, below + left // 2, below + left - 1):
        agrees(lambda x, place=place: (jnp.sort(x)[place], jnp.argsort(x)[place]), x)


@pytest.mark.parametrize(
    "axis,shape", [(None, (70, 90)), (0, (33, 7)), (1, (4, 257)), (1, (3, 5000)), (-1, (2, 3, 100))]
)
def test_medians_and_quantiles(axis, shape):
    """Rows with and without NaNs; of the sorts nothing is left but what takes a few places."""
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    with_nans = np.where(np.random.default_rng(1).random(shape) < 0.1, np.nan, x)
    for y in (x, with_nans.astype(np.float32)):
        for function in (jnp.median, jnp.nanmedian):
            agrees(lambda y, function=function: function(y, axis), y)
    two = np.array([0.2, 0.7], np.float32)
    ours = mlc_jit(
        lambda x, q: (
            jnp.quantile(x, q, axis),
            jnp.percentile(x, 30, axis),
            jnp.nanquantile(x, 0.9, axis),
        ),
        choose="ours",
    )
    expected = (np.quantile(x, two, axis), np.percentile(x, 30, axis), np.quantile(x, 0.9, axis))
    for mine, other in zip(ours(x, two), expected, strict=True):
        np.testing.assert_allclose(mine, other, rtol=1e-4, atol=1e-6)
    assert ours.report().coverage == 1


def test_what_is_not_read_is_not_put_in_order(take_apart, arrays):
    """One stage for all that is picked at the same places, and none with the whole row."""
    x, y = arrays("float32", (8, 300), (8, 300))

    def places(function, *args):
        return [
            stage.sort.place.extent
            for program in take_apart(function, *args).programs
            for step in program.steps
            for stage in step.stages
            if stage.sort is not None
        ]

    assert places(lambda x: jnp.median(x, 1), x) == [1, 1]
    assert places(lambda x: jnp.nanmedian(x, 1), x) == [1, 1]
    assert places(lambda x, y: [v[:, :3] for v in lax.sort((x, y), num_keys=1)], x, y) == [3]
    assert places(lambda x: jnp.argsort(x)[:, ::-1][:, :5], x) == [5]
    assert places(lambda x: (jnp.sort(x)[:, 4], jnp.sort(x).sum(1)), x) == [300]
    assert places(lambda x: jnp.sort(x)[:, ::2], x) == [300]
    assert places(lambda x: jnp.sort(x)[:, 100:120], x) == [300]
    assert places(lambda x: [jnp.sort(x)[:, k] for k in (9, 99, 199, 209, 290)], x) == [300]
    assert places(lambda x: [jnp.sort(x)[:, :k] for k in (1, 2, 3, 4, 5)], x) == [300]
    assert places(lambda x, y: lax.sort((x, y), num_keys=2)[0][:, 9], x, y) == [300]


def test_rows_that_are_read_backwards():
    """Whole rows, but not in their order: of as many as are read, in runs or not."""
    x = values("int32", (8, 2 * RUN), 9)
    agrees(lambda x: (jnp.sort(x)[:, ::-1][:1], jnp.argsort(x)[:, ::-1][:1]), x)


@pytest.mark.parametrize(
    "shape,k,axis,recall,aggregate",
    [
        ((4000, 3), 5, 0, 0.95, False),
        ((4000, 3), 5, 0, 0.5, True),
        ((3, 4000), 50, -1, 0.9, True),
        ((2, 300, 5), 7, 1, 0.8, False),
        ((1000,), 10, 0, 0.99, True),
        ((2, 5000), 10, 1, 0.95, False),
    ],
)
@pytest.mark.parametrize("function", [lax.approx_max_k, lax.approx_min_k])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_approximate_top_k_is_exact(function, dtype, shape, k, axis, recall, aggregate):
    x = jnp.asarray(
        np.random.default_rng(0).permutation(np.prod(shape)).reshape(shape) % 251, dtype
    )

    def first(x):
        return function(
            x, k, reduction_dimension=axis, recall_target=recall, aggregate_to_topk=aggregate
        )

    ours = mlc_jit(first, choose="ours")
    elements, where = map(np.asarray, ours(x))
    assert ours.report().coverage == 1
    np.testing.assert_array_equal(elements, jax.jit(first)(x)[0])
    np.testing.assert_array_equal(elements, np.take_along_axis(np.asarray(x), where, axis))
    keys = np.asarray(x, np.float64) * (-1 if function is lax.approx_max_k else 1)
    ordered = np.argsort(keys, axis, kind="stable")  # of equal ones the first
    np.testing.assert_array_equal(where, np.take(ordered, range(where.shape[axis]), axis))


def test_what_surrounds_a_sort_is_computed_in_it(take_apart, arrays):
    x, y = arrays("float32", (40, 70), (40, 70))

    def function(x, y):
        first, second = lax.sort((jnp.exp(x), y * 2), num_keys=1)
        return first, second + 1, (first > 1) & (second > 0)

    (program,) = take_apart(function, x, y).programs
    assert len(program.steps) == 1
    (stage,) = program.steps[0].stages
    assert stage.sort is not None
    assert len(stage.assigns) == 3
    agrees(lambda x, y: (lax.sort((x * 2, y * 2), num_keys=1)[1] + 1, jnp.sort(x)[:, ::3]), x, y)


def test_in_loops_and_what_reads_it_elsewhere(arrays):
    (x,) = arrays("float32", (12, 33))

    def function(x):
        def body(_, c):
            return jnp.sort(c[::-1] * -1, 1) + 1

        ordered = jnp.sort(x, 0)
        return lax.fori_loop(0, 4, body, x), ordered[::-1] - ordered[:1], ordered.sum(0)

    agrees(lambda x: function(jnp.round(x * 8)), x)


def test_other_comparators_stay_with_xla():
    """Which elements come first is not a matter of keys."""
    x = np.arange(8, dtype=np.float32)
    text = """
func.func @main(%a: tensor<8xf32>) -> tensor<8xf32> {
  %s = "stablehlo.sort"(%a) ({
  ^bb0(%x: tensor<f32>, %y: tensor<f32>):
    %z = stablehlo.subtract %x, %y : tensor<f32>
    %c = stablehlo.constant dense<0.5> : tensor<f32>
    %r = stablehlo.compare LT, %z, %c, FLOAT : (tensor<f32>, tensor<f32>) -> tensor<i1>
    stablehlo.return %r : tensor<i1>
  }) {dimension = 0 : i64, is_stable = true} : (tensor<8xf32>) -> tensor<8xf32>
  return %s : tensor<8xf32>
}"""
    compiled = compile_stablehlo(text, choose="ours")
    assert np.asarray(compiled(x)[0]).shape == (8,)
    assert "comparator" in str(compiled.explain(x, verbose=True))


@pytest.mark.parametrize("seed", range(3))
def test_the_loops_are_proved_and_mean_the_same(take_apart, machine_code, seed):
    """Machine code, the interpreter and NumPy, with parameters that were drawn."""
    rng = np.random.default_rng(seed)
    x = values("int8", (2, int(rng.integers(2, 40))), seed)
    way = {
        key: int(rng.choice(kept))
        for key, kept in {
            "ranked": (0, 64),
            "digit": (8, 11),
            "runs": (1,),
            "candidates": (0, 1),
            "bits": (0, 1),
            "network": (0, 1),
            "merges": (0, 1),
        }.items()
    }
    parts = take_apart(lambda x: (jnp.argsort(x), lax.top_k(x, 2), jnp.argsort(x)[:, 1]), x)

    def interpreted(program, operands):
        loops, _ = schedule_program(program, machine_code.target, {0: ("sort", way)})
        loops, proof = prove(loops)
        assert not proof.guarded
        return interpret(loops, operands, seed=seed)

    same_bits(
        parts.run([x], interpreted),
        parts.run([x], machine_code.executing(tuned={0: ("sort", way)})),
    )
    np.testing.assert_array_equal(parts.run([x], interpreted)[0], in_order(x))


@pytest.mark.parametrize("level", ["x86-64", "x86-64-v4"])
@pytest.mark.parametrize(
    "order",
    [np.asarray, np.sort, lambda x: np.sort(x)[:, ::-1]],
    ids=["as they come", "sorted", "reversed"],
)
@pytest.mark.parametrize("count, kept, many", [(70, 1, 0), (130, 3, 1), (150, 2, 5)])
def test_limits_are_proved_and_mean_the_same(take_apart, level, order, count, kept, many):
    """No index needs a guard, and what nobody wrote is not read; `many` ties are up to the limit
    for each that is wanted."""
    x = order(np.random.default_rng(count).permutation(2 * count).reshape(2, count) // (many + 1))
    parts = take_apart(lambda x: lax.top_k(x, kept), x.astype(np.int32))
    way = {
        "ranked": 0,
        "digit": 8,
        "runs": 1,
        "candidates": 1,
        "bits": 0,
        "network": 0,
        "merges": 0,
    }

    def interpreted(program, operands):
        loops, _ = schedule_program(program, named(level), {0: ("sort", way)})
        loops, proof = prove(loops)
        assert not proof.guarded and "found" in str(loops)
        return interpret(loops, operands, seed=count)

    _, positions = parts.run([x.astype(np.int32)], interpreted)
    np.testing.assert_array_equal(positions, in_order(-x)[:, :kept])


def test_of_equal_ones_no_more_are_collected_than_are_wanted(take_apart, monkeypatch):
    """The room for candidates is never full, so they are never cut: else they were lost here."""
    monkeypatch.setattr(_Candidates, "_cut", lambda self: (store(self.held, 0),))
    x = np.random.default_rng(0).integers(0, 3, (2, 5000)).astype(np.int32)
    parts = take_apart(lambda x: lax.top_k(x, 40), x)

    def interpreted(program, operands):
        loops, _ = schedule_program(program, named("x86-64-v3"))
        return interpret(loops, operands)

    values, positions = parts.run([x], interpreted)
    np.testing.assert_array_equal(values, np.full((2, 40), 2))
    np.testing.assert_array_equal(positions, in_order(-x)[:, :40])


@pytest.mark.parametrize(
    "count, kept, collects",
    [
        (64, 8, False),
        (64, 2, True),
        (200, 7, True),
        (300, 20, False),
        (2000, 40, True),
        (2000, 400, False),
        (4000, 400, True),
    ],
)
def test_few_of_many_are_collected(take_apart, count, kept, collects):
    (program,) = take_apart(lambda x: lax.top_k(x, kept), np.zeros((9, count), "f4")).programs
    (nest,) = program.steps
    assert SortTemplate().default(nest, named("x86-64-v4"))["candidates"] == collects
