"""A team tunes out of one database: PostgreSQL where its programs are installed, SQLite always."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import optuna
import pytest
from click.testing import CliRunner
from optuna.storages._rdb.models import TrialModel
from optuna.trial import TrialState

from hlo_mlc import mlc_jit
from hlo_mlc.cli import cluster as cluster_of_dask
from hlo_mlc.cli import main
from hlo_mlc.runtime.records import Records
from hlo_mlc.support.errors import UsageError
from hlo_mlc.tuning import shared, storage, workers
from hlo_mlc.tuning.messages import Failed
from hlo_mlc.tuning.shared import SharedKernel
from hlo_mlc.tuning.space import Parameter, Space
from hlo_mlc.tuning.storage import open_database, shown
from hlo_mlc.tuning.study import KernelStudy

LIMIT_S = 600.0  # of what hangs: the two that tune took 170 s among twenty busy processes
X = np.linspace(-1, 1, 64 * 32, dtype=np.float32).reshape(64, 32)
SMALL = Space((Parameter(0, "a", "x", (1, 2, 4), 2),))


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """A database that nobody has used."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path}/studies.db"
        return
    programs = [os.environ["PATH"], *map(str, Path("/usr/lib/postgresql").glob("*/bin"))]  # Debian
    initdb, pg_ctl = (
        shutil.which(name, path=os.pathsep.join(programs)) for name in ("initdb", "pg_ctl")
    )
    if initdb is None or pg_ctl is None:
        pytest.skip("PostgreSQL is not installed (Debian: postgresql)")
    if importlib.util.find_spec("psycopg") is None:
        pytest.skip("psycopg, by which PostgreSQL is reached, is not installed")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    # Not below pytest's own folder, which every run of pytest closes for others.
    folder = Path(tempfile.mkdtemp(prefix="hlo_mlc_postgresql_"))
    user = None
    if os.geteuid() == 0:  # which its server refuses to run as
        user = "postgres"
        shutil.chown(folder, user)

    def run(*command: str) -> None:
        subprocess.run(
            command, check=True, user=user, cwd=folder, stdout=subprocess.DEVNULL, timeout=LIMIT_S
        )

    data = str(folder / "data")
    run(initdb, "--pgdata", data, "--username", "team", "--auth", "trust", "--no-sync")
    options = f"-c listen_addresses=127.0.0.1 -p {port} -k {folder} -c fsync=off"
    run(
        pg_ctl,
        "start",
        "--wait",
        "--pgdata",
        data,
        "--options",
        options,
        "--log",
        str(folder / "log"),
    )
    try:
        yield f"postgresql://team@127.0.0.1:{port}/postgres"
    finally:
        run(pg_ctl, "stop", "--pgdata", data, "--mode", "immediate")
        shutil.rmtree(folder)


@pytest.fixture(autouse=True)
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HLO_MLC_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HLO_MLC_CHOOSE", "ours")


def test_a_kernel_travels_to_others(url: str, tmp_path: Path) -> None:
    """Who has only the database tunes the same kernel, and has a record of its own of it."""
    (kernel,) = mlc_jit(lambda x: x @ x.T + 1).tune(X, trials=3, storage=url).kernels
    elsewhere = tmp_path / "elsewhere"
    command = ["worker", "--storage", url, "--until-done"]
    ran = CliRunner().invoke(main, command, env={"HLO_MLC_CACHE": str(elsewhere)})
    assert ran.exit_code == 0 and "3 configurations known" in ran.output, ran.output
    (record,) = Records(elsewhere / "records").all()
    assert (record.kernel, record.target) == (kernel.record.kernel, kernel.record.target)
    # There is nothing left to do, and nothing was measured twice.
    again = CliRunner().invoke(main, command, env={"HLO_MLC_CACHE": str(elsewhere)})
    assert again.exit_code == 0
    assert again.output == "nothing is left to do for this kind of machine\n"
    (name,) = optuna.get_all_study_names(open_database(url))
    study = optuna.load_study(study_name=name, storage=open_database(url))
    assert len(study.trials) == 3


def test_workers_share_the_trials_of_a_kernel(url: str, tmp_path: Path) -> None:
    (tmp_path / "my_model.py").write_text(
        "import jax, jax.numpy as jnp\ndef product(x):\n    return x @ x.T + 1\n"
        "product.example_args = (jax.ShapeDtypeStruct((64, 32), jnp.float32),)\n"
    )
    program = [sys.executable, "-P", "-c", "from hlo_mlc.cli import main; main()"]
    trials = 8

    def start(*command: str, cache: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [*program, *command, "--storage", url],
            cwd=tmp_path,
            text=True,
            env=os.environ | {"HLO_MLC_CACHE": str(tmp_path / cache)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )

    mlc_jit(lambda x: x @ x.T + 1).tune(X, trials=1, storage=url)
    processes = [
        start("tune", "my_model:product", "--trials", str(trials), cache="a"),
        start("tune", "my_model:product", "--trials", str(trials), cache="b"),
    ]
    for process in processes:
        output, _ = process.communicate(timeout=LIMIT_S)
        assert process.returncode == 0, output
    (name,) = optuna.get_all_study_names(open_database(url))
    told = {
        tuple(sorted(trial.params.items()))
        for trial in optuna.load_study(study_name=name, storage=open_database(url)).trials
        if trial.state in (TrialState.COMPLETE, TrialState.PRUNED)
    }
    # Who takes some at the same moment does not know of each other's.
    at_once = min(len(os.sched_getaffinity(0)), workers._MOST)
    assert trials <= len(told) <= trials + len(processes) * at_once
    kernels = {
        record.kernel for cache in "ab" for record in Records(tmp_path / cache / "records").all()
    }
    assert len(kernels) == 1


HOLDING = """
import sys, time
from hlo_mlc.tuning import storage
from hlo_mlc.tuning.space import Parameter, Space
from hlo_mlc.tuning.study import KernelStudy
storage.HEARTBEAT_S, storage.GRACE_S = 1, 2
space = Space((Parameter(0, "a", "x", (1, 2, 4), 2),))
study = KernelStudy(storage.open_database(sys.argv[1]), "k", space)
trial = study.next()
with study.lease(trial):
    print(trial.handle.number, flush=True)
    time.sleep(1000)
"""


def test_a_killed_worker_loses_its_trial_only(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storage, "HEARTBEAT_S", 1)
    monkeypatch.setattr(storage, "GRACE_S", 2)
    ours = KernelStudy(open_database(url), "k", SMALL)

    def state(number: int) -> TrialState:
        ours._read()  # as each step does, which looks for trials that nobody has
        (name,) = optuna.get_all_study_names(open_database(url))
        return optuna.load_study(study_name=name, storage=open_database(url)).trials[number].state

    with subprocess.Popen(
        [sys.executable, "-P", "-c", HOLDING, url], stdout=subprocess.PIPE, text=True
    ) as process:
        number = int(process.stdout.readline())
        trial = ours.next()
        assert trial.configuration != SMALL.default  # which the other one has
        ours.abandon(trial)
        time.sleep(2 * storage.GRACE_S)
        assert state(number) is TrialState.RUNNING
        process.send_signal(signal.SIGKILL)
    end = time.monotonic() + LIMIT_S
    while state(number) is TrialState.RUNNING:
        assert time.monotonic() < end
        time.sleep(0.1)
    assert state(number) is TrialState.FAIL
    configurations = [ours.next().configuration for _ in range(3)]
    assert SMALL.default in configurations


def test_nobody_takes_the_trial_of_another(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """However long it takes from reading that nobody has a trial to writing that one has it."""
    study = optuna.create_study(storage=open_database(url), study_name="k")
    for number in range(3):
        study.enqueue_trial({"x": number})
    find = TrialModel.find_or_raise_by_id

    def find_slowly(*arguments: object, **options: object) -> TrialModel:
        found = find(*arguments, **options)
        time.sleep(0.2)
        return found

    monkeypatch.setattr(TrialModel, "find_or_raise_by_id", find_slowly)

    def take(_: int) -> int:
        return optuna.load_study(study_name="k", storage=open_database(url)).ask().number

    with ThreadPoolExecutor(3) as threads:
        assert sorted(threads.map(take, range(3))) == [0, 1, 2]


def test_who_ended_a_trial_first_is_believed(url: str) -> None:
    ours = KernelStudy(open_database(url), "k", SMALL)
    trials = ours.batch(2)
    (name,) = optuna.get_all_study_names(open_database(url))
    others = optuna.load_study(study_name=name, storage=open_database(url))
    for trial in trials:
        others.tell(trial.handle.number, 1.0)
    ours.abandon(trials[0])
    ours.tell(trials[1], Failed("too slow"), "")
    assert [trial.value for trial in others.trials] == [1.0, 1.0]


def test_modules_of_any_size_travel_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared, "_PIECE", 100)
    module = np.random.default_rng(0).bytes(5000)
    kernel = SharedKernel("k", "cpu", module, "main", "ours", False, 7)
    attributes = kernel.attributes()
    assert len(attributes) > 50 and SharedKernel.read({**attributes, "other": 1}) == kernel
    del attributes[next(reversed(attributes))]
    assert SharedKernel.read(attributes) is None
    monkeypatch.setattr(shared, "_LARGEST_BYTES", 1000)
    with pytest.raises(UsageError, match="as arguments"):
        kernel.attributes()


@pytest.mark.parametrize("url", ["nothing://x/y", "sqlite:////nowhere/at/all.db"])
def test_a_database_that_is_none(url: str) -> None:
    ran = CliRunner().invoke(main, ["worker", "--storage", url, "--until-done"])
    assert ran.exit_code == 2 and f"The studies in {url} cannot be opened" in ran.output
    assert "as postgresql://USER@HOST/NAME" in ran.output and "Background" not in ran.output


def test_a_worker_that_finds_nothing_says_so(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/studies.db"
    ran = CliRunner().invoke(main, ["worker", "--storage", url, "--until-done"])
    assert ran.exit_code == 0 and "nothing is left to do for this kind of machine" in ran.output


def test_passwords_are_not_shown() -> None:
    assert shown("postgresql://me:secret@host/db") == "postgresql://host/db"
    assert shown(Path("/tmp/a@b")) == "/tmp/a@b"


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[str]:
    """The scheduler of a cluster with two workers on one machine, whose cache is `elsewhere`."""
    distributed = pytest.importorskip("distributed", reason="Dask is not installed")
    environment = {"HLO_MLC_CACHE": str(tmp_path / "elsewhere"), "HLO_MLC_CHOOSE": "ours"}
    with distributed.LocalCluster(
        n_workers=2,
        threads_per_worker=1,
        dashboard_address=None,
        local_directory=str(tmp_path),
        env=environment,
    ) as found:
        yield found.scheduler_address


def on_dask(scheduler: str, url: str, *more: str) -> list[str]:
    return ["worker", "--storage", url, "--engine", "dask", "--scheduler", scheduler, *more]


def test_a_cluster_takes_trials(cluster: str, tmp_path: Path) -> None:
    """One worker for each machine, as if it had been started there."""
    url = f"sqlite:///{tmp_path}/studies.db"
    (kernel,) = mlc_jit(lambda x: x @ x.T + 1).tune(X, trials=3, storage=url).kernels
    ran = CliRunner().invoke(main, on_dask(cluster, url, "--until-done"))
    assert ran.exit_code == 0 and ran.output.count("ended with status 0") == 1, ran.output
    assert "3 configurations known" in ran.output
    (record,) = Records(tmp_path / "elsewhere" / "records").all()
    assert (record.kernel, record.target) == (kernel.record.kernel, kernel.record.target)
    failed = CliRunner().invoke(main, on_dask(cluster, "nothing://x/y", "--until-done"))
    assert failed.exit_code == 2 and "ended with status 2" in failed.output
    assert "The studies in nothing://x/y cannot be opened" in failed.output


def test_an_interrupt_ends_the_workers_of_a_cluster(cluster: str, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/studies.db"
    open_database(url)
    program = (
        "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "from hlo_mlc.cli import main; main()"
    )
    process = subprocess.Popen(
        [sys.executable, "-P", "-c", program, *on_dask(cluster, url)],
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        end = time.monotonic() + LIMIT_S
        while not running(url):
            assert process.poll() is None and time.monotonic() < end
            time.sleep(0.1)
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=LIMIT_S)
    finally:
        process.kill()
    assert process.returncode == 130 and "the workers have ended" in said
    assert not running(url)


def running(url: str) -> list[str]:
    """The workers of clusters that use a database."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            words = path.read_bytes().decode(errors="replace").split("\0")
            if url in words and "worker" in words and "--engine" not in words:
                found.append(path.parent.name)
    return found


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--scheduler", "tcp://127.0.0.1:1"], "--scheduler is for --engine dask"),
        (["--engine", "dask"], "say which cluster by --scheduler"),
        (
            ["--engine", "dask", "--scheduler", "tcp://127.0.0.1:1"],
            "there is no scheduler at tcp://",
        ),
        (["--engine", "ray"], "Invalid value for '--engine': 'ray'"),
    ],
)
def test_clusters_that_are_none(
    options: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if options != ["--engine", "ray"]:
        pytest.importorskip("distributed", reason="Dask is not installed")
    monkeypatch.setattr(cluster_of_dask, "_CONNECT_S", 1)
    ran = CliRunner().invoke(main, ["worker", "--storage", "sqlite:///x.db", *options])
    assert ran.exit_code == 2 and message in ran.output, ran.output


def test_dask_is_an_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "distributed", None)
    ran = CliRunner().invoke(main, on_dask("tcp://127.0.0.1:1", "sqlite:///x.db"))
    assert ran.exit_code == 2 and "pip install 'hlo-mlc[cluster]'" in ran.output
