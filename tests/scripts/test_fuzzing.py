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
from fuzzing.generator import MOST_ELEMENTS_LARGE, MOST_STEPS_LARGEST, generate
from fuzzing.ledger import JUDGED, Entry, Ledger, Setting
from fuzzing.modes import MODES
from fuzzing.program import Operand, Program, Step, identity, load, source
from fuzzing.reference import Oracle
from fuzzing.refusing import refusing
from fuzzing.runner import Limits, Runner, Worker, program_seed
from fuzzing.shrinker import candidates, fits, shrink, without_unread
from fuzzing.vocabulary import ops_of, programs_with
from fuzzing.worker import Outcome, are_same, arguments, outcome_of

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
    families, modes, of_largest = Counter(), Counter(), []
    for seed in range(240):
        program = generate(seed)
        if any(i.size > MOST_ELEMENTS_LARGE for i in program.inputs):
            of_largest.append(program)
        families.update(step.family for step in program.steps)
        modes[program.mode] += 1
        assert len(program.steps) <= 40
        assert Program.from_json(program.to_json()) == program
        with jax.enable_x64(program.x64):
            text = source(program, text_of(program))
        compile(text, "program", "exec")
    assert families.keys() == FAMILIES.keys()
    assert modes.keys() == MODES.keys()
    assert of_largest and all(len(p.steps) <= MOST_STEPS_LARGEST for p in of_largest)


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
    fuzz.main([*run, "--jobs", "1", "--programs", "1", "--seed", str(seed), "--resume"])
    assert Ledger(tmp_path).done(setting, seed) == set(range(5))


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


def test_a_printed_program_runs(capsys, tmp_path) -> None:
    assert fuzz.main(["--show", "0:4", "--choose", "ours"]) == 0
    path = tmp_path / "shown.py"
    path.write_text(capsys.readouterr().out)
    told = subprocess.run([sys.executable, path], capture_output=True, text=True, check=True)
    program = generate(program_seed(0, 4))
    with jax.enable_x64(program.x64):  # its mode says how many of its outputs are results
        shown = load(source(program, text_of(program)), identity)
        results = len(jax.tree.leaves(jax.eval_shape(shown, *arguments(program))))
    assert told.stdout.count("same") == results


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
                results = jax.tree.leaves(jax.eval_shape(load(text, identity), *arguments(program)))
            except NotImplementedError:  # a derivative that JAX does not have
                continue
        seen.add(program.mode)
        assert len(results) >= 1, text
    assert len(seen) >= 8


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


def test_modules_have_no_open_extents_that_others_do_not_fit() -> None:
    """JAX traces this with a letter, which only 2 may stand for."""
    x = np.ones((1, 2), np.float32)
    assert ways.is_open(ways.exported(lambda x: jnp.stack([x, x], 1), [x]))
    assert not ways.is_open(ways.exported(lambda x: jnp.stack([x, x], 1).reshape(2, 2), [x]))


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
