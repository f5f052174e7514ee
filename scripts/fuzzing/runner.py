"""Runs programs in worker processes, which may die or hang, and keeps what was found."""

from __future__ import annotations

import itertools
import json
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, fields, replace
from pathlib import Path

from fuzzing.generator import generate
from fuzzing.ledger import Entry, Ledger, Setting
from fuzzing.program import Program
from fuzzing.reference import PLAIN_XLA
from fuzzing.script import script
from fuzzing.shrinker import shrink
from fuzzing.worker import Outcome

SCRIPTS = Path(__file__).resolve().parent.parent
RESTART_AFTER = 60
"""Programs to a process: compiled functions stay in its memory."""
START_SECONDS = 120.0
CANDIDATE_SECONDS = 15.0  # for a smaller version of a program: most take one second
SEEDS_APART = 1_000_003  # programs of one seed are numbered below this
FAST_XLA = (
    "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true "
    "--xla_force_host_platform_device_count=1"
)
"""What XLA compiles is not what is looked for: LLVM takes most of its time."""
ALLOCATOR = {"MALLOC_CHECK_": "3", "MALLOC_PERTURB_": "165"}
"""glibc checks every block when it is freed and fills what is fresh or freed.  Source: mallopt(3).
"""
GPU = "gpu"  # as a target: that of this machine
ALLOCATOR_LIBRARY = "libc_malloc_debug.so.0"  # where glibc 2.34 and later have these checks


@dataclass(frozen=True, slots=True)
class Limits:
    """Seconds for one program, and for making a faulty one small."""

    program: float = 30.0
    shrinking: float = 120.0


class Worker:
    """One process at a time that judges programs; another takes its place when it dies."""

    def __init__(self, setting: Setting, limit: float) -> None:
        self._setting, self._limit = setting, limit
        self._process: subprocess.Popen | None = None
        self._answered = 0
        self._buffer = b""
        self._scratch = tempfile.TemporaryDirectory(prefix="hlo_mlc_fuzz_")
        self._errors = Path(self._scratch.name) / "errors.txt"

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *exception: object) -> None:
        self.stop()
        self._scratch.cleanup()

    def ask(self, program: Program | int) -> tuple[Outcome, Program | None]:
        """What becomes of a program, or of that of a seed."""
        if self._process is None or self._answered >= RESTART_AFTER:
            self._start()
        request = {"seed": program} if isinstance(program, int) else {"program": program.to_json()}
        self._answered += 1
        try:
            self._process.stdin.write((json.dumps(request) + "\n").encode())
            self._process.stdin.flush()
        except BrokenPipeError:
            pass  # how it ended is said below
        given = None if isinstance(program, int) else program
        stage, end = "start", time.monotonic() + self._limit
        while True:
            answer = self._line(end)
            if answer is None:
                outcome = self._ended(stage, time.monotonic() >= end)
                return outcome, given
            if "stage" in answer:
                stage = answer["stage"]
                continue
            names = {f.name for f in fields(Outcome)}
            return (
                Outcome(**{k: v for k, v in answer.items() if k in names}),
                Program.from_json(answer["program"]),
            )

    def stop(self) -> None:
        """End the process."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process.stdin.close()
            self._process.stdout.close()
        self._process, self._buffer = None, b""

    def _start(self) -> None:
        self.stop()
        self._answered = 0
        with self._errors.open("wb") as errors:
            self._process = subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "fuzzing.worker",
                    "--kernel",
                    self._setting.kernel,
                    "--choose",
                    self._setting.choose,
                ],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                env=environment(self._setting, self._scratch.name),
            )
        if self._line(time.monotonic() + START_SECONDS) is None:
            said = self._errors.read_text(errors="replace")[-2000:]
            raise RuntimeError(f"the worker process does not start: {said}")

    def _line(self, end: float) -> dict | None:
        """The next answer; None if the process died or the time is over."""
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            while b"\n" not in self._buffer:
                if not selector.select(max(0.0, end - time.monotonic())):
                    return None
                read = os.read(self._process.stdout.fileno(), 1 << 16)
                if not read:
                    return None
                self._buffer += read
        line, _, self._buffer = self._buffer.partition(b"\n")
        return json.loads(line)

    def _ended(self, stage: str, is_late: bool) -> Outcome:
        """How a process ended that did not answer."""
        if is_late:
            self.stop()
            kind, detail = "hang", f"no result after {self._limit:.0f} s"
        else:
            code = self._process.wait()
            self.stop()
            said = self._errors.read_text(errors="replace").strip().splitlines()[-3:]
            name = signal.Signals(-code).name if code < 0 else f"status {code}"
            kind, detail = "crash", f"{name}: {' | '.join(said)}"
        if stage in ("generator", "reference", "xla"):
            return Outcome("void", f"{kind} while the {stage} was at work: {detail}"[:500])
        return Outcome(kind, detail[:2000])


def environment(setting: Setting, scratch: str) -> dict[str, str]:
    """Of a worker: no options from outside, a cache of its own, checks by the allocator."""
    kept = {
        k: v for k, v in os.environ.items() if not k.startswith("HLO_MLC_") or k == "HLO_MLC_CHECK"
    }
    paths = [str(SCRIPTS), *filter(None, [os.environ.get("PYTHONPATH")])]
    ours = {
        "PYTHONPATH": os.pathsep.join(paths),
        "HLO_MLC_CACHE": f"{scratch}/cache",
        "HLO_MLC_CALIBRATE": "0",
        "HLO_MLC_SETTLE": "0",
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": f"{PLAIN_XLA} {FAST_XLA}",
        "LD_PRELOAD": ALLOCATOR_LIBRARY,
        **ALLOCATOR,
    }
    if setting.target == GPU:
        on_gpu = {
            "JAX_PLATFORMS": "cuda,cpu",
            "XLA_FLAGS": PLAIN_XLA,
            "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
        }  # for several processes
        return {
            k: v
            for k, v in (kept | ours | on_gpu).items()
            if k != "LD_PRELOAD" and k not in ALLOCATOR
        }
    if setting.target != "cpu":
        ours["HLO_MLC_TARGET"] = setting.target
    return kept | ours


class Runner:
    """Judges the programs of a seed, several processes side by side."""

    def __init__(
        self,
        setting: Setting,
        ledger: Ledger,
        limits: Limits,
        told: Callable[[Entry, Outcome, Path | None], None],
    ) -> None:
        """`told(entry, outcome, script)` hears of every program."""
        self._setting, self._ledger, self._limits, self._told = setting, ledger, limits, told
        self._lock = threading.Lock()

    def run(self, seed: int, jobs: int, is_over: Callable[[int], bool], resume: bool) -> None:
        """Programs of the seed, until `is_over` of how many have been begun."""
        done = self._ledger.done(self._setting, seed) if resume else set()
        numbers = (n for n in itertools.count() if n not in done)
        begun = itertools.count()
        stopped = threading.Event()

        def work() -> None:
            with Worker(self._setting, self._limits.program) as worker:
                while True:
                    with self._lock:
                        if stopped.is_set() or is_over(next(begun)):
                            return
                        number = next(numbers)
                    self._judge(worker, seed, number)

        with ThreadPoolExecutor(jobs) as pool:
            try:
                for future in as_completed(pool.submit(work) for _ in range(jobs)):
                    future.result()
            finally:  # one that failed, or an interrupt, ends the others
                stopped.set()

    def _judge(self, worker: Worker, seed: int, number: int) -> None:
        outcome, program = worker.ask(program_seed(seed, number))
        path = None
        if outcome.is_fault:
            outcome, path = self._confirmed(worker, outcome, program, seed, number)
        entry = Entry(
            self._setting,
            seed,
            number,
            outcome.kind,
            program.mode if program else "",
            outcome.undetermined,
            outcome.elements,
            outcome.detail[:300],
        )
        with self._lock:
            self._ledger.add(entry)
            self._told(entry, outcome, path)

    def _confirmed(
        self, worker: Worker, outcome: Outcome, program: Program | None, seed: int, number: int
    ) -> tuple[Outcome, Path | None]:
        """A fault that is not XLA's as well, with the smallest program that has it."""
        if program is None:  # the process died before it said what it was about
            program = generate(program_seed(seed, number))
        if outcome.kind in ("crash", "hang"):
            alone = replace(self._setting, kernel="fuzzing.worker:xla")
            with Worker(alone, self._limits.program) as other:
                if other.ask(program)[0].kind in (outcome.kind, "void"):
                    return replace(outcome, kind="shared"), None
        kind = outcome.kind

        with Worker(self._setting, min(self._limits.program, CANDIDATE_SECONDS)) as other:

            def is_faulty(candidate: Program) -> bool:
                return other.ask(candidate)[0].kind == kind

            small = shrink(program, is_faulty, self._limits.shrinking)
            again = other.ask(small)[0]
        text = script(small, again if again.kind == kind else outcome, self._setting)
        name = f"{kind}-{self._setting.choose}-{seed}-{number}"
        return outcome, self._ledger.keep(name, text)


def program_seed(seed: int, number: int) -> int:
    """The seed of one program."""
    return seed * SEEDS_APART + number
