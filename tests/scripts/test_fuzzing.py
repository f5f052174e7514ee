"""Random programs are what they say, and find faults that are planted for them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import fuzz
import jax
import jax.numpy as jnp
import numpy as np
import planted
import pytest
from fuzzing import ways
from fuzzing.families import FAMILIES, text_of
from fuzzing.foreign import foreign
from fuzzing.generator import generate
from fuzzing.judge import judge
from fuzzing.ledger import JUDGED, Entry, Ledger, Setting
from fuzzing.modes import MODES
from fuzzing.primitives import RULES
from fuzzing.program import Operand, Program, Step, identity, load, source
from fuzzing.reference import Oracle
from fuzzing.refusing import refusing
from fuzzing.runner import Limits, Runner, Worker, program_seed
from fuzzing.seldom import OF_COMPLEX, OF_OTHERS, OF_OTHERS_MATRICES
from fuzzing.shrinker import candidates, fits, shrink, without_unread
from fuzzing.vocabulary import ops_of, programs_with
from fuzzing.worker import Outcome, are_same, arguments, outcome_of
from jax import lax

import hlo_mlc
from making.left import by_xla

SETTING = Setting("hlo_mlc:mlc_jit", "ours", "cpu", "3", jax.__version__)
SEEDS = range(40)


def planted_in(name: str) -> Setting:
    """What judges a compiler with this fault."""
    return Setting(f"planted:{name}", "ours", "cpu", "3", jax.__version__)


def outcomes(name: str, seeds=SEEDS):
    """What becomes of programs that a faulty compiler compiles, one by one."""
    kernel = partial(getattr(planted, name), choose="ours")
    for seed in seeds:
        yield outcome_of(generate(seed), kernel, lambda stage: None)


def test_seeds_draw_all_there_is() -> None:
    families, modes = Counter(), Counter()
    for seed in range(240):
        program = generate(seed)
        families.update(step.family for step in program.steps)
        modes[program.mode] += 1
        assert len(program.steps) <= 40
        assert Program.from_json(program.to_json()) == program
        with jax.enable_x64(program.x64):
            text = source(program, text_of(program))
        compile(text, "program", "exec")
    assert families.keys() == FAMILIES.keys()
    assert modes.keys() == MODES.keys()


def test_a_seed_is_the_same_program_in_another_process() -> None:
    line = (
        "import sys; sys.path.insert(0, 'scripts'); from fuzzing.generator import generate; "
        "print(generate(11).to_json())"
    )
    root = Path(__file__).parents[2]
    told = subprocess.run(
        [sys.executable, "-c", line], cwd=root, capture_output=True, text=True, check=True
    )
    assert told.stdout.strip() == generate(11).to_json()


def test_nothing_is_found_where_nothing_is_wrong() -> None:
    found = Counter(o.kind for o in outcomes("honest", range(12)))
    assert found["right"] >= 9 and not found.keys() - {"right", "void", "shared"}


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("last_element", "wrong"),
        ("inaccurate", "wrong"),
        ("without_nan", "wrong"),
        ("bit_lost", "wrong"),
        ("wrong_type", "wrong"),
        ("raises", "error"),
        ("warns", "warning"),
        ("unsteady", "torn"),
        ("overwrites", "touched"),
    ],
)
def test_planted_faults_are_found(name: str, kind: str) -> None:
    seeds = (
        [s for s in range(80) if generate(s).data == "special"] if name == "without_nan" else SEEDS
    )
    found = Counter()
    for outcome in outcomes(name, seeds):
        found[outcome.kind] += 1
        if outcome.kind == kind:
            return
    raise AssertionError(f"{name} is not found: {found}")


def test_what_hangs_on_flushing_is_known() -> None:
    """The count of what is not zero, where a subnormal number may be one; not the other results."""
    x = np.array([[1, 0, 1e-39], [2, 3, 0]], jnp.bfloat16)
    oracle = Oracle(lambda x: (jnp.count_nonzero(x, 1), x * 2, x), [x], False, False)
    counts, *others = oracle.hang_on_flushing()
    assert counts.tolist() == [True, False]
    assert not any(v[np.abs(x) != x[0, 2]].any() for v in others)


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16", "complex64"])
def test_results_agree_to_the_sign_of_a_zero(dtype: str) -> None:
    def of(*values: float) -> np.ndarray:
        return np.array(values).astype(jnp.dtype(dtype))

    real = dtype.replace("complex64", "float32")
    subnormal = float(jnp.finfo(real).tiny) / 4
    assert are_same(of(0.0, -0.0, 1.0, np.nan), of(0.0, -0.0, 1.0, -np.nan))
    assert are_same(of(-subnormal, subnormal), of(-0.0, 0.0)) and are_same(of(), of())
    for one, other in [
        (0.0, -0.0),
        (subnormal, -0.0),
        (1.0, 2.0),
        (np.nan, 1.0),
        (np.inf, -np.inf),
    ]:
        assert not are_same(of(one), of(other))


@pytest.mark.parametrize(
    ("name", "kind", "limit"),
    [("hangs", "hang", 4.0), ("dies", "crash", 60.0), ("overruns", "crash", 60.0)],
)
def test_processes_that_hang_or_die_are_replaced(name: str, kind: str, limit: float) -> None:
    with Worker(planted_in(name), limit=limit) as worker:
        for _ in range(2):
            outcome, _ = worker.ask(5)
            assert outcome.kind == kind, outcome


def test_what_xla_cannot_do_either_is_no_fault(tmp_path) -> None:
    """The same error from XLA, or the same death, is not ours."""

    def told(entry: Entry, outcome: Outcome, path: Path | None) -> None:
        kinds.append(outcome.kind)

    kinds: list[str] = []
    Runner(
        Setting("fuzzing.worker:xla", "xla", "cpu", "3", "0"),
        Ledger(tmp_path),
        Limits(60.0, 0.0),
        told,
    ).run(0, 1, lambda begun: begun >= 5, resume=False)
    assert len(kinds) == 5 and not set(kinds) - {"right", "void", "shared"}


def test_shrinking_leaves_what_matters() -> None:
    """A fault of programs that join parts of more than eight columns."""

    def is_faulty(program: Program) -> bool:
        with jax.enable_x64(program.x64):
            values = text_of(program).values
        return any(
            step.family == "concatenate" and values[step.results[0]].shape[-1] > 8
            for step in program.steps
        )

    large = next(
        p
        for p in map(without_unread, map(generate, range(200)))
        if len(p.steps) > 15 and is_faulty(p)
    )
    small = shrink(large, is_faulty, seconds=600.0)  # it takes 7 of a CPU
    assert len(small.steps) == 1 and len(small.inputs) <= 2 and small.mode == "plain"
    with jax.enable_x64(small.x64):
        joined = text_of(small).values[small.steps[0].results[0]]
    assert joined.shape[-1] <= 12 and np.prod(joined.shape[:-1]) <= 1


def test_every_candidate_is_a_program() -> None:
    for seed in (3, 13, 20):
        program = generate(seed)
        usable = [c for c in candidates(program) if fits(c)]
        assert usable and all(len(c.steps) <= len(program.steps) for c in usable)


def test_counts_add_up_and_survive_a_torn_line(tmp_path) -> None:
    ledger = Ledger(tmp_path)
    ledger.add(Entry(SETTING, 1, 0, "right", "plain"))
    with (tmp_path / JUDGED).open("a") as file:
        file.write(json.dumps({"setting": {}})[:-1])
        file.write("\n")
    ledger.add(Entry(SETTING, 1, 3, "wrong", "cut"))
    ledger.add(Entry(SETTING, 1, 3, "right", "cut"))  # after the fault was mended
    again = Ledger(tmp_path)
    assert again.done(SETTING, 1) == {0, 3} and not again.done(SETTING, 2)
    assert again.totals() == {SETTING: Counter(right=2)}


def test_faults_become_scripts_and_runs_go_on(tmp_path) -> None:
    run = [
        "--kernel",
        "planted:bit_lost",
        "--choose",
        "ours",
        "--folder",
        str(tmp_path),
        "--shrink",
        "2",
        "--jobs",
        "2",
    ]
    assert fuzz.main([*run, "--programs", "4", "--seed-from", "a planted fault"]) == 1
    seed = fuzz.seed_of("a planted fault")
    setting = next(iter(Ledger(tmp_path).totals()))
    assert Ledger(tmp_path).done(setting, seed) == set(range(4))
    scripts = list(tmp_path.glob("wrong-*.py"))
    assert scripts and all("def program(" in s.read_text() for s in scripts)
    fuzz.main([*run, "--programs", "2", "--seed", str(seed), "--resume"])
    assert Ledger(tmp_path).done(setting, seed) == set(range(6))


def test_nothing_is_lost_when_a_run_is_killed(tmp_path) -> None:
    """What was judged counts, and the next run goes on behind it."""
    run = [
        sys.executable,
        "scripts/fuzz.py",
        "--kernel",
        "planted:honest",
        "--programs",
        "8",
        "--seed",
        "3",
        "--folder",
        str(tmp_path),
    ]
    root = Path(__file__).parents[2]
    with subprocess.Popen(run, cwd=root, stdout=subprocess.DEVNULL, start_new_session=True) as told:
        while told.poll() is None and len(list(Ledger(tmp_path).entries())) < 3:
            time.sleep(0.05)
        os.killpg(told.pid, signal.SIGKILL)
    before = list(Ledger(tmp_path).entries())
    assert len(before) >= 3
    missing = 8 - len(before)
    subprocess.run(
        [*run, "--resume", "--programs", str(missing)],
        cwd=root,
        check=True,
        stdout=subprocess.DEVNULL,
    )
    entries = list(Ledger(tmp_path).entries())
    assert entries[: len(before)] == before
    assert sorted(e.number for e in entries) == list(range(8))


def test_what_is_measured_is_judged_too() -> None:
    kernel = partial(hlo_mlc.mlc_jit, choose="measure")
    # What is measured is not deterministic, which is said.
    programs = (p for p in map(generate, SEEDS) if p.mode != "deterministic")
    small = [p for p in programs if len(p.steps) in (1, 2, 3)][:4]
    found = Counter(outcome_of(p, kernel, lambda stage: None).kind for p in small)
    assert found["right"] >= 2 and not found.keys() - {"right", "void", "shared"}


def test_refused_clusters_stay_with_xla() -> None:
    """Every other one, and the same ones for the same number."""

    def function(x):
        for k in range(8):
            x = by_xla(jnp.tanh(x + k) * x) + x
        return x

    x = np.linspace(-1, 1, 300, dtype=np.float32)
    taken = set()
    for seed in (1, 1, 2):
        with refusing(seed):
            compiled = hlo_mlc.mlc_jit(lambda x: function(x), choose="ours")
            jax.block_until_ready(compiled(x))
        taken.add((seed, len(compiled.report().kernels)))
    everything = hlo_mlc.mlc_jit(function, choose="ours")
    everything(x)
    whole = len(everything.report().kernels)
    assert len(taken) == 2 and all(count < whole for _, count in taken)


def test_modes_are_compared_with_the_plain_program() -> None:
    """Where nothing is rounded; a compiler that is right for one way of calling is not enough."""

    def moved(a):
        return (jnp.maximum(a, a[::-1]), a > 1)

    def rounded(a):
        return (jnp.where(a > 1, a + a, a),)

    a = np.arange(5, dtype=np.float32)
    assert Oracle(jax.jit(moved), [a], False, False).has_no_order
    assert not Oracle(jax.jit(rounded), [a], False, False).has_no_order


def test_the_sign_of_a_nan_is_nobodys_to_know() -> None:
    """`top_k` orders by it; where values only move, it stays what it was."""

    def computed(x):
        return (lax.top_k(jnp.cos(x), 2)[1],)

    def moved(x):
        return (lax.top_k(x[::-1], 2)[1],)

    for function, x, wanted in ((computed, [np.inf, 1], True), (moved, [np.nan, 1], False)):
        oracle = Oracle(function, [np.array(x, np.float32)], False, False)
        for order in (np.array([0, 1], np.int32), np.array([1, 0], np.int32)):
            found = judge([order], oracle.types, oracle.run(24, 0))
            right = wanted or list(order) == [1, 0]
            assert bool(found.differences) != right


def test_any_number_of_nans_may_stand_first() -> None:
    """Of many whose sign is unknown, in each place of `top_k` there may be any of them or what
    comes after them, but nothing else."""
    x = np.array([2, *[np.inf] * 100, 1], np.float32)
    oracle = Oracle(
        lambda x: (lax.top_k(jnp.where(x < 3, x, jnp.cos(x)), 102)[1],), [x], False, False
    )
    reference = oracle.run(24, 0)
    for first in (0, 37, 100):
        order = np.array([*range(1, first + 1), 0, 101, *range(first + 1, 101)], np.int32)
        assert not judge([order], oracle.types, reference).differences
    seen = np.stack([s[0] for s in reference.samples])
    assert not (seen[:, 0] == 101).any() and not (seen[:, -1] == 0).any()


def test_a_printed_program_runs(capsys, tmp_path) -> None:
    assert fuzz.main(["--show", "0:4", "--choose", "ours"]) == 0
    path = tmp_path / "shown.py"
    path.write_text(capsys.readouterr().out)
    told = subprocess.run([sys.executable, path], capture_output=True, text=True, check=True)
    results = len(generate(program_seed(0, 4)).outputs)
    assert told.stdout.count("same") == results


INTEGERS = np.array([0, 1, -1, 7, -8, 127, -128, 33], np.int8)


@pytest.mark.parametrize(
    "name",
    [
        n
        for n in RULES
        if n
        in (
            "div",
            "rem",
            "shift_left",
            "shift_right_logical",
            "shift_right_arithmetic",
            "max",
            "min",
            "add",
            "mul",
            "mulhi",
            "population_count",
            "clz",
            "sign",
            "neg",
            "abs",
        )
    ],
)
def test_integers_are_those_of_xla(name: str) -> None:
    function = {"population_count": lax.population_count, "clz": lax.clz}.get(name) or getattr(
        lax, name
    )
    binary = name not in ("population_count", "clz", "sign", "neg", "abs")
    args = np.meshgrid(INTEGERS, INTEGERS) if binary else [INTEGERS]
    expected = np.asarray(jax.jit(function)(*args))
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(RULES[name]({}, *args), expected)


def test_conditioning_is_measured() -> None:
    """A difference of nearly equal numbers may be far off, the same sum without it may not."""

    def ill(x):
        return (x.sum(1) - x[:, ::-1].cumsum(1)[:, -1],)

    x = np.random.default_rng(0).standard_normal((3, 99)).astype(np.float32)
    oracle = Oracle(ill, [x], x64=False, has_whole_sums=False)
    off = np.full(3, 3e-6, np.float32)
    assert not judge([off], oracle.types, oracle.run(24, 0)).differences
    assert judge([off * 100], oracle.types, oracle.run(24, 0)).differences
    well = Oracle(lambda x: (x.sum(1),), [x], x64=False, has_whole_sums=False)
    exact = x.astype(np.float64).sum(1)
    assert judge([(exact + 1e-3).astype(np.float32)], well.types, well.run(24, 0)).differences
    assert not judge([exact.astype(np.float32)], well.types, well.run(24, 0)).differences


def test_where_nothing_may_be_left_others_may_divide_by_zero() -> None:
    x = np.array([[1185517.0, -1185517.25, 0.1], [3.0, -2.0, 0.1]], np.float32)
    oracle = Oracle(lambda x: (1 / (x[:, 0] * 1.1 + x[:, 1] * 1.1 + x[:, 2]),), [x], False, False)
    reference = oracle.run(24, 0)
    exact = reference.exact[0]
    for number in (np.inf, np.nan):
        for place, is_wrong in enumerate((False, True)):
            ours = exact.astype(np.float32)
            ours[place] = number
            assert bool(judge([ours], oracle.types, reference).differences) == is_wrong


@pytest.mark.parametrize(
    "function, x, off",
    [
        (lambda x: x * (1 + jnp.tanh(x)), -13.0, -1e-28),  # in f64, too, tanh is -1 there
        (lambda x: jnp.real(lax.complex(x, x) * lax.complex(x, x)), 1.1, 5e-8),
    ],
)
def test_what_f64_does_not_show_is_uncertain(function: Callable, x: float, off: float) -> None:
    """Functions at their limits, and parts of complex numbers that cancel."""
    oracle = Oracle(lambda x: (function(x),), [np.full(3, x, np.float32)], False, False)
    for error, is_wrong in ((off, False), (1e-4, True)):
        found = judge([np.full(3, error, np.float32)], oracle.types, oracle.run(24, 0))
        assert bool(found.differences) == is_wrong


def test_functions_at_their_limits_may_leave_nothing() -> None:
    """Whose type has no numbers so near the limit, which f64 has."""
    x = np.array([10.0, -12.0, 2.0], np.float32)
    oracle = Oracle(lambda x: ((1 - jnp.tanh(x) ** 2).astype(bool),), [x], False, False)
    reference = oracle.run(24, 0)
    for found, is_wrong in (([1, 1, 1], False), ([0, 0, 1], False), ([1, 1, 0], True)):
        judged = judge([np.array(found, bool)], oracle.types, reference)
        assert bool(judged.differences) == is_wrong


@pytest.mark.parametrize(
    "terms, is_known",
    [((1.7e308, -np.inf), False), ((1.7e308, -1.7e308), False), ((np.inf, -np.inf), True)],
)
def test_terms_beyond_f64_need_not_be_rounded_alone(terms: tuple, is_known: bool) -> None:
    """A fused multiply-add adds -inf to what would be +inf if it were rounded."""
    x = np.array(terms)
    with jax.enable_x64(True):
        oracle = Oracle(lambda x: (jnp.dot(x, jnp.full(2, 2.0)),), [x], True, False)
        samples = oracle.run(30, 0).samples
    assert any(np.isnan(s[0]) for s in samples)
    assert all(np.isnan(s[0]) for s in samples) == is_known


def test_products_that_leave_their_range_on_the_way_may_be_anything() -> None:
    """As sort keys, say: 0, infinity and the exact product have other places than NaN."""
    x = np.array([3e38, -10, 1e-38, 0.5], np.float32)
    oracle = Oracle(lambda x: (lax.cumprod(x),), [x], False, False)
    reference = oracle.run(60, 0)
    seen = {float(s[0][2]) for s in reference.samples}
    assert {0.0, -np.inf} <= seen and any(map(np.isnan, seen))
    assert any(abs(v - -30) < 1 for v in seen)
    assert all(abs(s[0][0] / x[0] - 1) < 1e-5 for s in reference.samples)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"window_strides": (2, 3), "padding": [(2, -1), (0, 4)]},
        {"lhs_dilation": (2, 1), "rhs_dilation": (1, 2), "feature_group_count": 2},
        {"batch_group_count": 2, "padding": [(9, 9), (-5, 0)]},
    ],
)
def test_convolutions_are_those_of_xla(options: dict) -> None:
    """Of numbers that are finite."""
    options = {"window_strides": (1, 1), "padding": [(0, 1), (1, 1)], **options}
    rng = np.random.default_rng(0)
    groups = options.get("feature_group_count", 1)
    x, w = rng.random((4, 7, 8, 2 * groups)), rng.random((3, 2, 2, 4))

    def convolved(x: jax.Array, w: jax.Array) -> tuple[jax.Array]:
        return (
            lax.conv_general_dilated(x, w, dimension_numbers=("NHWC", "HWIO", "NHWC"), **options),
        )

    with jax.enable_x64(True):
        (exact,) = Oracle(convolved, [x, w], True, False).run(0, 0).exact
        np.testing.assert_allclose(exact, convolved(x, w)[0], rtol=1e-13)


def test_groups_of_a_convolution_have_nothing_to_do_with_each_other() -> None:
    x = np.zeros((1, 2, 5), np.float32)
    x[0, 1] = np.inf
    oracle = Oracle(
        lambda x: (
            lax.conv_general_dilated(x, jnp.ones((2, 1, 2)), (1,), "VALID", feature_group_count=2),
        ),
        [x],
        False,
        False,
    )
    (exact,) = oracle.run(0, 0).exact
    assert exact.tolist() == [[[0] * 4, [np.inf] * 4]]


def test_the_first_few_are_those_along_the_axis() -> None:
    x = np.arange(12, dtype=np.float32).reshape(4, 3) % 5
    oracle = Oracle(jax.vmap(lambda x: lax.top_k(x, 2), in_axes=1), [x], False, False)
    values, places = oracle.run(0, 0).exact
    assert values.tolist() == [[4, 3], [4, 2], [3, 2]]
    assert places.tolist() == [[3, 1], [1, 2], [2, 0]]


def test_large_unsigned_numbers_are_no_negative_places() -> None:
    """Under vmap an index is an operand of a gather, whatever its type."""
    x, n = np.arange(12.0).reshape(3, 4), np.array([0, 130, 255], np.uint8)
    oracle = Oracle(
        jax.vmap(lambda row, n: (row[n], row.at[n].set(7, mode="clip"))), [x, n], True, False
    )
    taken, put = oracle.run(0, 0).exact
    assert taken.tolist() == [0, 7, 11]
    assert np.argwhere(put == 7).tolist() == [[0, 0], [1, 3], [2, 3]]


def test_searches_compare_nan_too() -> None:
    x, y = (
        np.array(v, np.float32) for v in ([1, np.nan, 2, np.nan], [np.nan, 1, 3, -np.nan, -0.0])
    )
    for side in ("left", "right"):

        def search(x: jax.Array, y: jax.Array, side: str = side) -> tuple[jax.Array]:
            return (jnp.searchsorted(jnp.sort(x), y, side=side),)

        (exact,) = Oracle(search, [x, y], False, False).run(0, 0).exact
        assert exact.tolist() == search(x, y)[0].tolist()


def test_reshapes_may_transpose_before() -> None:
    x = np.arange(6.0).reshape(2, 3)
    oracle = Oracle(lambda x: (lax.reshape(x, (2, 3), (1, 0)),), [x], True, False)
    (exact,) = oracle.run(0, 0).exact
    assert exact.tolist() == [[0, 3, 1], [4, 2, 5]]


@pytest.mark.parametrize("dtype", ["uint64", "int64", "uint8", "int32"])
def test_conversions_to_integers_saturate(dtype: str) -> None:
    x = np.array([-1e30, -2.5, 0, 3.7, 200, 1e30, np.nan])
    with jax.enable_x64(True):
        oracle = Oracle(lambda x: (x.astype(dtype),), [x], True, False)
        right = np.clip(np.nan_to_num(np.trunc(x[1:5])), np.iinfo(dtype).min, None).astype(dtype)
        (exact,) = oracle.run(3, 0).exact
    assert exact.dtype == dtype
    assert exact[1:5].tolist() == right.tolist()
    info = np.iinfo(dtype)
    assert exact[[0, 5, 6]].tolist() == [info.min, info.max, 0]


def test_a_fault_of_the_reference_is_none_of_the_program(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would hide what the program does."""
    program = next(p for p in map(generate, range(50)) if p.mode == "plain" and not p.x64)
    assert outcome_of(program, identity, lambda _: None).kind == "right"
    monkeypatch.setattr("fuzzing.reference.Wide", None)
    outcome = outcome_of(program, identity, lambda _: None)
    assert outcome.kind == "error" and "the reference" in outcome.detail


@pytest.mark.parametrize(
    "function",
    [jnp.prod, lambda x: lax.reduce_window(x, np.float32(1), lax.mul, (4,), (4,), "VALID")[0]],
)
def test_what_overflows_before_it_meets_zero_depends_on_the_order(function: Callable) -> None:
    x = np.array([3e38, 10, 0, 0.5], np.float32)
    oracle = Oracle(lambda x: (function(x),), [x], False, False)
    for found in (np.nan, 0.0):
        assert not judge([np.float32(found)], oracle.types, oracle.run(24, 0)).differences
    small = Oracle(lambda x: (function(x),), [np.minimum(x, 7)], False, False)
    assert judge([np.float32(np.nan)], small.types, small.run(24, 0)).differences


@pytest.mark.parametrize("weights", [(3.0, -2.0, 1.0), (1.0, 1.0, -2.0)])
def test_terms_beyond_f64_overflow_together_or_alone(weights: tuple[float, ...]) -> None:
    """3 max - 2 max is NaN, or infinite where one of the products is rounded with the sum."""

    def is_right(x: list[float], found: float) -> bool:
        oracle = Oracle(lambda x: (x @ np.array(weights),), [np.array(x)], True, False)
        return not judge([np.float64(found)], oracle.types, oracle.run(24, 0)).differences

    with jax.enable_x64(True):
        largest = [1.7e308] * 3
        assert all(is_right(largest, found) for found in (np.nan, np.inf, -np.inf))
        assert not is_right([np.inf, 1, 1], np.nan)
        assert not is_right([np.nan, 1.7e308, 1.7e308], np.inf)


def test_a_single_number_has_noise_too() -> None:
    oracle = Oracle(lambda x: (jnp.sin(x), x.sum()), [np.float32(0.3)], False, False)
    samples = oracle.run(24, 0).samples
    assert len({float(sample[0]) for sample in samples}) > 12


def test_what_is_computed_twice_may_be_rounded_alike() -> None:
    x = np.array([[1e8, 1.25, -1e8]] * 3, np.float32)
    oracle = Oracle(lambda x: (x.sum(1),), [x], False, False)
    samples = [s[0] for s in oracle.run(24, 0).samples]
    alike = [len(set(sample)) == 1 for sample in samples]
    assert any(alike) and not all(alike)
    assert all(np.abs(sample - 1.25).max() > 1 for sample in samples)


def test_parts_of_complex_numbers_may_be_infinite() -> None:
    x = np.array([np.inf, 2.0], np.float32)
    oracle = Oracle(lambda x: (jnp.angle(lax.complex(x, x)),), [x], False, False)
    right = np.full(2, np.pi / 4, np.float32)
    assert not judge([right], oracle.types, oracle.run(3, 0)).differences
    assert judge([right * np.nan], oracle.types, oracle.run(3, 0)).differences


@pytest.mark.parametrize("function", [jnp.sum, jnp.cumsum, lambda z: z @ z])
def test_sums_of_complex_numbers_are_as_uncertain_as_their_terms_are_large(
    function: Callable,
) -> None:
    def program(x: jax.Array, y: jax.Array) -> tuple[jax.Array]:
        return (jnp.real(function(lax.complex(x, y))),)

    args = [np.array([3e7, -3e7, 1], np.float32), np.array([1, 2, -3], np.float32)]
    oracle = Oracle(program, args, False, False)
    reference = oracle.run(24, 0)
    found = np.asarray(program(*args)[0])
    assert not judge([found], oracle.types, reference).differences
    assert judge([found * 2 + 3e9], oracle.types, reference).differences


def test_a_number_that_xla_gives_too_is_in_dispute_where_nan_is_expected() -> None:
    x = np.array([np.nan, 1.0], np.float32)
    oracle = Oracle(lambda x: (x * 2,), [x], False, False)
    for ours, theirs, is_wrong in ((0.5, 0.5000001, False), (0.5, 0.6, True), (0.5, np.nan, True)):
        found = judge(
            [np.array([ours, 2], np.float32)],
            oracle.types,
            oracle.run(24, 0),
            [np.array([theirs, 2], np.float32)],
        )
        assert bool(found.differences) == is_wrong


def test_programs_are_those_of_the_modes() -> None:
    """Without a compiler, every mode of a program is a function that JAX runs."""
    seen: set[str] = set()
    for seed in range(60):
        program = generate(seed)
        if program.mode in seen:
            continue
        with jax.enable_x64(program.x64):
            text = source(program, text_of(program))
            try:
                results = jax.tree.leaves(load(text, identity)(*map(jnp.array, arguments(program))))
            except NotImplementedError:  # a derivative that JAX does not have
                continue
        seen.add(program.mode)
        assert len(results) >= 1, text
    assert len(seen) >= 8


@pytest.mark.parametrize("initial", [1.0, 2.0])
def test_windows_fold_an_initial_value_once(initial: float) -> None:
    """As XLA does, also where borders cut elements off and windows have holes."""
    x = np.random.default_rng(0).standard_normal((3, 6, 6)).astype(np.float32)

    def program(x: jax.Array) -> tuple[jax.Array, ...]:
        return tuple(
            lax.reduce_window(
                x,
                np.float32(initial),
                op,
                (1, 2, 3),
                (1, 2, 1),
                [(0, 0), (-1, 2), (1, 0)],
                base_dilation=(1, 2, 1),
                window_dilation=(1, 1, 2),
            )
            for op in (lax.add, lax.mul)
        )

    oracle = Oracle(program, [x], False, False)
    found = [np.asarray(r) for r in jax.jit(program)(x)]
    assert not judge(found, oracle.types, oracle.run(3, 0)).differences
    assert len(judge([r * 2 for r in found], oracle.types, oracle.run(3, 0)).differences) == 2


def test_complex_numbers_are_judged_part_by_part() -> None:
    x = np.array([3.0, 1e30], np.float32)
    oracle = Oracle(lambda x: (lax.complex(x, -x) * 3j,), [x], False, False)
    right = np.asarray(x * 3 + 3j * x, np.complex64)
    for ours, is_wrong in ((right, False), (right.conj(), True), (right * np.nan, True)):
        assert bool(judge([ours], oracle.types, oracle.run(3, 0)).differences) == is_wrong


@pytest.mark.parametrize(
    "function",
    [
        jnp.linalg.inv,
        jnp.linalg.qr,
        jnp.linalg.eigvalsh,
        lax.linalg.lu,
        lambda x: jnp.fft.fft(x),
        lambda x: jnp.linalg.solve(x, x[:, :2]),
        lambda x: jnp.linalg.cholesky(x @ x.T),
    ],
)
def test_what_libraries_compute_is_known_to_its_conditioning(function: Callable) -> None:
    x = np.random.default_rng(0).standard_normal((6, 6)).astype(np.float32)

    def program(x: jax.Array) -> list[jax.Array]:
        return jax.tree.leaves(function(x))

    oracle = Oracle(program, [x], False, False)
    reference = oracle.run(24, 0)
    found = [np.asarray(r) for r in jax.jit(program)(x)]
    assert not judge(found, oracle.types, reference).differences
    judged = judge(
        [r + r // 7 if r.dtype == np.int32 else r * (1 + 1e-3) for r in found],
        oracle.types,
        reference,
    )
    assert judged.differences and not judged.undetermined


def test_sorts_by_several_keys_are_those_of_xla() -> None:
    x = np.random.default_rng(0).integers(-2, 3, (5, 40)).astype(np.float32)
    x[0, ::3], x[1, ::4] = np.nan, -0.0

    def program(x: jax.Array) -> tuple[jax.Array, ...]:
        place = lax.broadcasted_iota(np.int32, x.shape, 1)
        return *lax.sort((x > 0, x, x[::-1], place), dimension=1, num_keys=3), jnp.sort(
            lax.complex(x, x[::-1])
        )

    oracle = Oracle(program, [x], False, False)
    found = [np.asarray(r) for r in jax.jit(program)(x)]
    assert not judge(found, oracle.types, oracle.run(0, 0)).differences


def test_modules_have_open_extents_where_that_goes() -> None:
    seen: list[bool] = []

    def noting(function: Callable, args: Sequence[jax.Array]) -> jax.export.Exported:
        module = exported(function, args)
        seen.append(ways.is_open(module))
        return module

    exported = ways.exported
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fuzzing.ways.exported", noting)
        for seed in range(6):
            program = generate(seed).replace(mode="module")
            outcome = outcome_of(
                program, partial(hlo_mlc.mlc_jit, choose="ours"), lambda stage: None
            )
            assert outcome.kind in ("right", "void"), outcome
    assert set(seen) == {True, False}


def test_functions_of_complex_numbers_are_not_exact() -> None:
    x = np.array([3 + 4j, -2j], np.complex64)
    oracle = Oracle(lambda x: (jnp.abs(x), jnp.sqrt(x), x * x), [x], False, True)
    found = [np.nextafter(np.abs(x), np.float32(9)), np.sqrt(x) * np.float32(1 + 1e-7), x * x]
    assert not judge(found, oracle.types, oracle.run(24, 0)).differences
    found[2] = found[2] * np.float32(1 + 1e-7)
    assert judge(found, oracle.types, oracle.run(24, 0)).differences


def test_what_a_library_leaves_of_zero_may_be_nothing() -> None:
    """A quotient of it is a number or not, where the sums of a transform cancel."""
    x = np.array([0, 1, 0, 2, -3, 0, 0, 0, 1, 2, 0, 0, 0, 0, 5], np.float32)

    def program(x: jax.Array) -> tuple[jax.Array]:
        there_and_back = jnp.fft.irfft(jnp.fft.rfft(x) * 2, n=x.size)
        return (there_and_back / there_and_back,)

    oracle = Oracle(program, [x], False, True)
    reference = oracle.run(24, 0)
    found = np.where(x == 0, np.nan, np.float32(1))
    assert not judge([found], oracle.types, reference).differences
    for wrong in (found * 2, np.where(x == 2, np.nan, np.float32(1))):
        assert judge([wrong], oracle.types, reference).differences


def test_floats_without_infinity_have_nan_beyond_their_range() -> None:
    x = np.array([1e3, 400, np.inf, 2.0], np.float32)
    oracle = Oracle(
        lambda x: [x.astype(t).astype("float32") for t in ("float8_e4m3fn", "float8_e5m2")],
        [x],
        False,
        False,
    )
    without, with_infinity = oracle.run(3, 0).exact
    assert np.isnan(without[[0, 2]]).all() and np.isfinite(without[[1, 3]]).all()
    assert np.isinf(with_infinity).tolist() == [False, False, True, False]


@pytest.mark.parametrize("dtype", ["int4", "uint4"])
def test_integers_of_half_a_byte_are_those_of_xla(dtype: str) -> None:
    x = np.arange(-8, 8, dtype=np.int32)

    def program(x: jax.Array, y: jax.Array) -> list[jax.Array]:
        p, q = x.astype(dtype), y.astype(dtype)
        found = (p + q, -p, ~q, p << 1, jnp.sort(q), p.max(), q[::-1])
        looped = lax.scan(lambda c, r: (c + r, c), p[:1], q[:, None])[0]
        return [v.astype("int32") for v in (*found, p.argmin(), p > q, looped)]

    oracle = Oracle(program, [x, x * 5], False, False)
    exact = oracle.run(0, 0).exact
    for ours, theirs in zip(exact, jax.jit(program)(x, x * 5), strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_windows_that_stick_out_are_dropped_as_a_whole() -> None:
    """As XLA does, and the specification does not."""
    dims = lax.ScatterDimensionNumbers((1,), (), (0,))

    def program(x: jax.Array, n: jax.Array) -> tuple[jax.Array]:
        return (lax.scatter_add(x, n, jnp.ones((2, 3)), dims, mode="fill"),)

    args = [np.zeros(5, np.float32), np.array([[1], [3]], np.int32)]
    (exact,) = Oracle(program, args, False, False).run(0, 0).exact
    assert exact.tolist() == [0, 1, 1, 1, 0]


PLACES = lax.ScatterDimensionNumbers((1,), (0,), (0,))


@pytest.mark.parametrize(
    ("apply", "dtype"),
    [(lax.neg, "float32"), (lax.bitwise_not, "int8"), (lambda q: q * 3, "int32")],
)
def test_what_scatters_apply_is_known(apply: Callable, dtype: str) -> None:
    """Twice where two places are equal, not at all beyond the end."""

    def program(x: jax.Array, n: jax.Array) -> tuple[jax.Array]:
        return (lax.scatter_apply(x, n, apply, PLACES, update_shape=(4, 3), mode="fill"),)

    args = [np.arange(9).reshape(3, 3).astype(dtype), np.array([[1], [2], [2], [3]], np.int32)]
    (exact,) = Oracle(program, args, False, False).run(0, 0).exact
    np.testing.assert_array_equal(exact, jax.jit(program)(*args)[0])


def test_what_scatters_subtract_is_as_uncertain_as_a_sum() -> None:
    """Of what is subtracted from its equal something may be left, of the size of either."""

    def program(x: jax.Array, n: jax.Array) -> tuple[jax.Array]:
        return (lax.scatter_sub(x, n, jnp.full((2, 3), 0.1), PLACES),)

    args = [np.full((3, 3), 0.2, np.float32), np.array([[1], [1]], np.int32)]
    oracle = Oracle(program, args, False, False)
    found = np.full((3, 3), 0.2, np.float32)
    found[1] = 2e-8
    reference = oracle.run(24, 0)
    assert not judge([found], oracle.types, reference).differences
    found[1] = 1e-6
    assert judge([found], oracle.types, reference).differences


@pytest.mark.parametrize("text", OF_COMPLEX)
def test_functions_of_complex_numbers_are_known(text: str) -> None:
    program = eval(f"lambda x, y: {text.format(x='x', y='y', a=0)}", {"lax": lax})
    rng = np.random.default_rng(0)
    args = [(rng.normal(size=7) + 1j * rng.normal(size=7)).astype("complex64") for _ in "xy"]
    (exact,) = Oracle(program, args, False, False).run(0, 0).exact
    np.testing.assert_allclose(jax.jit(program)(*args), exact, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("text", (*OF_OTHERS, *OF_OTHERS_MATRICES))
@pytest.mark.parametrize("is_mapped", [False, True], ids=["alone", "mapped"])
def test_ops_that_jax_has_no_function_for_are_known(text: str, is_mapped: bool) -> None:
    program = eval(
        f"lambda x, y: {text.format(x='x', y='y', m='x')}", {"foreign": foreign, "jnp": jnp}
    )
    if is_mapped:
        program = jax.vmap(program)
    x = np.random.default_rng(0).normal(size=(3, 4, 4)).astype("float32") + 8 * np.eye(
        4, dtype="f4"
    )
    args = [(x + x.mT) / 2, np.where(x > 0, x, 0)]
    (exact,) = Oracle(program, args, False, False).run(0, 0).exact
    np.testing.assert_allclose(jax.jit(program)(*args), exact, rtol=1e-4, atol=1e-5)


def test_ops_of_programs_are_counted() -> None:
    """Those of what stands inside of others as well, and what a library is called for."""

    def with_family(name: str) -> int:
        return next(s for s in range(999) if any(t.family == name for t in generate(s).steps))

    loop, solve = with_family("while_two"), with_family("matrices")
    assert {"stablehlo.while", "stablehlo.add", "func.func"} <= ops_of(loop).keys()
    assert programs_with([loop, loop])["stablehlo.while"] == 2
    assert any(name.startswith("lapack.") for name in ops_of(solve))


def test_every_mode_is_judged() -> None:
    """Of one program, which is right in each, by our compiler."""
    inputs = tuple(Operand(name, "float32", (3, 5)) for name in "ab")
    steps = (
        Step("binary", ("a", "b"), (2, 3), ("v2",)),
        Step("reduction", ("v2",), (0, 2, 99), ("v3",)),
    )
    plain = Program(7, inputs, steps, ("v3", "v2", "v3"), "plain", (0, 0, 0), "normal", False)
    kernel = partial(hlo_mlc.mlc_jit, choose="ours")
    for mode in MODES:
        for numbers in ((0, 0, 0), (1, 3, 1), (0, 3, 2)):
            if mode in ("vmap", "jvp") or not any(numbers):
                outcome = outcome_of(
                    plain.replace(mode=mode, mode_numbers=numbers), kernel, lambda stage: None
                )
                assert outcome.kind == "right", (mode, numbers, outcome)
