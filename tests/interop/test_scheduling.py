"""`fn.schedule`: chains of primitives by hand are right or refused, and pinned ones are what runs;
`records=`: kernels are built by one file alone."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from click.testing import CliRunner

from hlo_mlc import mlc_jit
from hlo_mlc.backends.cpu import cpu_backend, target_of
from hlo_mlc.building import rebuild_kernel
from hlo_mlc.cli import main
from hlo_mlc.interop.scheduling import KernelSchedule
from hlo_mlc.interop.staged import forget
from hlo_mlc.runtime.records import OURS, Measured, Record, open_records
from hlo_mlc.schedule.core import PRIMITIVES, Step
from hlo_mlc.schedule.splitting import TAILS
from hlo_mlc.support.errors import CodegenError, ConfigurationError, ScheduleError, UsageError
from hlo_mlc.support.options import Options

X = np.random.default_rng(0).integers(-9, 9, (13, 37)).astype(np.float32)


def smallest(x: jax.Array) -> jax.Array:
    """A nest whose accumulators lie along the rows of what it reads."""
    return (x[:, :, None] + x.T[None]).min(1)


def place(x: jax.Array) -> jax.Array:
    """The row of the first of the largest elements, in an order that matters."""
    x = x[:, ::2]
    row = jax.lax.broadcasted_iota(jnp.int32, x.shape, 0)
    return jax.lax.reduce(
        (x, row),
        (jnp.array(-99, x.dtype), jnp.int32(0)),
        lambda a, b: tuple(jnp.where(b[0] > a[0], q, p) for p, q in zip(a, b, strict=True)),
        (0, 1),
    )[1]


FUNCTIONS: dict[str, Callable[[jax.Array], jax.Array]] = {
    "map": lambda x: jnp.abs(x[1:, ::-1]) * 2 + x[:-1],
    "columns": lambda x: (x * x).sum(0),
    "rows": lambda x: x.max(1) - x.sum(1),
    "places": lambda x: jnp.argmax(x, 0),
    "place": place,
    "product": lambda x: x @ x.T + 1,
    "triples": smallest,
    "cumulative": lambda x: jnp.cumsum(x, 1),
    "update": lambda x: jnp.zeros(5, x.dtype).at[x[:, 1].astype(int) % 5].add(x[:, 0]),
}


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HLO_MLC_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    return tmp_path / "cache"


def schedule_of(function: Callable, x: np.ndarray, **options: object) -> KernelSchedule:
    """The schedule of the function's only kernel, of its last nest."""
    ours = mlc_jit(function, choose="ours", **options)
    report = ours.report(x)
    assert report.coverage == 1.0
    (kernel,) = report.kernels
    return ours.schedule(kernel.name, x, nest=len(kernel.nests) - 1)


def drawn(s: KernelSchedule, rng: np.random.Generator) -> Step:
    """Any primitive with arguments of its kinds, legal or not."""
    name = str(rng.choice(list(PRIMITIVES)))
    program = s.schedule.program
    loops = [*s.schedule.loop_names, "none"]
    buffers = [b.name for b in (*program.operands, *program.results)]
    first, second = (str(rng.choice(loops)) for _ in range(2))
    buffer, number = str(rng.choice(buffers)), int(rng.integers(1, 9))
    arguments = {
        "split": (first, number, str(rng.choice(TAILS))),
        "fuse": (first, second),
        "fuse_loops": (first, second),
        "distribute": (first, second),
        "fuse_first": (first, second, str(rng.choice(loops))),
        "hoist": (first, second),
        "reorder": ((first, second),),
        "bind": (first, "block"),
        "rfactor": (first, number, 2),
        "cascade": (number + 1,),
        "contract": (buffer,),
        "specialize": (first, second),
        "expand": (first, "register", number, str(rng.choice(["first", "last"]))),
        "cache_read": (buffer, first, str(rng.choice(["rows", "loops"]))),
        "stream": (buffer,),
        "cache_write": (buffer, first, str(rng.choice(["rows", "transposed"]))),
        "prefetch": (buffer, first, number),
        "prefetch_next": (buffer, (first,), second),
        "fuse_last": (first, (second,)),
        "pad": (buffer, number),
        "atomic": (buffer,),
        "transform_layout": (buffer, (number,), ("0",)),
        "set_apart": (first, number // 2, number),
        "cut": (first, number),
        "rename": (first, second, f"{second}.again"),
        "coalesce": (buffer,),
        "persist": (first, number),
        "jam": ((first,), *((second, number % 3) if number > 4 else ())),
        "fold_apart": (first, str(rng.choice(["", second]))),
        "add_loops": (("t",), (number,), first),
        "inline": (buffer,),
        "replicate": (buffer, (first,)),
    }
    return Step(name, arguments.get(name, (first,)))


@pytest.mark.parametrize("dtype", ["float32", "float64", "int32", "int64"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_chains_at_random(name: str, dtype: str) -> None:
    rng = np.random.default_rng([*name.encode(), *dtype.encode()])
    with jax.enable_x64(True):
        x = X.astype(dtype)
        start = schedule_of(FUNCTIONS[name], x).with_steps(())
        expected = np.asarray(jax.jit(FUNCTIONS[name])(x))
        refused = 0
        for length in (4, 9):
            s = start
            while len(s.steps) < length and refused < 300:
                step = drawn(s, rng)
                try:
                    s = getattr(s, step.name)(
                        *(step.arguments[0] if step.name == "reorder" else step.arguments)
                    )
                except ScheduleError:
                    refused += 1
            assert len(s.steps) >= 3
            try:
                (result,) = s.run()
            except CodegenError as error:
                assert "on the stack" in str(error)
                continue
            np.testing.assert_allclose(result, expected, rtol=1e-6, err_msg=str(s))
        assert refused


def test_it_begins_with_what_the_template_does() -> None:
    s = schedule_of(FUNCTIONS["columns"], X)
    assert [step.name for step in s.steps][:3] == ["split", "specialize", "expand"]
    assert s.with_steps(s.steps[:1]).steps == s.steps[:1]
    assert str(s.with_steps(())).splitlines()[1:] == [
        "kernel nest(a0: 13x37xf32) -> (r0: 37xf32)",
        "  for i0 in 0..37:",
        "    alloc s0.i2: f32 register:",
        "      s0.i2[] = 0.0:f32",
        "      for i1 in 0..13:",
        "        s0.i2[] <- add a0[i1, i0] * a0[i1, i0]",
        "      r0[i0] = s0.i2[]",
    ]
    assert s.history.count("kernel nest(") == len(s.steps) + 1
    assert {*PRIMITIVES, "run", "steps"} <= {*dir(s)}
    assert s.split.__doc__ == s.schedule.split.__doc__


def test_the_costliest_nest_unless_another_is_named() -> None:
    ours = mlc_jit(lambda x: jnp.zeros(5).at[jnp.arange(13) % 5].add(x[:, 0]), choose="ours")
    (kernel,) = ours.report(X).kernels
    nests = [ours.schedule(kernel.name, X, nest=n) for n in range(len(kernel.nests))]
    assert len(nests) == 3 == len({str(s.schedule) for s in nests})
    assert ours.schedule(kernel.id, X).nest == 0
    assert ours.schedule(f"elem…@{kernel.name.partition('@')[2]}", X).name == kernel.name
    with pytest.raises(UsageError, match="has no nest 3: it has 3 nests"):
        ours.schedule(kernel.name, X, nest=3)
    with pytest.raises(UsageError, match=r"takes the name of a kernel first, .*, got "):
        ours.schedule(X)
    with pytest.raises(UsageError, match=r"no kernel 'scater'.*; there are: elementwise\+scatter@"):
        ours.schedule("scater", X)


@pytest.mark.parametrize(
    ("function", "attempt", "reason"),
    [
        (FUNCTIONS["columns"], lambda s: s.parallel("i1"), "parallel: .*s0.i2"),
        (FUNCTIONS["update"], lambda s: s.parallel("i0"), "parallel: "),
        (FUNCTIONS["cumulative"], lambda s: s.reorder("i1", "i0"), "reorder: "),
        (
            FUNCTIONS["map"],
            lambda s: s.fuse("i0", "i1").vectorize("i0.i1"),
            "vectorize: .*split it",
        ),
        (
            FUNCTIONS["places"],
            lambda s: s.vectorize("i1"),
            "vectorize: .*does not commute; rfactor",
        ),
        (FUNCTIONS["place"], lambda s: s.reorder("i1", "i0"), "reorder: .*would change the order"),
        (FUNCTIONS["map"], lambda s: s.unroll("i9"), "no loop is called 'i9'"),
        (FUNCTIONS["map"], lambda s: s.bind("i0", "block"), "for GPUs"),
    ],
    ids=["fold", "update", "scan", "long", "ties", "order", "unknown", "gpu"],
)
def test_what_would_change_the_meaning_is_refused(function, attempt, reason) -> None:
    s = schedule_of(function, X).with_steps(())
    with pytest.raises(ScheduleError, match=reason):
        attempt(s)


def test_private_buffers_have_to_fit_a_stack() -> None:
    s = schedule_of(lambda x: x.sum(), np.zeros((600, 4000), np.float32)).with_steps(())
    (loop,) = s.schedule.loop_names
    s = s.rfactor(loop, 8, 20_000)
    with pytest.raises(CodegenError, match=r"Expected at most .* bytes on the stack"):
        s.run()
    with pytest.raises(ScheduleError, match=r"Expected at most .* bytes on the stack"):
        s.pin()
    assert open_records(Options.from_environment()).all() == []


def test_it_is_held_against_f64() -> None:
    s = schedule_of(FUNCTIONS["columns"], X)
    checked = s.check()
    assert checked.is_right and [k.name for k in checked.kernels] == ["by hand", "default"]
    assert all(kernel.exact_known and kernel.given for kernel in checked.kernels)


def test_without_arrays_operands_are_made_up() -> None:
    s = schedule_of(FUNCTIONS["rows"], jax.ShapeDtypeStruct(X.shape, X.dtype))
    assert not s.check(runs=1).kernels[0].given

    def halving(x: jax.Array) -> jax.Array:
        return jax.lax.while_loop(lambda v: jnp.any(jnp.abs(v) > 1), lambda v: v / 2, x)

    s = schedule_of(halving, jax.ShapeDtypeStruct(X.shape, X.dtype))
    for attempt in (s.run, s.measure):
        with pytest.raises(UsageError, match="give arrays for arguments"):
            attempt()


SCRIPT = """
import jax.numpy as jnp, numpy as np
from hlo_mlc import mlc_jit

@mlc_jit
def smallest(x):
    return (x[:, :, None] + x.T[None]).min(1)

x = np.load("x.npy")
np.save("y.npy", smallest(x))
(kernel,) = smallest.report(x).kernels
print(kernel.by_hand, "|", kernel.reason, "|", smallest.explain(x))
"""


def tiled(s: KernelSchedule) -> KernelSchedule:
    """The naive loops of `smallest`, with a tile of accumulators."""
    return (
        s.with_steps(())
        .split("i0", 4)
        .split("i1", 8)
        .expand("i1.i", "register")
        .distribute("i1.i", "i2")
        .reorder("i2", "i1.i")
        .vectorize("i1.i")
    )


def test_what_is_pinned_is_run_in_every_process(tmp_path: Path) -> None:
    ours = mlc_jit(smallest, choose="ours")
    (kernel,) = ours.report(X).kernels
    before = np.asarray(ours(X))
    s = tiled(ours.schedule(kernel.name, X))
    record = s.pin()
    assert record.by_hand and record.measured.ours_us > 0
    np.testing.assert_array_equal(ours(X), before)
    assert ours.report(X).kernels[0].nests[0].steps == tuple(map(str, s.steps))
    assert "scheduled by hand: 6 steps, " in ours.report(X).explain()
    assert "\n        scheduled by hand: 6 steps; " in str(ours.explain(X))
    again = ours.schedule(kernel.name, X)
    assert again.steps == s.steps, "one goes on where one was"
    np.save(tmp_path / "x.npy", X)
    (tmp_path / "script.py").write_text(SCRIPT)
    said = subprocess.run(
        [sys.executable, "script.py"], cwd=tmp_path, capture_output=True, text=True, check=True
    ).stdout
    assert said.startswith("scheduled by hand: 6 steps | scheduled by hand | ")
    assert said.count("scheduled by hand: 6 steps") == 2
    np.testing.assert_array_equal(np.load(tmp_path / "y.npy"), before)
    listed = CliRunner().invoke(main, ["records", "list"]).output
    assert "by hand(split('i0', 4); split('i1', 8)" in listed
    again.unpin()
    assert ours.report(X).kernels[0].by_hand == ""
    assert "0 records" in CliRunner().invoke(main, ["records", "list"]).output


def test_tuning_leaves_alone_what_is_pinned() -> None:
    ours = mlc_jit(smallest, choose="ours")
    s = tiled(ours.schedule(ours.report(X).kernels[0].name, X))
    record = s.pin()
    (kernel,) = ours.tune(X, trials=1).kernels
    assert "scheduled by hand" in kernel.reason
    faster = replace(record, schedules={}, measured=Measured(9.0, 1.0, 9.0))
    records = open_records(Options.from_environment())
    assert records.put(faster, replaces=record) == record
    slower = s.with_steps(s.steps[:2]).pin()
    assert records.all() == [slower]


def record_of(s: KernelSchedule, *steps: Step) -> Record:
    target = target_of(Options.from_environment())
    return Record(
        s.place.alone.cluster.kernel.fingerprint,
        target.key,
        {s.nest: (s.template, steps)},
        Measured(2.0, 1.0, 2.0),
        OURS,
        name=s.name,
    )


@pytest.mark.parametrize(
    ("step", "reason"),
    [
        (Step("split", ("gone", 4)), "no loop is called 'gone'"),
        (Step("weave", ("i0",)), "no schedule primitive is called 'weave'"),
        (Step("split", ("i0",)), "missing a required argument: 'factor'"),
        (Step("parallel", ("i2",)), "parallel: "),
    ],
    ids=["loop", "primitive", "argument", "illegal"],
)
def test_what_no_longer_applies_is_reported_once(step: Step, reason: str) -> None:
    s = schedule_of(smallest, X)
    kernel, options = s.place.alone.cluster.kernel, Options.from_environment()
    open_records(options).put(record_of(s, step))
    with pytest.warns(RuntimeWarning, match=f"not be followed .*{reason}.* gets the default"):
        rebuild_kernel(kernel, options, cpu_backend(options))
    rebuild_kernel(kernel, options, cpu_backend(options))  # a warning would be an error
    forget()
    ours = mlc_jit(smallest, choose="ours")
    np.testing.assert_array_equal(ours(X), smallest(X))
    assert ours.report(X).kernels[0].by_hand == "" and ours.report(X).kernels[0].tuned is None


def test_a_damaged_record_is_reported(cache: Path) -> None:
    s = schedule_of(smallest, X)
    tiled(s).pin()
    (path,) = (cache / "records").glob("*/*.json")
    path.write_text(path.read_text().replace('"i1"', '"i0"', 1))
    forget()
    ours = mlc_jit(smallest, choose="ours")
    with pytest.warns(RuntimeWarning, match="its digest does not match"):
        np.testing.assert_array_equal(ours(X), smallest(X))
    assert ours.report(X).kernels[0].by_hand == ""


# `records=`


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> str:
    """What was pinned elsewhere, as text: once, for a process has to start and time it."""
    folder = tmp_path_factory.mktemp("elsewhere")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HLO_MLC_CACHE", str(folder / "cache"))
        tiled(schedule_of(smallest, X)).pin()
        ran = CliRunner().invoke(main, ["records", "export", str(folder / "lock.json")])
    assert ran.exit_code == 0, ran.output
    return (folder / "lock.json").read_text()


@pytest.fixture
def lock(exported: str, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The same as a file, which another cache knows nothing of."""
    monkeypatch.setenv("HLO_MLC_CACHE", str(tmp_path / "another"))
    forget()
    path = tmp_path / "lock.json"
    path.write_text(exported)
    return path


@pytest.mark.parametrize("way", ["argument", "variable"])
def test_kernels_are_built_by_the_file_alone(
    lock: Path, tmp_path: Path, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if way == "variable":
        monkeypatch.setenv("HLO_MLC_RECORDS", str(lock))
    pinned = mlc_jit(smallest, records="lock.json" if way == "argument" else None)
    np.testing.assert_array_equal(pinned(X), smallest(X))
    (kernel,) = pinned.report(X).kernels
    assert kernel.by_hand == "scheduled by hand: 6 steps"
    others = mlc_jit(lambda x: x * 2, choose="ours", records=lock)
    assert others.report(X).kernels[0].tuned is None
    monkeypatch.delenv("HLO_MLC_RECORDS", raising=False)
    if way == "argument":
        assert mlc_jit(smallest, choose="ours").report(X).kernels[0].by_hand == ""
    written = {path.name for path in (tmp_path / "another").iterdir()}
    assert not any(name.startswith(("records", "choices", "rates")) for name in written)


def test_what_is_recorded_here_has_no_say(lock: Path) -> None:
    tiled(schedule_of(smallest, X)).split("i0.o", 2).pin()
    pinned = mlc_jit(smallest, choose="ours", records=lock)
    assert len(pinned.report(X).kernels[0].nests[0].steps) == 6
    s = pinned.schedule(pinned.report(X).kernels[0].name, X)
    for attempt in (s.pin, s.unpin, lambda: pinned.tune(X, trials=1)):
        with pytest.raises(UsageError, match="kernels are built by this file alone"):
            attempt()


def damaged(text: str) -> str:
    return text.replace('"i1"', '"i0"', 1)


def of_another_machine(text: str) -> str:
    return text.replace(target_of(Options.from_environment()).key, "z80-1-abc")


def redone(change: Callable[[str], str], path: Path) -> None:
    """The file as it were if that had been recorded."""
    records = open_records(Options.from_environment())
    for record in json.loads(change(path.read_text()))["records"]:
        record.pop("digest")
        ways = {
            int(n): (way["template"], tuple(map(Step.from_json, way["steps"])))
            for n, way in record.pop("schedules").items()
        }
        records.put(Record(schedules=ways, measured=Measured(**record.pop("measured")), **record))
    path.write_text(records.export_text())


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda path: path.unlink(), "lock.json cannot be read: No such file"),
        (lambda path: path.write_text("{"), "lock.json cannot be followed"),
        (
            lambda path: path.write_text(damaged(path.read_text())),
            r"record 0, min@test_scheduling.py:\d+: its digest does not match",
        ),
        (lambda path: redone(of_another_machine, path), "are for z80-1-abc, and this is "),
        (
            lambda path: redone(lambda t: t.replace('"vectorize"', '"weave"'), path),
            "this version does not have weave",
        ),
    ],
    ids=["missing", "no records", "damaged", "another machine", "unknown"],
)
def test_a_file_that_cannot_be_followed(
    lock: Path, change: Callable[[Path], None], reason: str
) -> None:
    change(lock)
    with pytest.raises(ConfigurationError, match=reason):
        mlc_jit(smallest, records=lock)


@pytest.mark.parametrize("choose", ["auto", "ours"])
def test_a_schedule_that_cannot_be_followed(lock: Path, choose: str) -> None:
    redone(lambda text: text.replace('"vectorize"', '"parallel"'), lock)
    pinned = mlc_jit(smallest, choose=choose, records=lock)
    with pytest.raises(ConfigurationError, match=r"The schedule of min@.* cannot be followed \("):
        pinned(X)


def test_options_that_contradict_a_file(lock: Path) -> None:
    for others in ({"choose": "measure"}, {"deterministic": True}):
        with pytest.raises(UsageError, match="contradict each other"):
            mlc_jit(smallest, records=lock, **others)
